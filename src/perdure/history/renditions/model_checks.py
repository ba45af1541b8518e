"""Checks what a model wrote for a level: that it is a text of that level, adds nothing, and keeps
what binds.

Kept have to be names, numbers, paths and ids, and the sentences that bind: constraints, negations,
decisions. They may be paraphrased: of a sentence, most of its facts, some of its words and a
negation must be found again, not its wording; a number keeps its digits. A level that is short
keeps fewer: as many as it has room for. What is not known of a language is not asked of it:
negations are known in some twenty languages.

Does not catch false statements made of true names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from perdure.core.levels import Level
from perdure.core.messages import ArtifactPointer, Message, Text, words_of
from perdure.core.tokens import Counter
from perdure.history.renditions import algorithm
from perdure.history.renditions.facts import holds, mentions, names_in
from perdure.history.renditions.negations import (
    is_negated,
    is_negative,
    negated_words,
    obliges,
    stems,
)
from perdure.history.renditions.sentences import decides, units
from perdure.history.renditions.tidy_text import language_of, script_of
from perdure.history.turn_tags import without_tags


class _Bounds(NamedTuple):
    """What is asked of a level. Shares are of the source's tokens, or of what it names."""

    most: float
    least_most: int  # Of a shorter source, all of it is allowed.
    least: float
    facts: float
    users: float  # Of what the user names.
    #: Of the tokens of the words, what facts, and sentences that bind, may be asked to take.
    room: float
    binding: float


_BOUNDS: dict[Level, _Bounds] = {
    "S": _Bounds(1.02, 20, 0.5, 0.9, 0.9, 1.0, 1.0),
    "C": _Bounds(0.5, 60, 0.12, 0.5, 0.75, 0.25, 0.4),
    "T": _Bounds(0.2, 40, 0.01, 0, 0, 0.01, 0.01),  # T has to name one thing, whose ever.
}
_FEWEST = 4  # Tokens that are no text yet, if the source has five times as many.
_BINDING_FACTS = 0.75  # Of the facts of a sentence that binds.
_BINDING_WORDS = 0.25  # Of its words, from three on.
_SHORT = 60  # Tokens of a short text: facts may take a third of it, what binds a half.
_NAMED = 5  # Of what is missing, so much is told.
_FEW, _SHARED = 40, 0.3  # Too short to tell a language by; words that no translation shares.
_LONGEST_QUOTE = 80

_chatter = re.compile(
    r"\W*(?:sure|certainly|of course|absolutely|okay|ok|here(?:'s| is| are)|below is|the following"
    r"(?: is)?"
    r"|i(?:'ll| will| have|'ve) (?:summari[sz]e|compress|shorten|rewrit|condens))[^\n]{0,80}"
    r"(?:summary|version|rendition|rewrit|compress|shorten|condens|smooth|text|result|:)",
    re.IGNORECASE,
).match
_refusal = re.compile(
    r"\W*(?:i(?:'m| am) (?:sorry|unable|not able)|sorry,|i (?:cannot|can't|can not|won't|am unable)"
    r"|as an ai|i apologi[sz]e|unfortunately, i (?:cannot|can't))",
    re.IGNORECASE,
).match
_closing_chatter = re.compile(
    r"(?:let me know if|i hope this helps|feel free to ask|would you like me to)[^\n]{0,200}\W*\Z",
    re.IGNORECASE,
).search
#: Numbers that an algorithm counted: what was left out, how often a line was there.
_counted = re.compile(
    r"\[… [^\]\n]{0,300}\]|\(×\d+\)|\b[\d,]{1,12} (?:lines?|characters|files found)\b"
).sub
_speaker = re.compile(r"^(?:User|Assistant|System|Developer|Tool): ", re.MULTILINE).sub
_camel = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}").search
_calling = re.compile(r"(?:^|[.!?\n]\s*)(?:[\w']+[\s,]+){0,2}$").search
_digits = re.compile(r"[+-]?\d+(?:[.,:]\d+)*").match
_unit = re.compile(r"%|[^\W\d_]{0,12}").fullmatch
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905


class Source:
    """What a text is to be made of, and the tokens that it must have at least."""

    def __init__(self, rounds: Iterable[Sequence[Message]], *, least: int = 0) -> None:
        self.least = least
        said = [message for messages in rounds for message in messages]
        self.raw = algorithm.raw(said)
        self.user = _words(said, "user")
        self.assistant = _words(said, "assistant")

    @cached_property
    def words(self) -> str:
        """What was said, each sentence once."""
        said = [unit.text for words in (self.user, self.assistant) for unit in units(words)]
        return "\n".join(dict.fromkeys(said))

    @cached_property
    def language(self) -> str:
        return language_of(self.words)

    @cached_property
    def binding(self) -> list[str]:
        """Sentences that bind, what the user asks for first."""
        own = [each for each in _sentences(self.user) if obliges(each, self.language)]
        return list(dict.fromkeys([*own, *filter(decides, _sentences(self.assistant))]))


