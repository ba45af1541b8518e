"""Inputs and outputs of a model call. Invalid input raises `InvalidInput`, naming the field."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import force_setattr

from perdure import wire
from perdure.config import choices
from perdure.core import clock
from perdure.core.display import with_article
from perdure.core.errors import BadAnswer, InvalidInput
from perdure.core.messages import Message, Part, Role, Usage, sound
from perdure.wire.plain import plain

#: What a call is for. Each has candidate models of its own.
Purpose: TypeAlias = Literal["chat", "compress", "filter", "judge", "reflect", "embed"]
PURPOSES: tuple[Purpose, ...] = ("chat", "compress", "filter", "judge", "reflect", "embed")
Complexity: TypeAlias = Literal["simple", "moderate", "complex"]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high"]
Finish: TypeAlias = Literal["stop", "length", "tools", "filter", "other"]

_CHOICES = ("auto", "none", "required")
_PARTS = frozenset(get_args(Part))


class Tool(msgspec.Struct, frozen=True):
    """A tool that the model may call. One that the provider runs itself is in `native`, under the
    wire format's name; other formats leave it out.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    strict: bool | None = None
    native: dict[str, dict[str, Any]] = {}

    def __post_init__(self) -> None:
        _check(self)


class Shape(msgspec.Struct, frozen=True):
    """The JSON schema that an answer has to follow."""

    schema: dict[str, Any]
    name: str = "answer"
    strict: bool = True

    def __post_init__(self) -> None:
        _check(self)
        if self.schema.get("type") == "json_schema":
            raise InvalidInput(
                "Shape.schema is a response format, not a schema.",
                hint="Give what stands under `schema` in it.",
            )


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a model. What is None or empty is left to the provider.

    `messages` may be anything that `wire.decode` takes, `tools` dictionaries of Chat Completions,
    Responses or Anthropic Messages, `shape` a JSON schema, `stop` one text. Raises `InvalidInput`,
    naming the field, for anything else.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    #: ``auto``, ``none``, ``required``, or the name of the tool that must be called.
    tool_choice: str = "auto"
    parallel_tools: bool | None = None
    shape: Shape | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    #: How much the model should think: a word, or a number of tokens.
    reasoning: Effort | int | None = None
    #: Requests with the same key begin alike: the provider may send them where their cache is.
    prompt_cache_key: str = ""
    #: Further fields of the body, by wire format, as they are.
    extra: dict[str, dict[str, Any]] = {}

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            messages: Any,
            tools: Iterable[Tool | Mapping[str, Any]] = (),
            tool_choice: str = "auto",
            parallel_tools: bool | None = None,
            shape: Shape | Mapping[str, Any] | None = None,
            max_tokens: int | None = None,
            temperature: float | None = None,
            top_p: float | None = None,
            stop: str | Iterable[str] = (),
            seed: int | None = None,
            reasoning: Effort | int | None = None,
            prompt_cache_key: str = "",
            extra: dict[str, dict[str, Any]] = {},  # noqa: B006  # never run
        ) -> None: ...

    def __post_init__(self) -> None:
        force_setattr(self, "messages", _messages(self.messages))
        force_setattr(self, "tools", _tools(self.tools))
        force_setattr(self, "shape", _shape(self.shape))
        force_setattr(self, "stop", _stop(self.stop))
        if isinstance(self.reasoning, str) and self.reasoning not in get_args(Effort):
            raise InvalidInput(
                f"Request.reasoning: {self.reasoning!r} says nothing about reasoning.",
                hint=f"Use one of {', '.join(get_args(Effort))}, or a number of tokens.",
            )
        _check(self)
        offered = [tool.name for tool in self.tools]
        if self.tool_choice not in (*_CHOICES, *offered):
            raise InvalidInput(
                f"Request.tool_choice: the tool {self.tool_choice!r} is not offered.",
                hint=f"Use one of {', '.join((*_CHOICES, *offered))}.",
            )


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and what for: decides candidates, budgets and records. Raises `InvalidInput`."""

    purpose: Purpose = "chat"
    #: A name of the caller's for the kind of work: ``code-review``.
    task: str = ""
    #: Overrides what is configured for the task.
    complexity: Complexity | None = None
    agent: str = ""
    session: str = ""
    #: ``provider/model``: this one alone, without fallback.
    model: str = ""
    #: Seconds for everything: queueing, retries, fallbacks. None: as configured.
    deadline: Annotated[float, msgspec.Meta(ge=0)] | None = None
    #: Whether an answer may come from, and go to, the response cache. None: as configured.
    cache: bool | None = None
    #: Names the call in its outcomes, one for each attempt. Made up if it is empty.
    call: str = ""

    def __post_init__(self) -> None:
        _check(self)


class ModelAnswer(msgspec.Struct, frozen=True):
    """What one model said, as its wire format's decoder read it."""

    message: Message  # the assistant's, with id, model and usage
    finish: Finish = "stop"


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, and what it took."""

    message: Message
    finish: Finish
    provider: str
    model: str
    #: In picodollars; None if unknown.
    cost: int | None = None
    cached: bool = False
    #: Names the outcome record: give it to `feedback`.
    outcome: str = ""
    #: How many candidates failed before this one.
    fallback: int = 0
    #: Seconds, of this attempt: until the first thing arrived, and until the end.
    first_token: float | None = None
    latency: float = 0.0

    @property
    def text(self) -> str:
        return self.message.text

    @property
    def usage(self) -> Usage | None:
        return self.message.usage

    def json(self) -> Any:
        """The answer to a request with a `shape`, as data. Raises `BadAnswer` if it is not JSON."""
        try:
            return json.loads(self.message.text)
        except ValueError as exc:
            raise BadAnswer(
                f"{self.provider}/{self.model} did not answer with JSON (it ended by"
                f" {self.finish}).",
                hint="Allow more tokens, or use a model that follows schemas.",
            ) from exc


class EmbedReply(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors for texts, in their order."""

    vectors: tuple[tuple[float, ...], ...]
    provider: str
    model: str
    usage: Usage | None = None
    cost: int | None = None
    outcome: str = ""


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """More words."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    """More of what the model thinks, or says about it."""

    text: str


class CallBegan(msgspec.Struct, frozen=True, gc=False):
    """A tool call begins; `index` tells apart those that arrive at the same time."""

    index: int
    id: str
    name: str


class CallDelta(msgspec.Struct, frozen=True, gc=False):
    """More of a call's arguments."""

    index: int
    arguments: str


