"""The table of operations: what each route takes, answers and demands, and who calls it.

An operation is one method of one path. Router, validation and OpenAPI are made from the table:

    async def list_turns(call: ServerCall) -> TurnPage:
        'Turns of a session, page by page.'
        session = await call.bank.existing_session(call.session_name)
        ...

    OPERATIONS = (
        Operation.of(
            "GET", "/api/v1/sessions/{agent}/{name}/turns", list_turns, TokenScope.READ,
            query=TurnsQuery,
        ),
    )

**Paths.** A session is two segments, ``/sessions/{agent}/{name}``, since its name has exactly one
slash. Segments are percent-decoded after the path is split, so that any name can stand in one.
A last segment ``{rest*}`` takes all that follows, if nothing else fits.
**Query** structs take what the URL says (numbers and booleans as text; a list or tuple field takes
a parameter several times). Unknown parameters are refused. **Bodies** are JSON only.
**Results** are encoded by msgspec; a handler may return a Starlette `Response` (or any other ASGI
app) instead, such as a stream, and then says what it is in `Operation.produces`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from enum import StrEnum
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_type_hints

import msgspec

from perdure.core.errors import Denied

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection, Request
    from starlette.websockets import WebSocket

    from perdure.bank.bank import Bank
    from perdure.config import Config

P = TypeVar("P")
S = TypeVar("S", bound=msgspec.Struct)
JSON = "application/json"


class TokenScope(StrEnum):
    """What a route demands, and a token allows."""

    #: Needs no token.
    OPEN = "open"
    READ = "read"
    WRITE = "write"
    PROXY = "proxy"
    #: Allows everything.
    ADMIN = "admin"


class Caller(msgspec.Struct, frozen=True):
    """Who calls."""

    name: str
    #: The only agent that it may see; None: all.
    agent: str | None = None
    scopes: frozenset[TokenScope] = frozenset()
    #: The hash of its token, by which to see whether that still holds.
    token: str = ""
    #: The project of its requests through the proxy, where they name none.
    folder: str = ""

    def may(self, scope: TokenScope) -> bool:
        return scope is TokenScope.OPEN or scope in self.scopes or TokenScope.ADMIN in self.scopes


NOBODY = Caller("nobody")


class RequestQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of query structs."""


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of body structs. A misspelled field is refused, not ignored."""


class ServerState:
    """What handlers share. One per app.

    Parts of the server (the live hub, the proxy) are put here by `app`, and found by their type.
    """

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        #: The whole table.
        self.routes: tuple[Route, ...] = ()
        #: Set when the server was asked to stop. Live sockets are closed then.
        self.stopping = asyncio.Event()
        self._parts: dict[type, object] = {}

    @property
    def config(self) -> Config:
        return self.bank.config

    def add(self, part: P) -> P:
        self._parts[type(part)] = part
        return part

    def part(self, kind: type[P]) -> P:
        return self._parts[kind]  # type: ignore[return-value]  # `add` put it under its type


class ServerCall:
    """One request: what an operation's handler is given."""

    __slots__ = ("body", "caller", "connection", "path", "query", "server")

    def __init__(
        self,
        server: ServerState,
        caller: Caller,
        connection: HTTPConnection,
        path: dict[str, str],
    ) -> None:
        self.server = server
        self.caller = caller
        self.connection = connection
        self.path = path
        #: Of the operation's types; None if it has none.
        self.query: Any = None
        self.body: Any = None

    @property
    def bank(self) -> Bank:
        return self.server.bank

    @property
    def request(self) -> Request:
        """For operations that read raw headers and bodies."""
        return self.connection  # type: ignore[return-value]  # of an HTTP operation, it is one

    @property
    def session_name(self) -> str:
        """``agent/name``, of the path. Raises `Denied` if the caller may not see that agent."""
        agent, name = self.path["agent"], self.path["name"]
        self.require_agent(agent)
        return f"{agent}/{name}"

    def require(self, scope: TokenScope) -> None:
        if not self.caller.may(scope):
            raise Denied(
                f"The token of {self.caller.name} does not have the scope {scope.value}.",
                hint=f"Make one with `perdure token make --scope {scope.value}`.",
            )

    def require_agent(self, agent: str) -> None:
        """Raises `Denied` if the caller's token is for another agent."""
        if self.caller.agent not in (None, agent):
            raise Denied(
                f"This token is for the agent {self.caller.agent} alone.",
                hint="Use a token without an agent, or one of that agent.",
            )

    def require_all_agents(self) -> None:
        """Raises `Denied` if the caller's token is for one agent: this is about the whole bank."""
        if self.caller.agent is not None:
            raise Denied(
                f"This is about the whole bank, and the token for {self.caller.agent} alone.",
                hint="Use a token without an agent.",
            )

    def agent_within(self, asked: str | None) -> str | None:
        """The agent to list things of: the one asked for, or the caller's only one. Raises
        `Denied` if another was asked for.
        """
        if asked is None:
            return self.caller.agent
        self.require_agent(asked)
        return asked


Handler: TypeAlias = Callable[[ServerCall], Awaitable[Any]]
SocketHandler: TypeAlias = "Callable[[ServerCall, WebSocket], Awaitable[None]]"


class Operation(msgspec.Struct, frozen=True):
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    summary: str
    scope: TokenScope = TokenScope.ADMIN
    query: type[msgspec.Struct] | None = None
    #: A struct, or any type that msgspec decodes.
    body: Any = None
    #: None: 204, without content.
    result: Any = None
    status: int = 200
    #: The content type, where a handler returns a `Response`.
    produces: str = JSON  # Several: with commas between.
    #: It may also answer 204: there is nothing.
    may_be_nothing: bool = False
    #: The request belongs to another API: its body and query are not looked at, its body may be
    #: larger, and its token is in ``x-perdure-token`` or in the path, ``/t/{token}/…``, because
    #: ``Authorization`` is for the provider.
    passes_through: bool = False

    #: It answers as another protocol does, errors too.
    is_foreign: bool = False
    #: What a browser shows: links on other sites may lead to it. It must tell nothing of the bank.
    is_page: bool = False

    @classmethod
    def of(
        cls, method: str, path: str, handler: Handler, scope: TokenScope, **more: Any
    ) -> Operation:
        """Its summary is the first paragraph of the handler's docstring, its result what that is
        annotated to return, unless it `produces` something else than JSON.
        """
        summary = " ".join((inspect.getdoc(handler) or "").partition("\n\n")[0].split())
        found = get_type_hints(handler)["return"] if "produces" not in more else None
        result = None if found is NoneType else found
        return cls(method, path, handler, summary, scope, result=result, **more)

    @property
    def name(self) -> str:
        """Unique, for OpenAPI: ``list_turns``."""
        if self.passes_through:  # one handler for all of them
            return f"{self.method}{self.path}".replace("/", "_").lower()
        return self.handler.__name__.strip("_")


class SocketOperation(msgspec.Struct, frozen=True):
    """A WebSocket. The handler accepts it. Its token is in a header, or a single-use ticket in
    ``?ticket=``, because browsers send no headers of ours.
    """

    path: str
    handler: SocketHandler
    summary: str
    scope: TokenScope = TokenScope.READ
    passes_through: bool = False


Route: TypeAlias = Operation | SocketOperation