def faults(
    source: Source, text: str, level: Level, counter: Counter, *, limit: int | None = None
) -> list[str]:
    """What is wrong with a text that should say the source's words at a level; empty if nothing.

    `limit` is in tokens; without it, a generous share of the source's. Paths, URLs and numbers that
    the source does not hold are invented; numbers up to ten may be words there.
    """
    if not text.strip():
        return ["empty"]
    bounds, found = _BOUNDS[level], list[str]()
    tokens, said = counter.count(text), counter.count(source.words)
    if limit is None:
        whole = counter.count(source.raw)
        limit = max(int(whole * bounds.most), min(whole, bounds.least_most))
    if tokens > limit:
        found.append(f"too long: {tokens:,} tokens instead of {limit:,}")
    least = max(source.least, int(said * bounds.least), min(_FEWEST + 1, said // 5))
    if tokens < least:
        found.append(f"too short: {tokens:,} tokens instead of at least {least:,}")
    found += _manners(source.raw, text)
    if not _same_language(source.raw, text):
        found.append("another language")
    elif without_tags(text)[1] > without_tags(source.raw)[1]:
        found.append("tags of ours")
    elif invented := _invented(source.raw, text):
        found.append(f"invented: {', '.join(invented[:_NAMED])}")
    else:
        found += _lost(source, text, level, counter, limit)
    return found


def _lost(source: Source, text: str, level: Level, counter: Counter, limit: int) -> Iterator[str]:
    bounds, shown = _BOUNDS[level], _Shown(text, source.language, exact=level == "S")
    said = counter.count(source.words)
    short = min(limit, _SHORT)
    room = max(int(said * bounds.room), short // 3)
    missing = dict[str, None]()
    shares = ((source.user, bounds.users), (source.assistant, bounds.facts))
    for words, share in ((source.words, 0.0),) if level == "T" else shares:
        named = _facts(words, source.language)
        gone = [each for each in named if not shown.names(each)]
        need = min(math.ceil(share * len(named)) or 1, _fitting(named, room, counter))
        if len(named) - len(gone) < need:
            missing |= dict.fromkeys(gone)
    room = max(int(said * bounds.binding), short // 2)
    required = _within(source.binding, room, counter)
    if level == "C":
        required = required or source.binding[:1]
    lost = list[str]()
    negated = [each for each in required if is_negated(each, source.language)]
    for sentence in required:
        gone = shown.lacks(sentence, source.language)
        if gone:
            missing |= dict.fromkeys(gone)
        elif shown.has_lost(sentence, negated):
            lost.append(sentence)
    if missing:
        yield f"leaves out: {', '.join([*missing][:_NAMED])}"
    if lost:
        yield f"loses: {_quoted(lost[0])}"
    if turned := _turned(source, _speaker("", text)):
        yield f"turns around: {_quoted(turned)}"


class _Shown:
    """A text, and what it holds."""

    def __init__(self, text: str, language: str, *, exact: bool) -> None:
        self._text = _speaker("", text)
        self._lowered = self._text.casefold()
        self._plain = self._lowered.replace(",", "").replace("_", "")
        self._exact = exact
        self._language = language

    @cached_property
    def _stems(self) -> frozenset[str]:
        return stems(self._text)

    @cached_property
    def _negated(self) -> list[frozenset[str]]:
        sentences = _sentences(self._text)
        return [stems(each) for each in sentences if is_negative(each, self._language)]

    def names(self, fact: str) -> bool:
        """Also if it is written a little otherwise: a number without separators or with its unit,
        a path by its last part.
        """
        fact = fact.casefold()
        if holds(self._lowered, fact):
            return True
        number = _digits(fact)
        if number is not None and _unit(fact[number.end() :]):
            return self._has_number(number[0])
        if holds(self._lowered, fact.rstrip("s()'’")) or holds(self._lowered, f"{fact}s"):
            return True
        last = re.split(r"[/\\]", fact.rstrip("/\\"))[-1]
        return not self._exact and len(last) > 3 and holds(self._lowered, last)

    def lacks(self, sentence: str, language: str) -> list[str]:
        """The facts of a sentence that binds which are not there, if those are too many."""
        named = _facts(sentence, language)
        gone = [each for each in named if not self.names(each)]
        return gone if len(gone) > len(named) * (1 - _BINDING_FACTS) else []

    def has_lost(self, sentence: str, negated: Sequence[str]) -> bool:
        wanted = stems(sentence)
        if len(wanted) > 2 and len(wanted & self._stems) < len(wanted) * _BINDING_WORDS:
            return True
        if sentence not in negated:
            return False
        # As many negations as there were may say it in other words.
        is_kept = any(wanted & each for each in self._negated)
        return not is_kept and len(self._negated) < len(negated)

    def _has_number(self, number: str) -> bool:
        plain = number.replace(",", "")
        if re.search(rf"(?<![\d.]){re.escape(plain)}(?!\d|[.,:]\d)", self._plain):
            return True
        return plain.isdigit() and int(plain) <= 12 and _NUMBERS[int(plain)] in self._lowered


def _turned(source: Source, text: str) -> str:
    """A sentence of the source whose negation is gone, though what it negates is there."""
    if not (negated := negated_words(_sentences(source.words), source.language)):
        return ""
    said = [(stems(each), is_negative(each, source.language)) for each in _sentences(text)]
    for stem, sentence in negated.items():
        kept = [is_kept for each, is_kept in said if stem in each]
        if kept and not any(kept):
            return sentence
    return ""


def _words(said: Iterable[Message], role: str) -> str:
    return "\n".join(
        words_of(part)
        for message in said
        if message.role == role and not message.injected
        for part in message.parts
        if isinstance(part, Text | ArtifactPointer)
    )


def _sentences(words: str) -> list[str]:
    return [unit.text for unit in units(words) if unit.kind != "code"]


def _facts(words: str, language: str) -> list[str]:
    """What words name, each once. Where all nouns have capitals, only what is no plain word. Who is
    called by name (``Thanks, Ada!``) is not told of.
    """
    found = dict[str, str]()
    for fact, at in mentions(words):
        is_plain = fact.isalpha() and not _camel(fact)
        if is_plain and (language == "de" or _is_called(words, fact, at)):
            continue
        if fact.isdigit() and int(fact) <= 10 and language not in {"en", ""}:
            continue  # it may be a word there
        found.setdefault(fact.casefold(), fact)
    return list(found.values())


def _is_called(words: str, name: str, at: int) -> bool:
    before, behind = words[max(0, at - 24) : at], words[at + len(name) : at + len(name) + 1]
    is_last = before.endswith(", ") and behind in "!.?"
    return is_last or (behind in ",!.?" and bool(_calling(before)))


def _fitting(facts: Iterable[str], room: int, counter: Counter) -> int:
    """How many of these fit."""
    many = 0
    for fact in facts:
        room -= counter.count(fact) + 1
        if room < 0:
            break
        many += 1
    return many


def _within(sentences: Iterable[str], room: int, counter: Counter) -> list[str]:
    found = list[str]()
    for sentence in sentences:
        room -= counter.count(sentence)
        if room < 0:
            break
        found.append(sentence)
    return found


def _quoted(sentence: str) -> str:
    line = " ".join(sentence.split())
    return f'"{line if len(line) <= _LONGEST_QUOTE else line[: _LONGEST_QUOTE - 1] + "…"}"'


def _manners(source: str, text: str) -> list[str]:
    found = []
    if _refusal(text) and not _refusal(source) and not _holds_start(source, text):
        found.append("a refusal")
    if _chatter(text) and not _holds_start(source, text):
        found.append("chatter before it")
    last = _closing_chatter(text, max(0, len(text) - 300))
    if last and last[0][:14].casefold() not in source.casefold():
        found.append("chatter behind it")
    return found


def _holds_start(source: str, text: str) -> bool:
    start = text.strip()[:24].casefold()
    return start in source.casefold()


def _same_language(source: str, text: str) -> bool:
    """By common words and letters. Short texts deceive: one that shares words is no translation."""
    source, text = _speaker("", source), _speaker("", text)
    if min(len(source), len(text)) < _FEW:
        return True
    one, other = language_of(source), language_of(text)
    if script_of(source) == script_of(text) and (not one or not other or one == other):
        return True
    own = stems(text)
    return len(own & stems(source)) > len(own) * _SHARED


def _invented(source: str, text: str) -> list[str]:
    text = _counted(" ", text)
    shown = _Shown(source, "", exact=True)
    return [
        name
        for name in names_in(text)
        if not shown.names(name) and not (name.isdigit() and int(name) <= 10)
    ]
