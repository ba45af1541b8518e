"""Searches a session's turns by words, without an index. Bounded, so that it answers quickly:
recall finds what is older.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections.abc import Collection, Iterator

import msgspec

from perdure.core.messages import Message, Text, ToolCall, ToolResult, words_of
from perdure.core.turns import Position, Turn
from perdure.history.log_records import Head, SessionRecord
from perdure.history.turn_reader import TurnReader

MOST_TURNS, _STEP = 5_000, 50  # Turns that are searched; turns read at once.
MOST_WORDS, _QUERY = 100, 4_000  # The words, and the characters, of a query that count.
# Words, and what is written as one: names of tickets, files, modules, versions.
_terms = re.compile(r"\w+(?:[-./:_@]+\w+)*").findall
#: Characters around the first word found.
_BEFORE, _LINE = 60, 200
_FURTHER = 500  # Turns that are looked at for a phrase behind enough others that have all words.

_marks = re.compile("[\u0300-\u036f]+")
_STROKES = str.maketrans("øłđħŧı", "oldhti")  # Letters whose stroke is not a combining accent.

# Simple forms of English words.
_after_consonant = re.compile(r"(\w{2,}[^aeiou])(?:y|ies|ied)").fullmatch
_at_work = re.compile(r"(\w{4,})(?:ed|ing)").fullmatch
_DOUBLED = "bdfgklmnprtvz"
_LEAST_WORD = 4
_letters = re.compile(r"[a-z]+(?![?])").match  # The literal letters that it begins with.


class FoundTurn(msgspec.Struct, frozen=True):
    """A round that matches."""

    #: ``T-12.3``.
    id: str
    line: str
    words: int  # How many of the words it has.
    phrase: bool = False  # It has all of them as they were asked for, one behind the other.


class _Wanted(msgspec.Struct, frozen=True):
    words: tuple[re.Pattern[str], ...]
    phrase: re.Pattern[str]
    names: tuple[bytes, ...] = ()  # How each stored word begins, if all are names.

    @classmethod
    def of(cls, query: str) -> _Wanted:
        query = query[:_QUERY]
        terms = _terms(folded(query))[:MOST_WORDS]
        words = tuple(_pattern(_inflected(term)) for term in dict.fromkeys(terms))
        phrase = _pattern(r"\W+".join(map(re.escape, terms)))
        if not query.isascii() or not all(map(is_name, _terms(query))):
            return cls(words, phrase)
        return cls(words, phrase, tuple(_beginning(term).encode() for term in terms))


async def search(
    reader: TurnReader,
    record: SessionRecord,
    head: Head,
    query: str,
    limit: int,
    *,
    ignore: Collection[str] = (),
) -> list[FoundTurn]:
    """The rounds that have most words of the query, at least half of them.

    Of those with the same number of words, rounds with the phrase come first, then the newest. One
    round for each turn, of the newest `MOST_TURNS` turns; once enough have all words, phrases are
    searched only a little further. Only the first `MOST_WORDS` words of a query count.

    Ignores case, accents and simple English endings (`token` finds `tokens`). ``FIN-20`` and
    ``auth.py`` are one word. Leaves out undone and forgotten turns, and calls and results of the
    tools in `ignore`: what was fetched from the past would be found again and again.
    """
    wanted = _Wanted.of(query)
    if not wanted.words or limit < 1:
        return []
    found = list[FoundTurn]()
    last = head.newest
    oldest, whole, phrases = max(1, last - MOST_TURNS + 1), 0, 0
    while last >= oldest and phrases < limit:
        first = max(oldest, last - _STEP + 1)
        turns = await _turns(reader, record, head, (first, last), wanted)
        for turn in reversed(turns):
            await asyncio.sleep(0)  # a turn may be long, and who asked may not wait for the others
            if turn.status in {"undone", "forgotten"}:
                continue
            best = _best(turn, wanted, ignore)
            if best is not None and 2 * best.words >= len(wanted.words):
                found.append(best)
                phrases += best.phrase
                whole += best.words == len(wanted.words)
        last = first - 1
        if whole >= limit:
            oldest = max(oldest, last - _FURTHER)
    found.sort(key=lambda each: (-each.words, not each.phrase))  # stable: the newest of equals
    return found[:limit]


async def _turns(
    reader: TurnReader, record: SessionRecord, head: Head, span: tuple[int, int], wanted: _Wanted
) -> list[Turn]:
    if not wanted.names:
        return await reader.turns(record, head, *span, counted=False)
    numbers = await reader.holding(record, head, *span, wanted.names)
    found = list[Turn]()
    for number in numbers:
        found += await reader.turns(record, head, number, number, counted=False)
    return found


def folded(text: str) -> str:
    """Without case and accents. Positions may move a little."""
    if text.isascii():
        return text.lower()
    bare = _marks.sub("", unicodedata.normalize("NFKD", text.casefold()))
    return unicodedata.normalize("NFC", bare).translate(_STROKES)


def is_name(word: str) -> bool:
    """Whether it is written like an identifier: ``head_count``, ``fooBar``, ``1.2``."""
    return not (word.isalpha() and (word.islower() or word.isupper() or word[1:].islower()))


def _pattern(expression: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{expression})(?!\w)")


def _inflected(term: str) -> str:
    if not (term.isascii() and term.isalpha()):
        return re.escape(term)
    if len(term) < _LEAST_WORD:
        return f"{term}s?"
    if (found := _after_consonant(term)) is not None:
        return f"{found[1]}(?:y|ies|ied|ying)"
    if (found := _at_work(term)) is not None:  # planned, caching: the word itself may end with an e
        stem = found[1]
        bare = stem[:-1] if stem[-1] == stem[-2] and stem[-1] in _DOUBLED else stem
        return f"{bare}(?:e|e?s|{_doubled(bare)}(?:ed|ing))?|{stem}s?"
    base = term[:-1] if term.endswith("s") and not term.endswith("ss") else term
    if not base.endswith("e"):
        return f"{base}(?:e?s|{_doubled(base)}(?:ed|ing))?"
    stem = base[:-1]
    # The plural of box ends like that of file.
    sibilant = len(stem) >= _LEAST_WORD - 1 and stem.endswith(("s", "x", "z", "ch", "sh"))
    alone = "?" if base != term and sibilant else ""
    return f"{stem}(?:e|es|ed|ing){alone}"


def _beginning(term: str) -> str:
    found = _letters(_inflected(term)) if term.isalpha() else None
    return term if found is None else found[0]


def _doubled(stem: str) -> str:
    return f"{stem[-1]}?" if stem[-1] in _DOUBLED else ""


def _best(turn: Turn, wanted: _Wanted, ignore: Collection[str]) -> FoundTurn | None:
    best: FoundTurn | None = None
    ignored = set[str]()
    for round in turn.rounds:
        text = "\n".join(_said(round.messages, ignore, ignored))
        plain = folded(text)
        there = [found.start() for word in wanted.words if (found := word.search(plain))]
        if not there or (best is not None and len(there) < best.words):
            continue
        phrase = wanted.phrase.search(plain) if len(there) == len(wanted.words) else None
        if best is None or (len(there), phrase is not None) > (best.words, best.phrase):
            at = min(there) if phrase is None else phrase.start()
            id = str(Position(turn.number, round.number))
            best = FoundTurn(id, _line(text, at), len(there), phrase is not None)
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
    start = max(0, at - _BEFORE)
    if start:
        start = text.find(" ", start, at) + 1 or start
    cut = " ".join(text[start : start + _LINE].split())
    return f"{'…' if start else ''}{cut}{'…' if start + _LINE < len(text) else ''}"
