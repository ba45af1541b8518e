"""Builds, keeps and remembers what is injected with the prompts of one session: the board, recall,
a reminder. Recall works with any strategy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

import msgspec

from perdure.context import board as boards
from perdure.context.board import Board, BoardEntry
from perdure.context.injection_records import (
    Frame,
    Injection,
    build,
    injection_of,
    prompt_digest,
    standing,
)
from perdure.context.system_prompt import REMINDER_TOKENS
from perdure.history.log_records import SessionRecord, agent_of, owners, turn_key
from perdure.history.manifest import RoundId, ShownHistory
from perdure.history.strategies.raw_rounds import prompt_of
from perdure.history.strategies.strategy import ContextRequest, WindowPreview
from perdure.history.turn_log import Written
from perdure.recall.hit_keys import everywhere, owner_of
from perdure.recall.memory_layer import MemoryLayer, Window
from perdure.services import Services
from perdure.storage.transaction import Transaction

#: Tokens for what is recalled in a budget of 1,000; how they grow with it; and the share of what a
#: prompt leaves that they never exceed.
_AT_1000, _GROWTH, _MOST_SHARE = 600, 0.78, 0.6
#: A reference layer may take this share of a budget beside it, if there is room.
_LAYER_SHARE = 0.25
_NOTE_ENDS = "</perdure-note>"
_LEAST = 60  # In fewer tokens nothing can be said.
#: An epoch sets room aside for what is recalled with one prompt. Each later one gets a third of
#: what is left.
_LATER = 3
_Parts: TypeAlias = tuple[boards.RenderedBoard, MemoryLayer]
_REMEMBERED = 1_000  # Injections that are remembered at most; then they are read again.


def recall_reserve(budget: int, fixed: int, most: int) -> int:
    """Tokens for what is recalled, reference layers aside: about half of a small budget, of a
    larger one more, but a smaller share, and never more than `most`. All of it stays in the window
    until the next epoch: there it is read again with each request, in place of history.
    """
    wanted = _AT_1000 * (budget / 1_000) ** _GROWTH
    return max(min(int(wanted), most, int((budget - fixed) * _MOST_SHARE)), 0)


class Injections:
    """The injections of one session."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._injections = services.store.collection(Injection)
        #: By turn; None where there is none.
        self._known = dict[int, Injection | None]()
        self._forgets = 0
        #: What was built last, until it is written down.
        self._made: Injection | None = None
        self._parts = boards.RenderedBoard(), MemoryLayer()
        #: What was written down last.
        self._written: Injection | None = None
        self._framed = ""
        #: What was last written down with something recalled, what it is made of, and the epoch of
        #: its window: asked for again, it is the same, whatever was tried meanwhile.
        self._recalled: tuple[Injection, _Parts, int] | None = None
        self._epoch = 0

    def snapshot(self) -> dict[int, Injection | None]:
        return dict(self._known)

    def restore(self, known: dict[int, Injection | None]) -> None:
        self._known, self._made = known, None

    def refresh(self, forgets: int) -> None:
        """Read everything again, if something was forgotten since, or if it is too much."""
        if forgets != self._forgets or len(self._known) > _REMEMBERED:
            self._known, self._forgets = {}, forgets
            self._recalled = None

    async def sent(self, record: SessionRecord, first: int, last: int) -> list[Injection]:
        missing = [n for n in range(max(first, 1), last + 1) if n not in self._known]
        for owned in owners(record, missing[0], missing[-1]) if missing else ():
            here = [n for n in missing if owned.first <= n <= owned.last]
            rows = await self._injections.get_many(turn_key(owned.session, n) for n in here)
            if agent_of(owned.session) != record.agent:
                # What another agent recalled is not said in the turns that a fork shares with it.
                rows = [None if row is not None and row.recalls else row for row in rows]
            self._known |= dict(zip(here, rows, strict=True))
        found = [self._known.get(n) for n in range(max(first, 1), last + 1)]
        return [each for each in found if each is not None]

    async def withdraw(self, turn: int, prompt: bytes, *, same: bool) -> None:
        """Delete what was built for a turn if its prompt is (`same`), or is not, this one."""
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

    async def of(self, request: ContextRequest, preview: WindowPreview) -> Injection:
        """Built once, unless the prompt changes, or unless it is asked for with recall instead of
        without before it was written.
        """
        turn = request.turn
        known = await self.sent(request.record, preview.since, turn)
        for before in known:
            if before.turn == turn and _holds(before, request):
                return before
        self._epoch = preview.epoch
        if self._recalled is not None:
            again, parts, epoch = self._recalled
            if again.turn == turn and epoch == preview.epoch and _holds(again, request):
                self._known[turn] = self._made = again
                self._parts = parts
                return again
        others = [each for each in known if each.turn != turn]
        entries, above = await self._entries(request.record), standing(others)
        board = boards.render(
            entries,
            turn,
            above,
            cap=boards.cap_for(request.budget),
            counter=self._services.counter,
        )
        pulled = [each for each in entries if each.id in above or each.id in board.full]
        own = self._tokens(board.text, "", request.reminder)
        window = _window(request, preview, others, pulled)
        # The reminder is part of what the preview counted.
        room = preview.room - own + self.reminder_tokens(request.reminder)
        if any(each.recalls for each in others):
            room //= _LATER  # the rest is for what will be said until the next epoch
        memory = await self._memory(request, window, room)
        return self._remembered(request, board, memory)

    def is_new(self, injection: Injection) -> bool:
        return injection is self._made

    def drop(self, injection: Injection) -> None:
        """Have it built again, if it was never sent."""
        if self.is_new(injection):
            self._known.pop(injection.turn, None)

    def repeated(
        self, record: SessionRecord, injection: Injection, shown: ShownHistory
    ) -> frozenset[str]:
        """What a new injection has in full though it is shown anyway."""
        if not injection.full or not self.is_new(injection):
            return frozenset()
        raw = (each.place for each in shown.rounds if not each.reduced)
        return frozenset(injection.full).intersection(_keys(record, raw))

    def without(
        self, request: ContextRequest, injection: Injection, repeated: Collection[str] | None = None
    ) -> Injection:
        board, memory = self._parts
        left = MemoryLayer() if repeated is None else memory.without(repeated)
        return self._remembered(request, board, left)

    async def keep(self, record: SessionRecord, injection: Injection, frame: Frame) -> None:
        if injection is self._written and frame.digest == self._framed:
            return
        reminders = injection.ticklers if self.is_new(injection) else ()
        if self._recalled is not None and injection is self._recalled[0]:
            reminders = ()  # that was noted
        elif self.is_new(injection) and injection.recalls:
            self._recalled = injection, self._parts, self._epoch

        async def write(transaction: Transaction) -> None:
            if frame.digest != self._framed:
                await transaction.collection(Frame).put(self._without_secrets(frame))
            await transaction.collection(Injection).put(injection)
            if reminders:
                await self._services.recall.reminded(transaction, record, reminders)

        await self._services.store.transact(write)
        self._written, self._framed, self._made = injection, frame.digest, None

    async def _entries(self, record: SessionRecord) -> Sequence[BoardEntry]:
        found = await self._services.store.collection(Board).get(record.id)
        return found.entries if found is not None else ()

    async def _memory(self, request: ContextRequest, window: Window, room: int) -> MemoryLayer:
        if not request.reserve or room < _LEAST:
            return MemoryLayer()
        recall = await self._services.loaded_recall()
        tokens = min(request.reserve, room)
        whole = min(tokens + int(request.budget * _LAYER_SHARE), room)
        return await recall.memory_layer(window, request.prompt, tokens, whole)

    def _remembered(
        self, request: ContextRequest, board: boards.RenderedBoard, memory: MemoryLayer
    ) -> Injection:
        self._parts = board, memory
        note = request.reminder
        made = injection_of(
            request.record.id,
            request.turn,
            build(board=board.text, memory=memory.text, note=note),
            self._tokens(board.text, memory.text, note),
            prompt=request.prompt,
            board=board.full,
            full=memory.full,
            ticklers=memory.keys,
            asked=request.recall,
            frame=request.frame,
            budget=request.budget,
            scale=request.scale,
            model=request.model,
            strategy=request.strategy,
        )
        self._known[request.turn] = self._made = made
        return made

    def _tokens(self, board: str, memory: str, note: str) -> int:
        if not board and not memory:
            return self.reminder_tokens(note)
        return self._services.counter.count(build(board, memory, note)) + 1

    def reminder_tokens(self, note: str) -> int:
        """What a reminder takes alone. The usual ones are not counted: see `REMINDER_TOKENS`."""
        if not note or note in REMINDER_TOKENS:
            return REMINDER_TOKENS.get(note, 0)
        return self._services.counter.count(build(note=note)) + 1

    def _without_secrets(self, frame: Frame) -> Frame:
        """As it is stored. What is rebuilt of it later lacks secrets that were sent."""
        data = self._services.mask_data(
            {"system": frame.system, "tools": msgspec.json.decode(frame.tools)}
        )
        return msgspec.structs.replace(
            frame, system=data["system"], tools=msgspec.json.encode(data["tools"])
        )


