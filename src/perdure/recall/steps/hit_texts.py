"""The words of candidates, at the fidelity at which they are shown.

A round is shown raw if it is short, else smoothed, else compressed. If that lost words that were
asked for, the part of it that has them is shown as it was said. A reminder has the turn's T.

A turn of the asking session's line is read as that line has it: a fork does not see what was added
to a shared turn after it left.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.core.display import one_line
from perdure.core.levels import Level
from perdure.core.messages import Message
from perdure.core.tokens import EstimatedCounter
from perdure.history.log_records import Owned, owners
from perdure.history.manifest import RoundId
from perdure.history.renditions.rendition_maker import TurnMessages
from perdure.history.renditions.rendition_records import rendition_key
from perdure.history.renditions.rendition_service import RenditionService
from perdure.history.renditions.rendition_store import ShortenedRound
from perdure.history.strategies.raw_rounds import prompt_of
from perdure.history.turn_reader import TurnReader
from perdure.history.turn_search import folded
from perdure.recall import languages, words
from perdure.recall.hit_keys import owner_of
from perdure.recall.languages import STOP_WORDS
from perdure.recall.steps.fetchers import Cabinet
from perdure.recall.steps.judge_history import JudgeHistory
from perdure.recall.values import Candidate, Question, Shown

#: Tokens up to which a round is shown raw, or smoothed.
SHORT = 200
#: Characters of what is longer: of a rendition, and around the words in what was said.
_LONGEST, _EXCERPT = 2_400, 1_200
#: Characters of a memory's or a layer's gist.
_GIST = 160

_estimate = EstimatedCounter().count
#: What `history.excerpt` writes where something is left out.
_Round: TypeAlias = tuple[RoundId, tuple[Message, ...]]
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

    async def lately(self, question: Question, tokens: int) -> Sequence[str]:
        """What happened in the session, a line for each turn, oldest first, in so many tokens."""


class Showing:
    """`Texts` of a bank."""

    def __init__(
        self,
        renditions: RenditionService,
        reader: TurnReader,
        memories: Cabinet | None = None,
        references: Cabinet | None = None,
    ) -> None:
        self._renditions = renditions
        self._history = JudgeHistory(renditions, reader)
        self._cabinets = {"memory": memories, "reference": references}
        self._last: _Memo | None = None

    async def full(self, question: Question, candidates: Sequence[Candidate]) -> dict[int, Shown]:
        found, words = await self._kept(question, candidates), looked_for(question.text)
        turns = await self._turns(question, candidates)
        raw, long = dict[int, str](), dict[str, _Round]()
        most = question.passage
        for each in candidates:
            turn = turns.get((each.session, each.turn))
            messages = None if turn is None else turn.rounds.get(each.round)
            if not messages or not (text := await self._renditions.raw(messages)):
                continue
            prompt = prompt_of(messages) if most else ()
            if len(prompt) < len(messages) and prompt:
                if _estimate(text) > most:
                    said = await self._renditions.raw(prompt)
                    reply = await self._renditions.raw(messages[len(prompt) :])
                    text = in_part(said, reply, words, 4 * most)
            elif _estimate(text) > SHORT:
                long[_row(each)] = RoundId(each.turn, each.round), messages
            raw[each.place] = text
        shorter = await self._renditions.shortened(long) if long else {}
        for each in candidates:
            if each.place in raw:
                is_own = owner_of(question.record, each.turn) == each.session
                shown = _shown(raw[each.place], shorter.get(_row(each)), words, most)
                found[each.place] = _pointing(shown, "" if is_own else each.session)
        return found

    async def tiny(self, question: Question, candidates: Sequence[Candidate]) -> dict[int, Shown]:
        kept = await self._kept(question, candidates)
        found = {place: _gist(shown) for place, shown in kept.items()}
        turns = await self._turns(question, candidates)
        texts = await self._renditions.tiny_of(turns) if turns else {}
        for each in candidates:
            made = texts.get((each.session, each.turn))
            if made is not None and made.text:
                found[each.place] = Shown("T", made.text, made.tokens)
        return found

    async def lately(self, question: Question, tokens: int) -> list[str]:
        return await self._history.lines(question, tokens)

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

    async def _turns(
        self, question: Question, candidates: Iterable[Candidate]
    ) -> dict[tuple[str, int], TurnMessages]:
        """The turns among the candidates, by session and number."""
        record, head, known = question.record, question.head, self._memo(question).turns
        wanted = dict[tuple[str, int], Owned]()
        for each in candidates:
            place = each.session, each.turn
            if each.kind != "turn" or place in wanted:
                continue
            owned = next(owners(record, each.turn, each.turn))
            if owned.session != each.session:
                wanted[place] = Owned(each.session, each.turn, each.turn)
            elif not head.is_undone(each.turn):
                is_shared = owned.session != record.id
                wanted[place] = owned if is_shared else replace(owned, piece=head.pieces)
        if unread := {place: owned for place, owned in wanted.items() if place not in known}:
            read = await self._renditions.scattered(list(unread.values()))
            known |= {place: read.get(place) for place in unread}
        there = {place: known[place] for place in wanted}
        return {place: turn for place, turn in there.items() if turn is not None}


def _row(candidate: Candidate) -> str:
    return rendition_key(candidate.session, candidate.turn, candidate.round)


def _shown(
    raw: str, shorter: ShortenedRound | None, words: Sequence[str], passage: int = 0
) -> Shown:
    """The shortest, if it still has the words that were asked for; else where they stand, raw. In
    at most `passage` tokens, or as many as usual.
    """
    level: Level = "R"
    longest = 4 * max(passage, SHORT) if passage else _LONGEST
    text, tokens, most = raw, _estimate(raw), longest
    if shorter is not None:
        most = min(_EXCERPT, longest)
        is_smooth = shorter.smooth_tokens <= SHORT
        brief = shorter.smooth if is_smooth else shorter.compact
        if brief and count(raw, words) <= count(brief, words):
            level, text, most = "S" if is_smooth else "C", brief, longest
            tokens = shorter.smooth_tokens if is_smooth else shorter.compact_tokens
    cut = excerpt(text, words, most)
    return Shown(level, cut, tokens if cut == text else _estimate(cut))


def in_part(prompt: str, reply: str, words: Sequence[str], most: int) -> str:
    """A round in about `most` characters: what was asked, whole unless it is long, and of the reply
    where the words stand. Long replies would otherwise leave no room for what people said.
    """
    said = excerpt(prompt, words, 4 * SHORT)
    speaker, _, rest = reply.partition(": ")
    return f"{said}\n{speaker}: {excerpt(rest, words, max(most - len(said), most // 4))}"


def _pointing(shown: Shown, session: str) -> Shown:
    """With its pointers to whole results as they are fetched from elsewhere."""
    if not session:
        return shown
    text = _pointer(lambda found: f"{found[1]}{session}#{found[2]}", shown.text)
    return shown if text == shown.text else msgspec.structs.replace(shown, text=text)


def _gist(shown: Shown) -> Shown:
    cut = one_line(shown.text, _GIST)
    return Shown("T", cut, _estimate(cut), shown.key, shown.time)


class _Memo(NamedTuple):
    """What was read for a question: turns by session and number, memories and layers by place."""

    question: Question
    turns: dict[tuple[str, int], TurnMessages | None]
    kept: dict[int, Shown]


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
