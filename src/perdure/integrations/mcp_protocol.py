"""The Model Context Protocol, without a transport: JSON-RPC messages in, answers out.

Two eras of it are spoken. Until 2025-11-25 a client shakes hands (``initialize``) and then asks.
From 2026-07-28 on each request carries its version and the client's capabilities in ``_meta``, and
a server that needs an answer of a person says so in its result; the client asks again with it.

The official SDK is not used here, only in the tests, as the other side: it takes 0.37 s to import,
and a client waits for the first list of tools. See docs/why.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from perdure import __version__
from perdure.core.errors import InvalidInput, PerdureError

_log = logging.getLogger(__name__)

#: Versions with a handshake, oldest first; the last is offered to who asks for an unknown one.
HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
#: Versions in which every request stands by itself.
MODERN_VERSIONS = ("2026-07-28",)

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603
HEADER_MISMATCH, UNSUPPORTED_VERSION = -32020, -32022

_META = "io.modelcontextprotocol/"
VERSION_KEY, CAPABILITIES_KEY = f"{_META}protocolVersion", f"{_META}clientCapabilities"
_CLIENT_KEY, _SERVER_KEY = f"{_META}clientInfo", f"{_META}serverInfo"
_SERVER = {"name": "perdure", "title": "Perdure", "version": __version__}
#: Have a client show the tools from the start instead of searching for them.
_TOOL_META = {"anthropic/alwaysLoad": True}
#: Lists may change with the project: nobody keeps them.
_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}

Answer: TypeAlias = dict[str, Any]
#: Sends a request to the client and waits for its result. Raises `ClientRefused`.
Back: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class RpcError(Exception):
    """An error of the protocol, for the client's program. Models see `PerdureError`."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


class ClientRefused(Exception):
    """The client answered a question of the server with an error."""


class InputNeeded(Exception):
    """The call goes on when the client comes back with the answer of a person."""

    def __init__(self, key: str, message: str, schema: dict[str, Any]) -> None:
        super().__init__(message)
        self.key = key
        params = {"mode": "form", "message": message, "requestedSchema": schema}
        self.request = {"method": "elicitation/create", "params": params}


class McpCall:
    """One request, for whoever serves it: who asks, and how to ask a person."""

    def __init__(
        self,
        client: str = "",
        capabilities: Mapping[str, Any] | None = None,
        answers: Mapping[str, Any] | None = None,
        back: Back | None = None,
        *,
        modern: bool = False,
    ) -> None:
        #: The client's name for itself, such as ``claude-code``.
        self.client = client
        self._asks = "elicitation" in (capabilities or {})
        self._answers, self._back, self._modern = answers or {}, back, modern

    async def ask(self, key: str, message: str, choices: Sequence[str]) -> str | None:
        """What a person chose of some words; None if they cannot be asked, or did not say."""
        given = self._answers.get(key)
        schema = {
            "type": "object",
            "properties": {"choice": {"type": "string", "enum": [*choices]}},
            "required": ["choice"],
        }
        if given is None and not self._asks:
            return None
        if given is None and self._modern:
            raise InputNeeded(key, message, schema)
        if given is None:
            if self._back is None:
                return None
            asked = {"message": message, "requestedSchema": schema}
            try:
                given = await self._back("elicitation/create", asked)
            except ClientRefused:
                return None
        if not isinstance(given, Mapping) or given.get("action") != "accept":
            return None
        choice = (given.get("content") or {}).get("choice")
        return choice if choice in choices else None


class McpTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. Its schemas are those of the structs that it takes and returns."""

    name: str
    title: str
    description: str
    takes: type[msgspec.Struct]
    returns: type[msgspec.Struct]
    run: Callable[[McpCall, Any], Awaitable[Any]]
    writes: bool = False
    #: The same call again changes nothing more.
    idempotent: bool = True

    def described(self) -> Answer:
        hints = {
            "title": self.title,
            "readOnlyHint": not self.writes,
            # Nothing here is deleted, and nothing leaves the bank.
            "destructiveHint": False,
            "idempotentHint": self.idempotent,
            "openWorldHint": False,
        }
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": json_schema(self.takes),
            "outputSchema": json_schema(self.returns),
            "annotations": hints,
            "_meta": _TOOL_META,
        }


class McpResource(msgspec.Struct, frozen=True, kw_only=True):
    """Something to read, at an address, or at all addresses of a template: ``…/{date}``."""

    uri: str
    name: str
    title: str
    description: str
    read: Callable[[str], Awaitable[str]]
    mime: str = "text/markdown"

    @property
    def is_template(self) -> bool:
        return self.uri.endswith("}")

    def value(self, uri: str) -> str | None:
        """What stands in the template's place, empty for a plain address; None: another one."""
        if not self.is_template:
            return "" if uri == self.uri else None
        start = self.uri.partition("{")[0]
        return uri.removeprefix(start) if uri.startswith(start) and uri != start else None

    def described(self) -> Answer:
        place = "uriTemplate" if self.is_template else "uri"
        return {
            place: self.uri,
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "mimeType": self.mime,
        }


class McpPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that a person may choose. Arguments are texts, with what each is."""

    name: str
    title: str
    description: str
    write: Callable[[Mapping[str, str]], Awaitable[str]]
    arguments: dict[str, str] = {}

    def described(self) -> Answer:
        arguments = [
            {"name": name, "description": about, "required": False}
            for name, about in self.arguments.items()
        ]
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "arguments": arguments,
        }


class McpOffer(msgspec.Struct, frozen=True, kw_only=True):
    """All that a server offers."""

    instructions: str
    tools: tuple[McpTool, ...] = ()
    resources: tuple[McpResource, ...] = ()
    prompts: tuple[McpPrompt, ...] = ()


class _Request(msgspec.Struct, frozen=True):
    params: dict[str, Any]
    #: It stands by itself.
    modern: bool


class McpConnection:
    """Answers the messages of one client. `back` asks it something, where the transport can."""

    def __init__(self, offer: McpOffer, back: Back | None = None) -> None:
        self._offer, self._back = offer, back
        self._tools = {tool.name: tool for tool in offer.tools}
        self._client, self._capabilities = "", dict[str, Any]()
        self._methods: dict[str, Callable[[_Request], Awaitable[Answer]]] = {
            "initialize": self._initialize,
            "server/discover": self._discover,
            "ping": self._ping,
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
        }

    async def answer(self, message: Any) -> Answer | None:
        """The answer to a message; None to a notification. Raises only `CancelledError`."""
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return failure(None, INVALID_REQUEST, "A message is one JSON-RPC 2.0 object.")
        method, id = message.get("method"), message.get("id")
        if "id" not in message:
            return None  # nothing that clients tell us changes anything here
        if isinstance(id, bool) or not isinstance(id, int | str) or not isinstance(method, str):
            return failure(None, INVALID_REQUEST, "A request has a method and an id.")
        try:
            params = message.get("params") or {}
            if not isinstance(params, dict):
                raise RpcError(INVALID_PARAMS, "Parameters are an object.")
            result = await self._result(method, params)
        except RpcError as exc:
            return failure(id, exc.code, exc.message, exc.data)
        except PerdureError as exc:
            return failure(id, INTERNAL_ERROR, str(exc))
        except Exception:  # noqa: BLE001  # the border: a client goes on
            _log.exception("%s failed.", method)
            return failure(id, INTERNAL_ERROR, "Perdure failed; see its log.")
        return {"jsonrpc": "2.0", "id": id, "result": result}

    async def _result(self, method: str, params: dict[str, Any]) -> Answer:
        serve = self._methods.get(method)
        modern = method != "initialize" and is_modern(params)
        if modern:
            _check_envelope(params["_meta"])
        if serve is None or (method == "server/discover") > modern:
            raise RpcError(METHOD_NOT_FOUND, f"There is no method {method!r}.")
        result = await serve(_Request(params, modern))
        if modern:
            result.setdefault("resultType", "complete")
            result["_meta"] = {**result.get("_meta", {}), _SERVER_KEY: _SERVER}
        return result

    # Methods ----------------------------------------------------------------------------------

    async def _initialize(self, request: _Request) -> Answer:
        params = request.params
        asked = params.get("protocolVersion")
        self._client = _name_of(params.get("clientInfo"))
        self._capabilities = _mapping(params.get("capabilities"))
        version = asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
        return {"protocolVersion": version, "serverInfo": _SERVER, **self._about()}

    async def _discover(self, _: _Request) -> Answer:
        return {"supportedVersions": [*MODERN_VERSIONS], **_UNCACHED, **self._about()}

    def _about(self) -> Answer:
        return {
            "capabilities": {
                "tools": {"listChanged": False},
                "resources": {"listChanged": False, "subscribe": False},
                "prompts": {"listChanged": False},
            },
            "instructions": self._offer.instructions,
        }

    async def _ping(self, _: _Request) -> Answer:
        return {}

    async def _list_tools(self, request: _Request) -> Answer:
        return _listed("tools", self._offer.tools, request)

    async def _list_resources(self, request: _Request) -> Answer:
        plain = [each for each in self._offer.resources if not each.is_template]
        return _listed("resources", plain, request)

    async def _list_templates(self, request: _Request) -> Answer:
        templates = [each for each in self._offer.resources if each.is_template]
        return _listed("resourceTemplates", templates, request)

    async def _list_prompts(self, request: _Request) -> Answer:
        return _listed("prompts", self._offer.prompts, request)

    async def _call_tool(self, request: _Request) -> Answer:
        params = request.params
        tool = self._tools.get(str(params.get("name")))
        if tool is None:
            known = ", ".join(self._tools)
            return _tool_error(f"There is no tool {params.get('name')!r}. There are: {known}.")
        call = self._tool_call(request)
        try:
            if tool.writes:
                _refuse_in_pause()
            found = await tool.run(call, _arguments(tool, params.get("arguments")))
        except InputNeeded as exc:
            needed = {exc.key: exc.request}
            return {"resultType": "input_required", "inputRequests": needed}
        except PerdureError as exc:
            return _tool_error(str(exc))
        except asyncio.CancelledError:
            raise
        except Exception:  # noqa: BLE001  # the border: a model is told, and goes on without memory
            _log.exception("The tool %s failed.", tool.name)
            return _tool_error("Perdure failed at this; go on without it. Its log says more.")
        content = msgspec.to_builtins(found)
        told = getattr(found, "told", None)
        text = msgspec.json.encode(content).decode() if told is None else told()
        return {
            "content": [{"type": "text", "text": text}],
            "structuredContent": content,
            "isError": False,
        }

    def _tool_call(self, request: _Request) -> McpCall:
        if not request.modern:
            return McpCall(self._client, self._capabilities, back=self._back)
        meta = request.params["_meta"]
        return McpCall(
            _name_of(meta.get(_CLIENT_KEY)),
            _mapping(meta.get(CAPABILITIES_KEY)),
            _mapping(request.params.get("inputResponses")),
            modern=True,
        )

    async def _read_resource(self, request: _Request) -> Answer:
        uri = request.params.get("uri")
        for each in self._offer.resources:
            if isinstance(uri, str) and (value := each.value(uri)) is not None:
                try:
                    text = await each.read(value)
                except InvalidInput as exc:
                    raise RpcError(INVALID_PARAMS, str(exc), {"uri": uri}) from exc
                content = {"uri": uri, "mimeType": each.mime, "text": text}
                return {"contents": [content], **(_UNCACHED if request.modern else {})}
        known = ", ".join(each.uri for each in self._offer.resources)
        message = f"There is no resource {uri!r}. There are: {known}."
        raise RpcError(INVALID_PARAMS, message, {"uri": uri})

    async def _get_prompt(self, request: _Request) -> Answer:
        params = request.params
        name = params.get("name")
        for each in self._offer.prompts:
            if each.name == name:
                given = _mapping(params.get("arguments"))
                text = await each.write({key: str(value) for key, value in given.items()})
                message = {"role": "user", "content": {"type": "text", "text": text}}
                return {"description": each.description, "messages": [message]}
        known = ", ".join(each.name for each in self._offer.prompts)
        raise RpcError(INVALID_PARAMS, f"There is no prompt {name!r}. There are: {known}.")


def json_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of a struct, as an object and not as a reference to one: MCP wants it so."""
    whole = msgspec.json.schema(kind)
    definitions = whole.pop("$defs")
    found: dict[str, Any] = definitions.pop(whole["$ref"].rpartition("/")[2])
    found.pop("title", None)
    found.pop("description", None)
    return {**found, "$defs": definitions} if definitions else found


