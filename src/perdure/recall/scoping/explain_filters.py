"""Sessions and agents that a filter names: whether they are there, and whether they may be seen.

A name that nobody has is a mistake, and is refused with those that may have been meant: only such
that the one who asks may see. One that may not be seen is none: nothing is found, as always, and a
note says why. That is for people and programs; a model is not told which of both it is (`sees`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

import msgspec

from perdure.core.clock import SECOND, to_datetime
from perdure.core.display import did_you_mean, plural
from perdure.core.errors import Corrupted, InvalidInput
from perdure.history.log_records import SessionRecord, agent_of
from perdure.recall.memory_records import Memory
from perdure.recall.scoping.filters import wanted_tags
from perdure.recall.scoping.scope import Scopes
from perdure.recall.sharing import Sharing
from perdure.recall.values import Filters, Hit, Question
from perdure.storage.store import Store

#: Names that a mistaken one is compared with.
_COMPARED = 5_000


class Names:
    """Looks names up in a store."""

    def __init__(self, store: Store, scopes: Scopes) -> None:
        self._records = store.collection(SessionRecord)
        self._memories = store.collection(Memory)
        self._sharing = Sharing(store)
        self._scopes = scopes

    async def check(self, question: Question) -> None:
        """Raises `InvalidInput` if the filters name a session or an agent that is not there."""
        for session in question.filters.sessions:
            if not await self._is_session(session):
                near = did_you_mean(session, await self._seen(question.record))
                raise InvalidInput(
                    f"There is no session {session!r}.",
                    hint=near or _unlike(session, question.record),
                )
        for agent in question.filters.agents:
            if not await self._is_agent(agent):
                seen = await self._seen(question.record)
                near = did_you_mean(agent, {agent_of(name) for name in seen})
                if "/" in agent:
                    near = "Name an agent, no session."
                raise InvalidInput(
                    f"There is no agent {agent!r}.",
                    hint=near or _unlike(agent, question.record),
                )

    async def unseen(self, question: Question) -> list[str]:
        """Why nothing of the named ones can be found, for each that may not be seen."""
        asks, filters = question.record, question.filters
        notes = list[str]()
        for session in filters.sessions:
            if await self._shows(question, Filters(sessions=(session,))):
                continue
            if agent_of(session) != asks.agent:
                notes.append(f"{session} is not shared with {asks.agent}.")
            elif not question.wide and await self.sees(question, session, wide=True):
                notes.append(f"{session} left the line of {asks.id}: only a wide search sees it.")
        for agent in filters.agents:
            if agent != asks.agent and not await self._shows(question, Filters(agents=(agent,))):
                notes.append(f"Nothing of {agent} is shared with {asks.agent}.")
        return notes

    async def sees(self, question: Question, session: str, *, wide: bool = False) -> bool:
        """Whether anything of a session may be seen. Not, if there is no such session."""
        asked = msgspec.structs.replace(question, wide=question.wide or wide)
        return await self._shows(asked, Filters(sessions=(session,)))

    async def _shows(self, question: Question, filters: Filters) -> bool:
        scope = await self._scopes.of(msgspec.structs.replace(question, filters=filters))
        return bool(scope.ranges)

    async def _is_session(self, name: str) -> bool:
        with suppress(InvalidInput):
            agent_of(name)
            try:
                return await self._records.get(name) is not None
            except Corrupted:  # its agent's keys were destroyed
                return True
        return False

    async def _is_agent(self, name: str) -> bool:
        if not name or "/" in name:
            return False
        return (
            await self._records.query().prefix(f"{name}/").exists()
            or await self._memories.query().where("agent", "=", name).exists()
        )

    async def _seen(self, record: SessionRecord) -> list[str]:
        """The sessions of its agent, and those that are shared with it."""
        own = self._records.query().prefix(f"{record.agent}/").limit(_COMPARED)
        shared = await self._sharing.sessions_for(record.agent)
        return [*(each.id for each in await own.values()), *shared[:_COMPARED]]


def _unlike(name: str, record: SessionRecord) -> str:
    return f"None that {record.agent} sees is like {name}; `perdure sessions` lists all there are."


#: Values that a note lists.
_LISTED = 5
_KINDS = {"turn": "turns", "memory": "memories", "reference": "reference layers"}
#: A hit that meets the filter, but came along with better ones: alone it is no answer.
_FAR = "What meets this filter is too far from what is asked for."
_TOGETHER = "Some hits meet one of these filters, but none meets all of them."
_DAY, _MINUTE = "%Y-%m-%d", "%Y-%m-%d %H:%M"


def loosened(filters: Filters) -> list[Filters]:
    """Filters that ask for less and less: no tools and tags; no roles either; nothing."""
    steps = [filters, _without_tags(filters), _without_roles(filters), Filters()]
    return [step for before, step in pairwise(steps) if step != before]


def missed(
    filters: Filters, loose: Filters, hits: Sequence[Hit], record: SessionRecord
) -> list[str]:
    """Why these hits, which a session found with looser filters, are not found with these.

    A sentence for each filter that none of them meets; one in all, if each is met by some.
    """
    is_one = _count(filters) - _count(loose) == 1
    without = "this filter" if is_one else "these filters"
    none = f"Of {plural(len(hits), 'hit')} without {without} none"
    unmet = [*_tools(filters, hits), *_tags(filters, hits)]
    if filters.roles and loose == _without_roles(filters):  # with the roles there was nothing
        unmet.append(
            f"has the words in what {' or '.join(f'the {who}' for who in filters.roles)} said"
        )
    if loose == Filters():
        unmet += [*_kinds(filters, hits), *_origins(filters, hits, record), *_times(filters, hits)]
    return [f"{none} {each}." for each in unmet] or [_FAR if is_one else _TOGETHER]


def _without_tags(filters: Filters) -> Filters:
    return msgspec.structs.replace(filters, tools=(), branch="", task="", outcome="", tags={})


def _without_roles(filters: Filters) -> Filters:
    return msgspec.structs.replace(_without_tags(filters), roles=())


def _count(filters: Filters) -> int:
    """How many there are; each tag is one."""
    given, nothing = msgspec.structs.asdict(filters), msgspec.structs.asdict(Filters())
    del given["tags"]
    return len(filters.tags) + sum(bool(given[name] != nothing[name]) for name in given)


# What none of the hits is -----------------------------------------------------------------------


def _tools(filters: Filters, hits: Sequence[Hit]) -> Iterator[str]:
    used = {tool for hit in hits for tool in hit.tools}
    if filters.tools and used.isdisjoint(filters.tools):
        others = f"; they called {_some(used)}" if used else " or any other"
        yield f"called {' or '.join(filters.tools)}{others}"


def _tags(filters: Filters, hits: Sequence[Hit]) -> Iterator[str]:
    for name, value in wanted_tags(filters).items():
        there = {hit.tags[name] for hit in hits if name in hit.tags}
        if value not in there:
            others = f"; there is {_some(map(repr, there))}" if there else " or any other"
            yield f"has {name} {value!r}{others}"


def _kinds(filters: Filters, hits: Sequence[Hit]) -> Iterator[str]:
    there = {hit.kind for hit in hits}
    if filters.kinds and there.isdisjoint(filters.kinds):
        yield f"is a {' or '.join(filters.kinds)}; they are {_some(_KINDS[kind] for kind in there)}"


def _origins(filters: Filters, hits: Sequence[Hit], record: SessionRecord) -> Iterator[str]:
    """Of which session, or whose: what is of one of either passes. Layers are nobody's."""
    sessions = {_session(hit, record) for hit in hits if hit.turn}
    others = f"; there is {_some(sessions)}" if sessions else ""
    if filters.line and not any(hit.turn and "#" not in hit.turn for hit in hits):
        yield f"is of this session's line{others}"
    agents = {agent_of(name) for name in sessions}
    agents |= {hit.key.rpartition("/")[0] or record.agent for hit in hits if hit.kind == "memory"}
    named = (*filters.agents, *filters.sessions)
    if named and agents.isdisjoint(filters.agents) and sessions.isdisjoint(filters.sessions):
        yield f"is of {' or '.join(named)}{others}"


def _session(hit: Hit, record: SessionRecord) -> str:
    return hit.turn.rpartition("#")[0] or record.id


def _times(filters: Filters, hits: Sequence[Hit]) -> Iterator[str]:
    """By the second, as they are compared."""
    since, until = filters.since, filters.until
    newest, oldest = max(hit.time for hit in hits), min(hit.time for hit in hits)
    if since is not None and newest // SECOND < since // SECOND:
        form = _form(since)
        yield f"is since {_date(since, form)}; the newest of them is of {_date(newest, form)}"
    if until is not None and oldest // SECOND > until // SECOND:
        form = _form(until + 1)
        yield f"is until {_date(until, form)}; the oldest of them is of {_date(oldest, form)}"


def _form(moment: int) -> str:
    """To the day, where a day begins."""
    local = to_datetime(moment).astimezone()
    return _DAY if (local.hour, local.minute, local.second) == (0, 0, 0) else _MINUTE


def _date(moment: int, form: str) -> str:
    return to_datetime(moment).astimezone().strftime(form)


def _some(values: Iterable[str]) -> str:
    listed = sorted(values)
    return ", ".join(listed[:_LISTED]) + (", …" if len(listed) > _LISTED else "")
