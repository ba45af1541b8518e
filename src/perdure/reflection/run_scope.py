"""What a run is about: the sessions of an agent, and which of their turns are new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from perdure.core.clock import SECOND
from perdure.core.levels import Level
from perdure.history.log_records import Head, SessionRecord, agent_of
from perdure.reflection.reflection_records import ReflectionCursor, ReflectionRun, SessionSpan
from perdure.reflection.view import SMOOTH_TURNS, ViewedTurn, gather
from perdure.services import Services
from perdure.sessions.session_info import existing_session
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

_MINUTE = 60 * SECOND


class RunScope(msgspec.Struct, frozen=True):
    """Sessions of an agent, with their heads as they are now, and what of them is to be read."""

    agent: str
    sessions: Mapping[str, tuple[SessionRecord, Head]]
    spans: tuple[SessionSpan, ...]
    #: The last turn of each session that a run has read before.
    read: Mapping[str, int] = {}
    #: All of it is read once more; what does not fit into a run, by the next one.
    again: bool = False


async def find_scope(
    store: Store,
    agent: str,
    *,
    session: str | None = None,
    idle: float | None = None,
    again: bool = False,
) -> RunScope:
    """The sessions of an agent, or that one, and their closed turns that no run has read; with
    `again`, all of them. `idle` leaves out what was written to in the last so many minutes. What
    was said last comes last.
    """
    if session is not None:
        records = [await existing_session(store, session)]
        agent = agent_of(session)
    else:
        query = store.collection(SessionRecord).query().where("agent", "=", agent)
        records = await query.order_by("key").values()
    names = [record.id for record in records]
    heads = await store.collection(Head).get_many(names)
    cursors = await store.collection(ReflectionCursor).get_many(names)
    sessions, spans = dict[str, tuple[SessionRecord, Head]](), list[SessionSpan]()
    for record, head, cursor in zip(records, heads, cursors, strict=True):
        if head is None or not head.turn:
            continue
        sessions[record.id] = record, head
        read = 0 if cursor is None or again else cursor.turn
        first, last = max(read, record.forked_at) + 1, _last_closed(head)
        is_busy = idle is not None and store.now() - head.time < idle * _MINUTE
        if first <= last and not is_busy:
            spans.append(SessionSpan(record.id, first, last))
    read_before = {each.id: max(each.turn, each.newest) for each in cursors if each is not None}
    spans.sort(key=lambda span: (sessions[span.session][1].said, span.session))
    return RunScope(agent, sessions, tuple(spans), read_before, again)


async def read_again(transaction: Transaction, scope: RunScope) -> None:
    """Nothing of these sessions counts as read: what this run does not hold, the next one reads."""
    cursors = transaction.collection(ReflectionCursor)
    for span in scope.spans:
        former = await cursors.get(span.session) or ReflectionCursor(span.session)
        newest = max(former.newest, former.turn)
        await cursors.put(replace(former, turn=span.first - 1, tries=0, newest=newest))


def as_of(run: ReflectionRun, scope: RunScope) -> RunScope:
    """What a run that was begun is about."""
    sessions = {name: scope.sessions[name] for name in run.sessions if name in scope.sessions}
    spans = tuple(span for span in run.spans if span.session in sessions)  # others are forgotten
    return replace(scope, sessions=sessions, spans=spans)


def _last_closed(head: Head) -> int:
    is_over = head.closed or head.mark.closed or head.mark.fresh
    return head.turn if is_over and not head.answering else head.turn - 1


async def span_view(
    services: Services, scope: RunScope, span: SessionSpan, most: int
) -> list[ViewedTurn]:
    """The turns of a span, in order: the last ten at S, those before at C, and at T what would be
    more than so many tokens.
    """
    record, head = scope.sessions[span.session]
    numbers = range(span.first, span.last + 1)
    levels: Sequence[tuple[Level, Sequence[int]]] = (
        ("S", numbers[-SMOOTH_TURNS:]),
        ("C", numbers[:-SMOOTH_TURNS]),
    )
    found, left = list[ViewedTurn](), most
    for level, some in levels:
        for turn in reversed(await gather(services, record, head, some, level)):
            left -= turn.tokens
            found.append(turn)
            if left < 0:
                break
        if left < 0:
            break
    if left < 0:
        found.pop()
        read = {turn.number for turn in found}
        rest = [number for number in numbers if number not in read]
        found += reversed(await gather(services, record, head, rest, "T"))
    return found[::-1]