def failure(id: int | str | None, code: int, message: str, data: Any = None) -> Answer:
    error = {"code": code, "message": message, **({} if data is None else {"data": data})}
    return {"jsonrpc": "2.0", "id": id, "error": error}


def is_modern(params: Any) -> bool:
    """Whether a request stands by itself: only such ones name the version in ``_meta``."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and VERSION_KEY in meta


def _check_envelope(meta: dict[str, Any]) -> None:
    version = meta[VERSION_KEY]
    if not isinstance(version, str) or not isinstance(meta.get(CAPABILITIES_KEY), dict):
        message = f"_meta needs {VERSION_KEY} (a text) and {CAPABILITIES_KEY} (an object)."
        raise RpcError(INVALID_PARAMS, message)
    if version not in MODERN_VERSIONS:
        data = {"supported": [*MODERN_VERSIONS], "requested": version}
        raise RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def _listed(name: str, items: Sequence[Any], request: _Request) -> Answer:
    return {name: [each.described() for each in items], **(_UNCACHED if request.modern else {})}


def _arguments(tool: McpTool, given: Any) -> Any:
    """Raises `InvalidInput`, which names the field and what the tool takes."""
    try:
        # Not strict: models write numbers as texts.
        return msgspec.convert({} if given is None else given, tool.takes, strict=False)
    except msgspec.ValidationError as exc:
        fields = msgspec.structs.fields(tool.takes)
        takes = ", ".join(f.name if f.required else f"[{f.name}]" for f in fields) or "nothing"
        hint = f"{tool.name} takes {takes}."
        raise InvalidInput(f"The arguments cannot be used: {exc}.", hint=hint) from exc


def _refuse_in_pause() -> None:
    """Raises `Unavailable` while `perdure pause` holds."""
    from perdure.config.pauses import Pauses  # a client waits for the first list of tools

    Pauses().refuse_writing()


def _tool_error(text: str) -> Answer:
    return {"content": [{"type": "text", "text": text}], "isError": True}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _name_of(client: Any) -> str:
    name = _mapping(client).get("name")
    return name[:64] if isinstance(name, str) else ""
