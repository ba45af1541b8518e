"""Errors as they leave the server: ``{"error": {"code", "message", "hint"}}``.

The code is the class in snake case, so that a client can raise the same error again. Errors that
are not ours never leave with their text.
"""

from __future__ import annotations

import re

import msgspec

from perdure.core import errors
from perdure.core.errors import PerdureError

#: The first class that fits, from the special to the general.
_STATUSES: tuple[tuple[type[PerdureError], int], ...] = (
    (errors.Denied, 403),
    (errors.NotFound, 404),
    (errors.ArtifactMissing, 404),
    (errors.TooLarge, 413),
    (errors.BudgetTooSmall, 422),
    (errors.InvalidInput, 400),
    (errors.Conflict, 409),
    (errors.KeyRefused, 409),
    (errors.Unsupported, 501),
    (errors.DeadlineExceeded, 504),
    (errors.NoModel, 503),
    (errors.RateLimited, 429),
    (errors.BudgetReached, 429),
    (errors.GatewayError, 502),
    (errors.Unavailable, 503),
    (errors.Closed, 503),
    (errors.StorageFull, 507),
)


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong, and what to do next."""

    code: str
    message: str
    hint: str = ""


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of every error."""

    error: ErrorDetail


INTERNAL = ErrorAnswer(ErrorDetail("internal", "Something went wrong inside the server."))


def status_of(error: PerdureError) -> int:
    if isinstance(error, errors.Denied):
        return error.status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def answer_of(error: PerdureError) -> ErrorAnswer:
    return ErrorAnswer(ErrorDetail(code_of(type(error)), error.message, error.hint))


def code_of(kind: type[PerdureError]) -> str:
    """``InvalidInput`` → ``invalid_input``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
