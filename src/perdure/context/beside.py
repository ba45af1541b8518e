"""What is injected with the prompts of one session: built once for each, kept, and remembered.

The board, what the prompt brings to mind, a reminder. Whether there is recall, and how the history
is shown, are independent of one another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from perdure.context import board as boards
from perdure.context.board import Board, Entry
from perdure.context.injections import (
    Frame,
    Injection,
    build,
    injection_of,
    prompt_digest,
    standing,
)
from perdure.context.system import REMINDER_TOKENS
from perdure.history.lines import owners
from perdure.history.log import Written
from perdure.history.manifest import Place
from perdure.history.records import SessionRecord, turn_key
from perdure.history.shown import Shown
from perdure.history.strategies import Look
from perdure.history.strategies.rounds import prompt_of
from perdure.recall.injecting import MemoryLayer, Window
from perdure.recall.keys import everywhere, owner_of

if TYPE_CHECKING:
    from perdure.context.composer import Prompted, Rooms

#: What is recalled takes at most this share of a budget, and of what the prompt leaves of it.
MOST_SHARE, _MOST_LEFT = 0.25, 0.5
#: In fewer tokens nothing can be said.
_LEAST = 60
#: Injections that are remembered at most; then they are read again.
_REMEMBERED = 1_000


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What an injection is built for."""

    asked: Prompted
    turn: int
    budget: int
    #: What the prompt takes.
    prompt: int
    note: str
    frame: str
    strategy: str

    @property
    def reserve(self) -> int:
        """What may be recalled, at most, in tokens."""
        asked, left = self.asked, self.budget - self.prompt
        wanted = asked.recall and asked.prompt
        return min(int(self.budget * MOST_SHARE), int(left * _MOST_LEFT)) if wanted else 0


