"""An ASGI application that answers Prometheus.

    app = asgi(bank)             # GET /metrics; mount it, or serve it by itself

It speaks the text format 0.0.4, which every scraper reads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from perdure.core.errors import PerdureError
from perdure.storage.metrics.metrics_middleware import Metrics
from perdure.storage.metrics.metrics_publisher import stats_of
from perdure.storage.metrics.prometheus_text import TEXT, MetricsSource, render
from perdure.storage.rows import Size
from perdure.storage.store import Store

if TYPE_CHECKING:
    from perdure.storage.cache import RowCache

_log = logging.getLogger(__name__)

#: Counting all rows takes a while in a large store, and scrapes come often.
SIZES_EVERY = 60.0

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class Observed(Protocol):
    """What can be scraped: a bank, or a `Scraped` of a store and its metrics."""

    @property
    def store(self) -> Store: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def cache(self) -> RowCache | None: ...


class Scraped(NamedTuple):
    """A store without a bank, and the metrics and the cache in its chain."""

    store: Store
    metrics: Metrics
    cache: RowCache | None = None


def asgi(observed: Observed, *, sizes_every: float = SIZES_EVERY) -> Application:
    """An ASGI application that answers ``GET /metrics`` with this process's metrics.

    Serve it by itself or mount it anywhere, in the event loop of the bank. Sizes are read at most
    every `sizes_every` seconds, and left out while the store is in trouble. There is no access
    control: it shows the names of your collections.
    """
    return _Endpoint(MetricsText(observed, sizes_every))


class MetricsText:
    """What a scrape is answered with."""

    def __init__(self, observed: Observed, sizes_every: float = SIZES_EVERY) -> None:
        self._observed = observed
        self._sizes_every = sizes_every
        self._sizes: list[Size] = []
        self._sizes_due = 0.0

    async def scrape(self) -> str:
        observed = self._observed
        source = MetricsSource(observed.metrics.counted(), stats_of(observed.cache))
        return render([source], await self._known_sizes())

    async def _known_sizes(self) -> list[Size]:
        if time.monotonic() >= self._sizes_due:
            self._sizes_due = time.monotonic() + self._sizes_every
            try:
                self._sizes = await self._observed.store.adapter.sizes()
            except PerdureError as exc:
                _log.warning("sizes could not be looked up: %s", exc)
                self._sizes = []
        return self._sizes


class _Endpoint:
    def __init__(self, text: MetricsText) -> None:
        self._text = text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await _live(receive, send)
            case "http":
                await self._answer(scope, send)
            case _:  # a WebSocket that nobody answers
                await receive()
                await send({"type": "websocket.close", "code": 1000})

    async def _answer(self, scope: Scope, send: Send) -> None:
        if not _is_here(scope):
            await _respond(send, 404, b"There is only /metrics here.\n")
        elif scope["method"] not in {"GET", "HEAD"}:
            await _respond(send, 405, b"Only GET and HEAD.\n", (b"allow", b"GET, HEAD"))
        else:
            body = (await self._text.scrape()).encode()
            await _respond(send, 200, body, kind=TEXT, empty=scope["method"] == "HEAD")


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _is_here(scope: Scope) -> bool:
    root = scope.get("root_path", "").rstrip("/")
    path = scope["path"].removeprefix(root) if root else scope["path"]
    return path == "/metrics" or (bool(root) and path in {"", "/"})


async def _respond(
    send: Send,
    status: int,
    body: bytes,
    *more: tuple[bytes, bytes],
    kind: str = "text/plain; charset=utf-8",
    empty: bool = False,
) -> None:
    length = str(len(body)).encode()
    headers = [(b"content-type", kind.encode()), (b"content-length", length), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if empty else body})
