"""What reflection reads: a broad view of past turns, from the renditions that are stored.

Newer turns are read at C, older ones at T, the last ten at S, all in order. Left out is what
Perdure itself put there: recalled and injected text, and the work of its tools. If the view is
larger than a request, it is cut into windows; each begins with the turns before it that speak of
its topics.

`gather` reads the store; the rest is pure: the same turns give the same text.

    Session s1 is planner/auth.
    On 2026-05-01:
    s1#T-12 C:
    > User: …
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from perdure.core.clock import to_datetime
from perdure.core.levels import Level
from perdure.core.messages import Message, ToolCall, ToolResult
from perdure.core.turns import Turn
from perdure.history.log_records import Head, SessionRecord
from perdure.history.manifest import RoundId
from perdure.history.renditions.rendition_maker import TurnMessages
from perdure.history.renditions.rendition_records import rendition_key
from perdure.recall.indexing.passages import fetching_calls
from perdure.recall.tool_names import NAMES
from perdure.services import Services

#: Turns at S, turns that are read together, and the share of a view that turns at C take.
SMOOTH_TURNS, _BATCH, _COMPACT_SHARE = 10, 64, 0.5
#: The share of a window that repeats earlier turns.
_OVERLAP = 0.08
#: Tokens around a turn: its name, now and then the day.
_NAMED = 10
#: A key that no rendition is stored under: what is left of a round is made anew.
_OTHER = "~"


class ViewedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn as reflection reads it."""

    session: str
    number: int
    #: When it began. Microseconds.
    time: int
    level: Level
    text: str
    #: Of the text, in o200k tokens.
    tokens: int

    @property
    def key(self) -> str:
        return f"{self.session}#T-{self.number}"


