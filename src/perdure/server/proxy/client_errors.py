"""Errors of ours in the words of a client's wire format."""

from __future__ import annotations

import msgspec

from perdure.core.errors import (
    AllFailed,
    BudgetReached,
    DeadlineExceeded,
    GatewayError,
    InvalidInput,
    NoModel,
    PerdureError,
    PromptTooLong,
    RateLimited,
)
from perdure.gateway.providers import CallWire
from perdure.gateway.streams.sse import ServerEvent
from perdure.wire.plain import Item

#: What an error of ours is called by providers, and its status. A key that fails is ours, not the
#: client's.
_STATUSES: tuple[tuple[type[PerdureError], int, str], ...] = (
    (PromptTooLong, 400, "invalid_request_error"),
    (NoModel, 404, "not_found_error"),
    (RateLimited, 429, "rate_limit_error"),
    (BudgetReached, 429, "rate_limit_error"),
    (DeadlineExceeded, 504, "timeout_error"),
    (InvalidInput, 400, "invalid_request_error"),
    (GatewayError, 502, "api_error"),
)


def error_body(wire: CallWire, kind: str, message: str, code: str | None = None) -> Item:
    error: Item = {"type": kind, "message": message, "param": None, "code": code}
    return {"type": "error", "error": error} if wire == "messages" else {"error": error}


def error_answer(wire: CallWire, exc: Exception) -> tuple[int, Item]:
    """The status and the body of an answer."""
    status, error = _described(exc)
    return status, error_body(wire, error["type"], error["message"], error["code"])


def error_event(wire: CallWire, exc: Exception) -> ServerEvent:
    """An error in the middle of a stream, in the words of a wire format."""
    _, error = _described(exc)
    said: Item = {"type": "error", "error": error}
    if wire == "responses":
        said = {"type": "error", **error, "code": error["code"] or error["type"]}
        said |= {"sequence_number": 0}
    elif wire == "chat":
        said = {"error": error}
    data = msgspec.json.encode(said).decode()
    return ServerEvent("message" if wire == "chat" else "error", data)


def _described(exc: Exception) -> tuple[int, Item]:
    if isinstance(exc, AllFailed) and all(isinstance(e, PromptTooLong) for e in exc.errors):
        exc = exc.errors[0]
    unread = (400, "invalid_request_error")  # no JSON
    status, name = next(
        ((status, name) for kind, status, name in _STATUSES if isinstance(exc, kind)),
        (500, "api_error") if isinstance(exc, PerdureError) else unread,
    )
    code = "context_length_exceeded" if isinstance(exc, PromptTooLong) else None
    message = exc.message if isinstance(exc, PerdureError) else "The body cannot be read."
    if isinstance(exc, PromptTooLong):
        message = f"prompt is too long: {message}"
    return status, {"type": name, "message": message, "param": None, "code": code}
