"""What history tools, and a session's own methods, do with turns, the board and recall."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from perdure.context import board as boards
from perdure.context.board import Board, BoardEntry
from perdure.context.composer import Composer
from perdure.core.errors import InvalidInput
from perdure.core.levels import Level
from perdure.core.turns import Position
from perdure.history.epochs import FidelityWish
from perdure.history.log_records import ENDLESS, Head, SessionRecord
from perdure.history.manifest import Injected, RoundId
from perdure.history.renditions.rendition_service import RoundAtLevel
from perdure.history.strategies.gradient_strategy import GradientStrategy
from perdure.history.strategies.strategy import ContextRequest
from perdure.history.turn_search import search
from perdure.recall.hit_keys import everywhere, here, owner_of
from perdure.recall.tool_names import NAMES
from perdure.recall.values import Filters, Question
from perdure.services import Services

if TYPE_CHECKING:  # loaded by those who search: a process that only builds prompts does without
    from perdure.recall.memory_tools import MemoryTools

_LINE = 200  # Characters of a line that says what was found.

CurrentState = Callable[[], Awaitable[tuple[SessionRecord, Head]]]  # Its record and its head.


class Rendering(msgspec.Struct, frozen=True):
    """A turn or a round at a level."""

    id: str
    level: Level
    text: str
    tokens: int


class Finding(msgspec.Struct, frozen=True):
    """A search result."""

    #: What fetches it.
    id: str
    line: str
    why: str = ""


class Findings(msgspec.Struct, frozen=True):
    """Search results, best first, and why something may be missing."""

    found: Sequence[Finding] = ()
    notes: tuple[str, ...] = ()


class SessionTools:
    """Executes history tools for one session."""

    def __init__(self, services: Services, composer: Composer, current_state: CurrentState) -> None:
        self._services = services
        self._composer = composer
        self._current_state = current_state

    async def newest(self) -> int:
        _, head = await self._current_state()
        return head.turn

    async def rounds(self, turn: int) -> int:
        record, head = await self._current_state()
        if not 0 < turn <= head.turn:
            return 0
        found = await self._services.reader.turns(record, head, turn, turn)
        return len(found[0].rounds) if found else 0

    async def text_of(self, position: Position, level: Level) -> str:
        found = await self.rendering(position, level)
        await self._followed(str(position))
        return found.text

    async def is_elsewhere(self, session: str, turn: int) -> bool:
        record, _ = await self._current_state()
        return session not in {record.id, owner_of(record, turn)}

    async def text_elsewhere(self, session: str, position: Position, level: Level) -> str:
        """A turn or a round of another session. Raises `InvalidInput` if this one may not see it,
        without telling whether it exists.
        """
        record, head = await self._current_state()
        recall, store = self._services.recall, self._services.store
        other = await store.collection(SessionRecord).get(session)
        stood = await store.collection(Head).get(session)
        if other is not None and stood is not None:
            owner = owner_of(other, position.turn)
            allowed = await recall.allows(record, head, owner, position)
            if allowed and not stood.is_undone(position.turn):
                found = await self._rendering(other, stood, position, level)
                await self._followed(f"{owner}#{position}")
                return found.text
        raise InvalidInput(
            f"There is no {session}#{position} that you may see.",
            hint="recall finds what you may see.",
        )

    async def rendering(self, position: Position, level: Level) -> Rendering:
        """A round at T is its turn's. Raises `InvalidInput` if there is no such turn or round, or
        if it was forgotten.
        """
        return await self._rendering(*await self._current_state(), position, level)

    async def _rendering(
        self, record: SessionRecord, head: Head, position: Position, level: Level
    ) -> Rendering:
        turn, renditions = position.turn, self._services.renditions
        await self._services.reader.turn(record, head, turn)
        if level == "T":
            made = await renditions.tinies(record, head, [turn])
            if turn not in made:
                raise _gone(turn)
            (text,) = await renditions.tiny_texts(record, head, [(turn, made[turn].variant)])
            return Rendering(f"T-{turn}", level, text, made[turn].tokens)
        sizes = await renditions.sizes(record, head, RoundId(turn), RoundId(turn, ENDLESS))
        if not sizes:
            raise _gone(turn)
        if position.round is not None:
            sizes = [each for each in sizes if each.place.round == position.round]
        if not sizes:
            raise InvalidInput(f"T-{turn} has no round {position.round}.", hint="Ask for another.")
        wanted = [RoundAtLevel(each.place, level, each.variant) for each in sizes]
        texts = await renditions.texts(record, head, wanted)
        tokens = {"R": "raw", "S": "smooth", "C": "compact"}[level]
        return Rendering(
            str(position),
            level,
            "\n".join(filter(None, texts)),
            sum(getattr(each, tokens) for each in sizes),
        )

    async def set_fidelity(self, turn: int, level: Level, *, now: bool) -> str:
        record, head = await self._current_state()
        strategy = self._composer.strategy(record)
        if not isinstance(strategy, GradientStrategy):
            raise InvalidInput(
                f"{record.id} shows its history by {strategy.name}, which has no levels.",
                hint="Fetch the turn with history_get_turn instead.",
            )
        if turn >= head.turn and not head.mark.closed:
            raise InvalidInput(f"T-{turn} is under way.", hint="It stands raw until it is done.")
        await self._services.reader.turn(record, head, turn)
        request = ContextRequest(
            record=record,
            head=head,
            budget=self._composer.budget_of(record),
            turn=head.turn + 1,
            prompted=True,
            now=self._services.store.now(),
            injected=_nothing,
        )
        rewritten = await strategy.wish(request, FidelityWish(turn, level), now=now)
        if not now:
            return f"T-{turn} stands at {level} from the next rewrite of the prompt on."
        return (
            f"T-{turn} stands at {level} from the next request on. About {rewritten:,} tokens"
            " behind it are written to the cache anew."
        )

    async def board(self) -> Sequence[BoardEntry]:
        _, head = await self._current_state()
        found = await self._services.store.collection(Board).get(head.id)
        is_open = not (head.closed or head.mark.closed or head.mark.fresh)
        turn = head.turn if is_open else head.turn + 1
        return boards.alive(found.entries, turn) if found is not None else ()

    async def board_ids(self) -> Sequence[str]:
        return [entry.id for entry in await self.board()]

    async def board_post(self, text: str, turns_to_live: int) -> str:
        turn, counter = await self._turn(), self._services.counter
        text = self._services.mask_data({"text": text})["text"]
        return await self._changed(
            lambda board: boards.post(
                board, text, turn=turn, counter=counter, turns_to_live=turns_to_live
            )
        )

    async def board_pull(
        self, position: Position, level: Level, text: str, turns_to_live: int
    ) -> str:
        turn, counter = await self._turn(), self._services.counter
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
        _, head = await self._current_state()
        gone = tuple[str, ...]()

        def change(found: Board | None) -> Board:
            nonlocal gone
            cleared, gone = boards.clear(found or Board(head.id), id)
            return cleared

        await self._services.store.collection(Board).change(head.id, change)
        return gone

    async def search(self, query: str, limit: int) -> Findings:
        """Turns of this session's line; by reading them, if the index has nothing."""
        record, head = await self._current_state()
        filters = Filters(kinds=("turn",), line=True)
        # The filters are ours: that they left nothing tells the model nothing.
        answer = await self._found(query, limit, filters, explains=False)
        if answer.found:
            return answer
        reader = self._services.reader
        read = await search(reader, record, head, query, limit, ignore=NAMES)
        found = [Finding(each.id, each.line) for each in read]
        return Findings(found) if found else answer

    async def recall(self, query: str, limit: int, session: str) -> Findings:
        """Results that this session may see; of one session, if named. Raises `InvalidInput` if
        that may not be seen, without telling whether it exists.
        """
        await self._asked_for(query)
        record, head = await self._current_state()
        sees = (await self._services.loaded_recall()).sees
        if session not in {"", record.id} and not await sees(record, head, session):
            raise InvalidInput(
                f"There is no session {session} that you may see.",
                hint="Without session, recall looks at all that you may see.",
            )
        return await self._found(query, limit, Filters(sessions=(session,) if session else ()))

    async def memory_add(self, kind: str, text: str, tags: Sequence[str]) -> str:
        record, head = await self._current_state()
        source = (everywhere(record, f"T-{head.turn}"),) if head.turn else ()
        return await self._memories_of(record).memory_add(kind, text, tags, source)

    async def memory_edit(self, id: str, text: str) -> str:
        record, head = await self._current_state()
        source = (everywhere(record, f"T-{head.turn}"),) if head.turn else ()
        return await self._memories_of(record).memory_edit(id, text, provenance=source)

    async def memory_get(self, id: str) -> str:
        record, _ = await self._current_state()
        await self._followed(id if "/" in id else f"{record.agent}/{id}")
        return await self._memories_of(record).memory_get(id)

    async def reference_get(self, name: str) -> str:
        record, _ = await self._current_state()
        await self._followed(name)
        return await self._memories_of(record).reference_get(name)

    async def memories(self) -> MemoryTools:
        record, _ = await self._current_state()
        return self._memories_of(record)

    def _memories_of(self, record: SessionRecord) -> MemoryTools:
        from perdure.recall.memory_tools import MemoryTools

        recall, now = self._services.recall, self._services.store.now
        return MemoryTools(recall.memories, recall.references, record.agent, now)

    async def _found(
        self, query: str, limit: int, filters: Filters, *, explains: bool = True
    ) -> Findings:
        from perdure.recall.steps.hit_texts import excerpt, looked_for

        record, head = await self._current_state()
        now = self._services.store.now()
        question = Question(
            text=query, record=record, head=head, filters=filters, limit=limit, moment=now
        )
        found = await self._services.recall.recall(question, explains=explains)
        words = looked_for(query)
        hits = [
            Finding(hit.turn or hit.key, excerpt(hit.text, words, _LINE), hit.why)
            for hit in found.hits
            if not hit.neighbour
        ]
        return Findings(hits[:limit], found.notes)

    async def _followed(self, key: str) -> None:
        """Note what a model fetches: it may be what it was reminded of."""
        record, head = await self._current_state()
        reminders = await self._composer.reminders(record, head.turn)
        await self._services.recall.followed(record, key, reminders)

    async def _asked_for(self, query: str) -> None:
        record, head = await self._current_state()
        named = {word.strip(".,;:?!()<>\"'") for word in query.split()}
        reminders = await self._composer.reminders(record, head.turn)
        for key in reminders:
            if key in named or here(record, key) in named:
                await self._services.recall.followed(record, key, reminders)

    async def _turn(self) -> int:
        _, head = await self._current_state()
        return head.turn

    async def _changed(self, change: Callable[[Board], tuple[Board, BoardEntry]]) -> str:
        _, head = await self._current_state()
        id = ""

        def body(found: Board | None) -> Board:
            nonlocal id
            board, entry = change(found or Board(head.id))
            id = entry.id
            return board

        await self._services.store.collection(Board).change(head.id, body)
        return id


async def _nothing(_first: int, _last: int) -> Sequence[Injected]:
    return ()


def _gone(turn: int) -> InvalidInput:
    return InvalidInput(f"T-{turn} was taken back or forgotten.", hint="Its words are not here.")