class Injections:
    """What was injected into the turns of one session, and is."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._injections = rooms.store.collection(Injection)
        #: By turn; None where there is none.
        self._known = dict[int, Injection | None]()
        self._forgets = 0
        #: What was built last, until it is written down.
        self._made: Injection | None = None
        self._parts = boards.Rendered(), MemoryLayer()
        #: What was written down last.
        self._written: Injection | None = None
        self._framed = ""

    # What was sent ----------------------------------------------------------------------------

    def snapshot(self) -> dict[int, Injection | None]:
        """What is known, for `restore`."""
        return dict(self._known)

    def restore(self, known: dict[int, Injection | None]) -> None:
        """As if nothing had been built since."""
        self._known, self._made = known, None

    def refresh(self, forgets: int) -> None:
        """Read everything again, if something was forgotten since, or if it is too much."""
        if forgets != self._forgets or len(self._known) > _REMEMBERED:
            self._known, self._forgets = {}, forgets

    async def sent(self, record: SessionRecord, first: int, last: int) -> list[Injection]:
        """What was injected into these turns, by whoever."""
        missing = [n for n in range(max(first, 1), last + 1) if n not in self._known]
        for owned in owners(record, missing[0], missing[-1]) if missing else ():
            here = [n for n in missing if owned.first <= n <= owned.last]
            rows = await self._injections.get_many(turn_key(owned.session, n) for n in here)
            self._known |= dict(zip(here, rows, strict=True))
        found = [self._known.get(n) for n in range(max(first, 1), last + 1)]
        return [each for each in found if each is not None]

    async def withdraw(self, turn: int, prompt: bytes, *, same: bool) -> None:
        """Forget what was built for a turn, if its prompt is the same, or another one."""
        known = self._known.get(turn)
        if known is not None and known.prompt and (known.prompt == prompt) is same:
            self._known[turn] = None
            await self._injections.delete(known.id)

    async def written(self, written: Written) -> None:
        """Forget what was built for a prompt, if another one was written in its place."""
        for round in written.rounds:
            if round.turn not in self._known or round.round > 1 or round.before:
                continue
            if prompt := prompt_of(round.messages):
                await self.withdraw(round.turn, prompt_digest(prompt), same=False)

    # What is sent now -------------------------------------------------------------------------

    async def of(self, draft: Draft, look: Look) -> Injection:
        """What is injected with the prompt of this turn: built once, unless the prompt changes.

        Or unless it is asked for with recall instead of without, before it was written.
        """
        asked, turn = draft.asked, draft.turn
        known = await self.sent(asked.record, look.since, turn)
        for before in known:
            if before.turn == turn and _holds(before, asked):
                return before
        others = [each for each in known if each.turn != turn]
        entries, above = await self._entries(asked.record), standing(others)
        board = boards.render(
            entries,
            turn,
            above,
            cap=boards.cap_for(draft.budget),
            counter=self._rooms.desk.counter,
        )
        pulled = [each for each in entries if each.id in above or each.id in board.full]
        own = self._tokens(board.text, "", draft.note)
        memory = await self._memory(draft, _window(asked, look, others, pulled), own)
        return self._remembered(draft, board, memory)

    def is_new(self, injection: Injection) -> bool:
        """Whether it was built just now, and was never sent."""
        return injection is self._made

    def drop(self, injection: Injection) -> None:
        """Have it built again, if it was never sent."""
        if self.is_new(injection):
            self._known.pop(injection.turn, None)

    def repeated(self, record: SessionRecord, injection: Injection, shown: Shown) -> frozenset[str]:
        """What a new injection has in full though it is shown anyway."""
        if not injection.full or not self.is_new(injection):
            return frozenset()
        raw = (each.place for each in shown.rounds if not each.reduced)
        return frozenset(injection.full).intersection(_keys(record, raw))

    def without(
        self, draft: Draft, injection: Injection, repeated: Collection[str] | None = None
    ) -> Injection:
        """A new injection without these, or without anything that was recalled."""
        board, memory = self._parts
        left = MemoryLayer() if repeated is None else memory.without(repeated)
        return self._remembered(draft, board, left)

    async def keep(self, record: SessionRecord, injection: Injection, frame: Frame) -> None:
        """Write down what is sent, if it is not written yet."""
        if injection is self._written and frame.digest == self._framed:
            return
        async with self._rooms.store.transaction() as transaction:
            if frame.digest != self._framed:
                await transaction.collection(Frame).put(self._without_secrets(frame))
            await transaction.collection(Injection).put(injection)
        if self.is_new(injection) and injection.ticklers and self._rooms.recall is not None:
            await self._rooms.recall.reminded(record, injection.ticklers)
        self._written, self._framed, self._made = injection, frame.digest, None

    async def _entries(self, record: SessionRecord) -> Sequence[Entry]:
        found = await self._rooms.store.collection(Board).get(record.id)
        return found.entries if found is not None else ()

    async def _memory(self, draft: Draft, window: Window, own: int) -> MemoryLayer:
        """What the prompt brings to mind and does not stand in the window."""
        recall = self._rooms.recall
        most = min(draft.reserve, int((draft.budget - draft.prompt - own) * _MOST_LEFT))
        if recall is None or most < _LEAST:
            return MemoryLayer()
        return await recall.memory_layer(window, draft.asked.prompt, most)

    def _remembered(self, draft: Draft, board: boards.Rendered, memory: MemoryLayer) -> Injection:
        """The injection of these parts, as one that is new."""
        asked = draft.asked
        self._parts = board, memory
        made = injection_of(
            asked.record.id,
            draft.turn,
            build(board=board.text, memory=memory.text, note=draft.note),
            self._tokens(board.text, memory.text, draft.note),
            prompt=asked.prompt,
            board=board.full,
            full=memory.full,
            ticklers=memory.keys,
            asked=asked.recall,
            frame=draft.frame,
            budget=draft.budget,
            model=asked.model,
            strategy=draft.strategy,
        )
        self._known[draft.turn] = self._made = made
        return made

    def _tokens(self, board: str, memory: str, note: str) -> int:
        """What an injection takes. A reminder alone is not counted: see `REMINDER_TOKENS`."""
        if not board and not memory:
            return REMINDER_TOKENS[note] if note else 0
        return self._rooms.desk.counter.count(build(board, memory, note)) + 1

    def _without_secrets(self, frame: Frame) -> Frame:
        """As it is stored. What is rebuilt of it later lacks secrets that were sent."""
        plain = self._rooms.plain
        if plain is None:
            return frame
        data = plain({"system": frame.system, "tools": msgspec.json.decode(frame.tools)})
        return msgspec.structs.replace(
            frame, system=data["system"], tools=msgspec.json.encode(data["tools"])
        )


def _holds(before: Injection, asked: Prompted) -> bool:
    """Whether what was built for a turn stands, or is to be built again.

    Once the turn is written, something may follow it: it stands, whatever is asked for.
    """
    if not asked.prompt:
        return True
    if before.prompt != prompt_digest(asked.prompt):
        return False
    if before.turn <= asked.head.turn:
        return True
    return before.asked if asked.recall else not before.recalls


def _window(
    asked: Prompted, look: Look, others: Sequence[Injection], pulled: Iterable[Entry]
) -> Window:
    """What stands there already: in the history, in what was injected before, on the board."""
    record = asked.record
    raw = (each.first for each in look.visible if each.level == "R")
    shown = {
        *_keys(record, raw),
        *(key for each in others for key in each.full),
        *(everywhere(record, each.source) for each in pulled if each.level == "R"),
    }
    return Window(
        record,
        asked.head,
        frozenset(shown),
        frozenset(key for each in others for key in each.ticklers),
        [each for each in look.visible if each.level != "R"],
    )


def _keys(record: SessionRecord, places: Iterable[Place]) -> Iterable[str]:
    """The names that rounds of a session's line have everywhere."""
    owned = dict[int, str]()
    for place in places:
        if place.turn not in owned:
            owned[place.turn] = owner_of(record, place.turn)
        yield f"{owned[place.turn]}#{place}"
