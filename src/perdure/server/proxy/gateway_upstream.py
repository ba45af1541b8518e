"""The gateway in place of a provider: Perdure's models answer requests of any client.

A request becomes a call for the purpose ``chat``: candidates, fallback, budgets and costs are the
gateway's. The model that the client names is used if it is one of ours (``provider/model``);
otherwise those configured for chat. The answer is written in the client's own format.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import unquote

import msgspec

from perdure import wire as wires
from perdure.bank.bank import Bank
from perdure.core.errors import InvalidInput, NoModel, PerdureError
from perdure.gateway.calls import CallOptions, Effort, Reply, Request, Shape, Tool
from perdure.gateway.gateway import Gateway
from perdure.gateway.providers import CallWire
from perdure.gateway.streams import decoder
from perdure.gateway.streams.sse import write_event
from perdure.server.proxy.answer_writer import answer_writer, whole_body
from perdure.server.proxy.client_errors import error_answer, error_event
from perdure.server.proxy.client_request import decode_json
from perdure.wire.plain import Item

if TYPE_CHECKING:
    import httpx2

_WIRES: dict[str, CallWire] = {
    "/v1/messages": "messages",
    "/v1/responses": "responses",
    "/v1/chat/completions": "chat",
}
_JSON, _EVENTS = "application/json", {"content-type": "text/event-stream"}
#: How many tokens Anthropic's clients count: we ask nobody.
_CHARACTERS = 4


class GatewayUpstream:
    """Answers requests by the models of a bank's gateway; in the place of `Upstreams`."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank

    @property
    def _gateway(self) -> Gateway:
        return self._bank.gateway  # made when it is first needed

    def address(self, path: str, query: bytes, headers: Mapping[str, str]) -> str:
        return path

    async def close(self) -> None:
        """The gateway is the bank's to close."""

    async def send(
        self,
        method: str,
        address: str,
        headers: Any,
        body: bytes,
        sent: Callable[[], None] = lambda: None,
        *,
        agent: str = "",
        session: str = "",
    ) -> httpx2.Response:
        """The response, its body unread; close it. Costs go to the agent and the session."""
        sent()
        wire = _WIRES.get(address)
        if method == "GET" and address.startswith("/v1/models"):
            return self._models(address)
        if wire is None or method != "POST":
            if address == "/v1/messages/count_tokens":
                return _response(200, {"input_tokens": -(-len(body) // _CHARACTERS)})
            return _failed("chat", NoModel(f"There is no {method} {address} here."))
        try:
            given = decode_json(body)
            if not isinstance(given, dict):
                raise InvalidInput("The body is no JSON object.")
            request = gateway_request(wire, given)
            named = self._named(str(given.get("model") or ""))
            options = CallOptions(purpose="chat", model=named, agent=agent, session=session)
            if not given.get("stream"):
                return await self._whole(wire, request, options)
            return await self._stream(wire, request, options, given)
        except (PerdureError, ValueError) as exc:
            return _failed(wire, exc)

    async def _whole(
        self, wire: CallWire, request: Request, options: CallOptions
    ) -> httpx2.Response:
        reply = await self._gateway.complete(request, options)
        return _response(200, await _body(wire, reply))

    async def _stream(
        self, wire: CallWire, request: Request, options: CallOptions, given: Item
    ) -> httpx2.Response:
        stream = self._gateway.stream(request, options)
        await stream.__aenter__()  # candidates fail here, where there is still a status to tell it
        writer = answer_writer(wire, options.model or str(given.get("model") or ""))

        async def events() -> AsyncIterator[bytes]:
            try:
                for event in writer.begin():
                    yield write_event(event)
                async for delta in stream:
                    if piece := b"".join(map(write_event, writer.write(delta))):
                        yield piece
                yield b"".join(map(write_event, writer.end(stream.reply)))
            except PerdureError as exc:
                yield write_event(error_event(wire, exc))
            finally:
                await stream.__aexit__(None, None, None)

        return _streamed(events())

    def _named(self, model: str) -> str:
        return model if model in self._names() else ""

    def _names(self) -> list[str]:
        catalog = self._gateway.catalog
        found = dict[str, None]()
        for _, options in catalog.uses("chat"):
            found |= dict.fromkeys(each.name for each in catalog.candidates(options))
        return list(found)

    def _models(self, address: str) -> httpx2.Response:
        listed = [
            {
                "id": name,
                "object": "model",
                "type": "model",
                "created": 0,
                "created_at": "1970-01-01T00:00:00Z",
                "owned_by": name.partition("/")[0],
                "display_name": name,
            }
            for name in self._names()
        ]
        one = unquote(address.removeprefix("/v1/models").strip("/"))
        if one:
            found = next((each for each in listed if each["id"] == one), None)
            return (
                _failed("chat", NoModel(f"There is no model {one}."))
                if found is None
                else _response(200, found)
            )
        ends = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"]} if listed else {}
        return _response(200, {"object": "list", "data": listed, "has_more": False, **ends})


def gateway_request(wire: CallWire, body: Item) -> Request:
    """What a request asks of any model. Fields that only one provider knows are left out. Raises
    `InvalidInput`.
    """
    read = {"messages": _of_messages, "chat": _of_chat, "responses": _of_responses}[wire]
    found = {name: value for name, value in read(body).items() if value is not None}
    tools = tuple(tool for item in body.get("tools") or () if (tool := _tool(item, wire)))
    if found.get("tool_choice") not in {"auto", "none", "required", *(t.name for t in tools)}:
        found.pop("tool_choice", None)
    if not tools:
        found.pop("tool_choice", None)
    return Request(
        messages=wires.codec(wire).decode(body),
        tools=tools,
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        **found,
    )


def _of_messages(body: Item) -> Item:
    choice, thinking = body.get("tool_choice") or {}, body.get("thinking") or {}
    wanted = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    effort = (body.get("output_config") or {}).get("effort")
    kind = str(choice.get("type"))
    return {
        "max_tokens": body.get("max_tokens"),
        "stop": tuple(body.get("stop_sequences") or ()),
        "tool_choice": choice.get("name") if kind == "tool" else _CHOICES.get(kind),
        "parallel_tools": False if choice.get("disable_parallel_tool_use") else None,
        "shape": _shape(wanted.get("schema"), wanted.get("name")),
        "reasoning": thinking.get("budget_tokens") or _effort(effort),
    }


def _of_chat(body: Item) -> Item:
    choice, stop = body.get("tool_choice"), body.get("stop") or ()
    wanted = (body.get("response_format") or {}).get("json_schema") or {}
    named = (choice.get("function") or {}).get("name") if isinstance(choice, dict) else choice
    return {
        "max_tokens": body.get("max_completion_tokens") or body.get("max_tokens"),
        "stop": (stop,) if isinstance(stop, str) else tuple(stop),
        "tool_choice": named,
        "parallel_tools": body.get("parallel_tool_calls"),
        "shape": _shape(wanted.get("schema"), wanted.get("name")),
        "reasoning": _effort(body.get("reasoning_effort")),
        "seed": body.get("seed"),
        "prompt_cache_key": body.get("prompt_cache_key"),
    }


def _of_responses(body: Item) -> Item:
    choice = body.get("tool_choice")
    wanted = (body.get("text") or {}).get("format") or {}
    return {
        "max_tokens": body.get("max_output_tokens"),
        "tool_choice": choice.get("name") if isinstance(choice, dict) else choice,
        "parallel_tools": body.get("parallel_tool_calls"),
        "shape": _shape(wanted.get("schema"), wanted.get("name")),
        "reasoning": _effort((body.get("reasoning") or {}).get("effort")),
        "prompt_cache_key": body.get("prompt_cache_key"),
    }


_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def _tool(item: Any, wire: CallWire) -> Tool | None:
    """A tool as any model knows it; one that its provider runs, for that provider alone."""
    if not isinstance(item, dict):
        return None
    said = item.get("function") if isinstance(item.get("function"), dict) else item
    assert isinstance(said, dict)  # noqa: S101 (for the type checker)
    name, schema = said.get("name"), said.get("parameters") or said.get("input_schema")
    if isinstance(name, str) and isinstance(schema, dict):
        return Tool(name, str(said.get("description") or ""), schema, said.get("strict"))
    label = name or item.get("type")
    return Tool(label, native={wire: item}) if isinstance(label, str) and label else None


def _shape(schema: Any, name: Any) -> Shape | None:
    return Shape(schema, str(name or "answer")) if isinstance(schema, dict) else None


def _effort(given: Any) -> str | None:
    if not isinstance(given, str):
        return None
    return given if given in get_args(Effort) else "high"


async def _body(wire: CallWire, reply: Reply) -> Item:
    """A whole answer: what a reader of its stream would have gathered."""
    from perdure.gateway.reply_stream import deltas_of

    writer, gathered = answer_writer(wire, f"{reply.provider}/{reply.model}"), decoder(wire)
    events = list(writer.begin())
    async for delta in deltas_of(reply.message):
        events += writer.write(delta)
    events += writer.end(reply)
    for event in events:
        gathered.feed(event)
    if wire == "responses":
        body: Item = msgspec.json.decode(events[-1].data)["response"]
        return body
    return whole_body(wire, gathered.body())


def _failed(wire: CallWire, exc: Exception) -> httpx2.Response:
    status, body = error_answer(wire, exc)
    return _response(status, body)


def _response(status: int, body: Any) -> httpx2.Response:
    raw = msgspec.json.encode(body)

    async def whole() -> AsyncIterator[bytes]:
        yield raw

    return _streamed(whole(), status, {"content-type": _JSON, "content-length": str(len(raw))})


def _streamed(
    pieces: AsyncIterator[bytes], status: int = 200, headers: Mapping[str, str] = _EVENTS
) -> httpx2.Response:
    """Its body comes in these pieces, and can be read once."""
    import httpx2

    class Events(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in pieces:
                yield piece

        async def aclose(self) -> None:
            close = getattr(pieces, "aclose", None)
            if close is not None:
                await close()

    return httpx2.Response(status, headers=headers, stream=Events())
