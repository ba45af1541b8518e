"""Answers that arrive piece by piece, and what is left of them when a process dies.

    async with session.answer(model="…") as answer:
        async for chunk in stream:
            await answer.text(chunk)

While it arrives, an answer is a draft: one row beside the log, rewritten at each heartbeat and at
the end of each part, reasoning included. When it ends well, it becomes a message of its turn, and
the draft goes in the same transaction. When its process dies, or an error ends it, the draft stays:
the turn is *partial*, shows what arrived, and waits to be continued, closed or dropped. While
nothing arrives, a heartbeat every five seconds tells readers that somebody still writes it.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable
from typing import Literal, Self

import msgspec

from perdure.core.errors import InvalidInput, PerdureError
from perdure.core.messages import Message, Part, Reasoning, Text, ToolCall, Usage, words_of
from perdure.core.turns import Turn
from perdure.history.answer_drafts import AnswerDrafts, Partial
from perdure.history.answer_feed import AnswerChange, DeltaOf
from perdure.history.turn_log import AppendHook

_log = logging.getLogger(__name__)

_IDLE_BEAT = 5.0  # Seconds between two heartbeats while nothing arrives.
_KINDS: dict[type, DeltaOf] = {Text: "text", Reasoning: "reasoning"}


class StreamedAnswer:
    """An answer that is arriving. Made by `Session.answer`; an async context manager.

    What was given to it is durable at most one heartbeat later, and when `part` or `end_part`
    returns. A save that fails is logged and repeated: only these two and `finish` raise what the
    store raises. Cancelling does not interrupt `finish`: a complete answer is written, or the store
    refuses it.
    """

    def __init__(
        self,
        drafts: AnswerDrafts,
        *,
        model: str,
        heartbeat: float,
        resumed: Partial | None = None,
    ) -> None:
        self._drafts = drafts
        self._heartbeat = heartbeat
        self._number = 0
        self._message = Message("assistant", model=model)
        self._parts: list[Part] = []
        self._kind: Literal["", "text", "reasoning", "call"] = ""
        self._chunks: list[str] = []
        self._length = 0  # Characters in them.
        self._call = ToolCall("", "")
        self._started = 0
        if resumed is not None:
            self._number, self._started = resumed.turn, resumed.started
            self._message = msgspec.structs.replace(resumed.message, partial=False)
            self._parts = list(resumed.message.parts)
            self._reopen()
        self._grew = True  # Since it was last saved.
        self._left = False
        self._timer: asyncio.TimerHandle | None = None
        self._saving = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()
        self.turn: Turn | None = None  # The finished turn, or as much of it as this answer wrote.

    async def __aenter__(self) -> Self:
        self._number = self._number or await self._drafts.place()
        self._started = self._started or self._drafts.now()
        try:
            await self._save()
        except PerdureError:
            self._stop_timer()  # it did not begin
            raise
        self._drafts.feed.arriving[self._drafts.session, self._number] = self
        self._tell("began")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if self.turn is None and kind is None:
            await self.finish()
        elif self.turn is None:
            self._left = True
            await self._quietly_save()  # it stays as a draft
            self._end("left")
        self._stop_timer()

    async def text(self, chunk: str) -> None:
        await self._take("text", chunk)

    async def reasoning(self, chunk: str) -> None:
        await self._take("reasoning", chunk)

    async def call(self, id: str, name: str) -> None:
        await self._end_part(quietly=True)
        self._kind, self._call = "call", ToolCall(id, name)
        self._grow("")

    async def arguments(self, chunk: str) -> None:
        if self._kind != "call":
            raise InvalidInput("No tool call has begun.", hint="Call answer.call(id, name) first.")
        self._grow(chunk)

    async def part(self, part: Part) -> None:
        """Add a whole part, such as signed reasoning. Durable when this returns."""
        self._check_unfinished()
        self._close_part()
        if isinstance(part, ToolCall):
            self._tell("grew", of="call", text=part.arguments, id=part.id, name=part.name)
        else:
            self._tell("grew", of=_KINDS.get(type(part), "other"), text=words_of(part))
        self._parts.append(part)
        self._grew = True
        await self._save()

    async def end_part(self) -> None:
        """Durable when this returns."""
        self._check_unfinished()
        await self._end_part()

    async def finish(
        self,
        *,
        usage: Usage | None = None,
        model: str = "",
        id: str = "",
        message: Message | None = None,
        within: AppendHook | None = None,
    ) -> Turn:
        """Write the answer. A whole `message` takes the place of what arrived: it has what only
        the end of a stream tells, such as signatures. `within` as for `Session.append`.
        """
        if self.turn is not None:
            return self.turn
        self._stop_timer()
        whole = self.so_far() if message is None else message
        message = msgspec.structs.replace(
            whole,
            usage=usage or whole.usage,
            model=model or whole.model or self._message.model,
            id=id or whole.id,
            partial=False,
            time=self._started,
            ended=self._drafts.now(),
        )
        async with self._saving:
            writing = asyncio.ensure_future(
                self._drafts.finish_draft(self._number, message, within)
            )
            try:
                self.turn = await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.wait([writing])
                if not writing.cancelled() and writing.exception() is None:
                    self.turn = writing.result()
                    self._end("written")
                raise
        self._end("written")
        return self.turn

    async def _take(self, kind: Literal["text", "reasoning"], chunk: str) -> None:
        if self._kind != kind:
            await self._end_part(quietly=True)
            self._kind = kind
        self._grow(chunk)

    def _grow(self, chunk: str) -> None:
        self._tick()
        if self._kind == "call":
            call = self._call
            self._tell("grew", of="call", at=self._length, text=chunk, id=call.id, name=call.name)
        else:
            self._tell("grew", of=self._kind or "text", at=self._length, text=chunk)
        self._chunks.append(chunk)
        self._length += len(chunk)

    async def _end_part(self, *, quietly: bool = False) -> None:
        if self._close_part():
            await (self._quietly_save() if quietly else self._save())

    def _close_part(self) -> bool:
        if not self._kind:
            return False
        self._parts.append(self._arriving())
        self._kind, self._chunks, self._length = "", [], 0
        return True

    def _reopen(self) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, Text) and last == Text(last.text):
            self._kind, self._chunks = "text", [last.text]
        elif isinstance(last, Reasoning) and last == Reasoning(last.text):
            self._kind, self._chunks = "reasoning", [last.text]
        elif isinstance(last, ToolCall):
            self._kind, self._call, self._chunks = "call", last, [last.arguments]
        if self._kind:
            self._parts.pop()
            self._length = sum(map(len, self._chunks))

    def _arriving(self) -> Part:
        said = "".join(self._chunks)
        if self._kind == "call":
            return msgspec.structs.replace(self._call, arguments=said)
        return Text(said) if self._kind == "text" else Reasoning(said)

    def so_far(self) -> Message:
        """What arrived, marked as partial."""
        parts = (*self._parts, self._arriving()) if self._kind else tuple(self._parts)
        return msgspec.structs.replace(self._message, parts=parts, time=self._started, partial=True)

    def _tick(self) -> None:
        self._check_unfinished()
        if not self._grew or self._timer is None:
            self._grew = True
            self._set_timer(self._heartbeat, self._beat)

    def _check_unfinished(self) -> None:
        if self.turn is not None:
            raise InvalidInput("This answer is finished.", hint="Begin another.")

    def _beat(self) -> None:
        self._timer = None
        task = asyncio.get_running_loop().create_task(self._quietly_save())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _quietly_save(self) -> None:
        try:
            await self._save()
        except PerdureError as exc:
            _log.warning("a draft of T-%s could not be saved: %s", self._number, exc)

    async def _save(self) -> None:
        self._stop_timer()
        async with self._saving:
            if self.turn is not None:
                return
            grew, self._grew = self._grew, False
            try:
                await self._drafts.save_draft(
                    self._number, self.so_far(), self._started, grew=grew, alive=not self._left
                )
            except PerdureError:
                self._grew |= grew
                self._set_timer(self._heartbeat, self._beat)
                raise
            if not grew:
                self._tell("heartbeat")
            if self._timer is None and not self._left:
                # Weakly: an answer that nobody holds any more has no writer.
                beat = weakref.WeakMethod(self._beat)
                self._set_timer(_IDLE_BEAT, lambda: (held := beat()) and held())

    def _tell(
        self,
        kind: Literal["began", "grew", "heartbeat", "written", "left"],
        *,
        of: DeltaOf = "text",
        at: int = 0,
        text: str = "",
        id: str = "",
        name: str = "",
    ) -> None:
        feed = self._drafts.feed
        if feed.is_heard:
            change = AnswerChange(
                session=self._drafts.session,
                turn=self._number,
                kind=kind,
                part=len(self._parts),
                of=of,
                at=at,
                text=text,
                id=id,
                name=name,
            )
            feed.tell(change)

    def _end(self, kind: Literal["written", "left"]) -> None:
        self._drafts.feed.arriving.pop((self._drafts.session, self._number), None)
        self._tell(kind)

    def _set_timer(self, seconds: float, beat: Callable[[], object]) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, beat)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
