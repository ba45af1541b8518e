"""Who may come in. One ASGI class around everything, WebSockets included; denies by default.

In this order:

1. **Host** must be a name of this server (421): a page elsewhere cannot reach it by a name of its
   own that it lets point here.
2. **Origin**, if there is one, must be this server's own (403), and **Sec-Fetch-Site** must be
   ``same-origin`` or ``none``: no other page calls it. There is no CORS.
3. **A token** (401), except for what the table marks as open. For the API it is in
   ``Authorization: Bearer`` or ``x-perdure-token``; for routes that pass through in
   ``x-perdure-token`` or in the path, ``/t/{token}/v1/…``, which is taken off here; a WebSocket may
   have a ticket in its query.
4. **Bodies** are JSON (415) and of limited size (413).

Every answer carries headers that keep browsers strict. Every denial is noted for the audit trail.
"""

from __future__ import annotations

import asyncio
import ipaddress
from email.utils import formatdate
from urllib.parse import parse_qs, unquote

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Send
from starlette.types import Scope as Connection

from perdure.config import ServerConfig
from perdure.core.errors import Closed, Denied, PerdureError
from perdure.server.access_tokens import AccessTokens, hash_of
from perdure.server.denials import DenialKind, DenialLog
from perdure.server.error_answers import answer_of, status_of
from perdure.server.operations import JSON, NOBODY, Caller, TokenScope
from perdure.server.router import CALLER, MATCH, Match, Router
from perdure.server.run_tokens import RunTokens

_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_STOPPED = Closed("The server is being stopped.", hint="Ask again when it runs.")
_NO_STORE = (b"cache-control", b"no-store")
#: Those that are looked at; a request that has one of them twice means to confuse somebody.
_LOOKED_AT = frozenset(
    {b"host", b"origin", b"sec-fetch-site", b"x-perdure-token", b"content-type", b"content-length"}
)


class Guard:
    """The whole app: a router, guarded."""

    def __init__(
        self,
        router: Router,
        tokens: AccessTokens,
        run_tokens: RunTokens,
        denials: DenialLog,
        config: ServerConfig,
    ) -> None:
        self.router = router
        self._tokens = tokens
        self._run_tokens = run_tokens
        self._denials = denials
        self._config = config
        self._names = _LOCAL | {_host_name(name) for name in (config.host, *config.names)}
        self._any_address = config.host in {"0.0.0.0", "::", ""}  # noqa: S104  # asked, not bound

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] == "lifespan":
            return  # parts are started by `http_server`
        answer = _Answer(connection, send)
        caller, match = NOBODY, Match()
        try:
            in_path = _take_path_token(connection)
            match = self.router.find(connection)
            headers = _headers(connection)
            self._check_host(headers.get(b"host", ""))
            _check_origin(headers, is_page=match.is_page)
            if match.scope is not TokenScope.OPEN or in_path:
                caller = await self._caller(connection, headers, match, in_path)
            if connection["type"] == "http":
                receive = self._limit_body(connection, headers, match, receive)
            connection.setdefault("state", {}).update({CALLER: caller, MATCH: match})
            answer.passes_through = match.passes_through
            await self.router(connection, receive, answer.send)
        except Denied as exc:
            kind = DenialKind(exc.status, caller.name, match.name, _peer(connection))
            self._denials.note(exc, kind)
            await answer.refuse(exc, receive)
        except asyncio.CancelledError:  # the server stops, and its grace is over
            await answer.refuse(_STOPPED, receive)
            raise

    def _check_host(self, host: str) -> None:
        name = _host_name(host)
        if name in self._names or (self._any_address and _is_address(name)):
            return
        raise Denied(
            "This server has another name.",  # which is audited; what was sent is not
            hint=f"Add {host[:100]!r} to server.names if it is called that.",
            status=421,
        )

    async def _caller(
        self, connection: Connection, headers: dict[bytes, str], match: Match, in_path: str
    ) -> Caller:
        secret = headers.get(b"x-perdure-token", "")
        if in_path:
            secret = in_path if match.passes_through else ""
        elif not secret and not match.passes_through:
            kind, _, given = headers.get(b"authorization", "").partition(" ")
            secret = given.strip() if kind.lower() == "bearer" else ""
        id = hash_of(secret) if secret else ""
        if not id and connection["type"] == "websocket" and not match.passes_through:
            query = parse_qs(connection["query_string"].decode("latin-1"))
            id = self._run_tokens.redeem(query.get("ticket", [""])[0])
        if not id:
            raise Denied(
                "A token is needed.",
                hint="Send it as `x-perdure-token`; `perdure token make` makes one.",
                status=401,
            )
        caller = self._run_tokens.caller_by_hash(id) or await self._tokens.caller_by_hash(id)
        if caller is None:
            raise Denied(
                "This token is unknown, revoked or expired.",
                hint="`perdure token list` shows those there are.",
                status=401,
            )
        return caller

    def _limit_body(
        self, connection: Connection, headers: dict[bytes, str], match: Match, receive: Receive
    ) -> Receive:
        """Checks what the headers say of the body, and counts what arrives."""
        most = self._config.max_proxy_body if match.passes_through else self._config.max_body
        length = headers.get(b"content-length", "0")
        if not length.isdecimal() or int(length) > most:
            raise _too_large(most)
        has_body = length != "0" or b"transfer-encoding" in headers
        if has_body and not match.passes_through and connection["method"] in _WRITES:
            given = headers.get(b"content-type", "").partition(";")[0].strip().lower()
            if given != JSON:
                raise Denied(
                    "Bodies are JSON only.", hint=f"Send content-type: {JSON}.", status=415
                )
        if not has_body:
            return receive
        arrived = 0

        async def counted() -> Message:
            nonlocal arrived
            message = await receive()
            arrived += len(message.get("body", b""))
            if arrived > most:
                raise _too_large(most)
            return message

        return counted


