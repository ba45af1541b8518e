"""The canonical form of messages: frozen values, made of parts, without identity.

They can say whatever the wire formats can (see `perdure.wire`); what only one of them can say is
kept in `native`, under that format's name, and left out of other formats.

    Message(role="user", parts=(Text("List the files."),))
    Message(role="assistant", parts=(ToolCall("c1", "shell", '{"command": "ls"}'),))
    Message(role="tool", parts=(ToolResult("c1", (Text("a.py"),)),))

Defaults are not stored, so a field can be added without changing the bytes, and hence the hashes,
of stored messages. Removing or renaming one would break both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)

#: ``event`` records what happened to the conversation (it was compacted, say): it is kept, shown
#: and exported, and never sent to a model.
Role = Literal["system", "developer", "user", "assistant", "tool", "event"]

#: The provider's own fields by wire format: ``{"messages": {"cache_control": {…}}}``.
Native = dict[str, dict[str, Any]]


class _Value(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, tag_field="kind"):
    """Base of all parts. No garbage collection: plain data makes no cycles."""


class Text(_Value, frozen=True, gc=False, tag="text"):
    """Words."""

    text: str
    native: Native = {}


class Reasoning(_Value, frozen=True, gc=False, tag="reasoning"):
    """What the model thought, as far as its provider shows it."""

    text: str = ""
    #: What the provider says about it instead of, or beside, showing it.
    summary: tuple[str, ...] = ()
    #: Proves to the provider that the text is the model's own; void if a byte of it changes.
    signature: str | None = None
    #: The reasoning itself, readable by its provider only.
    encrypted: str | None = None
    native: Native = {}


class ArtifactPointer(_Value, frozen=True, gc=False, tag="reference"):
    """Stands for content in the artifact store.

    Either text (``of="text"``: the artifact is UTF-8) or a whole part in its stored form
    (``of="part"``). Session and agent say where it was first said.
    """

    artifact: str  # sha256:…
    size: int
    of: Literal["text", "part"] = "text"
    media_type: str = "text/plain"
    filename: str = ""
    session: str = ""
    agent: str = ""
    #: The beginning, for readers that do not fetch the rest.
    head: str = ""
    native: Native = {}


class Media(_Value, frozen=True, gc=False, tag="media"):
    """An image, a sound or a file: bytes or their location. Exactly one is set."""

    media_type: str = ""
    data: bytes | None = None
    artifact: str | None = None
    size: int = 0  # of the artifact
    url: str | None = None
    #: The provider's id of it.
    file_id: str | None = None
    filename: str = ""
    native: Native = {}


class ToolCall(_Value, frozen=True, gc=False, tag="call"):
    """A call of a tool by the model."""

    id: str
    name: str
    #: As the model wrote it: JSON in most cases, and not always valid.
    arguments: str = ""
    #: Stands for the arguments when they are large; `arguments` is empty then. Or for the file's
    #: content in them, in whose place an object names the artifact.
    reference: ArtifactPointer | None = None
    native: Native = {}


class Unknown(_Value, frozen=True, gc=False, tag="unknown"):
    """Content of a wire format that has no canonical form. Goes back to that format verbatim."""

    wire: str
    data: Any


class ToolResult(_Value, frozen=True, gc=False, tag="result"):
    """The result of a tool call."""

    call: str  # the id of the call
    content: tuple[Text | Media | ArtifactPointer | Unknown, ...] = ()
    is_error: bool = False
    name: str = ""
    native: Native = {}

    @property
    def text(self) -> str:
        return "\n".join(words_of(part) for part in self.content)


Part = Text | Reasoning | ToolCall | ToolResult | Media | ArtifactPointer | Unknown


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens of one model call, as its provider counted them. None is unknown, not zero."""

    #: Everything that went in, cached or not.
    input: int | None = None
    output: int | None = None
    #: The share of `input` that was read from, or written to, the provider's cache.
    cache_read: int | None = None
    cache_write: int | None = None
    #: The share of `output` that was reasoning.
    reasoning: int | None = None
    native: dict[str, Any] = {}


