"""Reads turns: by number, newest first, by time, by tag; along the line of a fork.

A turn is put together from its pieces, its counts, and the draft of an answer that is arriving.
Memory is bounded by the turns asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import groupby
from operator import attrgetter

import msgspec

from perdure.core.errors import Corrupted, InvalidInput, NotFound
from perdure.core.messages import Message
from perdure.core.turns import ConversationState, Position, Round, Status, Turn, TurnSplitter
from perdure.history.log_records import (
    AnswerDraft,
    Head,
    Owned,
    SessionRecord,
    TurnCount,
    TurnPiece,
    owners,
    turn_key,
    turn_prefix,
)
from perdure.storage.finder import QueryBuilder
from perdure.storage.query import AnyOf, Compare, Op
from perdure.storage.record_keys import numbered
from perdure.storage.store import Store

_TURN = attrgetter("turn")
_STEP = 50  # Turns read at once when a whole line is walked.
_NEAR = 20  # Turns in front of a fork that are looked at for late pieces.
_ROWS = 128  # Rows of a range that are asked for at once.
_BEHIND = "~"  # Sorts behind every key of a turn.
_LAST = 10**8 - 2  # The largest number that a key can hold, less one.


class TurnReader:
    """Reads the turns of any session in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pieces = store.collection(TurnPiece)
        self._totals = store.collection(TurnCount)
        self._drafts = store.collection(AnswerDraft)

    async def turns(
        self,
        record: SessionRecord,
        head: Head,
        first: int,
        last: int,
        *,
        counted: bool = True,
        arriving: bool = True,
    ) -> list[Turn]:
        """The turns from `first` to `last` that exist, oldest first, undone ones included. Leaves
        out what was written after `head` and, without `arriving`, incomplete answers.
        """
        found: list[Turn] = []
        now = self._store.now()
        for owned in owners(record, max(first, 1), min(last, head.newest)):
            pieces = await self.pieces(_as_of(owned, record, head))
            counts = await self._counts(owned) if counted else {}
            drafts = await self._arriving(record, head, owned) if arriving else {}
            for number, of_turn in groupby(pieces, _TURN):
                found.append(
                    _turn(
                        record.id,
                        head,
                        number,
                        list(of_turn),
                        count=counts.get(number),
                        draft=drafts.pop(number, None),
                        now=now,
                    )
                )
            found += [
                _turn(record.id, head, number, [], count=counts.get(number), draft=draft, now=now)
                for number, draft in drafts.items()
            ]
        return found

    async def holding(
        self, record: SessionRecord, head: Head, first: int, last: int, words: Sequence[bytes]
    ) -> list[int]:
        """Turns that may contain one of some lower-case ASCII words, oldest first. Case does not
        matter. Searches stored bytes, unparsed: a tenth of the time of reading the turns.
        """
        found: dict[int, None] = {}
        for owned in owners(record, max(first, 1), min(last, head.newest)):
            for piece in await self.pieces(_as_of(owned, record, head)):
                content = piece.content.lower()
                if any(word in content for word in words):
                    found[piece.turn] = None
        return list(found)

    async def forgotten(self, record: SessionRecord, head: Head, first: int = 1) -> set[int]:
        """Turns from `first` on that were forgotten, also if they went on afterwards."""
        found = set[int]()
        for owned in owners(record, first, head.newest) if head.forgets else ():
            pieces = await self.pieces(_as_of(owned, record, head))
            found.update(piece.turn for piece in pieces if piece.forgotten)
        return found

    async def turn(self, record: SessionRecord, head: Head, number: int) -> Turn:
        """Raises `InvalidInput` if there is no turn of this number."""
        found = await self.turns(record, head, number, number)
        if not found:
            newest = f"the newest is T-{head.turn}" if head.turn else "it has no turns yet"
            raise NotFound(
                f"{record.id} has no turn T-{number}.", hint=f"Its turns begin at T-1; {newest}."
            )
        return found[0]

    async def walk(
        self,
        record: SessionRecord,
        head: Head,
        first: int = 1,
        last: int | None = None,
        *,
        arriving: bool = True,
    ) -> AsyncIterator[Turn]:
        end = head.newest if last is None else min(last, head.newest)
        while first <= end:
            step = min(first + _STEP - 1, end)
            for turn in await self.turns(record, head, first, step, arriving=arriving):
                yield turn
            first = step + 1

    async def numbers(
        self,
        record: SessionRecord,
        head: Head,
        *,
        limit: int,
        before: int | None = None,
        since: int | None = None,
        until: int | None = None,
        tags: dict[str, str] | None = None,
        undone: bool = False,
    ) -> list[int]:
        end = head.newest if before is None else min(before - 1, head.newest)
        found: list[int] = []
        if since is None and until is None and not tags:
            if undone or not head.undone:
                return list(range(max(end - limit, 0) + 1, end + 1))
            while end > 0 and len(found) < limit:
                if not head.is_undone(end):
                    found.append(end)
                end -= 1
            return found[::-1]
        for owned in reversed(list(owners(record, 1, end))):
            finder = self._openings(owned, since, until, tags or {})
            cursor: str | None = None
            while len(found) < limit:
                page = await finder.page(after=cursor)
                numbers = [piece.turn for piece in page.values]
                found += [n for n in numbers if undone or not head.is_undone(n)]
                cursor = page.next
                if cursor is None:
                    break
        return sorted(found[:limit])

    def _openings(
        self, owned: Owned, since: int | None, until: int | None, tags: dict[str, str]
    ) -> QueryBuilder[TurnPiece]:
        finder = (
            self._pieces.query()
            .where("session", "=", owned.session)
            .where("id", ">=", f"{owned.session}/{numbered(owned.first)}")
            .where("id", "<", f"{owned.session}/{numbered(min(owned.last, _LAST) + 1)}")
            # By number, not by time: a clock may have been set back, and whoever pages on goes by
            # number.
            .order_by("-id")
            .limit(_ROWS)
        )
        if since is not None:
            finder = finder.where("time", ">=", since)
        if until is not None:
            finder = finder.where("time", "<", until)
        return finder.tagged(**tags) if tags else finder

    async def pieces(self, owned: Owned) -> list[TurnPiece]:
        found: list[TurnPiece] = []
        prefix = f"{owned.session}/"
        start = f"{prefix}{numbered(owned.first)}"
        if owned.first == owned.last:  # no rows are read that nobody asked for
            prefix = turn_prefix(owned.session, owned.first)
        end = f"{owned.session}/{numbered(min(owned.last, _LAST) + 1)}"
        while True:
            page = await self._pieces.behind(start, prefix, limit=_ROWS)
            for piece in page:
                if piece.id >= end:
                    return found
                if piece.number <= owned.piece:
                    found.append(piece)
            if len(page) < _ROWS:
                return found
            start = page[-1].id

    async def scattered(self, turns: Iterable[Owned]) -> list[TurnPiece]:
        """The pieces of single turns of any sessions, in one read."""
        last = {turn_prefix(each.session, each.first): each.piece for each in turns}
        wanted = AnyOf(tuple([Compare("key", Op.PREFIX, prefix) for prefix in last]))
        found = await self._pieces.query().where(wanted).order_by("key").values() if last else []
        return [each for each in found if each.number <= last[each.id[: -len(numbered(0))]]]

    async def tokens(self, record: SessionRecord, first: int, last: int) -> int:
        """Raw tokens of turns, as far as they were counted."""
        found = 0
        for owned in owners(record, first, last):
            within = (
                self._totals.query()
                .where("id", ">=", turn_key(owned.session, owned.first))
                .where("id", "<=", turn_key(owned.session, owned.last))
            )
            (sums,) = await within.aggregate(tokens="sum tokens")
            found += sums["tokens"] or 0
        return found

    async def latest(self, record: SessionRecord, count: int) -> list[TurnPiece]:
        prefix = f"{record.id}/"
        end = prefix + _BEHIND
        return await self._pieces.behind(end, prefix, limit=count, descending=True)

    async def chained(self, record: SessionRecord, after: int, head: Head) -> list[TurnPiece]:
        found: list[TurnPiece] = []
        wanted = head.pieces - after
        prefix = f"{record.id}/"
        start = prefix + _BEHIND
        while len(found) < wanted:
            page = await self._pieces.behind(
                start, prefix, limit=min(_ROWS, wanted + 8), descending=True
            )
            found += [piece for piece in page if after < piece.number <= head.pieces]
            if not page:
                break
            start = page[-1].id
        return sorted(found, key=lambda piece: piece.number)

    async def end_of(self, record: SessionRecord, head: Head, turn: int) -> tuple[int, bytes]:
        """The last piece, and its link, up to this turn. Raises `Corrupted` if it is not there."""
        if turn == head.turn:
            return head.pieces, head.link
        if turn == record.forked_at:
            return record.line[-1].piece, record.root
        # A turn that was overtaken may have been completed behind its successors.
        *_, owned = owners(record, max(1, turn - _NEAR), turn)
        pieces = await self.pieces(_as_of(owned, record, head))
        if not pieces:
            raise Corrupted(
                f"T-{turn} of {record.id} is missing.",
                hint="Run `perdure verify`; restore the bank from a backup.",
            )
        last = max(pieces, key=lambda piece: piece.number)
        return last.number, last.link

    async def mark(self, record: SessionRecord, turn: int) -> ConversationState:
        pieces = await self.pieces(Owned(record.id, turn, turn))
        return mark_of(turn, [message for piece in pieces for message in piece.messages()])

    async def draft(self, session: str, turn: int) -> AnswerDraft | None:
        return await self._drafts.get(turn_key(session, turn))

    async def _counts(self, owned: Owned) -> dict[int, TurnCount]:
        start = turn_key(owned.session, owned.first - 1)
        most = owned.last - owned.first + 1
        found = await self._totals.behind(start, f"{owned.session}/", limit=most)
        return {turn: count for count in found if (turn := count.turn) <= owned.last}

    async def _arriving(
        self, record: SessionRecord, head: Head, owned: Owned
    ) -> dict[int, AnswerDraft]:
        """The drafts of these turns; only a session's own turns have any."""
        if owned.session != record.id:
            return {}
        wanted = [turn for turn in head.answering if owned.first <= turn <= owned.last]
        if not wanted:
            return {}
        drafts = await self._drafts.get_many([turn_key(record.id, turn) for turn in wanted])
        return {turn: draft for turn, draft in zip(wanted, drafts, strict=True) if draft}


