"""Searching a session's turns by words: the newest first, over what was said.

Simple on purpose: it looks at the turns themselves and needs no index. It is bounded, so that it
answers in a moment; what is older than that is found by recall.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import msgspec

from perdure.core.messages import Message, Text, ToolCall, ToolResult, words_of
from perdure.core.turns import Position, Turn
from perdure.history.reading import Reader
from perdure.history.records import Head, SessionRecord

#: Turns that are looked at, and read at once.
MOST_TURNS, _STEP = 5_000, 50
# Words, and what is written as one: names of tickets, files, modules, versions.
_terms = re.compile(r"\w+(?:[-./:_@]+\w+)*").findall
#: Characters around the first word found.
_BEFORE, _LINE = 60, 200


class Found(msgspec.Struct, frozen=True):
    """A round in which words were found."""

    #: ``T-12.3``.
    id: str
    line: str
    #: How many of the words it has.
    words: int


async def search(
    reader: Reader,
    record: SessionRecord,
    head: Head,
    query: str,
    limit: int,
    *,
    ignore: Collection[str] = (),
) -> list[Found]:
    """The newest rounds that have all words of the query; then those that have most of them.

    One round for each turn, of the newest `MOST_TURNS` turns. Whatever their case, words are found
    as such; what is written as one (``FIN-20``, ``auth.py``) is one. Turns that were taken back or
    forgotten are left out, and so is what the tools named in `ignore` were asked and said: what was
    fetched from the past would be found again and again.
    """
    wanted = [_pattern(term) for term in dict.fromkeys(_terms(query.casefold()))]
    if not wanted or limit < 1:
        return []
    whole, part = list[Found](), list[Found]()
    last = head.newest
    oldest = max(1, last - MOST_TURNS + 1)
    while last >= oldest and len(whole) < limit:
        first = max(oldest, last - _STEP + 1)
        turns = await reader.turns(record, head, first, last, counted=False)
        for turn in reversed(turns):
            if turn.status in {"undone", "forgotten"}:
                continue
            found = _best(turn, wanted, ignore)
            if found is not None:
                (whole if found.words == len(wanted) else part).append(found)
        last = first - 1
    half = [found for found in part if 2 * found.words >= len(wanted)]
    half.sort(key=lambda found: -found.words)  # stable: the newest of equals first
    return [*whole, *half][:limit]


def _pattern(term: str) -> re.Pattern[str]:
    """Finds a term where it does not go on to either side."""
    return re.compile(rf"(?<!\w){re.escape(term)}(?!\w)")


def _best(turn: Turn, wanted: list[re.Pattern[str]], ignore: Collection[str]) -> Found | None:
    """The round of a turn that has most of the words, the first of equals."""
    best: Found | None = None
    ignored = set[str]()
    for round in turn.rounds:
        text = "\n".join(_said(round.messages, ignore, ignored))
        folded = text.casefold()
        there = [found.start() for term in wanted if (found := term.search(folded))]
        if there and (best is None or len(there) > best.words):
            at = min(there)
            id = str(Position(turn.number, round.number))
            best = Found(id, _line(text, at), len(there))
    return best


def _said(
    messages: tuple[Message, ...], ignore: Collection[str], ignored: set[str]
) -> Iterator[str]:
    for message in messages:
        if message.role == "event":
            continue
        for part in message.parts:
            if isinstance(part, ToolCall) and part.name in ignore:
                ignored.add(part.id)
            elif isinstance(part, ToolResult):
                if part.call not in ignored:
                    yield words_of(part)
            elif isinstance(part, Text | ToolCall):
                yield words_of(part)


def _line(text: str, at: int) -> str:
    """What stands around a place, on one line. Folding may have moved it a little."""
    start = max(0, at - _BEFORE)
    if start:
        start = text.find(" ", start, at) + 1 or start
    cut = " ".join(text[start : start + _LINE].split())
    return f"{'…' if start else ''}{cut}{'…' if start + _LINE < len(text) else ''}"
