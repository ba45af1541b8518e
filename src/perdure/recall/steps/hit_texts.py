"""The words of candidates, at the fidelity at which they are shown.

A round is shown raw if it is short, else smoothed, else compressed. If that lost words that were
asked for, the part of it that has them is shown as it was said. A reminder has the turn's T.

A turn of the asking session's line is read as that line has it: a fork does not see what was added
to a shared turn after it left.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import msgspec

from perdure.core.errors import PerdureError
from perdure.core.levels import Level
from perdure.core.tokens import EstimatedCounter
from perdure.history.log_records import Head, SessionRecord, TurnCount, turn_key
from perdure.history.manifest import RoundId
from perdure.history.renditions.rendition_records import Rendition, Tiny, rendition_key
from perdure.history.renditions.rendition_service import RenditionService, RoundAtLevel, RoundSizes
from perdure.history.renditions.rendition_store import Marked
from perdure.history.turn_log import TURNS
from perdure.history.turn_reader import TurnReader
from perdure.history.turn_search import folded
from perdure.jobs import marks_of
from perdure.recall import languages, words
from perdure.recall.hit_keys import owner_of
from perdure.recall.languages import STOP_WORDS
from perdure.recall.steps.fetchers import Cabinet
from perdure.recall.values import Candidate, Question, Shown
from perdure.storage.store import Store

#: Tokens up to which a round is shown raw, or smoothed.
SHORT = 200
#: Characters of what is longer: of a rendition, and around the words in what was said.
_LONGEST, _EXCERPT = 2_400, 1_200
#: Characters of a memory's or a layer's gist.
_GIST = 160

_estimate = EstimatedCounter().count
#: What `history.excerpt` writes where something is left out.
_pointer = re.compile(r"(the whole result: )(T-\d)").sub


class Texts(Protocol):
    """Where the pipeline has words from."""

    async def full(
        self, question: Question, candidates: Sequence[Candidate]
    ) -> Mapping[int, Shown]:
        """By place. What was taken back, or is forgotten or retired, is left out."""

    async def tiny(
        self, question: Question, candidates: Sequence[Candidate]
    ) -> Mapping[int, Shown]:
        """The same, as short as can be."""

    async def lately(self, question: Question, turns: int) -> Sequence[str]:
        """What happened in the newest turns of the session, a line each, oldest first."""


class Showing:
    """`Texts` of a bank."""

    def __init__(
        self,
        store: Store,
        scribe: RenditionService,
        reader: TurnReader,
        memories: Cabinet | None = None,
        references: Cabinet | None = None,
        *,
        marked: Marked | None = None,
    ) -> None:
        self._sessions = store.collection(SessionRecord)
        self._heads = store.collection(Head)
        self._scribe = scribe
        self._sizes = Sizes(store, scribe, marked)
        self._reader = reader
        self._marked = marked
        self._cabinets = {"memory": memories, "reference": references}
        self._last: _Memo | None = None

    async def full(self, question: Question, candidates: Sequence[Candidate]) -> dict[int, Shown]:
        found = await self._kept(question, candidates)
        words = looked_for(question.text)
        for view, some in await self._by_view(question, candidates):
            there, rows = await self._sizes.of(view, some)
            wanted = [
                (place, RoundAtLevel(made.place, level, made.variant))
                for place, made in there.items()
                for level in _levels(made)
            ]
            texts = await self._scribe.texts(*view, [each for _, each in wanted], rows)
            said = dict[int, dict[Level, str]]()
            for (place, each), text in zip(wanted, texts, strict=True):
                if text:
                    said.setdefault(place, {})[each.level] = text
            session = "" if view.record.id == question.record.id else view.record.id
            found |= {
                place: _pointing(_shown(there[place], each, words), session)
                for place, each in said.items()
            }
        return found

    async def tiny(self, question: Question, candidates: Sequence[Candidate]) -> dict[int, Shown]:
        kept = await self._kept(question, candidates)
        found = {place: _gist(shown) for place, shown in kept.items()}
        for view, some in await self._by_view(question, candidates):
            rows = dict[str, Tiny | None]()
            numbers = {each.turn for each in some}
            made = await self._scribe.tinies(*view, numbers, rows, self._marked)
            turns = sorted(made)
            texts = await self._scribe.tiny_texts(
                *view, [(turn, made[turn].variant) for turn in turns], rows
            )
            by_turn = {
                turn: Shown("T", text, made[turn].tokens)
                for turn, text in zip(turns, texts, strict=True)
                if text
            }
            found |= {each.place: by_turn[each.turn] for each in some if each.turn in by_turn}
        return found

    async def lately(self, question: Question, turns: int) -> list[str]:
        record, head = question.record, question.head
        numbers = await self._reader.numbers(record, head, limit=turns)
        made = await self._scribe.tinies(record, head, numbers)
        wanted = [(number, made[number].variant) for number in numbers if number in made]
        texts = await self._scribe.tiny_texts(record, head, wanted)
        return [f"T-{n}: {text}" for (n, _), text in zip(wanted, texts, strict=True) if text]

    # ------------------------------------------------------------------------------------------

    def _memo(self, question: Question) -> _Memo:
        """What was read for this question, if it is the one that was asked last."""
        if self._last is None or self._last.question is not question:
            self._last = _Memo(question, {}, {})
        return self._last

    async def _kept(self, question: Question, candidates: Iterable[Candidate]) -> dict[int, Shown]:
        """What memories and reference layers say."""
        by_kind, found = dict[str, list[Candidate]](), dict[int, Shown]()
        known = self._memo(question).kept
        for each in candidates:
            if each.place in known:
                found[each.place] = known[each.place]
            else:
                by_kind.setdefault(each.kind, []).append(each)
        for kind, some in by_kind.items():
            cabinet = self._cabinets.get(kind)
            for place, kept in (await cabinet(question, some) if cabinet else {}).items():
                tokens = _estimate(kept.text)
                found[place] = Shown("R", kept.text, tokens, kept.key, kept.time, kept.behind)
        known |= found
        return found

    async def _by_view(
        self, question: Question, candidates: Iterable[Candidate]
    ) -> list[tuple[View, list[Candidate]]]:
        """The turns among the candidates, with the line that they are read in."""
        found = dict[str, list[Candidate]]()
        for each in candidates:
            if each.kind == "turn":
                is_own = owner_of(question.record, each.turn) == each.session
                found.setdefault("" if is_own else each.session, []).append(each)
        known = self._memo(question).views
        known |= await self._views([name for name in found if name and name not in known])
        views = dict(known)
        views[""] = View(question.record, question.head)
        return [(views[session], some) for session, some in found.items() if session in views]

    async def _views(self, sessions: Sequence[str]) -> dict[str, View]:
        if not sessions:
            return {}
        records = await self._sessions.get_many(sessions)
        heads = await self._heads.get_many(sessions)
        return {
            record.id: View(record, head)
            for record, head in zip(records, heads, strict=True)
            if record is not None and head is not None
        }


def _levels(made: RoundSizes) -> tuple[Level, ...]:
    """Raw if that is short; else also what is shorter."""
    if made.raw <= SHORT:
        return ("R",)
    return ("S", "R") if made.smooth <= SHORT else ("C", "R")


def _shown(made: RoundSizes, said: Mapping[Level, str], words: Sequence[str]) -> Shown:
    """The shortest, if it still has the words that were asked for; else where they stand, raw."""
    level, text = next(iter(said.items()))
    if len(said) > 1 and count(said["R"], words) > count(text, words):
        level, text = "R", said["R"]
    cut = excerpt(text, words, _LONGEST if level != "R" or made.raw <= SHORT else _EXCERPT)
    tokens = {"R": made.raw, "S": made.smooth, "C": made.compact}[level]
    return Shown(level, cut, tokens if cut == text else _estimate(cut))


def _pointing(shown: Shown, session: str) -> Shown:
    """With its pointers to whole results as they are fetched from elsewhere."""
    if not session:
        return shown
    text = _pointer(lambda found: f"{found[1]}{session}#{found[2]}", shown.text)
    return shown if text == shown.text else msgspec.structs.replace(shown, text=text)


def _gist(shown: Shown) -> Shown:
    line = " ".join(shown.text[: 4 * _GIST].split())
    cut = line if len(line) <= _GIST else f"{line[: _GIST - 1]}…"
    return Shown("T", cut, _estimate(cut), shown.key, shown.time)


#: Turns in front of a fork that its parent may still have added to.
_NEAR = 20


class View(NamedTuple):
    """A line of turns, as somebody sees it."""

    record: SessionRecord
    head: Head


class _Memo(NamedTuple):
    """What was read for a question: lines by session, memories and layers by place."""

    question: Question
    views: dict[str, View]
    kept: dict[int, Shown]


class Sizes:
    """Reads what rounds take."""

    def __init__(
        self, store: Store, scribe: RenditionService, marked: Marked | None = None
    ) -> None:
        self._counts = store.collection(TurnCount)
        self._rows = store.collection(Rendition)
        self._store = store
        self._scribe = scribe
        self._marked = marked

    async def of(
        self, view: View, candidates: Sequence[Candidate]
    ) -> tuple[dict[int, RoundSizes], dict[str, Rendition | None]]:
        """By place, and the rows that were read. What was taken back, or is forgotten or damaged,
        is left out.
        """
        live = [each for each in candidates if not view.head.is_undone(each.turn)]
        sure = await self._sure(view, sorted({each.session for each in live}))
        near = [each for each in live if each.turn < sure[each.session]]
        counts = await self._counts.get_many([turn_key(c.session, c.turn) for c in near])
        keys = [rendition_key(each.session, each.turn, each.round) for each in near]
        rows = await self._rows.get_many(keys)
        found = dict[int, RoundSizes]()
        for each, count, row in zip(near, counts, rows, strict=True):
            made = _made(each, count, row)
            if made is not None:
                found[each.place] = made
        rest = [each for each in live if each.place not in found]
        asked = await asyncio.gather(*(self._asked(view, each) for each in rest))
        found |= {c.place: made for c, made in zip(rest, asked, strict=True) if made}
        # What was asked for may have been made just now.
        made_now = {rendition_key(each.session, each.turn, each.round) for each in rest}
        read = dict(zip(keys, rows, strict=True))
        return found, {key: row for key, row in read.items() if key not in made_now}

    async def _sure(self, view: View, sessions: Sequence[str]) -> dict[str, int]:
        """In front of which turn the rows of each session can be trusted, for this view."""
        found = dict[str, int]()
        for session in sessions:
            firsts = None if self._marked is None else self._marked(session)
            if firsts is None:
                firsts = [mark.first for mark in await marks_of(self._store, TURNS, session)]
            shared = [s.turn - _NEAR + 1 for s in view.record.line if s.session == session]
            found[session] = min([view.head.turn, *shared, *firsts])
        return found

    async def _asked(self, view: View, candidate: Candidate) -> RoundSizes | None:
        place = RoundId(candidate.turn, candidate.round)
        try:
            sizes = await self._scribe.sizes(*view, place, place)
        except PerdureError:
            return None  # one turn that is damaged hides no other
        return sizes[0] if sizes else None


def _made(
    candidate: Candidate, count: TurnCount | None, row: Rendition | None
) -> RoundSizes | None:
    counted = None if count is None else count.of(candidate.round)
    at = None if row is None or counted is None else row.best(counted.messages)
    if row is None or counted is None or at is None:
        return None
    place, used = RoundId(candidate.turn, candidate.round), row.variants[at]
    return RoundSizes(place, counted.tokens, used.smooth, used.compact, at, used.recipe)


#: Of a part, so much stands before the first word that was found.
_BEFORE = 160
#: Words that are looked for, and places at which each is.
_WORDS, _PLACES = 40, 50
#: Characters of a text that are looked at.
_TEXT = 200_000
#: Of a word with another ending, so much at least is the same.
_SAME = 4

#: Shorter words stand everywhere.
_pieces = re.compile(r"\w{3,}").findall
#: A word in a reason: see `searching.ranking`.
_named = re.compile("‘([^’]+)’").sub  # noqa: RUF001


def looked_for(question: str) -> tuple[str, ...]:
    """What of a question may stand in a text, folded: its longer words, no stop words."""
    found = list(dict.fromkeys(_pieces(folded(question[:10_000]))))
    small = STOP_WORDS | languages.small_words(languages.told(found))
    return tuple(word for word in found if word not in small)[:_WORDS]


def count(text: str, wanted: Iterable[str]) -> int:
    """How many of the words stand in a text."""
    plain = folded(text[:_TEXT])
    return sum(word in plain for word in wanted)


def excerpt(text: str, wanted: Collection[str], most: int) -> str:
    """The text, or of a longer one about `most` characters; its beginning if no word is in it."""
    if len(text) <= most:
        return text
    plain = folded(text[:_TEXT])  # places in it may have moved a little
    places = sorted((at, word) for word in wanted for at in _places(plain, word))
    best, start = 0, 0
    for number, (at, _) in enumerate(places):
        there = {word for other, word in places[number:] if other < at + most - _BEFORE}
        if len(there) > best:
            best, start = len(there), max(at - _BEFORE, 0)
    if start:
        start = text.find(" ", start, start + _BEFORE) + 1 or start
    cut = text[start : start + most].strip()
    return f"{'… ' if start else ''}{cut}{' …' if start + most < len(text) else ''}"


def _places(plain: str, word: str) -> list[int]:
    found, at = list[int](), plain.find(word)
    while at >= 0 and len(found) < _PLACES:
        found.append(at)
        at = plain.find(word, at + 1)
    return found


def as_it_stands(why: str, text: str) -> str:
    """What spoke for a hit, with words as they stand in the text: "migration", not "migrating".

    Words that do not stand there, since the text is shortened, are left as they were asked for.
    """
    plain = folded(text[:_TEXT])

    def standing(found: re.Match[str]) -> str:
        other = _standing(folded(found[1]), plain)
        if not other:
            return found[0]
        as_written = (word for word in _pieces(text) if folded(word) == other)
        return f"‘{next(as_written, other)}’"  # noqa: RUF001

    return _named(standing, why)


def _standing(low: str, plain: str) -> str:
    """The word of a text that differs by its ending, or not at all; empty if there is none."""
    if not low.isalpha():
        return ""
    # What it begins with is looked for first: that takes a tenth of what a border of words takes.
    begin = re.compile(rf"{re.escape(low[:_SAME])}\w*")
    there = dict.fromkeys(
        found[0]
        for found in begin.finditer(plain)
        if not plain[max(found.start() - 1, 0) : found.start()].isalnum()
    )
    if low in there:
        return ""
    alike = (word for word in there if not _stems(low).isdisjoint(_stems(word)))
    return next(alike, "")


@lru_cache(maxsize=1_000)
def _stems(word: str) -> frozenset[str]:
    return frozenset((*words.terms(word), *languages.any_form(word)))