def _as_of(owned: Owned, record: SessionRecord, head: Head) -> Owned:
    if owned.session != record.id:
        return owned
    return msgspec.structs.replace(owned, piece=head.pieces)


def mark_of(turn: int, messages: Iterable[Message]) -> ConversationState:
    cutter = TurnSplitter(ConversationState(turn - 1))
    for message in messages:
        cutter.feed(message)
    return cutter.mark


def _turn(
    session: str,
    head: Head,
    number: int,
    pieces: Sequence[TurnPiece],
    *,
    count: TurnCount | None,
    draft: AnswerDraft | None,
    now: int,
) -> Turn:
    if len(pieces) == 1 and draft is None:
        (piece,) = pieces  # as almost every turn
        return Turn(
            session=session,
            number=number,
            rounds=_rounds(piece.by_round(), count),
            status=_status(head, number, draft, forgotten=piece.forgotten),
            started=piece.time,
            ended=piece.ended,
            tags=piece.tags,
            masked=piece.masked,
            version=piece.number,
        )
    # Of a turn that went on after it was forgotten, and of one whose number a fork's former parent
    # had used (see `reroot_forks`), tombstones say nothing.
    pieces = [piece for piece in pieces if not piece.forgotten] or pieces
    said: dict[int, list[Message]] = {}
    for piece in pieces:
        for round, messages in piece.by_round():
            said.setdefault(round, []).extend(messages)
    ended = max([piece.ended for piece in pieces], default=0)
    if draft is not None:
        arriving = draft.message
        mark = mark_of(number, [message for messages in said.values() for message in messages])
        cutter = TurnSplitter(mark)
        said.setdefault(cutter.feed(arriving)[1], []).append(arriving)
        ended = max(ended, draft.updated)
    status = _status(head, number, draft, forgotten=bool(pieces) and pieces[0].forgotten)
    return Turn(
        session=session,
        number=number,
        rounds=_rounds([(round, tuple(messages)) for round, messages in said.items()], count),
        status=status,
        started=pieces[0].time if pieces else draft.started if draft else 0,
        ended=ended,
        tags=next((piece.tags for piece in pieces if piece.tags), {}),
        masked=dict(sum((Counter(piece.masked) for piece in pieces), Counter[str]())),
        writer=draft.writer(now) if draft is not None and status == "partial" else None,
        version=max([piece.number for piece in pieces], default=0),
    )


