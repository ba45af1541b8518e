"""Reads what is new in the turn logs of many sessions, whoever wrote it.

Nothing is written for it: a session's `last_active` is at most a minute behind its newest turn, so
an index tells which sessions may have something new, and their heads tell whether they do.
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core import clock
from perdure.history.log_records import AnswerDraft, Head, SessionRecord, TurnPiece, turn_key
from perdure.history.turn_log import TOUCH_AFTER
from perdure.storage.store import Store

#: Microseconds by which the clocks of processes may differ, and a commit take.
SLACK = 60 * clock.SECOND
#: Pieces of a session that are read at once. Who is further behind reads its turns by the API.
MOST_PIECES = 2_000
_PAGE = 128
_BEHIND = "~"  # Sorts behind every key of a turn.


class LogReader:
    """Reads heads, pieces and drafts."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sessions = store.collection(SessionRecord)
        self._heads = store.collection(Head)
        self._pieces = store.collection(TurnPiece)
        self._drafts = store.collection(AnswerDraft)

    async def active(self, since: int, agent: str = "", most: int | None = None) -> list[str]:
        """Sessions that may have been written to since a moment (microseconds)."""
        moment = clock.to_datetime(max(since - TOUCH_AFTER - SLACK, 0))
        found: list[str] = []
        for field in ("last_active", "archived"):  # the first is empty once it is archived
            query = self._sessions.query().where(field, ">=", moment)
            if agent:
                query = query.where("agent", "=", agent)
            if most is not None:
                query = query.limit(most)
            found += [record.id for record in await query.values()]
        return found

    async def heads(self, names: Iterable[str]) -> dict[str, Head]:
        wanted = list(names)
        found = await self._heads.get_many(wanted)
        return {name: head for name, head in zip(wanted, found, strict=True) if head is not None}

    async def drafts(self, wanted: list[tuple[str, int]]) -> dict[tuple[str, int], AnswerDraft]:
        found = await self._drafts.get_many([turn_key(*each) for each in wanted])
        return {each: draft for each, draft in zip(wanted, found, strict=True) if draft is not None}

    async def pieces(self, session: str, after: int, head: Head) -> list[TurnPiece]:
        """Those behind a number, in order: all, or the newest of too many."""
        found: list[TurnPiece] = []
        wanted, prefix = min(head.pieces - after, MOST_PIECES), f"{session}/"
        # A few more than wanted: a turn that was overtaken is completed behind its successors.
        start, limit = prefix + _BEHIND, min(_PAGE, wanted + 8)
        while len(found) < wanted:
            page = await self._pieces.behind(start, prefix, limit=limit, descending=True)
            found += [piece for piece in page if after < piece.number <= head.pieces]
            if not page:
                break
            start, limit = page[-1].id, _PAGE
        found.sort(key=lambda piece: piece.number)
        return found[-wanted:] if wanted > 0 else []

    async def written_before(self, session: str, head: Head, moment: int) -> int:
        """The number of the newest piece that was written before a moment (microseconds)."""
        if head.time < moment:
            return head.pieces
        finder = self._pieces.query().prefix(f"{session}/").order_by("-id").limit(_PAGE)
        after, first = None, head.pieces + 1
        while True:
            page = await finder.page(after=after)
            old = [each.value.number for each in page.items if each.created_us < moment]
            if old:
                return max(old)
            first = min([first, *(each.value.number for each in page.items)])
            after = page.next
            if after is None:
                return first - 1
