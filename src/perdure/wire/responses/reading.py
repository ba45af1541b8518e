"""Responses items to canonical messages.

The items of one reply (reasoning, messages, calls) are one message, up to the first item that is
not the model's; so are the outputs that follow. Each part remembers the item that it came from.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec.structs import replace

from perdure.core.errors import InvalidInput
from perdure.core.messages import (
    Media,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    Usage,
)
from perdure.wire.arguments import text_of
from perdure.wire.content import Where, content_of, count, microseconds, no_message, usual_form
from perdure.wire.keep import KEPT, decode_kept
from perdure.wire.media import IMAGE, from_base64, from_url, is_image
from perdure.wire.notes import NOTES, native, rest
from perdure.wire.plain import Item, kind_of
from perdure.wire.responses.form import CALLS, OUTPUTS, WIRE, side_of

_MESSAGE = ("type", "role", "content")
_HINT = "An item is a message (of user, assistant, system or developer) or has another type."


def read_body(bodies: list[Item]) -> tuple[Message, ...]:
    (body,) = bodies
    said, given = body.get("instructions"), body.get("input")
    messages: list[Message] = []
    if isinstance(said, str):
        parts = (Text(said),) if said else ()
        noted = native(WIRE, {}, place="instructions")
        messages.append(Message("system", parts, wire=WIRE, native=noted))
    elif isinstance(said, list):
        for message in read_items(said):
            noted = _renoted(message, place="instructions", listed=True)
            messages.append(replace(message, native=noted))
    if isinstance(given, str):
        noted = native(WIRE, {}, place="input")
        parts = (Text(given),) if given else ()
        messages.append(Message("user", parts, wire=WIRE, native=noted))
    elif isinstance(given, list):
        messages += read_items(given)
    elif given is not None:
        raise InvalidInput(
            f"The input is a {type(given).__name__}.",
            hint="An input is a string or a list of items.",
        )
    return tuple(messages)


def read_response(bodies: list[Item]) -> tuple[Message, ...]:
    (body,) = bodies
    output = body["output"]
    if not isinstance(output, list):
        raise InvalidInput(
            "The response's output is no list.", hint="Pass the response as it came."
        )
    messages = list(read_items(output)) or [Message("assistant", wire=WIRE)]
    said = rest(body, ("id", "model", "usage", "output", "instructions", "tools"))
    first = next((at for at, message in enumerate(messages) if message.role == "assistant"), 0)
    for at, message in enumerate(messages):
        if message.role == "assistant":
            messages[at] = replace(
                message,
                id=body["id"] if isinstance(body.get("id"), str) else "",
                model=body["model"] if isinstance(body.get("model"), str) else "",
                usage=usage_of(body.get("usage")) if at == first else None,
                time=microseconds(body.get("created_at")),
                native=native(WIRE, {}, response=said or None) if at == first else {},
            )
    return tuple(messages)


def usage_of(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    return Usage(
        input=count(usage, "input_tokens"),
        output=count(usage, "output_tokens"),
        cache_read=count(usage, "input_tokens_details", "cached_tokens"),
        cache_write=count(usage, "input_tokens_details", "cache_write_tokens"),
        reasoning=count(usage, "output_tokens_details", "reasoning_tokens"),
        native=usage,
    )


def _renoted(message: Message, **notes: Any) -> dict[str, Item]:
    own = message.native.get(WIRE, {})
    return native(WIRE, rest(own, (NOTES,)), **own.get(NOTES, {}), **notes)


def read_items(items: list[Any]) -> tuple[Message, ...]:
    messages: list[Message] = []
    role: Role = "assistant"  # of the message whose parts are being gathered
    parts: list[Part] = []
    for at, item in enumerate(items):
        if isinstance(item, dict) and KEPT in item:
            return decode_kept(items, read_items)
        where = ("input", at)
        side = side_of(item)
        if parts and side != role:
            messages.append(Message(role, tuple(parts), wire=WIRE))
            parts = []
        if side == "assistant":
            parts += _reply(item, where, parts)
            role = side
        elif side == "tool":
            parts.append(_output(item, where))
            role = side
        elif side == "other":
            messages.append(_spoken(item, where))
        else:
            raise no_message(where, item, _HINT)
    if parts:
        messages.append(Message(role, tuple(parts), wire=WIRE))
    return tuple(messages)


def _spoken(item: Item, where: Where) -> Message:
    role = cast("Role", item["role"])
    parts, form = content_of(item, where, _input_part)
    fields = rest(item, _MESSAGE)
    noted = native(
        WIRE,
        fields,
        content=None if form == usual_form(parts, string=False, nothing="list") else form,
        typeless=None if "type" in item else True,
    )
    return Message(role, tuple(parts), wire=WIRE, native=noted)


def _reply(item: Item, where: Where, before: list[Part]) -> list[Part]:
    kind = kind_of(item)
    part: Part | None = None
    if NOTES in item:
        pass
    elif kind == "reasoning":
        part = _reasoning(item)
    elif kind in CALLS:
        part = _call(item, kind)
    elif kind == "message" or "type" not in item:
        return _said(item, where, before) or [Unknown(WIRE, item)]
    return [Unknown(WIRE, item) if part is None else part]


def _said(item: Item, where: Where, before: list[Part]) -> list[Part]:
    if item.get("role") != "assistant":
        return []
    parts, form = content_of(item, where, _output_part)
    texts = [part for part in parts if isinstance(part, Text)]
    if not texts or len(texts) != len(parts):
        return []
    fields = rest(item, _MESSAGE)
    opening: Item = {"fields": fields} if fields else {}
    if form == "text":
        opening["string"] = True
    if "type" not in item:
        opening["typeless"] = True
    first = texts[0]
    if opening or (before and isinstance(before[-1], Text)):
        # Texts in a row are one message, unless one of them says that it begins another.
        own = first.native.get(WIRE, {})
        noted = native(WIRE, rest(own, (NOTES,)), **own.get(NOTES, {}), item=opening)
        texts[0] = Text(first.text, native=noted)
    return list(texts)


def _output_part(block: Any) -> Part:
    return _text(block, "output_text") or Unknown(WIRE, block)


def _input_part(block: Any) -> Part:
    if isinstance(block, dict) and NOTES not in block:
        read = _text(block, "input_text") or _media(block)
        if read is not None:
            return read
    return Unknown(WIRE, block)


def _text(block: Any, usual: str) -> Text | None:
    if not isinstance(block, dict) or NOTES in block:
        return None
    kind = kind_of(block)
    key = "refusal" if kind == "refusal" else "text"
    if kind not in {"input_text", "output_text", "text", "refusal"} or not isinstance(
        block.get(key), str
    ):
        return None
    if len(block) == 2 and kind == usual:
        return Text(block[key])
    noted = native(WIRE, rest(block, ("type", key)), type=None if kind == usual else kind)
    return Text(block[key], native=noted)


def _media(block: Item) -> Media | None:
    kind = block.get("type")
    if kind == "input_image":
        return _placed(block, {"image_url": "url", "file_id": "file_id"}, IMAGE)
    if kind == "input_file":
        media = _placed(
            block, {"file_url": "url", "file_data": "data", "file_id": "file_id"}, "", "filename"
        )
        return None if media is None or is_image(media) else media
    inner = block.get("input_audio")
    if kind == "input_audio" and isinstance(inner, dict) and inner.keys() == {"data", "format"}:
        data = from_base64(inner["data"])
        if data is not None and inner["format"] in ["mp3", "wav"]:
            noted = native(WIRE, rest(block, ("type", "input_audio")))
            return Media(f"audio/{inner['format']}", data=data, native=noted)
    return None


def _placed(block: Item, places: dict[str, str], media_type: str, named: str = "") -> Media | None:
    given = [name for name in places if isinstance(block.get(name), str)]
    name = block.get(named, "")
    if len(given) != 1 or not isinstance(name, str) or (named in block and not name):
        return None
    fields = rest(block, ("type", given[0], *((named,) if named else ())))
    place, value = places[given[0]], block[given[0]]
    noted = native(WIRE, fields)
    if place == "file_id":
        return Media(media_type, file_id=value, filename=name, native=noted)
    media = from_url(value, media_type, filename=name, native=noted)
    if place == "data":
        return media if media.data is not None else None
    if media_type and not is_image(media):
        return None
    if not media_type and media.data is not None:
        return None  # bytes where an address should be
    return media


def _reasoning(item: Item) -> Reasoning | None:
    summary = _texts(item.get("summary"), "summary_text")
    encrypted, content = item.get("encrypted_content"), item.get("content")
    if summary is None or not isinstance(encrypted, str | None):
        return None
    fields = rest(item, ("type", "summary", "encrypted_content"))
    if "encrypted_content" in item and encrypted is None:
        fields["encrypted_content"] = None
    texts = _texts(content, "reasoning_text")
    if texts is None and content is not None:
        return None
    if texts is not None and len(texts) == 1 and texts[0]:
        del fields["content"]  # else it stays as it is, and the text is for reading only
    text = "\n".join(texts or ())
    return Reasoning(text, summary=summary, encrypted=encrypted, native=native(WIRE, fields))


def _texts(blocks: Any, kind: str) -> tuple[str, ...] | None:
    if not isinstance(blocks, list):
        return None
    for block in blocks:
        if not isinstance(block, dict) or block.keys() != {"type", "text"}:
            return None
        if block["type"] != kind or not isinstance(block["text"], str):
            return None
    return tuple(block["text"] for block in blocks)


def _call(item: Item, kind: str) -> ToolCall | None:
    form = CALLS[kind]
    call, value = item.get("call_id"), item.get(form.key)
    name = item.get("name") if form.name is None else form.name
    if not isinstance(call, str) or not isinstance(name, str):
        return None
    if form.name is None:
        arguments = value
        known: tuple[str, ...] = ("type", "call_id", "name", form.key)
    else:
        if not isinstance(value, dict):
            return None
        try:
            arguments = text_of(value, objects=True)
        except (TypeError, ValueError, RecursionError):
            return None
        known = ("type", "call_id", form.key)
    if not isinstance(arguments, str):
        return None
    if len(item) == len(known) and kind == "function_call":
        return ToolCall(call, name, arguments)
    noted = native(WIRE, rest(item, known), type=None if kind == "function_call" else kind)
    return ToolCall(call, name, arguments, native=noted)


def _output(item: Item, where: Where) -> Part:
    kind = item["type"]
    key = OUTPUTS.get(kind)
    if key is None or NOTES in item or not isinstance(item.get(key), str):
        return Unknown(WIRE, item)
    value, how = item.get("output"), None
    if isinstance(value, dict) and value.get("type") == "computer_screenshot":
        picture = _placed(value, {"image_url": "url", "file_id": "file_id"}, IMAGE)
        if picture is None:
            return Unknown(WIRE, item)
        parts: list[Part] = [picture]
        how = "screenshot"
    elif isinstance(value, str | None) or (isinstance(value, list) and kind != "shell_call_output"):
        parts, form = content_of(item, where, _input_part, "output")
        how = None if form == usual_form(parts, string=True, nothing="empty") else form
    else:
        try:
            parts, how = [Text(text_of(value, objects=False))], "json"
        except (TypeError, ValueError, RecursionError):
            return Unknown(WIRE, item)
    fields = rest(item, ("type", key, "output"))
    noted = native(WIRE, fields, output=how, type=None if kind == "function_call_output" else kind)
    is_error = kind == "apply_patch_call_output" and item.get("status") == "failed"
    return ToolResult(item[key], cast("Any", tuple(parts)), is_error=is_error, native=noted)