def _holds(before: Injection, request: ContextRequest) -> bool:
    """Whether the injection of a turn stays. Once the turn is written, something may follow it: it
    stays, whatever is asked for.
    """
    if not request.prompt:
        return True
    if before.prompt != prompt_digest(request.prompt):
        return False
    if before.turn <= request.head.turn:
        return True
    note = build(note=request.reminder)
    if not before.text.endswith(note) or (not note and before.text.endswith(_NOTE_ENDS)):
        return False
    return before.asked if request.recall else not before.recalls


def _window(
    request: ContextRequest,
    preview: WindowPreview,
    others: Sequence[Injection],
    pulled: Iterable[BoardEntry],
) -> Window:
    record = request.record
    raw = (each.first for each in preview.visible if each.level == "R")
    shown = {
        *_keys(record, raw),
        *(key for each in others for key in each.full),
        *(everywhere(record, each.source) for each in pulled if each.level == "R"),
    }
    return Window(
        record,
        request.head,
        frozenset(shown),
        frozenset(key for each in others for key in each.ticklers),
        [each for each in preview.visible if each.level != "R"],
        request.budget,
        request.tools,
    )


def _keys(record: SessionRecord, places: Iterable[RoundId]) -> Iterable[str]:
    owned = dict[int, str]()
    for place in places:
        if place.turn not in owned:
            owned[place.turn] = owner_of(record, place.turn)
        yield f"{owned[place.turn]}#{place}"
