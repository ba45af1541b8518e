"""Finds the operation of a request, checks what it was given, and answers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, cast, get_args, get_origin
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from perdure.core.actors import MAX_NAME, acting_as
from perdure.core.errors import Denied, InvalidInput, NotFound, PerdureError
from perdure.remote.api_errors import ErrorAnswer, ErrorDetail
from perdure.server.error_answers import INTERNAL, answer_of, status_of
from perdure.server.operations import (
    JSON,
    Caller,
    Operation,
    Route,
    ServerCall,
    ServerState,
    SocketOperation,
    TokenScope,
)

_log = logging.getLogger("perdure.server")
_encode = msgspec.json.Encoder().encode
_WEBSOCKET = "WEBSOCKET"
#: Where the caller and the route found are kept in a connection's state.
CALLER, MATCH = "perdure_caller", "perdure_match"


class Match(msgspec.Struct, frozen=True):
    """What a connection's path and method lead to."""

    route: Route | None = None
    path: dict[str, str] = {}
    #: The methods that the path takes; none if it is unknown.
    allowed: tuple[str, ...] = ()

    @property
    def scope(self) -> TokenScope:
        return TokenScope.ADMIN if self.route is None else self.route.scope

    @property
    def passes_through(self) -> bool:
        return self.route is not None and self.route.passes_through

    @property
    def is_page(self) -> bool:
        return isinstance(self.route, Operation) and self.route.is_page

    @property
    def name(self) -> str:
        """For logs: never the path itself, which may hold anything."""
        return "unknown" if self.route is None else self.route.path


class _Node:
    """A segment of paths: the texts and the parameter that may follow."""

    def __init__(self) -> None:
        self.texts: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        #: Takes all that follows.
        self.rest: _Node | None = None
        #: The routes that end here: by method, with the names of their parameters.
        self.routes: dict[str, tuple[Route, tuple[str, ...]]] = {}


class Router:
    """An ASGI app over a table of operations. Raises `Denied`: answering that is the guard's."""

    def __init__(self, state: ServerState, routes: Iterable[Route]) -> None:
        self.state = state
        self.routes = tuple(routes)
        self._root = _Node()
        self._readers = {
            id(route): _RequestReader(route)
            for route in self.routes
            if isinstance(route, Operation)
        }
        for route in self.routes:
            self._add(route)

    def find(self, connection: Connection) -> Match:
        values, node = list[str](), self._root
        rest: _Node | None = None
        found: _Node | None = node
        for segment in segments(connection):
            rest = node.rest or rest
            if (found := node.texts.get(segment)) is None:
                if (found := node.parameter) is None or not segment:
                    break
                values.append(segment)
            node = found
        is_socket = connection["type"] == "websocket"
        method = _WEBSOCKET if is_socket else connection["method"]
        if found is not None and method in found.routes:
            route, names = found.routes[method]
            return Match(route, dict(zip(names, values, strict=True)))
        if rest is not None and method in rest.routes:
            return Match(rest.routes[method][0])
        return Match(allowed=() if found is None else tuple(sorted(found.routes)))

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """Expects what `Guard` puts into the connection's state. Lets `Denied` through to it."""
        caller: Caller = connection["state"][CALLER]
        match: Match = connection["state"][MATCH]
        with acting_as(caller.name[:MAX_NAME]):
            if isinstance(match.route, SocketOperation):
                socket = WebSocket(connection, receive, send)
                await self._serve_socket(match.route, match, caller, socket)
                return
            try:
                response = await self._answer(match, caller, connection, receive)
            except Denied:
                raise
            except ClientDisconnect:
                return  # in the middle of its body: nobody waits for an answer
            except Exception as exc:  # noqa: BLE001  # the border: no connection ends bare
                if not isinstance(exc, PerdureError):
                    _log.exception("%s failed.", match.name)
                response = _error_response(exc)
            try:
                await response(connection, receive, send)
            except Denied:
                raise
            except Exception:
                _log.exception("%s failed while it answered.", match.name)
                raise  # the server closes the connection: the answer has begun

    async def _serve_socket(
        self, route: SocketOperation, match: Match, caller: Caller, socket: WebSocket
    ) -> None:
        call = ServerCall(self.state, caller, socket, match.path)
        call.require(route.scope)
        try:
            await route.handler(call, socket)
        except Denied:
            raise
        except WebSocketDisconnect:
            return
        except Exception as exc:  # noqa: BLE001  # as above
            if not isinstance(exc, PerdureError):
                _log.exception("%s failed.", match.name)
            if socket.application_state is WebSocketState.CONNECTED:
                await socket.close(1011)
            elif socket.application_state is WebSocketState.CONNECTING:
                await socket.send_denial_response(_error_response(exc))

    async def _answer(
        self, match: Match, caller: Caller, connection: Connection, receive: Receive
    ) -> ASGIApp:
        route = match.route
        if not isinstance(route, Operation):
            if match.allowed:
                return _refuse_method(match.allowed)
            raise NotFound("There is nothing at this address.", hint="See /openapi.json.")
        request = Request(connection, receive)
        call = ServerCall(self.state, caller, request, match.path)
        call.require(route.scope)
        if not route.passes_through:
            reader = self._readers[id(route)]
            call.query = reader.query(request.scope["query_string"])
            if route.body is not None:
                call.body = reader.body(await request.body())
        result = await route.handler(call)
        if callable(result):
            return cast("ASGIApp", result)
        if route.result is None:
            return Response(status_code=204)
        return _json(result, route.status)

    def _add(self, route: Route) -> None:
        method = _WEBSOCKET if isinstance(route, SocketOperation) else route.method
        node, names = self._root, list[str]()
        for segment in route.path.removeprefix("/").split("/"):
            if segment.endswith("*}"):
                node.rest = node.rest or _Node()
                node = node.rest
            elif segment.startswith("{"):
                names.append(segment[1:-1])
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.texts.setdefault(segment, _Node())
        if method in node.routes:
            raise ValueError(f"Two operations for {method} {route.path}.")
        node.routes[method] = (route, tuple(names))


