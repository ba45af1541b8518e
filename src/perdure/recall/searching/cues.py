"""What a question says beside its words: whom it names, which time it means, what it wants to know.

Everything here looks at the question alone. Times are in UTC, and are those of the calendar as
English names it; a question in another language has its ISO dates understood.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import msgspec

from perdure.history.turn_search import folded
from perdure.recall.indexing import tool_text
from perdure.recall.languages import STOP_WORDS
from perdure.recall.words import (
    MONTH,
    MONTHS,
    YEAR,
    Asked,
    asked,
    emoji,
    identifiers,
    is_name,
    month_number,
    plain,
    terms,
)

#: Terms of a question that count. Of a longer one more are looked for, half of them words and half
#: names, and those that tell most of what is there count: see `searching.choosing`.
MOST_TERMS, LOOKED_FOR = 32, 256
_LONG_WORD = 12

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_ordinal = r"(?:st|nd|rd|th)?"

# Words of questions about what was said, which tell nothing about what that was. They are looked
# for only if nothing else is asked. What may be meant by itself (an order, a summary, a list) is
# left out only in phrases that ask for it.
_asking = re.compile(
    r"""
    \b(?:can|could|would|will)\ you\ (?:please\ )?(?=\w)
    | \b(?:walk|talk|take|guide)\ me\ through\b | \b(?:give|list|remind|show|tell)\ me\b
    | \bsummari[sz]e\b
    | \b(?:an?\ )?(?:(?:brief|complete|comprehensive|detailed|full|overall|quick|short)\ )?
      (?:overview|recap|summary|timeline)\ (?:about|of|on)\b
    | \blist\ (?:the\ |in\ )?(?:chronological\ )?order\b
    | \b(?:in\ )?(?:chronological\ |the\ |what\ |which\ )?order\ in\ which\b
    | \bin\ (?:chronological\ |the\ right\ |what\ |which\ )?order\b(?!\ (?:of|to)\b)
    | \b(?:bring(?:ing)?|brought)\ up\b
    | \b(?:the\ )?(?:different|several|various)\ (?:aspects|ideas|points|things|topics|ways)\b
      (?:\ (?:of|related\ to)\b)?
    | \b(?:across|during|from|in|over|throughout)\ (?:all\ )?(?:of\ )?(?:my|our)\ (?:\w+\ )?
      (?:chats?|conversations?|discussions?|talks?)\b
    | \bmention\ only\b(?:\ and\ only\b)?(?:\ \w+\ items?\b)?
    | \balong\ the\ way\b | \bover\ time\b | \bso\ far\b
    | \b(?:did|would)\ (?:i|you)\ (?:recommend|suggest)\b
    | \b(?:discuss(?:ed)?|happen(?:ed|s)?|mention(?:ed)?|remember|remind(?:ed)?|sa(?:id|y|ys)
      |talk(?:ed|ing)?|tell|told)\b
    """,
    re.IGNORECASE | re.VERBOSE,
).sub

# Operators of other searches. As capitals, they would be names of something.
_operator = re.compile(r"\b(?:AND|OR|NOT|NEAR)\b").sub

#: A number, and what is written with the same digits: an id, an address, a hash.
_is_number = re.compile(r"[0-9a-f:./-]*[0-9][0-9a-f:./-]*").fullmatch

_with_genitive = re.compile(r"(\w+)(?:['’]s\b)?").sub
_when = re.compile(
    r"\b(?:when|(?:what|which) (?:date|day|week|month|year|time)|how long|since when)\b",
    re.IGNORECASE,
).search
# With seconds behind it, it is a line of a log that somebody pasted: nobody asks for that.
_iso = re.compile(
    rf"\b({YEAR})-([01][0-9])(?:-([0-3][0-9]))?+(?![T ][0-9]{{2}}:[0-9]{{2}}:[0-9])\b"
).finditer
# As it is written where the day comes first; with a stroke, it would be the month in others.
_dotted = re.compile(
    rf"(?<![\w.])([0-3]?[0-9])\.([01]?[0-9])\.({YEAR})(?![\w.]*\w|[T ][0-9]{{2}}:[0-9]{{2}}:)"
).finditer
# A month alone is one only if it cannot be a word: "may", "march".
_named = re.compile(
    rf"\b(?:(?P<early>[0-9]{{1,2}}){_ordinal}(?: of)? )?(?P<month>{MONTH})\b\.?"
    rf"(?:,? (?P<late>[0-9]{{1,2}}){_ordinal}(?![0-9:]))?(?:,?(?: of)? (?P<year>{YEAR})\b)?",
    re.IGNORECASE,
).finditer
_only_year = re.compile(rf"\b(?:in|of|during|since|from) ({YEAR})\b", re.IGNORECASE).finditer
_weekday = re.compile(rf"\b(?:last |on |this )?({'|'.join(_DAYS)})\b", re.IGNORECASE).finditer
_ago = re.compile(
    rf"\b({'|'.join(_NUMBERS)}|[0-9]{{1,3}}) (day|week|month|year)s? ago\b", re.IGNORECASE
).finditer
_last = re.compile(r"\b(last|this|past) (week|weekend|month|year)\b", re.IGNORECASE).finditer
_near = re.compile(r"\b(today|tonight|this morning|yesterday|last night)\b", re.IGNORECASE).finditer

_SPAN_DAYS = {"day": 0, "week": 3, "month": 15, "year": 180}
_UNIT_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
_A_DAY = 86_400


class Time(msgspec.Struct, frozen=True, kw_only=True):
    """A time that a question means: a stretch, or what comes back each year."""

    #: In words: ``in May 2023``.
    name: str
    #: Seconds since 1970, both included; None if any year is meant.
    span: tuple[int, int] | None = None
    month: int = 0
    day: int = 0

    def holds(self, seconds: int) -> bool:
        """Whether a moment is in it."""
        if self.span is not None:
            return self.span[0] <= seconds <= self.span[1]
        there = datetime.fromtimestamp(seconds, UTC)
        return there.month == self.month and self.day in {0, there.day}


class Cues(msgspec.Struct, frozen=True, kw_only=True):
    """What a question says beside its words."""

    #: Different ones, in order; and how often each is said.
    terms: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    #: Pairs of terms that stand side by side in it.
    pairs: tuple[tuple[str, str], ...] = ()
    #: Terms of what programmers write as one, see `words.identifiers`.
    identifiers: frozenset[str] = frozenset()
    #: Words that may be somebody's name, folded, each with its term.
    names: dict[str, str] = {}
    #: By term, another one that stands for the same word in texts of the question's language; and
    #: whether that language, or English, could be told. See `recall.languages`.
    forms: dict[str, str] = {}
    told: bool = True
    times: tuple[Time, ...] = ()
    #: It wants to know when something was.
    when: bool = False


def cues(text: str, moment: int, also: tuple[str, ...] = ()) -> Cues:
    """What a question says, asked at `moment` (microseconds). `also`: further words to look for."""
    text = plain(trim_query(text))
    said = _asked(text)
    # In a sentence, an emoji says how something is meant; alone, it is what is meant.
    signs = {} if said.terms or also else emoji(text)
    further = [term for word in also for term in terms(word)]
    chosen = _telling([*said.terms, *further, *signs.values()])
    kept = chosen.keys()
    pairs = dict.fromkeys(pair for pair in pairwise(said.terms) if kept >= set(pair))
    now = datetime.fromtimestamp(moment / 1e6, UTC).date()
    return Cues(
        terms=tuple(chosen),
        counts=tuple(chosen.values()),
        pairs=tuple(pair for pair in pairs if pair[0] != pair[1]),
        identifiers=identifiers(text),
        names=_names(text) | signs,
        forms={term: form for term, form in said.forms.items() if term in kept},
        told=said.told,
        times=tuple(_times(text, now)),
        when=_when(text) is not None,
    )


def _asked(text: str) -> Asked:
    """Without words that only ask, and operators, if there are others."""
    text = _operator(" ", text)
    said = asked(_asking(" ", text))
    return said if said.terms else asked(text)


def weight(term: str, count: int) -> float:
    """How much a term tells by its look: if it is long, said often, a name, but no number."""
    length: float = min(len(term), _LONG_WORD)
    if _is_number(term) is None:
        length += _LONG_WORD / 2 * is_name(term)
    else:
        length /= 2
    return length * math.sqrt(min(count, 3))


def _telling(said: list[str]) -> dict[str, int]:
    """The different terms, and how often each is said; of many, those that tell most."""
    counted = Counter(said)
    if len(counted) <= MOST_TERMS:
        return counted
    best = set[str]()
    for kind in (True, False):
        some = [term for term in counted if is_name(term) is kind]
        some.sort(key=lambda term: weight(term, counted[term]), reverse=True)
        best.update(some[: LOOKED_FOR // 2])
    return {term: count for term, count in counted.items() if term in best}


def _names(text: str) -> dict[str, str]:
    """Words that may name somebody. Case does not tell: many write without it."""
    found = dict[str, str]()
    for word in re.findall(r"\w+", text)[: 8 * MOST_TERMS]:
        low = folded(word)
        if low not in STOP_WORDS and len(made := terms(word)) == 1:
            found[low] = made[0]
    return found


def without(text: str, names: Collection[str]) -> str:
    """The text without these names: each of their words, and what makes it a genitive."""
    words = {folded(word) for name in names for word in name.split()}

    def left(found: re.Match[str]) -> str:
        return "" if folded(plain(found[1])) in words else found[0]

    return _with_genitive(left, text)


# Times


def _times(text: str, now: date) -> Iterator[Time]:
    for found in _iso(text):
        yield from _dated(int(found[1]), int(found[2]), int(found[3] or 0))
    for found in _dotted(text):
        yield from _dated(int(found[3]), int(found[2]), int(found[1]))
    for found in _named(text):
        yield from _by_name(found)
    for found in _only_year(text):
        year = int(found[1])
        yield _span(f"in {year}", date(year, 1, 1), date(year, 12, 31))
    yield from _relative(text, now)


def _by_name(found: re.Match[str]) -> Iterator[Time]:
    month = month_number(found["month"])
    day = int(found["early"] or found["late"] or 0)
    plain_word = found["month"].lower() in {"may", "march", "mar", "dec", "jan"}
    if plain_word and not (day or found["year"]) and found["month"] not in {"May", "March"}:
        return
    if found["year"]:
        yield from _dated(int(found["year"]), month, day)
    elif day <= 31:
        name = MONTHS[month - 1].title()
        yield Time(name=f"on {day} {name}" if day else f"in {name}", month=month, day=day)


def _dated(year: int, month: int, day: int) -> Iterator[Time]:
    try:
        first = date(year, month, day or 1)
    except ValueError:
        return  # the 31st of June
    name = f"{MONTHS[month - 1].title()} {year}"
    if day:
        yield _span(f"on {day} {name}", first, first)
    else:
        yield _span(f"in {name}", first, _month_end(first))


def _relative(text: str, now: date) -> Iterator[Time]:
    for found in _near(text):
        day = now - timedelta(days=found[1].lower() in {"yesterday", "last night"})
        yield _span(found[1].lower(), day, day)
    for found in _weekday(text):
        back = (now.weekday() - _DAYS.index(found[1].lower())) % 7 or 7
        day = now - timedelta(days=back)
        yield _span(f"on {found[1].title()}", day, day)
    for found in _ago(text):
        number = _NUMBERS.get(found[1].lower()) or int(found[1])
        unit = found[2].lower()
        middle = _back(now, number * _UNIT_DAYS[unit])
        around = timedelta(days=_SPAN_DAYS[unit])
        yield _span(found[0].lower(), middle - around, middle + around)
    for found in _last(text):
        yield _span(found[0].lower(), *_calendar(found[2].lower(), now, found[1].lower()))


def _calendar(unit: str, now: date, which: str) -> tuple[date, date]:
    back = which == "last"
    if unit == "weekend":
        sunday = _back(now, (now.weekday() + 1) % 7 or 7)
        return _back(sunday, 1), sunday
    if unit == "week":
        monday = _back(now, now.weekday() + 7 * back)
        return monday, monday + timedelta(days=6)
    if unit == "month":
        first = now.replace(day=1)
        first = _back(first, 1).replace(day=1) if back else first
        return first, _month_end(first)
    year = max(1, now.year - back)
    return date(year, 1, 1), date(year, 12, 31)


def _back(day: date, days: int) -> date:
    return date.fromordinal(max(1, day.toordinal() - days))


def _month_end(first: date) -> date:
    return (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)


def _span(name: str, first: date, last: date) -> Time:
    start = datetime(first.year, first.month, first.day, tzinfo=UTC)
    end = datetime(last.year, last.month, last.day, tzinfo=UTC)
    return Time(name=name, span=(int(start.timestamp()), int(end.timestamp()) + _A_DAY - 1))


#: Characters from its beginning, and as many from its end.
_HALF = 4_000
#: Characters that are read: as many as `recall.recall` passes on.
_READ = 100_000

# Somebody may have pasted one number of 100,000 digits: no character is looked at again and again.

#: Numbers, and what is written with the same digits: ids, addresses, hashes.
_numbers = re.compile(r"\b(?=[a-f]*+[0-9])[0-9a-f]++\b|[0-9]++", re.IGNORECASE).sub
# Half a word would be a word that stands nowhere.
_last_word, _first_word = re.compile(r"(?<!\S)\S++$").sub, re.compile(r"^\S+").sub


def trim_query(text: str) -> str:
    """All of it; of a long one the beginning, the end, and between them lines that tell of errors.

    Lines that differ in their numbers only count once.
    """
    if len(text) <= 2 * _HALF:
        return text
    lines = dict[str, str]()
    for line in text[:_READ].splitlines():
        lines.setdefault(_numbers("0", line), line)
    text = "\n".join(lines.values())
    if len(text) <= 2 * _HALF:
        return text
    faults = tool_text.answered(text[_HALF:-_HALF]).faults
    return "\n".join([_last_word("", text[:_HALF]), *faults, _first_word("", text[-_HALF:])])