class ViewWindow(msgspec.Struct, frozen=True):
    """As much as one request holds."""

    turns: tuple[ViewedTurn, ...]
    #: Turns of earlier windows that speak of the same.
    overlap: tuple[ViewedTurn, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(turn.tokens + _NAMED for turn in (*self.overlap, *self.turns))


def without_echoes(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Messages without what Perdure put there: injected text, and the work of its tools."""
    ours, found = fetching_calls(messages), list[Message]()
    for message in messages:
        if message.injected or message.role == "event":
            continue
        parts = tuple(
            part
            for part in message.parts
            if not (isinstance(part, ToolCall) and part.id in ours)
            and not (isinstance(part, ToolResult) and (part.call in ours or part.name in NAMES))
        )
        if parts:
            found.append(
                message if len(parts) == len(message.parts) else replace(message, parts=parts)
            )
    return tuple(found)


def is_read(turn: Turn) -> bool:
    """Whether a turn is over, and still there."""
    return turn.status == "closed"


async def gather(
    services: Services, record: SessionRecord, head: Head, turns: Iterable[int], level: Level
) -> list[ViewedTurn]:
    """Turns of a session at a level, oldest first; those that are over, and say something."""
    wanted, found = sorted(set(turns)), list[ViewedTurn]()
    for start in range(0, len(wanted), _BATCH):
        some = wanted[start : start + _BATCH]
        read = await services.reader.turns(
            record, head, some[0], some[-1], counted=False, arriving=False
        )
        kept = [turn for turn in read if turn.number in some and is_read(turn)]
        made = _tiny if level == "T" else _shortened
        found += await made(services, record, kept, level)
    return found


async def _tiny(
    services: Services, record: SessionRecord, turns: Sequence[Turn], level: Level
) -> list[ViewedTurn]:
    wanted = dict[tuple[str, int], TurnMessages]()
    for turn in turns:
        whole = {round.number: round.messages for round in turn.rounds}
        clean = {number: without_echoes(said) for number, said in whole.items()}
        session = turn.session if clean == whole else f"{turn.session}{_OTHER}"
        wanted[session, turn.number] = TurnMessages(turn.number, clean, {})
    made = await services.renditions.tiny_of(wanted)
    return [
        _viewed(record, turn, level, tiny.text, tiny.tokens)
        for turn, tiny in zip(turns, made.values(), strict=True)
        if tiny.text.strip()
    ]


async def _shortened(
    services: Services, record: SessionRecord, turns: Sequence[Turn], level: Level
) -> list[ViewedTurn]:
    wanted, keys = dict[str, tuple[RoundId, tuple[Message, ...]]](), dict[int, list[str]]()
    for turn in turns:
        for round in turn.rounds:
            clean = without_echoes(round.messages)
            if not clean:
                continue
            key = rendition_key(turn.session, turn.number, round.number)
            key = key if clean == round.messages else f"{key}{_OTHER}"
            wanted[key] = RoundId(turn.number, round.number), clean
            keys.setdefault(turn.number, []).append(key)
    made = await services.renditions.shortened(wanted)
    found = list[ViewedTurn]()
    for turn in turns:
        parts = [made[key] for key in keys.get(turn.number, ())]
        if level == "S":
            text, tokens = "\n".join(p.smooth for p in parts), sum(p.smooth_tokens for p in parts)
        else:
            text, tokens = "\n".join(p.compact for p in parts), sum(p.compact_tokens for p in parts)
        if text.strip():
            found.append(_viewed(record, turn, level, text, tokens))
    return found


def _viewed(record: SessionRecord, turn: Turn, level: Level, text: str, tokens: int) -> ViewedTurn:
    return ViewedTurn(
        session=record.id,
        number=turn.number,
        time=turn.started,
        level=level,
        text=text.strip(),
        tokens=tokens,
    )


async def broad_view(
    services: Services,
    sessions: Sequence[tuple[SessionRecord, Head]],
    most: int,
    read: Mapping[str, range] = MappingProxyType({}),
) -> list[ViewedTurn]:
    """All turns of sessions, in order, in at most so many tokens: the newest at C, up to half of
    them, the others at T, and so those that were `read` in detail, by session. Of forks, their own
    turns. What does not fit is the oldest.
    """
    found, left, compact = list[list[ViewedTurn]](), most, int(most * _COMPACT_SHARE)
    for record, head in sorted(sessions, key=lambda each: (-each[1].said, each[0].id)):
        numbers = list(range(record.forked_at + 1, head.turn + 1))
        own = list[ViewedTurn]()
        while numbers and left > 0:
            some = numbers[-_BATCH:]
            del numbers[-_BATCH:]
            detailed = read.get(record.id, range(0))
            wanted = [number for number in some if number not in detailed] if compact > 0 else []
            turns = list[ViewedTurn]()
            for turn in reversed(await gather(services, record, head, wanted, "C")):
                compact -= turn.tokens + _NAMED
                if compact < 0:
                    break
                turns.append(turn)
            known = {turn.number for turn in turns}
            rest = [number for number in some if number not in known]
            turns += await gather(services, record, head, rest, "T")
            kept = list[ViewedTurn]()
            for turn in sorted(turns, key=lambda turn: -turn.number):
                left -= turn.tokens + _NAMED
                if left < 0:
                    break
                kept.append(turn)
            own = [*reversed(kept), *own]
        found.append(own)
    return [turn for own in reversed(found) for turn in own]


# Pure -------------------------------------------------------------------------------------------


def windows(
    turns: Sequence[ViewedTurn],
    size: int,
    topics_of: Callable[[str], frozenset[str]] = lambda _text: frozenset(),
    ends: Sequence[int] = (),
) -> list[ViewWindow]:
    """Turns in order, cut where a request is full; or, of one session, behind the turns with these
    numbers. Each window but the first also has turns from before it: those that share most topics
    with it, else the last ones. A turn that is larger than a window is cut.
    """
    room = max(int(size * (1 - _OVERLAP)), 1)
    fitting = [_cut(turn, room) for turn in turns]
    if ends:
        pairs = itertools.pairwise((0, *ends))
        parts = [[turn for turn in fitting if a < turn.number <= b] for a, b in pairs]
    else:
        parts = _filled(fitting, room)
    found, before = list[ViewWindow](), list[ViewedTurn]()
    for part in parts:
        found.append(ViewWindow(tuple(part), tuple(_overlap(part, before, size, topics_of))))
        before += part
    return found


def _filled(turns: Iterable[ViewedTurn], room: int) -> list[list[ViewedTurn]]:
    parts, left = list[list[ViewedTurn]](), 0
    for turn in turns:
        need = turn.tokens + _NAMED
        if need > left or not parts:
            parts.append([])
            left = room
        parts[-1].append(turn)
        left -= need
    return parts


def _cut(turn: ViewedTurn, room: int) -> ViewedTurn:
    if turn.tokens <= room - _NAMED:
        return turn
    kept = max(int(len(turn.text) * (room - _NAMED) / turn.tokens), 0)
    return replace(turn, text=f"{turn.text[:kept]} …", tokens=room - _NAMED)


def _overlap(
    part: Sequence[ViewedTurn],
    before: Sequence[ViewedTurn],
    size: int,
    topics_of: Callable[[str], frozenset[str]],
) -> list[ViewedTurn]:
    here = frozenset[str]().union(*(topics_of(turn.text) for turn in part))
    ranked = sorted(
        enumerate(before), key=lambda each: (len(here & topics_of(each[1].text)), each[0])
    )
    left, chosen = int(size * _OVERLAP), list[int]()
    while ranked and left > 0:
        place, turn = ranked.pop()
        left -= turn.tokens + _NAMED
        if left >= 0:
            chosen.append(place)
    return [before[place] for place in sorted(chosen)]


def short_names(turns: Iterable[ViewedTurn]) -> dict[str, str]:
    """What sessions are called in a view: ``s1``; in the order of their first turns."""
    found = dict[str, str]()
    for turn in turns:
        found.setdefault(turn.session, f"s{len(found) + 1}")
    return found


def written(window: ViewWindow, names: Mapping[str, str]) -> str:
    """A window in words. Each line of a turn begins with ``>``: none can end itself and go on as
    something else.
    """
    lines = [f"Session {names[s]} is {s}." for s in short_names((*window.overlap, *window.turns))]
    if window.overlap:
        lines += ["", "Read before, of the same topics:", *_lines(window.overlap, names)]
        lines += ["", "Read now:"]
    return "\n".join((*lines, *_lines(window.turns, names)))


def _lines(turns: Iterable[ViewedTurn], names: Mapping[str, str]) -> Iterator[str]:
    before = ""
    for turn in turns:
        if (day := f"On {to_datetime(turn.time):%Y-%m-%d}:") != before:
            yield day
            before = day
        yield f"{names[turn.session]}#T-{turn.number} {turn.level}:"
        yield from (f"> {line}" for line in turn.text.splitlines() if line.strip())
