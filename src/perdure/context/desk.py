"""What the tools of a model, and a session's own methods, do with the past and with the board."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from perdure.context import board as boards
from perdure.context import tools as history_tools
from perdure.context.board import Board, Entry
from perdure.context.composer import Composer, Rooms
from perdure.core.errors import InvalidInput
from perdure.core.levels import Level
from perdure.core.turns import Position
from perdure.history.epochs import Wish
from perdure.history.lines import ENDLESS
from perdure.history.manifest import Place
from perdure.history.records import Head, SessionRecord
from perdure.history.renditions.scribe import Wanted
from perdure.history.searching import Found, search
from perdure.history.shown import Injected
from perdure.history.strategies import Ask
from perdure.history.strategies.gradient import Gradient

#: The session as it stands: its record and its head.
Standing = Callable[[], Awaitable[tuple[SessionRecord, Head]]]


class Rendering(msgspec.Struct, frozen=True):
    """A turn or a round at a level."""

    id: str
    level: Level
    text: str
    tokens: int


class SessionDesk:
    """A `tools.Desk` for one session."""

    def __init__(self, rooms: Rooms, composer: Composer, standing: Standing) -> None:
        self._rooms = rooms
        self._composer = composer
        self._standing = standing

    async def newest(self) -> int:
        _, head = await self._standing()
        return head.turn

    async def rounds(self, turn: int) -> int:
        record, head = await self._standing()
        if not 0 < turn <= head.turn:
            return 0
        found = await self._rooms.desk.reader.turns(record, head, turn, turn)
        return len(found[0].rounds) if found else 0

    async def text_of(self, position: Position, level: Level) -> str:
        return (await self.rendering(position, level)).text

    async def rendering(self, position: Position, level: Level) -> Rendering:
        """A turn or a round at a level; a round at T is its turn's.

        Raises `InvalidInput` if there is no such turn or round, or if it was forgotten.
        """
        record, head = await self._standing()
        turn, scribe = position.turn, self._rooms.desk.scribe
        await self._rooms.desk.reader.turn(record, head, turn)
        if level == "T":
            made = await scribe.tinies(record, head, [turn])
            if turn not in made:
                raise _gone(turn)
            (text,) = await scribe.tiny_texts(record, head, [(turn, made[turn].variant)])
            return Rendering(f"T-{turn}", level, text, made[turn].tokens)
        sizes = await scribe.sizes(record, head, Place(turn), Place(turn, ENDLESS))
        if not sizes:
            raise _gone(turn)
        if position.round is not None:
            sizes = [each for each in sizes if each.place.round == position.round]
        if not sizes:
            raise InvalidInput(f"T-{turn} has no round {position.round}.", hint="Ask for another.")
        wanted = [Wanted(each.place, level, each.variant) for each in sizes]
        texts = await scribe.texts(record, head, wanted)
        tokens = {"R": "raw", "S": "smooth", "C": "compact"}[level]
        return Rendering(
            str(position),
            level,
            "\n".join(filter(None, texts)),
            sum(getattr(each, tokens) for each in sizes),
        )

    async def set_fidelity(self, turn: int, level: Level, *, now: bool) -> str:
        record, head = await self._standing()
        strategy = self._composer.strategy(record)
        if not isinstance(strategy, Gradient):
            raise InvalidInput(
                f"{record.id} shows its history by {strategy.name}, which has no levels.",
                hint="Fetch the turn with history_get_turn instead.",
            )
        if turn >= head.turn and not head.mark.closed:
            raise InvalidInput(f"T-{turn} is under way.", hint="It stands raw until it is done.")
        await self._rooms.desk.reader.turn(record, head, turn)
        ask = Ask(
            record=record,
            head=head,
            budget=self._composer.budget_of(record),
            turn=head.turn + 1,
            prompted=True,
            now=self._rooms.store.now(),
            injected=_nothing,
        )
        rewritten = await strategy.wish(ask, Wish(turn, level), now=now)
        if not now:
            return f"T-{turn} stands at {level} from the next rewrite of the prompt on."
        return (
            f"T-{turn} stands at {level} from the next request on. About {rewritten:,} tokens"
            " behind it are written to the cache anew."
        )

    # The board --------------------------------------------------------------------------------

    async def board(self) -> Sequence[Entry]:
        """The entries that are alive, oldest first."""
        _, head = await self._standing()
        found = await self._rooms.store.collection(Board).get(head.id)
        is_open = not (head.closed or head.mark.closed or head.mark.fresh)
        turn = head.turn if is_open else head.turn + 1
        return boards.alive(found.entries, turn) if found is not None else ()

    async def board_ids(self) -> Sequence[str]:
        return [entry.id for entry in await self.board()]

    async def board_post(self, text: str, turns_to_live: int) -> str:
        turn, counter = await self._turn(), self._rooms.desk.counter
        if self._rooms.plain is not None:
            text = self._rooms.plain({"text": text})["text"]
        return await self._changed(
            lambda board: boards.post(
                board, text, turn=turn, counter=counter, turns_to_live=turns_to_live
            )
        )

    async def board_pull(
        self, position: Position, level: Level, text: str, turns_to_live: int
    ) -> str:
        turn, counter = await self._turn(), self._rooms.desk.counter
        return await self._changed(
            lambda board: boards.pull(
                board,
                str(position),
                level,
                text,
                turn=turn,
                counter=counter,
                turns_to_live=turns_to_live,
            )
        )

    async def board_clear(self, id: str | None) -> Sequence[str]:
        _, head = await self._standing()
        gone = tuple[str, ...]()

        def change(found: Board | None) -> Board:
            nonlocal gone
            cleared, gone = boards.clear(found or Board(head.id), id)
            return cleared

        await self._rooms.store.collection(Board).change(head.id, change)
        return gone

    async def search(self, query: str, limit: int) -> Sequence[Found]:
        record, head = await self._standing()
        return await search(
            self._rooms.desk.reader, record, head, query, limit, ignore=history_tools.NAMES
        )

    async def _turn(self) -> int:
        """The turn that something is put on the board in."""
        _, head = await self._standing()
        return head.turn

    async def _changed(self, change: Callable[[Board], tuple[Board, Entry]]) -> str:
        _, head = await self._standing()
        id = ""

        def body(found: Board | None) -> Board:
            nonlocal id
            board, entry = change(found or Board(head.id))
            id = entry.id
            return board

        await self._rooms.store.collection(Board).change(head.id, body)
        return id


async def _nothing(_first: int, _last: int) -> Sequence[Injected]:
    return ()


def _gone(turn: int) -> InvalidInput:
    return InvalidInput(f"T-{turn} was taken back or forgotten.", hint="Its words are not here.")
