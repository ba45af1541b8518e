"""How many tokens a text, or a message in a prompt, takes.

The unit is o200k, the vocabulary of OpenAI's newer models, counted exactly by `rs-bpe`. How other
providers count (Anthropic publishes no tokenizer) is learned per model, from returned usage::

    calibration = observe(calibration, ours=count_message(counter, reply), theirs=usage.output)
    calibration.scale.ours(100_000)  # ours that fit into so many of theirs

Counting is linear in the length: 20 MB/s of code and prose, 1 MB/s in the worst case known (runs of
one dash), and holds the GIL. An event loop counts long content with `steps`.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Protocol

import msgspec

from perdure.core.errors import Unsupported
from perdure.core.messages import (
    Media,
    Message,
    Part,
    ToolCall,
    ToolResult,
    Unknown,
    sound,
    words_of,
)

#: Tokens around the words of a message: role, begin and end. OpenAI takes three to four.
MESSAGE_OVERHEAD = 4
#: Tokens around each tool call and result: field names, quotes, ids.
TOOL_OVERHEAD = 4

# Slices are this long, and up to the margin longer for a cut between two tokens. Changing either
# changes the counts of long texts without blanks. Their sum is a power of two, because runs of one
# character merge into tokens of 8 to 128 of them.
_SLICE, _MARGIN = 12_288, 4_096
# No token of o200k crosses these places, so cutting there changes no count: before a line's first
# character (a slash can belong to the line break before it), before the space behind a word.
_between_tokens = re.compile(r"(?<=\n)(?=[^\s/])|(?<=\S)(?= )").search


class Counter(Protocol):
    """Counts the tokens of any string, deterministically.

    The tokens of two texts need not add up to those of both together.
    """

    @property
    def name(self) -> str: ...

    def count(self, text: str) -> int: ...


class ExactCounter:
    """Exact up to 16,384 characters, and beyond for texts with a space or line break now and then.

    A longer run without either (base64, Chinese) is cut every 16,384 characters, which adds a token
    or two to each cut. The first count takes 60 ms. Raises `Unsupported` then without `rs-bpe`.
    """

    name = "o200k"

    def count(self, text: str) -> int:
        tokenizer = _tokenizer()
        if tokenizer is None:
            raise Unsupported(
                "Tokens cannot be counted exactly: the package rs-bpe is missing.",
                hint="Install rs-bpe, or count with Estimate().",
            )
        return sum(map(tokenizer.count, slices(text)))


class EstimatedCounter:
    """A token for every four bytes of UTF-8.

    Up to a third off for ordinary text, more for tables and base64.
    """

    name = "bytes/4"

    def count(self, text: str) -> int:
        return -(-len(sound(text).encode()) // 4)


@cache
def o200k() -> Counter:
    """Exact, or estimated where `rs-bpe` cannot be loaded; its name tells which."""
    try:
        importlib.import_module("rs_bpe.bpe")
    except ImportError:
        return EstimatedCounter()
    return ExactCounter()


@cache
def _tokenizer() -> Any:
    try:
        return importlib.import_module("rs_bpe.bpe").openai.o200k_base()
    except ImportError:
        return None


def slices(text: str) -> Iterator[str]:
    """Slices of at most 16,384 characters, cut between two tokens where possible.

    Half surrogate pairs are replaced (`sound`).
    """
    text = sound(text)
    start = 0
    while len(text) - start > _SLICE + _MARGIN:
        found = _between_tokens(text, start + _SLICE, start + _SLICE + _MARGIN)
        end = found.start() if found else start + _SLICE + _MARGIN
        yield text[start:end]
        start = end
    yield text[start:] if start else text


# Rough: providers count pixels, pages and seconds, and only the size in bytes is known here.
_IMAGE_TOKENS = (
    (20_000, 255),  # an icon, a small picture: one tile of OpenAI's
    (200_000, 765),  # 1024 × 1024: four tiles
)
_LARGE_IMAGE_TOKENS = 1_600  # the most that Anthropic takes, after scaling it down
_UNSEEN_IMAGE_TOKENS = 765  # behind an address
_UNSEEN_FILE_TOKENS = 2_000  # a page or two
_BYTES_PER_TOKEN = {"text": 4, "audio": 1_600}  # a tenth of a second of MP3
_BYTES_PER_FILE_TOKEN = 32  # a page of PDF: 60 KB, 1,900 tokens


def media_tokens(media: Media) -> int:
    """A flat figure for an image, a sound or a file, by its kind and size in bytes."""
    size = len(media.data) if media.data is not None else media.size
    kind = media.media_type.partition("/")[0]
    if kind == "image":
        if not size:
            return _UNSEEN_IMAGE_TOKENS
        return next((cost for limit, cost in _IMAGE_TOKENS if size <= limit), _LARGE_IMAGE_TOKENS)
    if not size:
        return _UNSEEN_FILE_TOKENS
    return -(-size // _BYTES_PER_TOKEN.get(kind, _BYTES_PER_FILE_TOKEN))


def count_message(counter: Counter, message: Message) -> int:
    """Tokens of the message in a prompt.

    All words: text, visible reasoning, names and arguments of calls, results, heads of references,
    strings in unknown parts; plus `media_tokens`, `MESSAGE_OVERHEAD` and `TOOL_OVERHEAD`. Not
    counted: signatures, encrypted reasoning, ids, native fields. An event costs nothing.
    """
    return sum(steps(counter, (message,)))


def count_messages(counter: Counter, messages: Iterable[Message]) -> int:
    return sum(steps(counter, messages))


def at_most(messages: Iterable[Message]) -> int:
    """An upper bound of `count_messages`, without reading the vocabulary."""
    return sum(
        piece if isinstance(piece, int) else len(sound(piece).encode())
        for message in messages
        for piece in _pieces(message)
    )


def steps(counter: Counter, messages: Iterable[Message]) -> Iterator[int]:
    """`count_messages` in steps of about 12,288 characters, so that others can run in between."""
    tokens = length = 0
    for message in messages:
        for piece in _pieces(message):
            if isinstance(piece, int):
                tokens += piece
                continue
            for text in slices(piece):
                tokens += counter.count(text)
                length += len(text)
                if length >= _SLICE:
                    yield tokens
                    tokens = length = 0
    yield tokens


def _pieces(message: Message) -> Iterator[str | int]:
    if message.role == "event":
        return
    yield MESSAGE_OVERHEAD
    if message.name:
        yield message.name
    for part in message.parts:
        if isinstance(part, ToolCall | ToolResult):
            yield TOOL_OVERHEAD
        yield from _pieces_of(part)


def _pieces_of(part: Part) -> Iterator[str | int]:
    if isinstance(part, ToolResult):
        for inner in part.content:
            yield from _pieces_of(inner)
    elif isinstance(part, Media):
        yield media_tokens(part)
    elif isinstance(part, Unknown):
        yield from _strings(part.data)
    else:
        yield words_of(part)


# Fields that carry no words a model would be charged for as such.
_no_words = re.compile(r"(?:.*_)?(?:id|type|signature|data|index|encrypted\w*)").fullmatch


def _strings(data: Any) -> Iterator[str]:
    left = [data]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            left += [item for key, item in value.items() if not _no_words(str(key))]
        elif isinstance(value, list | tuple):
            left += value


class TokenScale(msgspec.Struct, frozen=True):
    """How many of a provider's tokens ours are, in twentieths. By default they are the same."""

    twentieths: int = 20

    def ours(self, theirs: int) -> int:
        """Ours that are never more than so many of theirs."""
        return theirs * 20 // self.twentieths

    def theirs(self, ours: int) -> int:
        """Rounded up; what fits into `ours(n)` is never more than n."""
        return -(-ours * self.twentieths // 20)


#: Below this a sample says more about overheads than about the tokenizer.
_SMALLEST_SAMPLE = 100
#: No tokenizer is further off than this: such a sample did not count the same content.
_LARGEST_FACTOR = 4
_HEAVIEST_SAMPLE = 10_000
_KEPT_SAMPLES = 31
_ENOUGH = 500  # Tokens in all samples from which on a scale is taken from them.
_HEADROOM = 1.01  # What a scale leaves for the factor to drift, at least.


class Calibration(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one provider counts a model's tokens, compared with our counter. To be stored."""

    counter: str = ExactCounter.name
    #: The newest samples, at most 31: our count, theirs.
    recent: tuple[tuple[int, int], ...] = ()
    #: How many were taken in all, and how many were not because they made no sense.
    samples: int = 0
    ignored: int = 0
    #: What budgets are converted by: the factor, rounded up to a twentieth. It rises when the
    #: factor exceeds it, because a window must not be over its budget, and falls only when it could
    #: be two twentieths lower: so what drifts a little changes no window.
    scale: TokenScale = TokenScale()

    @property
    def factor(self) -> float:
        """Their tokens for one of ours: the weighted median of the newest samples; 1 without any.

        A sample weighs by its size, up to 10,000 tokens. Outliers hardly move it.
        """
        ranked = sorted(
            (theirs / ours, min(ours, _HEAVIEST_SAMPLE)) for ours, theirs in self.recent
        )
        half = sum(weight for _, weight in ranked) / 2
        for ratio, weight in ranked:
            half -= weight
            if half <= 0:
                return ratio
        return 1.0


def observe(calibration: Calibration, ours: int, theirs: int) -> Calibration:
    """The calibration with one more sample: both counts of the same content.

    All of a request must be counted, tools and system text too; else give the growth between two
    requests, on both sides. Samples below 100 tokens, or off by more than four times, are ignored.
    """
    if ours < _SMALLEST_SAMPLE or not ours <= theirs * _LARGEST_FACTOR <= ours * _LARGEST_FACTOR**2:
        return msgspec.structs.replace(calibration, ignored=calibration.ignored + 1)
    recent = (*calibration.recent, (ours, theirs))[-_KEPT_SAMPLES:]
    found = msgspec.structs.replace(calibration, recent=recent, samples=calibration.samples + 1)
    before, exact = found.scale.twentieths, found.factor * 20
    now = math.ceil(exact * _HEADROOM)
    is_known = sum(ours for ours, _ in recent) >= _ENOUGH
    if is_known and (exact > before or now <= before - 2):
        return msgspec.structs.replace(found, scale=TokenScale(now))
    return found
