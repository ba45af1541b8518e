"""How many tokens a call may take, for budgets and gates, before its provider has counted.

What a provider counts is believed, unless it cannot be true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from perdure.core.messages import Media, Message, words_of
from perdure.gateway.calls import Answered, Request

#: Bytes a token, roughly.
_PER_TOKEN = 3.5
#: What an image may take, in tokens.
_IMAGE = 1_600
#: The fields of bodies that limit an answer.
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
#: Fields of `Usage`; what is above this, or below nothing, is no count.
_COUNTS = ("input", "output", "cache_read", "cache_write", "reasoning")
_MOST_TOKENS = 2**40


def of_request(request: Request) -> int:
    """About how many tokens go in: messages, tools, the schema of the answer."""
    others: list[object] = [*request.tools]
    if request.shape is not None:
        others.append(request.shape.schema)
    return _tokens(request.messages, others)


def of_message(message: Message) -> int:
    """About how many tokens a message takes."""
    return _tokens([message])


def is_limited(body: Mapping[str, Any]) -> bool:
    """Whether a body says how long its answer may be, though it may be no number."""
    return any(name in body for name in _LIMITS)


def longest_answer(body: Mapping[str, Any]) -> int | None:
    """How many tokens a body allows its answer to have; None if it names no number."""
    return max((body[name] for name in _LIMITS if isinstance(body.get(name), int)), default=None)


def credible(answered: Answered) -> Answered:
    """The answer; counts of tokens that cannot be true are unknown."""
    usage = answered.message.usage
    if usage is None:
        return answered
    counts = {name: getattr(usage, name) for name in _COUNTS}
    if all(count is None or 0 <= count <= _MOST_TOKENS for count in counts.values()):
        return answered
    sane = {n: c if c is not None and 0 <= c <= _MOST_TOKENS else None for n, c in counts.items()}
    message = replace(answered.message, usage=replace(usage, **sane))
    return replace(answered, message=message)


def _tokens(messages: Iterable[Message], others: Iterable[object] = ()) -> int:
    size = media = 0
    for message in messages:
        for part in message.parts:
            if isinstance(part, Media):
                media += 1
                continue
            words = words_of(part)
            # Outside of ASCII, tokens are nearer to bytes than to characters.
            plain = words if words.isascii() else words.encode("utf-8", "surrogatepass")
            size += len(plain)
    size += sum(len(str(other)) for other in others)
    return int(size / _PER_TOKEN) + media * _IMAGE + 8
