"""The words of candidates, at the fidelity at which they are shown.

A round is shown raw if it is short, else smoothed, else compressed. If that lost words that were
asked for, the part of it that has them is shown as it was said. A reminder has the turn's T.

A turn of the asking session's line is read as that line has it: a fork does not see what was added
to a shared turn after it left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from perdure.core.levels import Level
from perdure.core.tokens import EstimatedCounter
from perdure.history.reading import Reader
from perdure.history.records import Head, SessionRecord
from perdure.history.renditions.scribe import Made, Scribe, Wanted
from perdure.recall.keys import owner_of
from perdure.recall.steps.cabinets import Cabinet
from perdure.recall.steps.excerpts import count, excerpt, looked_for
from perdure.recall.steps.sizing import Sizes, View
from perdure.recall.values import Candidate, Question
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


class Shown(msgspec.Struct, frozen=True, gc=False):
    """Words, their fidelity, and what they take."""

    level: Level
    text: str
    tokens: int
    #: What it is fetched by, and when it was last changed, if the index does not say.
    key: str = ""
    time: int = 0
    #: The key of what is to be read before it: see `Kept`.
    behind: str = ""


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
        scribe: Scribe,
        reader: Reader,
        memories: Cabinet | None = None,
        references: Cabinet | None = None,
    ) -> None:
        self._sessions = store.collection(SessionRecord)
        self._heads = store.collection(Head)
        self._scribe = scribe
        self._sizes = Sizes(store, scribe)
        self._reader = reader
        self._cabinets = {"memory": memories, "reference": references}

    async def full(self, question: Question, candidates: Sequence[Candidate]) -> dict[int, Shown]:
        found = await self._kept(question, candidates)
        words = looked_for(question.text)
        for view, some in await self._by_view(question, candidates):
            there = await self._sizes.of(view, some)
            wanted = [
                (place, Wanted(made.place, level, made.variant))
                for place, made in there.items()
                for level in _levels(made)
            ]
            texts = await self._scribe.texts(*view, [each for _, each in wanted])
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
            made = await self._scribe.tinies(*view, {each.turn for each in some})
            turns = sorted(made)
            texts = await self._scribe.tiny_texts(
                *view, [(turn, made[turn].variant) for turn in turns]
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

    async def _kept(self, question: Question, candidates: Iterable[Candidate]) -> dict[int, Shown]:
        """What memories and reference layers say."""
        found = dict[int, Shown]()
        for each in candidates:
            cabinet = self._cabinets.get(each.kind)
            kept = None if cabinet is None else await cabinet(question, each)
            if kept is not None:
                tokens = _estimate(kept.text)
                found[each.place] = Shown("R", kept.text, tokens, kept.key, kept.time, kept.behind)
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
        views = await self._views([session for session in found if session])
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


def _levels(made: Made) -> tuple[Level, ...]:
    """Raw if that is short; else also what is shorter."""
    if made.raw <= SHORT:
        return ("R",)
    return ("S", "R") if made.smooth <= SHORT else ("C", "R")


def _shown(made: Made, said: Mapping[Level, str], words: Sequence[str]) -> Shown:
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