class Message(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One message. A reply with several tool calls is one; so are several results sent together."""

    role: Role
    parts: tuple[Part, ...] = ()
    #: The provider's name for it. Messages with the same one are pieces of the same reply.
    id: str = ""
    #: Who speaks, where a role has several speakers; what kind of event it is, for an event.
    name: str = ""
    model: str = ""
    usage: Usage | None = None
    #: When it was said and, if it took time, when it ended. Microseconds; None if unknown.
    time: int | None = None
    ended: int | None = None
    #: Put in by a harness in the user's name (reminders, environment): not a prompt.
    injected: bool = False
    partial: bool = False
    #: The wire format that it came from; going back there, it keeps its shape.
    wire: str = ""
    native: Native = {}

    @property
    def text(self) -> str:
        """Without reasoning, calls and results."""
        return "\n".join(
            words_of(part) for part in self.parts if isinstance(part, Text | ArtifactPointer)
        )

    @property
    def calls(self) -> list[ToolCall]:
        return [part for part in self.parts if isinstance(part, ToolCall)]

    @property
    def results(self) -> list[ToolResult]:
        return [part for part in self.parts if isinstance(part, ToolResult)]


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def assistant(text: str) -> Message:
    return Message("assistant", (Text(text),))


def event(kind: str, text: str = "", **native: Any) -> Message:
    parts = (Text(text),) if text else ()
    return Message("event", parts, name=kind, native={"event": native} if native else {})


def words_of(part: Part) -> str:
    """The words in a part, for searching, counting and showing; no signatures and ids."""
    if isinstance(part, Text):
        return part.text
    if isinstance(part, Reasoning):
        return part.text or "\n".join(part.summary)
    if isinstance(part, ToolCall):
        head = part.reference.head if part.reference else ""
        given = f"{part.arguments}\n{head}" if part.arguments and head else part.arguments or head
        return f"{part.name} {given}"
    if isinstance(part, ToolResult):
        return part.text
    if isinstance(part, ArtifactPointer):
        return part.head
    return ""


def changed(value: S, **fields: Any) -> S:
    """The value with other fields; the same object if nothing differs. Structs in fields are
    compared by identity.
    """
    new = {name: each for name, each in fields.items() if not _is_same(getattr(value, name), each)}
    return msgspec.structs.replace(value, **new) if new else value


def _is_same(old: Any, new: Any) -> bool:
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(map(_is_same, old, new))
    return new is old or (isinstance(new, str) and new == old)


def leaves(messages: Iterable[Message]) -> list[Part]:
    """All parts; of tool results, the parts in them."""
    found: list[Part] = []
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolResult):
                found += part.content
            else:
                found.append(part)
    return found


def references(messages: Iterable[Message]) -> list[str]:
    """The artifacts that messages refer to."""
    found: list[str] = []
    for part in leaves(messages):
        if isinstance(part, Text):
            continue  # as almost every part
        if isinstance(part, ArtifactPointer) or (isinstance(part, Media) and part.artifact):
            found.append(part.artifact)  # type: ignore[arg-type]  # narrowed by the line above
        elif isinstance(part, ToolCall) and part.reference is not None:
            found.append(part.reference.artifact)
    return found


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Message, ...])


def encode(messages: Iterable[Message]) -> bytes:
    """The stored form: the same messages always give the same bytes. See `sound` for surrogates."""
    messages = tuple(messages)
    try:
        return _encoder.encode(messages)
    except UnicodeEncodeError:
        plain = sound(msgspec.to_builtins(messages, builtin_types=(bytes,)))
        return _encoder.encode(msgspec.convert(plain, tuple[Message, ...]))


def decode(stored: bytes) -> tuple[Message, ...]:
    """Raises msgspec.MsgspecError if it is no stored form."""
    return _decoder.decode(stored)


_half_pairs = re.compile("[\ud800-\udfff]")


def sound(value: Any) -> Any:
    """Plain data with every half surrogate pair replaced by U+FFFD.

    JSON can hold them (from tools that cut an emoji), UTF-8 cannot; every provider refuses them.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            # Two halves that belong together are one character.
            whole = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return _half_pairs.sub("\ufffd", whole)
        return value
    if isinstance(value, dict):
        return {sound(key): sound(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [sound(item) for item in value]
    return value


_date = re.compile(r"-(?:20\d{2}-?\d{2}-?\d{2}|latest)$")


def is_same_model(one: str, other: str) -> bool:
    """Ignores dates, and who made the model."""
    return bare_model(one) == bare_model(other)


def bare_model(model: str) -> str:
    """``anthropic/claude-sonnet-4-5-20250929`` → ``claude-sonnet-4-5``."""
    return _date.sub("", model.rpartition("/")[2].lower())
