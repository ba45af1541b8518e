"""Whether the server lives and is ready; logging in; tickets."""

from __future__ import annotations

import msgspec

from perdure.history.log_records import SessionRecord
from perdure.server.operations import Operation, RequestBody, ServerCall, TokenScope
from perdure.server.run_tokens import TICKET_LASTS, LoginToken, RunTokens


class Health(msgspec.Struct, frozen=True):
    """Whether it works."""

    status: str


class Ticket(msgspec.Struct, frozen=True):
    """Opens one WebSocket."""

    ticket: str
    expires_in: float


class LoginCode(RequestBody, frozen=True):
    """From the link that the server printed."""

    code: str


async def tell_alive(_call: ServerCall) -> Health:
    return Health("alive")


async def tell_ready(call: ServerCall) -> Health:
    """Reads from the bank: raises what that raises."""
    await call.bank.collection(SessionRecord).list(limit=1)
    return Health("ready")


async def log_in(call: ServerCall) -> LoginToken:
    seconds = call.server.config.server.login_for
    return call.server.part(RunTokens).log_in(call.body.code, seconds)


async def make_ticket(call: ServerCall) -> Ticket:
    return Ticket(call.server.part(RunTokens).ticket(call.caller), TICKET_LASTS)


OPERATIONS = (
    Operation("GET", "/healthz", tell_alive, "The process lives.", TokenScope.OPEN, result=Health),
    Operation(
        "GET",
        "/readyz",
        tell_ready,
        "The bank is open and readable.",
        TokenScope.OPEN,
        result=Health,
    ),
    Operation(
        "POST",
        "/api/v1/login",
        log_in,
        "Exchange the one-time code of the link on the terminal for a token.",
        TokenScope.OPEN,
        body=LoginCode,
        result=LoginToken,
    ),
    Operation(
        "POST",
        "/api/v1/tickets",
        make_ticket,
        "A single-use ticket for one WebSocket.",
        TokenScope.READ,
        result=Ticket,
    ),
)
