"""Errors as they leave the server: ``{"error": {"code", "message", "hint"}}``.

The code is the class in snake case, so that a client can raise the same error again. Errors that
are not ours never leave with their text.
"""

from __future__ import annotations

from perdure.core import errors
from perdure.core.errors import PerdureError, error_code
from perdure.remote.api_errors import ErrorAnswer, ErrorDetail

#: The first class that fits, from the special to the general.
_STATUSES: tuple[tuple[type[PerdureError], int], ...] = (
    (errors.Denied, 403),
    (errors.NotFound, 404),
    (errors.ArtifactMissing, 404),
    (errors.TooLarge, 413),
    (errors.BudgetTooSmall, 422),
    (errors.InvalidInput, 400),
    (errors.Conflict, 409),
    (errors.LeaseLost, 409),
    (errors.MessageParked, 409),
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


INTERNAL = ErrorAnswer(ErrorDetail("internal", "Something went wrong inside the server."))


def status_of(error: PerdureError) -> int:
    if isinstance(error, errors.Denied):
        return error.status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def answer_of(error: PerdureError) -> ErrorAnswer:
    known = {
        name: value
        for name, value in vars(error).items()
        if name not in {"message", "hint"} and isinstance(value, str | int | float | None)
    }
    return ErrorAnswer(ErrorDetail(error_code(type(error)), error.message, error.hint, known))
