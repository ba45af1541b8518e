"""The proxy's routes in the table of operations: everything below ``/v1``, and what it did."""

from __future__ import annotations

from starlette.websockets import WebSocket

from perdure.server.operations import Operation, Route, ServerCall, SocketOperation, TokenScope
from perdure.server.proxy.proxy_handler import Proxy
from perdure.server.proxy.proxy_report import ProxyFigures

_KNOWN = (
    ("POST", "/v1/messages", "Anthropic Messages."),
    ("POST", "/v1/messages/count_tokens", "Count the tokens of a request to Messages."),
    ("POST", "/v1/responses", "OpenAI Responses."),
    ("POST", "/v1/chat/completions", "OpenAI Chat Completions."),
    ("GET", "/v1/models", "The models of the provider."),
)
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


async def pass_on(call: ServerCall) -> Proxy:
    return call.server.part(Proxy)


async def get_proxy(call: ServerCall) -> ProxyFigures:
    call.require_all_agents()
    proxy = call.server.part(Proxy)
    proxy.report.figures.is_paused = proxy.recorder.pauses.current() is not None
    return proxy.report.figures


async def refuse_socket(call: ServerCall, socket: WebSocket) -> None:
    """The proxy answers 426: clients then go on with HTTP."""
    await call.server.part(Proxy)(socket.scope, socket.receive, socket.send)


def _route(method: str, path: str, summary: str) -> Operation:
    return Operation(method, path, pass_on, summary, TokenScope.PROXY, passes_through=True)


OPERATIONS: tuple[Route, ...] = (
    Operation(
        "GET",
        "/api/v1/proxy",
        get_proxy,
        "What the proxy did since it was started, and what failed in its own part.",
        TokenScope.READ,
        result=ProxyFigures,
    ),
    *(_route(*known) for known in _KNOWN),
    *(_route(method, "/v1/{rest*}", "What else the provider offers.") for method in _METHODS),
    *(
        SocketOperation(path, refuse_socket, "Refused.", TokenScope.PROXY, passes_through=True)
        for path in ("/v1/responses", "/v1/{rest*}")
    ),
)
