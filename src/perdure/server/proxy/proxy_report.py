"""What a proxy did since it was started, and what went wrong in its own part."""

from __future__ import annotations

import logging
import time

import msgspec

from perdure.core.errors import PerdureError
from perdure.core.messages import Usage
from perdure.server.proxy.client_request import ClientRequest, RequestKind

_log = logging.getLogger("perdure.proxy")

#: Seconds for which answers say that something went wrong.
_SHOWN_FOR = 60.0


class ProxyFigures(msgspec.Struct, kw_only=True):
    """Counts since the proxy was started."""

    #: Requests to models, by what they are for.
    requests: dict[RequestKind, int] = {}
    #: Recorded answers, and what providers counted for all answers: tokens.
    answers: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    #: Windows that were sent, and o200k tokens of clients' histories that were not sent for them.
    windows: int = 0
    unsent: int = 0
    #: How often our own part failed, and how at last.
    failures: int = 0
    failure: str = ""


class ProxyReport:
    """Keeps the figures. Failures are logged: the first of each kind with its trace."""

    def __init__(self) -> None:
        self.figures = ProxyFigures()
        self._told: set[str] = set()
        self._failed_at = 0.0

    @property
    def note(self) -> str:
        """What answers say in the header ``x-perdure-note``; empty if all is well."""
        if not self._failed_at or time.monotonic() - self._failed_at > _SHOWN_FOR:
            return ""
        return f"not recorded: {self.figures.failure}"

    def seen(self, request: ClientRequest) -> None:
        counts = self.figures.requests
        counts[request.kind] = counts.get(request.kind, 0) + 1

    def answered(self, usage: Usage | None) -> None:
        figures = self.figures
        figures.answers += 1
        if usage is not None:
            figures.input += usage.input or 0
            figures.output += usage.output or 0
            figures.cache_read += usage.cache_read or 0
            figures.cache_write += usage.cache_write or 0

    def windowed(self, unsent: int) -> None:
        self.figures.windows += 1
        self.figures.unsent += unsent

    def failed(self, exc: Exception) -> None:
        """Note that our own part failed. Texts of errors that are not ours may hold anything: only
        their kind is shown.
        """
        kind = type(exc).__name__
        self.figures.failures += 1
        self.figures.failure = kind
        self._failed_at = time.monotonic()
        if kind in self._told:
            return
        self._told.add(kind)
        if isinstance(exc, PerdureError):
            _log.error("A request was passed on, but not recorded: %s", exc)
        else:
            _log.error("A request was passed on, but not recorded: %s", kind, exc_info=exc)
