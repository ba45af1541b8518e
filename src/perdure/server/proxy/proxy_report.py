"""What a proxy did since it was started, and what went wrong in its own part."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from perdure.core.errors import PerdureError
from perdure.core.messages import Usage
from perdure.gateway.prices import Prices
from perdure.server.proxy.client_request import ClientRequest, RequestKind

_log = logging.getLogger("perdure.proxy")

#: Seconds for which answers say that something went wrong.
_SHOWN_FOR = 60.0


class ProxyFigures(msgspec.Struct, kw_only=True):
    """Counts since the proxy was started."""

    #: Requests to models, by what they are for.
    requests: dict[RequestKind, int] = {}
    #: Requests to models that failed upstream: refused, not reached, or their answer broke off.
    failed_upstream: int = 0
    #: Recorded answers, and what providers counted for them: tokens.
    answers: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    #: Answers that told no usage, as streams of Chat Completions without ``include_usage``; their
    #: tokens are in no other count. What was said in their requests has so many by our own.
    without_usage: int = 0
    input_estimated: int = 0
    #: What the clients alone would have sent: their whole history each time.
    input_alone: int = 0
    #: At list prices, in picodollars; what the clients alone would have cost, if all that they sent
    #: before was read from the provider's cache; and how many answers have no known price.
    cost: int = 0
    cost_alone: int = 0
    unpriced: int = 0
    #: How often our own part failed, and how at last.
    failures: int = 0
    failure: str = ""


class ProxyReport:
    """Keeps the figures. Failures are logged: the first of each kind with its trace."""

    def __init__(self, prices: Mapping[str, Any] | None = None) -> None:
        self.figures = ProxyFigures()
        self._own_prices = prices
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

    def answered(
        self,
        usage: Usage | None,
        request: ClientRequest | None = None,
        *,
        sent: int = 0,
        left_out: int = 0,
    ) -> None:
        """Count an answer. `sent` are the tokens of the history by our own count, `left_out` those
        that the client sent and the provider was not shown.
        """
        figures = self.figures
        figures.answers += 1
        if usage is None or usage.input is None:
            figures.unpriced += 1
            figures.without_usage += 1
            figures.input_estimated += sent
            return
        alone = msgspec.structs.replace(
            usage,
            input=usage.input + left_out,
            cache_read=(usage.cache_read or 0) + left_out,
        )
        figures.input += usage.input
        figures.output += usage.output or 0
        figures.cache_read += usage.cache_read or 0
        figures.cache_write += usage.cache_write or 0
        figures.input_alone += alone.input or 0
        model = "" if request is None else request.model
        provider = "anthropic" if request is not None and request.wire == "messages" else "openai"
        cost = self._prices.cost(provider, model, usage)
        cost_alone = self._prices.cost(provider, model, alone)
        if cost is None or cost_alone is None:
            figures.unpriced += 1
        else:
            figures.cost += cost
            figures.cost_alone += cost_alone

    @cached_property
    def _prices(self) -> Prices:
        return Prices.load(self._own_prices)

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
