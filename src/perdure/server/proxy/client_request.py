"""A request of a client: what it asks, for which conversation; its bytes stay as they are.

The fields of the body are kept as raw JSON, and so are the items of its history (``messages``, or
``input`` of Responses). Nothing else is validated: clients send fields and items that nobody has
seen before.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec

from perdure.core.errors import InvalidInput
from perdure.gateway.providers import CallWire

#: ``main`` and ``subagent`` are conversations. The others are forwarded unchanged, unrecorded.
RequestKind: TypeAlias = Literal["main", "subagent", "title", "compaction", "count", "other"]

#: More than any history has; a small body may unpack to much more.
_MAX_BODY = 512 * 2**20
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
#: An escape in JSON; a ``half`` of a surrogate pair is one that msgspec refuses.
_escape = re.compile(
    rb"\\ud[89ab][\da-f]{2}\\ud[c-f][\da-f]{2}|(?P<half>\\ud[89a-f][\da-f]{2})|\\.",
    re.IGNORECASE | re.DOTALL,
)
_any = msgspec.json.Decoder()


class ConversationId(msgspec.Struct, frozen=True):
    """What a request says about its conversation; all of it may be empty."""

    #: ``claude-code``, ``codex``, ``opencode``, or ``other``.
    client: str = "other"
    #: The client's own id of the conversation, and of the sub-agent that speaks in it.
    conversation: str = ""
    sub_agent: str = ""
    #: The conversation that started this one, or that it was forked from.
    parent: str = ""
    forked_from: str = ""
    folder: str = ""
    #: ``agent/name`` or a name, as the header ``x-perdure-session`` gives it.
    session: str = ""
    #: The only agent that the caller's token allows; empty: any.
    agent: str = ""


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a model. Made by `client_habits.parse`."""

    wire: CallWire
    #: As the client sent it; and without its content encoding, halves of surrogate pairs replaced.
    body: bytes
    plain: bytes
    fields: dict[str, msgspec.Raw]
    items: list[msgspec.Raw]
    kind: RequestKind = "main"
    id: ConversationId = ConversationId()
    model: str = ""
    stream: bool = False

    @property
    def items_field(self) -> str:
        return items_field(self.wire)

    def field(self, name: str) -> Any:
        """The value of a field, decoded; None if it is not there."""
        raw = self.fields.get(name)
        return None if raw is None else decode_json(raw)

    def with_items(self, items: Iterable[msgspec.Raw | bytes], **changed: Any) -> bytes:
        """The body with other items; all other fields verbatim and in their order, but for those
        in `changed`: raw JSON, or a value to be encoded; None leaves the field out.
        """
        said = b"[" + b",".join(bytes(item) for item in items) + b"]"
        fields: dict[str, Any] = {**self.fields, self.items_field: msgspec.Raw(said), **changed}
        return b"{%b}" % b",".join(
            msgspec.json.encode(name) + b":" + _raw(value)
            for name, value in fields.items()
            if value is not None
        )


def items_field(wire: CallWire) -> str:
    return "input" if wire == "responses" else "messages"


def read_request(wire: CallWire, body: bytes, encoding: str = "") -> ClientRequest:
    """Read a body with this content encoding; see `client_habits.parse`. Raises `InvalidInput`."""
    plain = unpacked(body, encoding)
    try:
        try:
            fields = _fields.decode(plain)
        except msgspec.MsgspecError:
            plain = _escape.sub(lambda found: rb"\ufffd" if found["half"] else found[0], plain)
            fields = _fields.decode(plain)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise _unreadable("The body is no JSON object") from exc
    return ClientRequest(
        wire=wire,
        body=body,
        plain=plain,
        fields=fields,
        items=_list(fields.get(items_field(wire))),
        model=_text(fields.get("model")),
        stream=bytes(fields.get("stream", b"")) == b"true",
    )


def decode_json(raw: msgspec.Raw | bytes) -> Any:
    """Half surrogate pairs, which msgspec refuses, included. Raises ValueError."""
    try:
        return _any.decode(raw)
    except msgspec.MsgspecError:
        import json

        return json.loads(bytes(raw))


def unpacked(body: bytes, encoding: str) -> bytes:
    """The body without its content encoding. Raises `InvalidInput`."""
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return body
    if name == "zstd":
        made = _zstd(body)
    elif name in {"gzip", "x-gzip", "deflate"}:
        made = _zlib(body)
    else:
        raise _unreadable(f"The content encoding {name} is not known")
    if len(made) > _MAX_BODY:
        raise _unreadable("The body is too large")
    return made


def _zstd(body: bytes) -> bytes:
    import zstandard

    try:
        return zstandard.ZstdDecompressor().stream_reader(body).read(_MAX_BODY + 1)
    except zstandard.ZstdError as exc:
        raise _unreadable("The body is no zstd") from exc


def _zlib(body: bytes) -> bytes:
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, _MAX_BODY + 1)
    except zlib.error as exc:
        raise _unreadable("The body is no gzip") from exc


def _unreadable(what: str) -> InvalidInput:
    return InvalidInput(f"{what}.", hint="It is passed on as it is.")


def _list(raw: msgspec.Raw | None) -> list[msgspec.Raw]:
    """The items of a history; a bare text is one prompt."""
    if raw is None:
        return []
    try:
        return _items.decode(raw)
    except msgspec.MsgspecError:
        text = _text(raw)
        return [msgspec.Raw(msgspec.json.encode({"role": "user", "content": text}))] if text else []


def _text(raw: msgspec.Raw | None) -> str:
    if raw is None or not bytes(raw).startswith(b'"'):
        return ""
    try:
        found = decode_json(raw)
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""


def _raw(value: Any) -> bytes:
    if isinstance(value, msgspec.Raw | bytes):
        return bytes(value)
    return msgspec.json.encode(value)
