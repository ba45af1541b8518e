"""What goes into a model call and what comes out of it: plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from perdure.core.errors import BadAnswer
from perdure.core.messages import Message, Part, Usage

#: What a call is for. Each has candidate models of its own.
Purpose: TypeAlias = Literal["chat", "compress", "filter", "judge", "reflect", "embed"]
PURPOSES: tuple[Purpose, ...] = ("chat", "compress", "filter", "judge", "reflect", "embed")
Complexity: TypeAlias = Literal["simple", "moderate", "complex"]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high"]
#: Why a model stopped.
Finish: TypeAlias = Literal["stop", "length", "tools", "filter", "other"]


class Tool(msgspec.Struct, frozen=True):
    """A tool that the model may ask for.

    A tool that the provider runs itself stands in `native`, under the wire format's name, as that
    format writes it; other formats leave it out.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    strict: bool | None = None
    native: dict[str, dict[str, Any]] = {}


class Shape(msgspec.Struct, frozen=True):
    """The JSON schema that an answer has to follow."""

    schema: dict[str, Any]
    name: str = "answer"
    strict: bool = True


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a model, whichever it is. What is None or empty is left to the provider."""

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


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and what for: decides the candidates, the budgets, and what is recorded."""

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
    deadline: float | None = None
    #: Whether an answer may come from, and go to, the response cache. None: as configured.
    cache: bool | None = None


class Answered(msgspec.Struct, frozen=True):
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
        """The answer as data, for a request with a `shape`.

        Raises `BadAnswer` if it is not JSON: it was cut off, or the model does not keep to it.
        """
        try:
            return json.loads(self.message.text)
        except ValueError as exc:
            raise BadAnswer(
                f"{self.provider}/{self.model} did not answer with JSON (it ended by"
                f" {self.finish}).",
                hint="Allow more tokens, or use a model that follows schemas.",
            ) from exc


class Embedded(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors for texts, in their order."""

    vectors: tuple[tuple[float, ...], ...]
    provider: str
    model: str
    usage: Usage | None = None
    cost: int | None = None
    outcome: str = ""


# What arrives of a stream ----------------------------------------------------------------------


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


class Limits(msgspec.Struct, frozen=True, gc=False):
    """What a provider's headers say is left, and in how many seconds it is filled up again."""

    requests: int | None = None
    requests_reset: float | None = None
    tokens: int | None = None
    tokens_reset: float | None = None


Headers: TypeAlias = Mapping[str, str]