class PartEnded(msgspec.Struct, frozen=True, gc=False):
    """A part is complete: signed reasoning, say, which only then has its signature."""

    part: Part


Delta: TypeAlias = TextDelta | ReasoningDelta | CallBegan | CallDelta | PartEnded


class RateLimits(msgspec.Struct, frozen=True, gc=False):
    """What a provider's headers say is left, and in how many seconds it is filled up again."""

    requests: int | None = None
    requests_reset: float | None = None
    tokens: int | None = None
    tokens_reset: float | None = None


Headers: TypeAlias = Mapping[str, str]


def _check(made: msgspec.Struct) -> None:
    for field in _fields(type(made)):
        value = getattr(made, field.name)
        if value is field.default:
            continue
        try:
            # Numbers of numpy are floats, and msgspec wants them plain.
            msgspec.convert(float(value) if isinstance(value, float) else value, field.type)
        except msgspec.ValidationError as exc:
            reason = str(exc).partition(" - at ")[0].replace("null", "None")
            allowed = choices(field.type)
            raise InvalidInput(
                f"{type(made).__name__}.{field.name} cannot be {_shown(value)}:"
                f" {reason[0].lower()}{reason[1:]}.",
                hint=f"Use one of {', '.join(allowed)}." if allowed else "Correct it.",
            ) from exc


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _messages(given: Any) -> tuple[Message, ...]:
    found = wire.decode(given)
    if not found:
        raise InvalidInput("There are no messages to send.", hint="Give at least one.")
    for at, message in enumerate(found):
        parts: Any = message.parts
        is_sound = isinstance(parts, tuple | list) and all(type(part) in _PARTS for part in parts)
        if message.role not in get_args(Role) or not is_sound:
            raise InvalidInput(
                f"Request.messages[{at}] cannot be {_shown(message)}.",
                hint=f"Make it like Message(role, (Text(text),)), with one of the roles"
                f" {', '.join(get_args(Role))}.",
            )
    return found


def _tools(given: Any) -> tuple[Tool, ...]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidInput(
            f"Request.tools cannot be {_shown(given)}.", hint="Give a list of tools."
        )
    return tuple(
        each if isinstance(each, Tool) else _tool(plain(each), f"Request.tools[{at}]")
        for at, each in enumerate(given)
    )


