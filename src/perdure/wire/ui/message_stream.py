"""A reply as it arrives, in the AI SDK's UI message stream: what `useChat` reads.

A stream is one UI message, made of steps: one for each model call. Its parts begin and end. Every
method returns the chunks to send, in order; `UIMessageStream` ends what has to be ended before.
"""

from __future__ import annotations

from typing import Any, Literal

from perdure.core.messages import Media, Message, ToolCall, ToolResult
from perdure.wire.arguments import value_of
from perdure.wire.media import arguments_of, to_url
from perdure.wire.plain import Item
from perdure.wire.ui.sources import sources_of
from perdure.wire.ui.writing import output_of

#: The header that says what the body is.
STREAM_HEADER = ("x-vercel-ai-ui-message-stream", "v1")
#: What ends every stream, in the place of a chunk.
DONE = "[DONE]"

FinishReason = Literal[
    "stop", "length", "content-filter", "tool-calls", "error", "interrupted", "other"
]


class UIMessageStream:
    """Writes one reply. `own` names the tools that are answered here: clients show their calls and
    do not run them.
    """

    def __init__(self, message: str, *, own: frozenset[str] = frozenset()) -> None:
        self._message = message
        self._own = own
        self._open: tuple[Literal["text", "reasoning"], str] | None = None
        self._parts = 0
        self._calls: dict[str, str] = {}  # Their names, by id.

    def start(self, metadata: Item | None = None) -> list[Item]:
        chunk: Item = {"type": "start", "messageId": self._message}
        return [chunk | ({"messageMetadata": metadata} if metadata else {})]

    def start_step(self) -> list[Item]:
        return [*self._end_part(), {"type": "start-step"}]

    def text(self, delta: str) -> list[Item]:
        return self._more("text", delta)

    def reasoning(self, delta: str) -> list[Item]:
        return self._more("reasoning", delta)

    def call(self, id: str, name: str) -> list[Item]:
        """A call begins."""
        self._calls[id] = name
        chunk = {"type": "tool-input-start", "toolCallId": id, "toolName": name}
        return [*self._end_part(), chunk | self._whose(name)]

    def arguments(self, id: str, delta: str) -> list[Item]:
        return [{"type": "tool-input-delta", "toolCallId": id, "inputTextDelta": delta}]

    def called(self, call: ToolCall) -> list[Item]:
        """A call is complete, begun or not."""
        begin = [] if call.id in self._calls else self.call(call.id, call.name)
        chunk: Item = {
            "type": "tool-input-available",
            "toolCallId": call.id,
            "toolName": call.name,
            "input": value_of(arguments_of(call), objects=False),
        }
        return [*begin, chunk | self._whose(call.name)]

    def result(self, result: ToolResult) -> list[Item]:
        chunk: Item = {"type": "tool-output-available", "toolCallId": result.call}
        if result.is_error:
            chunk |= {"type": "tool-output-error", "errorText": result.text}
        else:
            chunk["output"] = output_of(result)
        return [chunk | self._whose(self._calls.get(result.call, result.name))]

    def file(self, media: Media) -> list[Item]:
        url = to_url(media)
        if url is None:
            return []
        kind = media.media_type or "application/octet-stream"
        return [*self._end_part(), {"type": "file", "mediaType": kind, "url": url}]

    def sources(self, message: Message) -> list[Item]:
        """What the reply cites."""
        found = sources_of(message)
        return [*self._end_part(), *found] if found else []

    def data(self, name: str, value: Any, *, id: str = "") -> list[Item]:
        """Data beside the message, which clients hear of and do not keep."""
        chunk: Item = {"type": f"data-{name}", "data": value, "transient": True}
        return [chunk | ({"id": id} if id else {})]

    def finish_step(self) -> list[Item]:
        return [*self._end_part(), {"type": "finish-step"}]

    def finish(self, reason: FinishReason, metadata: Item | None = None) -> list[Item]:
        chunk: Item = {"type": "finish", "finishReason": reason}
        return [*self._end_part(), chunk | ({"messageMetadata": metadata} if metadata else {})]

    def error(self, text: str) -> list[Item]:
        return [*self._end_part(), {"type": "error", "errorText": text}]

    def abort(self, reason: str = "") -> list[Item]:
        return [*self._end_part(), {"type": "abort"} | ({"reason": reason} if reason else {})]

    def _more(self, kind: Literal["text", "reasoning"], delta: str) -> list[Item]:
        begin: list[Item] = []
        if self._open is None or self._open[0] != kind:
            begin = self._end_part()
            self._open = (kind, str(self._parts))
            self._parts += 1
            begin.append({"type": f"{kind}-start", "id": self._open[1]})
        return [*begin, {"type": f"{kind}-delta", "id": self._open[1], "delta": delta}]

    def _end_part(self) -> list[Item]:
        if self._open is None:
            return []
        kind, id = self._open
        self._open = None
        return [{"type": f"{kind}-end", "id": id}]

    def _whose(self, name: str) -> Item:
        return {"dynamic": True, "providerExecuted": True} if name in self._own else {}