class _Answer:
    """Adds the headers of every answer, and knows whether it has begun."""

    def __init__(self, connection: Connection, send: Send) -> None:
        self._connection = connection
        self._send = send
        self._began = False
        #: The answer is another server's: it keeps its headers.
        self.passes_through = False

    async def send(self, message: Message) -> None:
        if message["type"] in {"http.response.start", "websocket.http.response.start"}:
            message["headers"] = self._headers(message.get("headers", ()))
            self._began = True
        elif message["type"] == "websocket.accept":
            self._began = True
        await self._send(message)

    async def refuse(self, error: PerdureError, receive: Receive) -> None:
        if self._began:
            if self._connection["type"] == "websocket":
                await self._send({"type": "websocket.close", "code": 1008})
            return  # an answer that has begun is cut off by the server
        self.passes_through = False
        status = status_of(error)
        headers = {"www-authenticate": "Bearer"} if status == 401 else {}
        response = Response(msgspec.json.encode(answer_of(error)), status, headers, JSON)
        await response(self._connection, receive, self.send)

    def _headers(self, given: object) -> list[tuple[bytes, bytes]]:
        kept = [
            (name, value)
            for name, value in given  # type: ignore[attr-defined]  # pairs, says ASGI
            if not name.lower().startswith(b"access-control-")
        ]
        if self.passes_through:
            return kept
        names = {name.lower() for name, _ in kept}
        # Not by uvicorn: an answer that is passed on has a date.
        date = (b"date", formatdate(usegmt=True).encode())
        return [*kept, date, *(each for each in (*_HEADERS, _NO_STORE) if each[0] not in names)]


def _take_path_token(connection: Connection) -> str:
    """Take ``/t/{token}`` off the path: routes and logs never see it."""
    path: str = connection["path"]
    if not path.startswith("/t/"):
        return ""
    raw = connection.get("raw_path")
    whole = path if raw is None else raw.decode("ascii", "replace").partition("?")[0]
    token, slash, rest = whole.removeprefix("/t/").partition("/")
    connection["raw_path"] = f"{slash}{rest}".encode()
    connection["path"] = unquote(f"{slash}{rest}")
    return unquote(token) or "-"


def _headers(connection: Connection) -> dict[bytes, str]:
    found = dict[bytes, str]()
    for name, value in connection["headers"]:
        if name in found and name in _LOOKED_AT:
            raise Denied(f"The header {name.decode('latin-1')} is there twice.", status=400)
        found[name] = value.decode("latin-1")
    return found


def _check_origin(headers: dict[bytes, str], *, is_page: bool) -> None:
    origin = headers.get(b"origin")
    if origin is not None and origin.partition("://")[2].lower() != headers[b"host"].lower():
        raise Denied("Other pages may not call this server.", hint="Open its own address.")
    site = headers.get(b"sec-fetch-site")
    if is_page and headers.get(b"sec-fetch-mode") == "navigate":
        return  # a link; the page itself tells nothing
    if site not in {None, "same-origin", "none"}:
        raise Denied("Other sites may not call this server.", hint="Open its own address.")


def _host_name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0] if name.count(":") == 1 else name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _peer(connection: Connection) -> str:
    client = connection.get("client")
    return client[0] if client else "unknown"


def _too_large(most: int) -> Denied:
    return Denied(
        f"The body is over {most:,} bytes.",
        hint="Send less at a time, or raise server.max_body.",
        status=413,
    )
