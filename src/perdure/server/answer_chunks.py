"""An answer as it arrives, as chunks of the AI SDK's UI message stream, in server-sent events."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from perdure.core.messages import Media, ToolCall, ToolResult
from perdure.gateway.calls import CallBegan, CallDelta, Delta, ReasoningDelta, TextDelta
from perdure.wire.plain import Item
from perdure.wire.ui.message_stream import DONE, UIMessageStream


class AnswerChunks:
    """Turns what a model says into chunks. One for each answer."""

    def __init__(self, stream: UIMessageStream) -> None:
        self.stream = stream
        self._calls: dict[int, str] = {}  # Their ids, by the index of this model call.

    def begin_step(self) -> list[Item]:
        self._calls = {}
        return self.stream.start_step()

    def of(self, delta: Delta) -> list[Item]:
        stream = self.stream
        if isinstance(delta, TextDelta):
            return stream.text(delta.text)
        if isinstance(delta, ReasoningDelta):
            return stream.reasoning(delta.text)
        if isinstance(delta, CallBegan):
            self._calls[delta.index] = delta.id
            return stream.call(delta.id, delta.name)
        if isinstance(delta, CallDelta):
            return stream.arguments(self._calls[delta.index], delta.arguments)
        return stream.file(delta.part) if isinstance(delta.part, Media) else []


class AgentChunks(AnswerChunks):
    """The same of an agent, which tells of its tools' results but not of its steps: a step ends
    with results, and another begins with the next word.
    """

    def __init__(self, stream: UIMessageStream) -> None:
        super().__init__(stream)
        self._in_step = self._answered = False
        self._written: dict[str, tuple[str, list[str]]] = {}  # Calls: name and arguments, by id.

    def heard(self, what: object) -> list[Item]:
        if isinstance(what, ToolResult):
            self._answered = True
            name, arguments = self._written.get(what.call, (what.name, []))
            call = ToolCall(what.call, name, "".join(arguments))
            return [*self._step(), *self.stream.called(call), *self.stream.result(what)]
        begin = self.end_step() if self._answered else []
        begin += self._step()
        if isinstance(what, CallBegan):
            self._written[what.id] = (what.name, [])
        found = self.of(what)  # type: ignore[arg-type]  # a delta, if it is no result
        if isinstance(what, CallDelta):
            self._written[self._calls[what.index]][1].append(what.arguments)
        return [*begin, *found]

    def end_step(self) -> list[Item]:
        if not self._in_step:
            return []
        self._in_step = self._answered = False
        return self.stream.finish_step()

    def _step(self) -> list[Item]:
        if self._in_step:
            return []
        self._in_step = True
        return self.begin_step()


def server_sent(chunks: Iterable[Item]) -> bytes:
    return b"".join(_event(msgspec.json.encode(chunk)) for chunk in chunks)


#: What ends every stream.
END_OF_STREAM = b"data: " + DONE.encode() + b"\n\n"


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