def _tool(item: Any, where: str) -> Tool:
    parameters = "parameters"
    match item:
        case {"type": "function", "function": {"name": _} as said}:
            pass
        case {"type": "function", "name": _}:
            said = item
        case {"name": _, "input_schema": _} if item.get("type") in {None, "custom"}:
            said, parameters = item, "input_schema"
        case _:
            raise InvalidInput(
                f"{where} is no tool: {_shown(item)}.",
                hint='Give a Tool, {"type": "function", "function": {"name": …}},'
                ' {"type": "function", "name": …} or {"name": …, "input_schema": …}; what the'
                " provider runs itself is Tool(name, native={format: …}).",
            )
    names = {parameters: "parameters", "name": "name", "description": "description"}
    names["strict"] = "strict"
    # Where its cache begins is the business of the one provider that is told so.
    if further := sorted(set(said) - {*names, "type", "cache_control"}, key=str):
        raise InvalidInput(
            f"{where}: {', '.join(map(str, further))} cannot be said to every model.",
            hint="Leave it out, or give the whole as Tool(name, native={format: …}).",
        )
    return Tool(**{names[key]: said[key] for key in names if said.get(key) is not None})


def _shape(given: Any) -> Shape | None:
    if given is None or isinstance(given, Shape):
        return given
    if isinstance(given, Mapping):
        return Shape(dict(given))
    raise InvalidInput(
        f"Request.shape cannot be {_shown(given)}.",
        hint="Give a JSON schema as a dictionary, or a Shape; of a class of pydantic, what its"
        " model_json_schema() gives.",
    )


def _stop(given: Any) -> tuple[str, ...]:
    words = (given,) if isinstance(given, str) else given
    if not isinstance(words, Iterable) or isinstance(words, Mapping | bytes):
        raise InvalidInput(f"Request.stop cannot be {_shown(given)}.", hint="Give a list of texts.")
    words = tuple(words)
    if not all(isinstance(word, str) and word for word in words):
        raise InvalidInput(
            f"Request.stop cannot be {_shown(given)}.", hint="Give texts that are not empty."
        )
    return words


def to_request(given: Any) -> Request:
    return given if isinstance(given, Request) else Request(messages=given)


def check_options(given: Any) -> CallOptions:
    if isinstance(given, CallOptions):
        return given
    raise InvalidInput(
        f"The options cannot be a {type(given).__name__}.",
        hint='Give CallOptions(agent="me"), say.',
    )


def numbered(options: CallOptions) -> CallOptions:
    """With a name for the call, if it has none."""
    return options if options.call else msgspec.structs.replace(options, call=clock.new_id())


def check_embed_options(given: Any) -> CallOptions:
    options = check_options(given)
    if options.purpose == "chat":
        return msgspec.structs.replace(options, purpose="embed")
    if options.purpose != "embed":
        raise InvalidInput(
            f"Texts are not embedded for {options.purpose}.",
            hint='Use CallOptions(purpose="embed").',
        )
    return options


def check_texts(given: Any) -> Sequence[str]:
    if isinstance(given, str | bytes | bytearray) or not isinstance(given, Sequence):
        kind = type(given).__name__
        raise InvalidInput(f"embed wants a list of texts, not a {kind}.", hint="Give [text].")
    if not given:
        raise InvalidInput("There is nothing to embed.", hint="Give a list of texts.")
    for at, text in enumerate(given):
        if not isinstance(text, str):
            raise InvalidInput(
                f"texts[{at}] is a {type(text).__name__}, not a text.", hint="Give a list of texts."
            )
    return given


def check_score(outcome: Any, score: Any) -> float:
    if not isinstance(outcome, str):
        raise InvalidInput(
            f"{with_article(type(outcome).__name__, 'A')} does not name an outcome.",
            hint="Use the `outcome` of a reply.",
        )
    if not isinstance(score, int | float):
        raise InvalidInput(f"{score!r} is no score.", hint="Give a number from 0.0 to 1.0.")
    return float(score)


def check_moment(name: str, given: Any) -> datetime | None:
    if given is None or isinstance(given, datetime):
        return given
    raise InvalidInput(
        f"{name} cannot be {given!r}: it is no datetime.",
        hint=f"Use an aware datetime, such as {name}=datetime.now(UTC) - timedelta(days=7).",
    )


def check_purpose(given: Any) -> None:
    if given not in PURPOSES:
        raise InvalidInput(
            f"Models are not called for {given!r}.", hint=f"Use one of {', '.join(PURPOSES)}."
        )


def packed(value: msgspec.Struct) -> bytes:
    """Encoded to be stored; half surrogate pairs, which models leave, are replaced."""
    try:
        return _pack(value)
    except UnicodeEncodeError:
        return _pack(sound(msgspec.to_builtins(value, builtin_types=(bytes,))))


_pack = msgspec.msgpack.Encoder().encode

_LONGEST = 120  # of at most four bytes each: what an index holds


def indexable(name: str) -> str:
    """The name as far as every database can hold it in an index."""
    if len(name) <= _LONGEST and name.isascii() and "\x00" not in name:
        return name
    return name.encode("utf-8", "replace").decode().replace("\x00", "")[:_LONGEST]
