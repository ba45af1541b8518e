"""Renditions without a model: pure functions from messages to text, the same bytes everywhere.

    raw(messages)                 every word of a round
    smooth(messages, "T-12.3")    S: noise removed, tool output at a third
    compact(messages, "T-12.3")   C: a third of the words; one line for each tool call
    tiny(rounds, counter)         T: who wanted what, and what came of it
    merge(parts, cap, counter)    what happened in several neighbours, in at most `cap` tokens

None of them raises, whatever the messages hold. A rendition has no more tokens than the one above
it: where shortening would not make a text shorter, the text stays. What stands in a rendition is
not escaped: that is the business of whoever puts it into an element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    sound,
    words_of,
)
from perdure.core.tokens import Counter, o200k
from perdure.history.gist import described
from perdure.history.message_identity import own_words
from perdure.history.renditions.merged_text import merge
from perdure.history.renditions.sentences import truncate
from perdure.history.renditions.tidy_text import corrected, tidied
from perdure.history.renditions.tiny_text import outcome
from perdure.history.renditions.tool_calls import Used, call_line, compact_use, excerpt, smooth_use
from perdure.history.renditions.typing_slips import mended
from perdure.history.renditions.unit_choice import Room, chosen
from perdure.history.renditions.unit_weights import SpeakerText, announces

#: The version of this algorithm. Any change of any output is a new one: stored renditions with
#: another are stale.
RECIPE = "a4"

__all__ = [
    "RECIPE",
    "both",
    "compact",
    "merge",
    "raw",
    "smooth",
    "speaker_of",
    "tiny",
    "truncate",
]

#: Of a round's words, C keeps so much, and of what binds more, up to the most; words up to so many
#: tokens stay.
_C_SHARE, _C_LEAST, _C_MOST, _C_SHORT = 0.345, 0.345, 0.375, 16
#: Words of fewer tokens are too short for a third to say anything: they may keep so many.
_C_FROM, _C_FEW = 200, 78
_LONG = 12_000
_ORDER_SHARE, _ORDER = 0.6, 150
#: T has room for so many tokens, or for this share of a turn's words; of very long ones, for less.
_T_SHORT, _T_SHARE, _T_MORE, _T_LONG = 40, 0.047, 0.017, 100
#: Of fewer words than these T may take more, as long as it is 5 % of the turn with its tools.
_T_FROM, _T_WORK = 1_000, 0.07
_T_SAME = 80  # Up to so many tokens of words, C says it as briefly as T would.
#: Up to so many tokens of words, T is compared with C.
_T_COMPARED = 400
_SPEAKERS = {
    "user": "User",
    "assistant": "Assistant",
    "system": "System",
    "developer": "Developer",
    "tool": "Tool",
}
_Uses: TypeAlias = dict[tuple[int, int], Used]
#: Up to this many characters two forms of a round are compared by their tokens; beyond it, what was
#: left out is so much that its place cannot take more.
_COMPARED = 65_536
#: Shorter texts are smoothed once for all levels.
_REMEMBERED = 16_384


def raw(messages: Sequence[Message]) -> str:
    """Every word of a round but reasoning and events; media as a note."""
    lines: list[str] = []
    for message in messages:
        if message.role == "event":
            continue
        for part in message.parts:
            if isinstance(part, Text | ArtifactPointer):
                if text := words_of(part):
                    lines.append(f"{speaker_of(message)}: {text}")
            elif isinstance(part, ToolCall):
                lines.append(f"tool {words_of(part)}")
            elif isinstance(part, ToolResult):
                notes = [f"[{described(each)}]" for each in part.content if isinstance(each, Media)]
                lines.append("\n".join([f"→ {part.text}", *notes]))
            elif isinstance(part, Media):
                lines.append(f"{speaker_of(message)}: [{described(part)}]")
    return str(sound("\n".join(lines)))


def smooth(messages: Sequence[Message], place: str) -> str:
    """S of a round: noise removed, tool output at a third. `place` is where the whole is."""
    return _smoothed(messages, _uses(messages), place)[0]


def compact(messages: Sequence[Message], place: str) -> str:
    """C of a round: a third of its words, a line for each tool call; empty if it has neither."""
    return both(messages, place)[1]


def both(messages: Sequence[Message], place: str) -> tuple[str, str]:
    """S and C of a round, for little more than the price of one of them."""
    counter = o200k()
    uses = _uses(messages)
    above, most = _smoothed(messages, uses, place)
    texts = _compact_words(messages, list(_spoken(messages)), counter)
    for brief in (False, True):
        lines = (
            line if used is None else compact_use(used, brief=brief)
            for line, used in _compact_lines(messages, uses, texts)
        )
        text = str(sound("\n".join(lines)))
        if counter.count(text) <= most:
            return above, text
    return above, above


def compact_parts(messages: Sequence[Message]) -> Iterator[tuple[str, Used | None]]:
    """The lines of C of a round; those of tool calls in brief, and with the call."""
    uses = _uses(messages)
    texts = _compact_words(messages, list(_spoken(messages)), o200k())
    for line, used in _compact_lines(messages, uses, texts):
        if used is not None:
            yield str(sound(call_line(used))), used
        elif line:
            yield str(sound(line)), None


def tiny(rounds: Sequence[Sequence[Message]], counter: Counter) -> str:
    """T of a turn: who wanted what and what came of it. Of more than 1,000 tokens of words, 1 to
    5 %. Of fewer at most 40 tokens, or 5 % of the turn with its tools; never more than its words.
    """
    spoken = [list(_spoken(messages)) for messages in rounds]
    said = [each for words in spoken for each in words if each.text.strip()]
    if not said:
        return _without_words(rounds, counter)
    tokens = sum(counter.count(each.text) for each in said)
    room = int(min(tokens * _T_SHARE, _T_LONG + tokens * _T_MORE))
    if tokens < _T_FROM:
        more = _T_SHORT + int(min(tokens * _T_WORK, (_T_FROM - tokens) / 8))
        room = max(_T_SHORT, room, min(more, _at_least(rounds, 20 * more, counter) // 20))
    if tokens < _T_COMPARED:
        # What C says of it may be less already, and T is never more.
        kept = [
            (each.speaker, text)
            for messages, words in zip(rounds, spoken, strict=True)
            for each, text in _compact_words(messages, words, counter)
        ]
        above = "\n".join(f"{speaker}: {text}" for speaker, text in kept if text)
        many = counter.count(above)
        if many <= room and tokens <= _T_SAME:
            return above
        room = min(room, many if tokens <= _T_SAME else max(_C_SHORT, many * 9 // 10))
    return outcome(said, room, counter)


def speaker_of(message: Message) -> str:
    """``User``, ``Assistant``, ``User (Caroline)``."""
    who = "Note" if message.injected else _SPEAKERS.get(message.role, message.role)
    name = " ".join(message.name.split())[:40]
    return f"{who} ({name})" if name else who


def _short_name(message: Message) -> str:
    name = " ".join(message.name.split())[:40]
    return name if name and name.capitalize() not in _SPEAKERS.values() else speaker_of(message)


def _smoothed(messages: Sequence[Message], uses: _Uses, place: str) -> tuple[str, int]:
    counter = o200k()
    text = str(sound("\n".join(_smooth_lines(messages, uses, place))))
    whole = raw(messages)
    if len(whole) > _COMPARED and len(text) * 2 < len(whole):
        return text, counter.count(text[:_COMPARED])
    tokens, most = counter.count(text), counter.count(whole)
    return (text, tokens) if tokens <= most else (whole, most)


def _uses(messages: Sequence[Message]) -> _Uses:
    results: dict[str, tuple[int, int]] = {}
    for at, message in enumerate(messages):
        for number, part in enumerate(message.parts):
            if isinstance(part, ToolResult):
                results.setdefault(part.call, (at, number))
    uses: _Uses = {}
    told: set[tuple[int, int]] = set()
    for at, message in enumerate(messages):
        for number, part in enumerate(message.parts):
            if isinstance(part, ToolCall):
                answer = results.pop(part.id, None)
                result = messages[answer[0]].parts[answer[1]] if answer else None
                uses[at, number] = Used.of(part, result if isinstance(result, ToolResult) else None)
                told |= {answer} if answer else set()
            elif isinstance(part, ToolResult) and (at, number) not in told:
                uses[at, number] = Used.of(None, part)
    return uses


def _smooth_lines(messages: Sequence[Message], uses: _Uses, place: str) -> Iterator[str]:
    for at, message in enumerate(messages):
        if message.role == "event":
            continue
        for number, part in enumerate(message.parts):
            if isinstance(part, Text | ArtifactPointer):
                said = words_of(part)
                own = "" if _is_harness(message) else _own(message, said)
                text = _smooth_words(own or said)
                if not own:
                    text = excerpt(text, place)
                if text:
                    yield f"{speaker_of(message) if own else 'Note'}: {text}"
            elif isinstance(part, ToolCall | ToolResult):
                if (at, number) in uses:
                    yield smooth_use(uses[at, number], place)
            elif isinstance(part, Media):
                yield f"{speaker_of(message)}: [{described(part)}]"


def _smooth_words(text: str) -> str:
    return _smoothed_once(text) if len(text) < _REMEMBERED else corrected(mended(tidied(text)))


@lru_cache(maxsize=64)  # S, C and T of a turn are made one after the other
def _smoothed_once(text: str) -> str:
    return corrected(mended(tidied(text)))


def _compact_lines(
    messages: Sequence[Message],
    uses: _Uses,
    words: Sequence[tuple[SpeakerText, str]],
) -> Iterator[tuple[str, Used | None]]:
    """Lines of words, and tool calls."""
    texts = iter(words)
    for at, message in enumerate(messages):
        if _is_harness(message):
            continue
        spoken = False
        for number, part in enumerate(message.parts):
            if isinstance(part, Text | ArtifactPointer) and not spoken:
                spoken = True
                who, text = next(texts)
                if text:
                    yield f"{who.speaker}: {text}", None
            elif isinstance(part, ToolCall | ToolResult):
                if (at, number) in uses:
                    yield "", uses[at, number]
            elif isinstance(part, Media):
                yield f"{speaker_of(message)}: [{described(part)}]", None


def _compact_words(
    messages: Sequence[Message], said: Sequence[SpeakerText], counter: Counter
) -> list[tuple[SpeakerText, str]]:
    works = any(message.calls for message in messages)
    if works:
        # The line of its tool call says the same.
        said = [
            spoken._replace(text="") if spoken.weight <= 1 and announces(spoken.text) else spoken
            for spoken in said
        ]
    tokens = [counter.count(spoken.text) for spoken in said]
    if sum(tokens) <= _C_SHORT:
        return [(spoken, spoken.text) for spoken in said]
    room = 0.0
    for spoken, many in zip(said, tokens, strict=True):
        # A short prompt that sets work going is an order: little of it can be spared.
        order = works and spoken.weight > 1 and many <= _ORDER
        room += min(many, _LONG) * (_ORDER_SHARE if order else _C_SHARE)
    many = sum(min(each, _LONG) for each in tokens)
    most = int(many * _C_MOST) if many >= _C_FROM else _C_FEW
    aim = min(max(int(room), _C_SHORT), most)
    least = int(many * _C_LEAST) if many >= _C_FROM else 0
    return list(zip(said, chosen(said, Room(aim, least, most), counter), strict=True))


def _without_words(rounds: Sequence[Sequence[Message]], counter: Counter) -> str:
    names = [
        call.name
        for messages in rounds
        for message in messages
        if not _is_harness(message)
        for call in message.calls
    ]
    text = str(sound(f"Used {', '.join(sorted(set(filter(None, names))))}."))
    return text if any(names) and counter.count(text) <= min(_T_SHORT, 3 * len(names)) else ""


def _spoken(messages: Sequence[Message]) -> Iterator[SpeakerText]:
    for message in messages:
        if _is_harness(message):
            continue
        texts = [
            words_of(part) for part in message.parts if isinstance(part, Text | ArtifactPointer)
        ]
        if texts:
            own = "\n".join(filter(None, (_own(message, text) for text in texts)))
            text = _smooth_words(own or "\n".join(texts))
            weight = 1.3 if message.role == "user" else 1.0
            yield SpeakerText(_short_name(message), str(sound(text)), weight)


def _at_least(rounds: Sequence[Sequence[Message]], enough: int, counter: Counter) -> int:
    tokens = 0
    for messages in rounds:
        for message in messages:
            if message.role == "event":
                continue
            for part in message.parts:
                if not isinstance(part, Reasoning):
                    tokens += counter.count(words_of(part)[: enough * 8])
                if tokens >= enough:
                    return tokens
    return tokens


def _is_harness(message: Message) -> bool:
    """Whether neither the user nor the agent said it."""
    return message.injected or message.role in {"event", "system", "developer"}


def _own(message: Message, text: str) -> str:
    """What somebody said; of a user, without notes that a client put beside it."""
    return own_words(text) if message.role == "user" else text
