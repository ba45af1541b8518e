"""A round that is too large for its window, shown in part.

Cut first are tool outputs, the largest first, then thoughts, arguments of calls, and the model's
own words; a prompt's words never. A stub names the id under which the rest can be fetched:
``T-12.3``. A view: the log keeps everything. The same round gives the same view anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)
from perdure.core.tokens import Counter, count_messages, media_tokens, slices
from perdure.core.turns import is_prompt

_LEAST = 24  # What a part is left with, at least: its stub.
#: Tries to meet the cap by the number of characters, which only estimates tokens.
_TRIES = 8
_MARGIN = 8
_LINES = 100_000  # Lines at each end of a text, as far as there is room: as many as there are.

#: The part in about so many tokens; itself if it is short.
_Cut: TypeAlias = Callable[[Any, int], Part]


class _Slot(msgspec.Struct, frozen=True):
    message: int
    part: int
    tokens: int


def reduced(
    messages: Iterable[Message], place: str, cap: int, counter: Counter
) -> tuple[Message, ...]:
    """The messages of a round in at most `cap` tokens, by `counter`. `place` is the id that stubs
    name. If `cap` is too small for the prompt and what must stay (names, ids, stubs), the smallest
    view is returned. JSON arguments stay JSON.
    """
    view, counter = tuple(messages), _Remembering(counter)
    if count_messages(counter, view) <= cap:
        return view
    cutter = _Cutter(place, counter)
    steps: tuple[Callable[[tuple[Message, ...]], tuple[Message, ...]], ...] = (
        lambda view: _filled(view, cap, counter, _is_output, cutter.result),
        _without_thoughts,
        lambda view: _filled(view, cap, counter, _is_call, cutter.call),
        lambda view: _filled(view, cap, counter, _is_reply, cutter.text),
        lambda view: _filled(view, cap, counter, _is_aside, cutter.text),
        lambda view: _bare(view, place),
    )
    for step in steps:
        view = step(view)
        if count_messages(counter, view) <= cap:
            break
    return view


class _Remembering:
    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._known = dict[str, int]()

    @property
    def name(self) -> str:
        return self._counter.name

    def count(self, text: str) -> int:
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._counter.count(text)
        return found


def _is_output(_: Message, part: Part) -> bool:
    return isinstance(part, ToolResult)


def _is_call(_: Message, part: Part) -> bool:
    return isinstance(part, ToolCall)


def _is_reply(message: Message, part: Part) -> bool:
    return message.role == "assistant" and isinstance(part, Text)


def _is_aside(message: Message, part: Part) -> bool:
    return message.role != "assistant" and not is_prompt(message) and isinstance(part, Text)


def _without_thoughts(view: tuple[Message, ...]) -> tuple[Message, ...]:
    """They are signed as a whole: void if what they led to changes, and cannot be cut."""
    return tuple(
        replace(each, parts=tuple(p for p in each.parts if not isinstance(p, Reasoning)))
        if any(isinstance(p, Reasoning) for p in each.parts)
        else each
        for each in view
    )


def _bare(view: tuple[Message, ...], place: str) -> tuple[Message, ...]:
    """With so many calls that not even their stubs fit: that they were made, and where to look."""

    def bare(part: Part) -> Part:
        if isinstance(part, ToolResult):
            return replace(part, content=(Text(f"({place})"),))
        return replace(part, arguments="{}") if isinstance(part, ToolCall) else part

    return tuple(replace(each, parts=tuple(map(bare, each.parts))) for each in view)


def _filled(
    view: tuple[Message, ...],
    cap: int,
    counter: Counter,
    wanted: Callable[[Message, Part], bool],
    cut: _Cut,
) -> tuple[Message, ...]:
    """The view with the largest of these parts cut to the same size, so that all of it fits."""
    slots = [
        _Slot(at, number, count_messages(counter, [Message(message.role, (part,))]))
        for at, message in enumerate(view)
        for number, part in enumerate(message.parts)
        if wanted(message, part)
    ]
    if not slots:
        return view
    room = cap - count_messages(counter, view) + sum(slot.tokens for slot in slots)
    made = view
    for _ in range(_TRIES):
        most = max(level([slot.tokens for slot in slots], room), _LEAST)
        made = _applied(view, [slot for slot in slots if slot.tokens > most], most, cut)
        over = count_messages(counter, made) - cap
        if most == _LEAST or over <= 0:
            return made
        room -= over + _MARGIN
    return _applied(view, [slot for slot in slots if slot.tokens > _LEAST], _LEAST, cut)


def level(sizes: Sequence[int], room: int) -> int:
    """The size to which the largest are cut so that the sum is `room`."""
    left, ordered = room, sorted(sizes)
    for at, size in enumerate(ordered):
        share = left // (len(ordered) - at)
        if size > share:
            return share
        left -= size
    return ordered[-1] if ordered else room


def _applied(
    view: tuple[Message, ...], slots: Iterable[_Slot], tokens: int, cut: _Cut
) -> tuple[Message, ...]:
    made = list(view)
    for slot in slots:
        message = made[slot.message]
        parts = list(message.parts)
        parts[slot.part] = cut(parts[slot.part], tokens)
        made[slot.message] = replace(message, parts=tuple(parts))
    return tuple(made)


class _Cutter:
    def __init__(self, place: str, counter: Counter) -> None:
        self._place, self._counter = place, counter

    def result(self, part: ToolResult, tokens: int) -> ToolResult:
        sizes = [self._tokens(inner) for inner in part.content]
        whole = sum(sizes) or 1
        content = tuple(
            self._inner(inner, tokens * size // whole, size, failed=part.is_error)
            for inner, size in zip(part.content, sizes, strict=True)
        )
        return replace(part, content=content)

    def _inner(self, inner: Any, tokens: int, size: int, *, failed: bool) -> Any:
        if size <= tokens:
            return inner
        if isinstance(inner, Text):
            return replace(inner, text=self._short(inner.text, tokens, size, failed=failed))
        if isinstance(inner, Media):
            return Text(f"[{inner.media_type or 'file'}: left out; the whole is in {self._place}]")
        return Text(f"[left out; the whole is in {self._place}]")

    def text(self, part: Text, tokens: int) -> Text:
        size = self._size(part.text)
        return replace(part, text=self._short(part.text, tokens, size, failed=False))

    def call(self, part: ToolCall, tokens: int) -> ToolCall:
        """Its arguments with long texts in them cut. What is valid JSON stays so."""
        size = self._size(part.arguments)
        room = max(tokens - self._counter.count(part.name) - 8, 0)
        if size <= room:
            return part
        note = f"… [cut; the whole is in {self._place}]"
        try:
            value: Any = json.loads(part.arguments)
        except (ValueError, RecursionError):
            keep = len(part.arguments) * room // max(size, 1)
            return replace(part, arguments=part.arguments[:keep] + note)
        longest = len(part.arguments) * room // max(size, 1)
        while longest >= 8:
            try:
                made = json.dumps(_shortened(value, longest, note), ensure_ascii=False)
            except RecursionError:
                break
            if len(made) < len(part.arguments) and self._counter.count(made) <= room:
                return replace(part, arguments=made)
            longest //= 2
        stub: Any = {"cut": f"the whole is in {self._place}"}
        made = json.dumps(stub if isinstance(value, dict) else [stub["cut"]])
        return replace(part, arguments=made) if len(made) < len(part.arguments) else part

    def _short(self, text: str, tokens: int, size: int, *, failed: bool) -> str:
        # Its expressions take milliseconds to compile, and few windows need them.
        from perdure.history.excerpt import ends, instead_of

        if tokens < _LEAST:
            made = instead_of(text, pointer=self._place)
        else:
            room = len(text) * tokens // max(size, 1)
            made = ends(text, _LINES, _LINES, room, self._place, look=failed, failed=failed)
        return made if len(made) < len(text) else text

    def _size(self, text: str) -> int:
        return sum(map(self._counter.count, slices(text)))

    def _tokens(self, inner: Any) -> int:
        if isinstance(inner, Text):
            return self._size(inner.text)
        if isinstance(inner, Media):
            return media_tokens(inner)
        if isinstance(inner, ArtifactPointer):
            return self._size(inner.head)
        if isinstance(inner, Unknown):
            return self._size(json.dumps(inner.data, default=str))
        return 0


def _shortened(value: Any, longest: int, note: str) -> Any:
    """Plain data with texts of at most so many characters, and lists of at most so many items."""
    if isinstance(value, str):
        return value if len(value) <= longest + len(note) else value[:longest] + note
    if isinstance(value, dict):
        return {key: _shortened(inner, longest, note) for key, inner in value.items()}
    if isinstance(value, list):
        kept = [_shortened(inner, longest, note) for inner in value[: max(longest // 8, 1)]]
        return [*kept, note] if len(kept) < len(value) else kept
    return value
