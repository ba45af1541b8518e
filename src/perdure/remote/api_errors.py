"""Errors as they travel: ``{"error": {"code", "message", "hint", "details"}}``."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from perdure.core import errors
from perdure.core.errors import PerdureError, error_code

_Scalar: TypeAlias = str | int | float | None
_KINDS: dict[str, type[PerdureError]] = {
    error_code(kind): kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, PerdureError)
}


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong, and what to do next."""

    code: str
    message: str
    hint: str = ""
    #: What the error knows besides: ``{"budget": 10, "needed": 500}``.
    details: dict[str, _Scalar] = {}

    def error(self) -> PerdureError:
        """The error that the server had; a plain `PerdureError` for a code that is unknown here."""
        kind = _KINDS.get(self.code, PerdureError)
        found = kind.__new__(kind)
        PerdureError.__init__(found, self.message, hint=self.hint)  # the rest is in the details
        vars(found).update(self.details)
        return found


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of every error."""

    error: ErrorDetail