def _rounds(
    said: Iterable[tuple[int, tuple[Message, ...]]], count: TurnCount | None
) -> tuple[Round, ...]:
    counted = () if count is None else count.counted
    found: list[Round] = []
    for round, messages in said:
        known = counted[round - 1] if round <= len(counted) else None
        # Unless others were counted: a fork's parent may have gone on with the round.
        is_known = known is not None and known.messages == len(messages)
        found.append(Round(round, messages, known.tokens if known and is_known else None))
    return tuple(found)


def _status(head: Head, number: int, draft: AnswerDraft | None, *, forgotten: bool) -> Status:
    if forgotten:
        return "forgotten"
    if head.is_undone(number):
        return "undone"
    if draft is not None:
        return "partial"
    if number < head.turn or head.closed or head.mark.closed or head.mark.fresh:
        return "closed"  # if fresh, a fork's last shared turn: nothing goes on with it
    return "open"


def position(text: str | int | Position, record: SessionRecord) -> Position:
    """Raises `InvalidInput` if the text names no position, or one of another session."""
    if isinstance(text, str) and "#" in text:
        session, _, text = text.rpartition("#")
        if session != record.id:
            raise InvalidInput(
                f"{session}#{text} is not a turn of {record.id}.",
                hint=f"Open {session} to read it.",
            )
    return Position.parse(text)
