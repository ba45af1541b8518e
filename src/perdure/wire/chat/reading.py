"""Chat Completions to canonical messages."""

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
from perdure.wire.chat.form import AUDIO, REASONING, WIRE, media_kind, nothing
from perdure.wire.content import Where, content_of, count, microseconds, no_message, usual_form
from perdure.wire.keep import KEPT, decode_kept
from perdure.wire.media import IMAGE, from_base64, from_url
from perdure.wire.notes import NOTES, fields_of, native, notes_of, rest
from perdure.wire.plain import Item, kind_of, role_of

_ROLES = frozenset({"system", "developer", "user", "assistant"})
_SPOKEN = frozenset({"role", "content"})
_NAMES = ("tool_call_id", "name")
_MEDIA = frozenset({"image_url", "input_audio", "file"})


def read_messages(items: list[Any]) -> tuple[Message, ...]:
    messages: list[Message] = []
    for at, item in enumerate(items):
        if isinstance(item, dict) and KEPT in item:
            return decode_kept(items, read_messages)
        messages.append(_message(item, ("messages", at)))
    return tuple(messages)


def _message(item: Any, where: Where) -> Message:
    role = role_of(item)
    if role in _ROLES:
        text = item.get("content")
        if len(item) == 2 and isinstance(text, str) and text:
            return Message(cast("Role", role), (Text(text),), wire=WIRE)
        return _spoken(item, cast("Role", role), where)
    if role in {"tool", "function"}:
        return _result(item, where)
    raise no_message(
        where, item, "Chat roles are system, developer, user, assistant, tool and function."
    )


def _spoken(item: Item, role: Role, where: Where) -> Message:
    parts, form = content_of(item, where, _part)
    usual = usual_form(parts, string=True, nothing=nothing(role))
    fields = rest(item, _SPOKEN)
    name = fields.pop("name") if _is_text(fields.get("name")) else ""
    if role == "assistant":
        parts = [*_reasoning(fields), *parts, *_other_words(fields, form), *_calls(fields)]
    noted = native(WIRE, fields, content=None if form == usual else form)
    return Message(role, tuple(parts), name=name, wire=WIRE, native=noted)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _reasoning(fields: Item) -> list[Part]:
    for name in REASONING:
        if _is_text(fields.get(name)):
            note = None if name == REASONING[0] else name
            return [Reasoning(fields.pop(name), native=native(WIRE, {}, field=note))]
    return []


def _other_words(fields: Item, form: str) -> list[Part]:
    words: list[Part] = []
    if _is_text(fields.get("refusal")):
        words.append(Text(fields.pop("refusal"), native=native(WIRE, {}, field="refusal")))
    audio = fields.get("audio")
    if form in {"null", "absent"} and isinstance(audio, dict) and _is_text(audio.get("transcript")):
        words.append(Text(audio["transcript"], native=native(WIRE, {}, field="audio")))
    return words


def _calls(fields: Item) -> list[Part]:
    calls: list[Part] = []
    found = fields.get("tool_calls")
    if isinstance(found, list) and found:
        read = [_call(call) for call in found]
        if None not in read:
            calls += cast("list[Part]", read)
            del fields["tool_calls"]
    old = fields.get("function_call")
    if isinstance(old, dict) and old.keys() == {"name", "arguments"} and _texts(*old.values()):
        del fields["function_call"]
        noted = native(WIRE, {}, field="function_call")
        calls.append(ToolCall("", old["name"], old["arguments"], native=noted))
    return calls