def segments(connection: Connection) -> list[str]:
    """The parts of a path, each decoded by itself: a name may hold an encoded slash."""
    raw = connection.get("raw_path")
    path = connection["path"] if raw is None else raw.decode("ascii", "replace")
    parts = path.partition("?")[0].removeprefix("/").split("/")
    return [unquote(part, errors="replace") for part in parts] if "%" in path else parts


class _RequestReader:
    """Reads query and body of one operation."""

    def __init__(self, operation: Operation) -> None:
        self._query = operation.query
        fields = () if self._query is None else msgspec.structs.fields(self._query)
        self._lists = {field.encode_name: _is_list(field.type) for field in fields}
        self._body: msgspec.json.Decoder[Any] = msgspec.json.Decoder(operation.body or Any)

    def query(self, text: bytes) -> Any:
        given = dict[str, Any]()
        if text:
            try:
                pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, errors="strict")
            except ValueError as exc:  # undecodable, or too many
                raise InvalidInput(
                    "The query of the URL cannot be read.", hint="Encode it as UTF-8."
                ) from exc
            for name, value in pairs:
                self._take(given, name, value)
        if self._query is None:
            return None
        try:
            return msgspec.convert(given, self._query, strict=False)
        except msgspec.ValidationError as exc:
            raise InvalidInput(
                f"The query cannot be used: {exc}.", hint="See /openapi.json."
            ) from exc

    def body(self, raw: bytes) -> Any:
        try:
            return self._body.decode(raw)
        except msgspec.ValidationError as exc:
            raise InvalidInput(
                f"The body cannot be used: {exc}.", hint="See /openapi.json."
            ) from exc
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise InvalidInput(
                f"The body is not JSON: {exc}.", hint="Send one JSON value."
            ) from exc

    def _take(self, given: dict[str, Any], name: str, value: str) -> None:
        if name not in self._lists:
            known = ", ".join(sorted(self._lists)) or "none"
            raise InvalidInput(
                f"There is no query parameter {name!r}.", hint=f"This operation takes {known}."
            )
        if self._lists[name]:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise InvalidInput(
                f"The query parameter {name!r} is given twice.", hint="Give it once."
            )
        else:
            given[name] = value


def _is_list(kind: Any) -> bool:
    origin = get_origin(kind)
    if origin in {list, tuple, set, frozenset}:
        return True
    return any(_is_list(part) for part in get_args(kind)) if origin is not None else False


def _json(value: Any, status: int) -> Response:
    return Response(_encode(value), status, media_type=JSON)


def _error_response(error: Exception) -> Response:
    if isinstance(error, PerdureError):
        return _json(answer_of(error), status_of(error))
    return _json(INTERNAL, 500)


def _refuse_method(allowed: tuple[str, ...]) -> Response:
    methods = [method for method in allowed if method != _WEBSOCKET]
    words = ", ".join(methods) or "a WebSocket"
    answer = ErrorAnswer(ErrorDetail("method_not_allowed", f"This address takes {words}."))
    return Response(_encode(answer), 405, {"allow": ", ".join(methods)}, JSON)
