"""Writes one answer to the turn of its request: a draft while it arrives, the message at its end.

It is given what arrives without waiting, and writes in a task of its own: the client never waits
for the bank.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from perdure.core.messages import Message
from perdure.gateway.calls import CallBegan, CallDelta, Delta, PartEnded, ReasoningDelta, TextDelta
from perdure.history.manifest import RoundId
from perdure.history.message_identity import is_weak
from perdure.history.streamed_answers import StreamedAnswer
from perdure.history.turn_log import Written
from perdure.server.proxy.client_items import ClientItems
from perdure.server.proxy.conversation import Conversation, Said
from perdure.server.proxy.recorder import Recording
from perdure.storage.transaction import Transaction


class AnswerRecorder:
    """Records the answer to one request. `failed` is told what goes wrong."""

    def __init__(self, items: ClientItems, model: str, failed: Callable[[Exception], None]) -> None:
        self.ended = asyncio.Event()
        self.done = asyncio.Event()
        self._items = items
        self._model = model
        self._failed = failed
        self._arrived: asyncio.Queue[Sequence[Delta] | Message | None] = asyncio.Queue()
        self._draft: StreamedAnswer | None = None
        #: Written in front of the reply; who is told the reply's round.
        self.before: Message | None = None
        self.placed: Callable[[RoundId], None] = lambda _: None
        self._has_left = False
        self._call = -1  # The one whose arguments arrive: of others at the same time, none are.
        self._busy = asyncio.Lock()  # Held while the draft is written to.

    def grow(self, deltas: Sequence[Delta]) -> None:
        if deltas and not self.ended.is_set():
            self._arrived.put_nowait(deltas)

    def finish(self, message: Message | None) -> None:
        """It is complete; None if it is not, and no more will come."""
        if not self.ended.is_set():
            self.ended.set()
            self._arrived.put_nowait(message)

    async def leave(self) -> None:
        """Write nothing more: what has arrived stays as a draft."""
        self._has_left = True
        async with self._busy:
            await self._leave_draft()

    async def run(self, recording: Awaitable[Recording | None]) -> None:
        """Write until the end has come. `recording` is that of the request; None if it failed.
        Never raises.
        """
        found: Recording | None = None
        try:
            found = await recording
            if found is not None and found.turn:
                await self._write(found.conversation, found.turn)
        except Exception as exc:  # noqa: BLE001  # memory never breaks the agent
            self._failed(exc)
        finally:
            self.ended.set()
            self.done.set()
            if found is not None and found.conversation.answers.get(found.turn) is self:
                del found.conversation.answers[found.turn]

    async def _write(self, conversation: Conversation, turn: int) -> None:
        try:
            while True:
                arrived = await self._arrived.get()
                if arrived is None or self._has_left:
                    return
                if isinstance(arrived, Message):
                    await self._complete(conversation, turn, arrived)
                    return
                await self._begin(conversation, turn)
                async with self._busy:
                    if self._draft is not None and not self._has_left:
                        for delta in arrived:
                            await self._follow(self._draft, delta)
        finally:
            async with self._busy:
                await self._leave_draft()

    async def _begin(self, conversation: Conversation, turn: int) -> None:
        if self._draft is not None:
            return
        async with conversation.lock:
            if self._has_left:
                return
            await _go_to(conversation, turn)
            draft = conversation.session.answer(model=self._model)
            await draft.__aenter__()
            self._draft = draft

    async def _complete(self, conversation: Conversation, turn: int, message: Message) -> None:
        known = self._items.identities(message)
        async with conversation.lock:
            if self._has_left:
                return
            draft, self._draft = self._draft, None
            if await _is_there(conversation, turn, known):
                await _drop(conversation, turn, draft)
                return
            if self.before is not None:
                await _go_to(conversation, turn)
                before = await _append(conversation, self.before)
                conversation.said([Said(self.before, (), *before)])
            if draft is not None:
                written = await draft.finish(message=message)
                place = written.number, written.rounds[-1].number
                conversation.wrote(await conversation.session.head(), 1)
            else:
                await _go_to(conversation, turn)
                place = await _append(conversation, message)
            conversation.said([Said(message, known, *place)])
            self.placed(RoundId(*place))

    async def _follow(self, draft: StreamedAnswer, delta: Delta) -> None:
        if isinstance(delta, TextDelta):
            await draft.text(delta.text)
        elif isinstance(delta, ReasoningDelta):
            await draft.reasoning(delta.text)
        elif isinstance(delta, CallBegan):
            await draft.call(delta.id, delta.name)
            self._call = delta.index
        elif isinstance(delta, CallDelta) and delta.index == self._call:
            await draft.arguments(delta.arguments)
        elif isinstance(delta, PartEnded):
            await draft.end_part()
            self._call = -1

    async def _leave_draft(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            await draft.__aexit__(asyncio.CancelledError, None, None)


async def _is_there(conversation: Conversation, turn: int, known: Sequence[str]) -> bool:
    """Whether somebody else, such as an importer, wrote the answer while it arrived."""
    before = len(conversation.line)
    await conversation.refresh()
    new = [part.identity for part in conversation.line[before:] if part.turn == turn]
    strong = [identity for identity in known if not is_weak(identity)]
    return bool(strong) and all(identity in new for identity in strong)


async def _drop(conversation: Conversation, turn: int, draft: StreamedAnswer | None) -> None:
    if draft is None:
        return
    await draft.__aexit__(asyncio.CancelledError, None, None)
    for partial in await conversation.session.partials():
        if partial.turn == turn:
            await conversation.session.drop_partial(partial)


async def _go_to(conversation: Conversation, turn: int) -> None:
    """Let what is written next go to this turn, whatever was written meanwhile."""
    own, head = conversation.own_turn, conversation.head
    if own == turn or (not own and head is not None and head.turn == turn):
        return
    await conversation.session.resume(turn)
    conversation.own_turn = turn


async def _append(conversation: Conversation, message: Message) -> tuple[int, int]:
    written: list[Written] = []

    async def note(_: Transaction, what: Written) -> None:
        written[:] = [what]

    await conversation.session.append([message], within=note)
    conversation.wrote(written[0].head, len(written[0].pieces))
    conversation.own_turn = written[0].last
    return written[0].rounds[-1].turn, written[0].rounds[-1].round
