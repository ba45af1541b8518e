"""What a proxy did since it was started, what each call of a provider took, and what went wrong in
its own part.
"""

from __future__ import annotations

import logging
import time

import msgspec

from perdure.bank.bank import Bank
from perdure.core.clock import new_id
from perdure.core.errors import PerdureError
from perdure.core.messages import Usage
from perdure.gateway.outcomes import CANCELLED, Outcome
from perdure.server.proxy.client_request import ClientRequest, RequestKind

_log = logging.getLogger("perdure.proxy")

#: The purpose of calls that clients make through the proxy; their task is the kind of request.
PROXY = "proxy"
#: Seconds for which answers say that something went wrong.
_SHOWN_FOR = 60.0


class ProxyFigures(msgspec.Struct, kw_only=True):
    """Counts since the proxy was started."""

    #: Requests to models, by what they are for.
    requests: dict[RequestKind, int] = {}
    #: Requests to models that failed upstream: refused, not reached, or their answer broke off.
    failed_upstream: int = 0
    #: Answers of models, and what providers counted for them: tokens.
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
    #: Requests that passed unrecorded in a pause; they are in no count but `requests`.
    paused: int = 0
    #: Whether there is a pause now.
    is_paused: bool = False
    #: How often our own part failed, and how at last.
    failures: int = 0
    failure: str = ""


class ProviderCall:
    """One request of a client to its provider, from when it was sent on."""

    def __init__(self, request: ClientRequest, started: int) -> None:
        self.request = request
        self.started = started  # microseconds
        self._since = time.perf_counter()
        #: Seconds until the first bytes of the answer came; None: none came.
        self.first: float | None = None
        self.streamed = False
        self.usage: Usage | None = None
        #: What it failed with, as outcomes name it; `CANCELLED` until its end was seen.
        self.error = CANCELLED

        #: Seconds until its end.
        self.seconds = 0.0

    def arrived(self) -> None:
        if self.first is None:
            self.first = time.perf_counter() - self._since

    def end(self) -> None:
        self.seconds = time.perf_counter() - self._since


class ProxyReport:
    """Keeps the figures, and notes what each call of a provider took: `perdure costs` adds it up.
    Failures are logged: the first of each kind with its trace.
    """

    def __init__(self, bank: Bank) -> None:
        self.figures = ProxyFigures()
        self._bank = bank
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
        request: ClientRequest,
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
        cost, cost_alone = self._cost(request, usage), self._cost(request, alone)
        if cost is None or cost_alone is None:
            figures.unpriced += 1
        else:
            figures.cost += cost
            figures.cost_alone += cost_alone

    def ended(self, call: ProviderCall, agent: str, session: str) -> None:
        """Note a call whose provider was asked, and whom it is counted for."""
        request, usage = call.request, call.usage
        refused = call.error not in {"", CANCELLED}
        outcome = Outcome(
            id=new_id(),
            started=call.started,
            purpose=PROXY,
            provider=_provider(request),
            model=request.model,
            agent=agent,
            session=session,
            task=request.kind,
            success=not call.error,
            error=call.error,
            latency=call.seconds,
            first_token=call.first,
            cost=0 if refused else None if usage is None else self._cost(request, usage),
            streamed=call.streamed,
        )
        self._bank.gateway.recorder.note(outcome.having(usage))

    def _cost(self, request: ClientRequest, usage: Usage) -> int | None:
        return self._bank.gateway.prices.cost(_provider(request), request.model, usage)

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


def _provider(request: ClientRequest) -> str:
    """Whose prices count: those of the format, whatever the address."""
    return "anthropic" if request.wire == "messages" else "openai"
