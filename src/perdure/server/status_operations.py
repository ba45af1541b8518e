"""The server itself: whether it lives and is ready, its description, its metrics, its tokens."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from perdure.history.log_records import SessionRecord
from perdure.server.access_tokens import AccessTokens, TokenInfo
from perdure.server.openapi import ApiDocument
from perdure.server.operations import JSON, Operation, RequestBody, ServerCall, TokenScope
from perdure.server.run_tokens import TICKET_LASTS, LoginToken, RunTokens
from perdure.storage.metrics.metrics_app import MetricsText
from perdure.storage.metrics.prometheus_text import TEXT


class Health(msgspec.Struct, frozen=True):
    """Whether it works."""

    status: str


class Ticket(msgspec.Struct, frozen=True):
    """Opens one WebSocket."""

    ticket: str
    expires_in: float


class LoginCode(RequestBody, frozen=True):
    """What the server printed when it started."""

    code: str
    #: A token that outlives the server, as the web page needs one: it is in the bank, and
    #: `perdure token list` shows it.
    keep: bool = False


async def tell_alive(_call: ServerCall) -> Health:
    """The process lives."""
    return Health("alive")


async def tell_ready(call: ServerCall) -> Health:
    """The bank is open and readable.

    Raises what reading raises.
    """
    await call.bank.collection(SessionRecord).list(limit=1)
    return Health("ready")


async def log_in(call: ServerCall) -> LoginToken:
    """Exchange the one-time code on the terminal for a token."""
    seconds = call.server.config.server.login_for
    tokens = call.server.part(RunTokens)
    if not call.body.keep:
        return tokens.log_in(call.body.code, seconds)
    caller = tokens.take_code(call.body.code)
    secret = await call.server.part(AccessTokens).make_for_page(caller, seconds)
    return LoginToken(secret, seconds)


async def make_ticket(call: ServerCall) -> Ticket:
    """A single-use ticket for one WebSocket."""
    return Ticket(call.server.part(RunTokens).ticket(call.caller), TICKET_LASTS)


async def describe_api(call: ServerCall) -> Response:
    return Response(call.server.part(ApiDocument).body, media_type=JSON)


async def scrape_metrics(call: ServerCall) -> Response:
    """What the process did in the bank, for Prometheus."""
    call.require_all_agents()
    text = await call.server.part(MetricsText).scrape()
    return Response(text, headers={"content-type": TEXT})


async def list_tokens(call: ServerCall) -> list[TokenInfo]:
    """The tokens in the bank, without the tokens themselves."""
    return await call.server.part(AccessTokens).describe()


OPERATIONS = (
    Operation.of("GET", "/healthz", tell_alive, TokenScope.OPEN),
    Operation.of("GET", "/readyz", tell_ready, TokenScope.OPEN),
    Operation.of("POST", "/api/v1/login", log_in, TokenScope.OPEN, body=LoginCode),
    Operation.of("POST", "/api/v1/tickets", make_ticket, TokenScope.READ),
    Operation(
        "GET",
        "/openapi.json",
        describe_api,
        "This description.",
        TokenScope.READ,
        result=dict[str, Any],
    ),
    Operation.of("GET", "/metrics", scrape_metrics, TokenScope.READ, produces="text/plain"),
    Operation.of("GET", "/api/v1/tokens", list_tokens, TokenScope.ADMIN),
)