def _texts(*values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def _call(call: Any) -> ToolCall | None:
    if not isinstance(call, dict) or NOTES in call or not isinstance(call.get("id"), str):
        return None
    kind = kind_of(call)
    if kind not in {"function", "custom"}:
        return None
    said = call.get(kind)
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        return None
    key = "arguments" if kind == "function" else "input"
    arguments, as_object = said.get(key), None
    if isinstance(arguments, dict):  # some servers forget to write it as text
        try:
            arguments, as_object = text_of(arguments, objects=True), True
        except (TypeError, ValueError, RecursionError):
            return None
    if not isinstance(arguments, str):
        return None
    if len(call) == 3 and len(said) == 2 and kind == "function" and not as_object:
        return ToolCall(call["id"], said["name"], arguments)
    fields = rest(call, ("id", "type", kind))
    if len(said) > 2:
        fields[kind] = rest(said, ("name", key))
    noted = native(WIRE, fields, type=None if kind == "function" else kind, object=as_object)
    return ToolCall(call["id"], said["name"], arguments, native=noted)


def _result(item: Item, where: Where) -> Message:
    call: Any = item.get("tool_call_id")
    text: Any = item.get("content")
    if len(item) == 3 and item["role"] == "tool" and _is_text(call) and _is_text(text):
        result = ToolResult(call, (Text(text),))
        return Message("tool", (result,), wire=WIRE)
    parts, form = content_of(item, where, _part)
    usual = usual_form(parts, string=True, nothing="empty")
    old = item["role"] == "function"  # which names the tool instead of the call
    known = ["role", "content", *(name for name in _NAMES if isinstance(item.get(name), str))]
    if old and "tool_call_id" in known:
        known.remove("tool_call_id")
    result = ToolResult(
        item["tool_call_id"] if "tool_call_id" in known else "",
        cast("Any", tuple(parts)),
        name=item["name"] if "name" in known else "",
    )
    noted = native(
        WIRE,
        rest(item, known),
        content=None if form == usual else form,
        role="function" if old else None,
        # An empty name or id is not the same as none.
        has=[name for name in known if item.get(name) == "" and name in _NAMES] or None,
    )
    return Message("tool", (result,), wire=WIRE, native=noted)


def _part(block: Any) -> Part:
    if isinstance(block, dict) and NOTES not in block:
        kind = kind_of(block)
        if kind == "text" and isinstance(block.get("text"), str):
            if len(block) == 2:
                return Text(block["text"])
            return Text(block["text"], native=native(WIRE, rest(block, ("type", "text"))))
        if kind == "refusal" and isinstance(block.get("refusal"), str):
            fields = rest(block, ("type", "refusal"))
            return Text(block["refusal"], native=native(WIRE, fields, type="refusal"))
        read = _media(block, kind) if kind in _MEDIA else None
        # Sound, image or file is told by the media type; a data URL may lie about it.
        if read is not None and media_kind(read) == kind:
            return read
    return Unknown(WIRE, block)


def _media(block: Item, kind: str) -> Media | None:
    inner = block.get(kind)
    if not isinstance(inner, dict):
        return None
    fields = rest(block, ("type", kind))
    if kind == "image_url":
        if not isinstance(inner.get("url"), str):
            return None
        if len(inner) > 1:
            fields[kind] = rest(inner, ("url",))
        return from_url(inner["url"], IMAGE, native=native(WIRE, fields))
    if kind == "input_audio":
        data, form = from_base64(inner.get("data")), inner.get("format")
        if data is None or form not in list(AUDIO.values()):
            return None
        if len(inner) > 2:
            fields[kind] = rest(inner, ("data", "format"))
        return Media(f"audio/{form}", data=data, native=native(WIRE, fields))
    return _file(inner, fields)


def _file(inner: Item, fields: Item) -> Media | None:
    places = [name for name in ("file_id", "file_data") if isinstance(inner.get(name), str)]
    name = inner.get("filename", "")
    if len(places) != 1 or not isinstance(name, str) or (name == "" and "filename" in inner):
        return None
    left = rest(inner, ("filename", *places))
    if left:
        fields["file"] = left
    noted = native(WIRE, fields)
    if places == ["file_id"]:
        return Media(file_id=inner["file_id"], filename=name, native=noted)
    read = from_url(inner["file_data"], filename=name, native=noted)
    return read if read.data is not None else None


def read_response(bodies: list[Item]) -> tuple[Message, ...]:
    (body,) = bodies
    choices = body["choices"]
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise InvalidInput(
            "The response does not have exactly one choice.",
            hint="Pass the message of the choice that you went on with.",
        )
    message = _message(choices[0].get("message"), ("choices", 0))
    said = rest(body, ("id", "model", "usage", "choices"))
    said |= rest(choices[0], ("message", "index"))
    fields, notes = fields_of(message.native, WIRE), notes_of(message.native, WIRE)
    return (
        replace(
            message,
            id=body["id"] if isinstance(body.get("id"), str) else "",
            model=body["model"] if isinstance(body.get("model"), str) else "",
            usage=usage_of(body.get("usage")),
            time=microseconds(body.get("created")),
            native=native(WIRE, fields, **notes, response=said or None),
        ),
    )


def usage_of(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    return Usage(
        input=count(usage, "prompt_tokens"),
        output=count(usage, "completion_tokens"),
        cache_read=count(usage, "prompt_tokens_details", "cached_tokens"),
        cache_write=count(usage, "prompt_tokens_details", "cache_write_tokens"),
        reasoning=count(usage, "completion_tokens_details", "reasoning_tokens"),
        native=usage,
    )
