"""What a scripted model says, its faults, and the requests that it got."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from perdure import wire
from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, ToolCall, Usage
from perdure.gateway.calls import Finish

Kind: TypeAlias = Literal["chat", "responses", "messages", "embeddings"]
How: TypeAlias = Literal["status", "hang", "reset", "truncated"]


class ScriptedAnswer(msgspec.Struct, frozen=True):
    """One answer. It arrives in the order reasoning, text, calls."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    #: None: by length. What is None in it is not sent; without `Usage.input` there is no usage.
    usage: Usage | None = None
    #: None: `tools` if there are calls, else `stop`.
    finish: Finish | None = None
    #: The model's name; empty: as it was asked for.
    model: str = ""
    #: Seconds before anything is sent, and before each event of a stream.
    delay: float = 0.0
    chunk_delay: float = 0.0
    #: Characters in an event of a stream.
    chunk: int = 24
    headers: dict[str, str] = {}


class ScriptedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault. `how` is one of these; raises `InvalidInput` for anything else.

    ==========  =================================================================================
    status      an error of this status, in the words of the wire format; in the middle of a
                stream, an event that tells of it
    hang        nothing more is sent, until the client leaves
    reset       the connection is reset
    truncated   the connection is closed before the answer is complete
    ==========  =================================================================================
    """

    how: How = "status"
    status: int = 500
    message: str = "This fault is in the script."
    headers: dict[str, str] = {}
    #: Seconds before anything is sent.
    delay: float = 0.0
    #: Events of `answer` that are streamed before it. `truncated` sends half of a body.
    after: int = 0
    answer: ScriptedAnswer = ScriptedAnswer("This answer does not reach its end.")

    def __post_init__(self) -> None:
        if self.how not in get_args(How):
            raise InvalidInput(
                f"Nothing goes wrong by {self.how!r}.",
                hint=f"Use one of {', '.join(get_args(How))}.",
            )


class ReceivedRequest(msgspec.Struct, frozen=True):
    """One request as it came in."""

    kind: Kind
    path: str
    #: Names in lower case. The key is among them.
    headers: dict[str, str]
    body: dict[str, Any]
    number: int = 0

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def messages(self) -> tuple[Message, ...]:
        """System text included."""
        return () if self.kind == "embeddings" else wire.codec(self.kind).decode(self.body)

    @property
    def prompt(self) -> str:
        said = [message.text for message in self.messages if message.role == "user"]
        return said[-1] if said else ""


Line: TypeAlias = str | ScriptedAnswer | ScriptedFault
#: A line for every request; lines for one request each; or a function of the request. For
#: embeddings only a function is called, and only its `ScriptedFault` counts.
Script: TypeAlias = Line | Sequence[Line] | Callable[[ReceivedRequest], Line | Awaitable[Line]]


def error_body(kind: Kind, status: int, message: str) -> dict[str, Any]:
    names = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        529: "overloaded_error",
    }
    name = names.get(status, "api_error" if status >= 500 else "invalid_request_error")
    error = {"type": name, "message": message}
    if kind == "messages":
        return {"type": "error", "error": error}
    return {"error": {**error, "param": None, "code": None}}
