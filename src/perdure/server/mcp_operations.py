"""``/mcp``: the Model Context Protocol over HTTP, for clients that have a token of this server.

Every POST is one message, and its answer one JSON object: there are no sessions and no streams, so
that a client goes on when the server was restarted. Of the streamable transport that is the part
which both eras of the protocol have; a client that asks for a stream of its own gets 405. A person
can be asked something only in the newer era, where that needs no stream.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from perdure.core.errors import Denied
from perdure.integrations.mcp_protocol import (
    HANDSHAKE_VERSIONS,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MODERN_VERSIONS,
    UNSUPPORTED_VERSION,
    VERSION_KEY,
    McpConnection,
    failure,
    is_modern,
)
from perdure.integrations.mcp_server import ServerAccess, make_offer
from perdure.server.operations import JSON, Operation, RequestQuery, ServerCall, TokenScope

#: What errors of requests that stand by themselves are as a status; others are 200.
_STATUS = {
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}
_VERSION, _METHOD = "mcp-protocol-version", "mcp-method"


class McpQuery(RequestQuery, frozen=True, kw_only=True):
    """Whose memory it is about. A token that is for one agent needs neither."""

    project: str = ""
    agent: str = ""


async def mcp_message(call: ServerCall) -> Response:
    """One message of the Model Context Protocol: recall, memories, tasks, state of a project."""
    asked: McpQuery = call.query
    agent = call.agent_within(asked.agent or None) or ""
    if asked.project:
        call.require_all_agents()
    elif not agent:
        raise Denied(
            "Nothing says whose memory is meant.",
            hint="Add ?project=NAME or ?agent=NAME to the address.",
            status=400,
        )
    message = call.body
    if (problem := _mismatch(call, message)) is not None:
        return _json(problem, 400)
    access = ServerAccess(call.bank, asked.project, agent, call.caller.name)
    writes = call.caller.may(TokenScope.WRITE)
    offer = make_offer(access, has_project=bool(asked.project), writes=writes)
    answer = await McpConnection(offer).answer(message)
    if answer is None:
        return Response(status_code=202)
    modern = isinstance(message, dict) and is_modern(message.get("params"))
    code = answer.get("error", {}).get("code")
    invalid = answer["id"] is None
    return _json(answer, _STATUS.get(code, 200) if modern or invalid else 200)


def _mismatch(call: ServerCall, message: Any) -> dict[str, Any] | None:
    """What is wrong with the headers, which have to say what the message says."""
    headers = call.request.headers
    version = headers.get(_VERSION)
    if not isinstance(message, dict) or "id" not in message:
        return None
    id = message["id"] if isinstance(message["id"], int | str) else None
    params: Any = message.get("params")
    method = message.get("method")
    if method != "initialize" and is_modern(params):
        if version != params["_meta"][VERSION_KEY] or headers.get(_METHOD) != method:
            return failure(id, HEADER_MISMATCH, "The headers name another version or method.")
    elif version is not None and version not in (*HANDSHAKE_VERSIONS, *MODERN_VERSIONS):
        return failure(id, INVALID_REQUEST, f"There is no version {version[:20]!r}.")
    return None


def _json(answer: dict[str, Any], status: int) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type=JSON)


OPERATIONS = (
    Operation.of(
        "POST",
        "/mcp",
        mcp_message,
        TokenScope.READ,
        query=McpQuery,
        body=Any,
        produces=JSON,
        is_foreign=True,
    ),
)
