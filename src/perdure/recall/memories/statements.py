"""A text, taken apart into words that can be compared with those of another.

“You should always use 4 spaces.” and “use 4 spaces” come to the same words. Only what surely means
the same is made the same; all else stays as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Literal, TypeAlias

import msgspec

#: Which sort of word it is.
Sort: TypeAlias = Literal["word", "number", "name"]
_Token: TypeAlias = tuple[str, Sort]

#: What some words come to.
NOT, IS, ARE, WAS, MUST, INSTEAD, END, ASKS = "¬", "=", "==", "was", "must", "instead", ".", "?"


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


_LIGHT = _listed(
    "a an the please really very actually basically simply always currently now still already"
    " do does"
)
#: Words for one thing, the first of which stands for all.
_SYNONYMS = (
    (NOT, "not never no"),
    (IS, "is am be being equals ="),
    (ARE, "are"),
    (WAS, "was were been had did formerly previously"),
    (MUST, "must should shall ought"),
    ("have", "has"),
    ("use", "utilize utilise employ"),
    ("prefer", "like favor favour"),
    ("folder", "directory"),
    ("folder~s", "directories"),
    ("repo", "repository"),
    ("repo~s", "repositories"),
    ("db", "database"),
    ("config", "configuration"),
    ("doc~s", "documentation"),
    ("run", "execute"),
    ("every", "each"),
    ("second", "seconds secs sec"),
    ("minute", "minutes mins"),
    ("favorite", "favourite"),
    ("color", "colour"),
    ("named", "called"),
)
_SAID_AS = {word: meant for meant, words in _SYNONYMS for word in (meant, *words.split())}
#: Several words that come to one, longer ones first.
_PHRASES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("make", "sure", "to"), (MUST,)),
    (("no", "longer"), (NOT,)),
    (("used", "to"), (WAS,)),
    (("instead", "of"), (INSTEAD,)),
    (("rather", "than"), (INSTEAD,)),
    (("has", "to"), (MUST,)),
    (("have", "to"), (MUST,)),
    (("need", "to"), (MUST,)),
    (("needs", "to"), (MUST,)),
    (("remember", "to"), (MUST,)),
    (("avoid", "using"), (NOT, "use")),
    (("avoid",), (NOT, "use")),
    (("dislike",), (NOT, "prefer")),
    (("dislikes",), (NOT, "prefer")),
)
#: Units as they are written behind a number, and what they come to.
_UNITS = {
    written: unit
    for unit, words in {
        "second": "s sec secs second seconds",
        "minute": "min mins minute minutes",
        "hour": "h hr hrs hour hours",
        "day": "d day days",
        "week": "week weeks",
    }.items()
    for written in words.split()
} | {unit: unit for unit in ("ms", "kb", "mb", "gb", "tb", "kib", "mib", "gib", "px", "k", "m")}
#: Numbers that are written as words. “One” may be a pronoun.
_COUNTED = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COUNTS = {word: str(number) for number, word in enumerate(_COUNTED, start=2)}
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
#: A clause that begins with one of these may stand in front as well.
CLAUSES = _listed("for in on at when if before after with during while by")
#: Words that stay as they are, beside those.
_FUNCTION = _listed("over under to of from than and or but without instead you we i it")
_LABELS = "note remember important tip lesson decision preference fact pattern"
#: Endings that make another word, or another tense, of a stem.
_DERIVED = re.compile(
    "(?:ed|ly|ion|er|or|able|ible|ant|ent|al|ment|ness|ity|ive|ful|less|ous|ic)$"
).search

_WORD = re.compile(r"`[^`\n]+`|[^\s`]+")
_QUOTES = "()[]{}\"'“”‘’«»*,;!?…"  # noqa: RUF001 - as people write them
_number = re.compile(r"([-+~$€£#v]?\d[\d.,:/_-]*)(%|[a-z]{0,3})", re.IGNORECASE).fullmatch
_thousands = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?").fullmatch
_identifier = re.compile(r"^--?\w|[/\\_@#=<>~$%^&|+]|\w[.:]\w|\d|[a-z][A-Z]").search
_contracted = re.compile(r"(\w+?)n['’]t", re.IGNORECASE).fullmatch
_shortened = re.compile(r"(\w+)['’](s|re|ll|ve|d|m|)", re.IGNORECASE).fullmatch
#: What stands behind an apostrophe; behind these words, an s, too. Behind others it is a genitive.
_SHORT = {"re": "are", "ll": "will", "ve": "have", "d": "would", "m": "am", "s": "is"}
_BEFORE_IS = _listed("it that he she what there here who where how let")
_dashes = re.compile(r"[-–—]").split
_day = re.compile(r"([1-9]|[12]\d|3[01])(?:st|nd|rd|th)?").fullmatch
_year = re.compile(r"(?:19|20)\d\d").fullmatch


#: Words that only join others.
JOINING = frozenset({NOT, IS, ARE, WAS, MUST, END, ASKS}) | CLAUSES | _FUNCTION


class Statement(msgspec.Struct, frozen=True):
    """A text, taken apart."""

    words: tuple[str, ...]
    sorts: tuple[Sort, ...]

    @property
    def content(self) -> frozenset[str]:
        """Its words without those that only join others."""
        return frozenset(self.words) - JOINING


@lru_cache(maxsize=2_000)
def read(text: str) -> Statement:
    """Take a text apart."""
    tokens = _without_label(list(_meant(list(_dated(list(_tokens(text)))))))
    while tokens and tokens[-1][0] == END:
        tokens.pop()
    tokens = _rather_than(_without_call(tokens))
    return Statement(tuple(word for word, _ in tokens), tuple(sort for _, sort in tokens))


# Taking apart ---------------------------------------------------------------------------------


def _tokens(text: str) -> Iterator[_Token]:
    shouted, begins = text.isupper(), True
    for raw in _WORD.findall(text):
        if raw[0] == "`" and len(raw) > 1:
            yield raw.strip("`").strip(), "name"
        elif bare := raw.strip(_QUOTES).rstrip(".:").strip(_QUOTES):
            yield from _sorted_out(bare, named=not (begins or shouted))
        ending = raw.rstrip("\"'”’)*`")[-1:]
        begins = ending in {".", "!", "?", ":"}
        if begins:
            yield {"?": ASKS, ":": ":"}.get(ending, END), "word"


def _sorted_out(bare: str, *, named: bool) -> Iterator[_Token]:
    """The words of what stands between two blanks. `named`: a capital makes a name of it."""
    if (number := _number(bare)) is not None:
        yield from _counted(number[1], number[2].casefold())
    elif bare in {"=", "=="}:
        yield IS, "name"  # as a sign; see `merging`
    elif _identifier(bare):
        yield bare, "name"
    elif (contraction := _contracted(bare)) is not None or bare.casefold() == "cannot":
        stem = "can" if contraction is None else contraction[1].casefold()
        yield {"ca": "can", "wo": "will", "sha": "shall"}.get(stem, stem), "word"
        yield "not", "word"
    elif (short := _shortened(bare)) is not None:
        yield from _sorted_out(short[1], named=named)
        ending = short[2].casefold()
        if ending in _SHORT and (ending != "s" or short[1].casefold() in _BEFORE_IS):
            yield _SHORT[ending], "word"
    else:
        for part in filter(None, _dashes(bare.strip("'’"))):
            word = part.casefold()
            if word in _COUNTS:
                yield _COUNTS[word], "number"
            else:
                yield word, "name" if named and part[0].isupper() and part != "I" else "word"


def _counted(figure: str, unit: str) -> Iterator[_Token]:
    figure = figure.rstrip(".,:/_-").casefold()
    if _thousands(figure):
        figure = figure.replace(",", "")
    if unit in _UNITS:
        yield figure, "number"
        yield _UNITS[unit], "word"
    else:
        yield f"{figure}{unit}", "number"


def _dated(tokens: list[_Token]) -> Iterator[_Token]:
    """“March 1, 2026” and “1 March 2026” as 2026-03-01, “March 1” as 03-01."""
    at = 0
    while at < len(tokens):
        date = _date(tokens, at)
        if date is None:
            yield tokens[at]
            at += 1
            continue
        at += 2
        if at < len(tokens) and _year(tokens[at][0]):
            date = f"{tokens[at][0]}-{date}"
            at += 1
        yield date, "number"


def _date(tokens: list[_Token], at: int) -> str | None:
    """The date that a month and a day make, in either order, if they stand there."""
    for month, day in ((at, at + 1), (at + 1, at)):
        if max(month, day) >= len(tokens):
            return None
        name, sort = tokens[month]
        found = _day(tokens[day][0])
        # “It may 3 times …”: in the middle of a sentence, a month has a capital.
        if name in _MONTHS and found is not None and (sort == "name" or month == 0):
            return f"{_MONTHS.index(name) + 1:02}-{int(found[1]):02}"
    return None


def _meant(tokens: list[_Token]) -> Iterator[_Token]:
    """The words as what they come to; those without weight are gone."""
    words = [word for word, _ in tokens]
    at = 0
    while at < len(tokens):
        for phrase, meaning in _PHRASES:
            if tuple(words[at : at + len(phrase)]) == phrase:
                for word in meaning:
                    yield word, "word"
                at += len(phrase)
                break
        else:
            word, sort = tokens[at]
            at += 1
            if sort != "word":
                yield word, sort
            elif word in _UNITS and at > 1 and tokens[at - 2][1] == "number":
                yield _UNITS[word], "word"
            elif word not in _LIGHT:
                yield from _inflected(word, words[at - 2] if at > 1 else "")


def _inflected(word: str, before: str) -> Iterator[_Token]:
    """“before each commit” is “before committing”; “loving it” is not “love it”."""
    if word in {"each", "every"} and before in {"before", "after"}:
        return
    stem = folded(word)
    is_noun = before in CLAUSES or before in {"of", "without"}
    yield (f"{stem}~ing" if word.endswith("ing") and stem != word and not is_noun else stem), "word"


@lru_cache(maxsize=20_000)
def folded(word: str) -> str:
    """The stem of a word; behind it, the ending that makes another word or tense of it."""
    from perdure.recall.words import terms  # it loads the stemmer

    if word in _SAID_AS:
        return _SAID_AS[word]
    if word in _FUNCTION or word in CLAUSES or not (word.isascii() and word.isalpha()):
        return word
    is_plural = word.endswith("s") and not word.endswith(("ss", "us", "is"))
    singular = word[:-1] if is_plural else word
    stem, base = (found[0] if len(found := terms(each)) == 1 else each for each in (word, singular))
    ending = _DERIVED(singular) if base != singular else None
    meant = _SAID_AS.get(stem, stem) if ending is None else f"{stem}~{ending[0]}"
    return f"{meant}~s" if is_plural and stem != word else meant


@cache
def all_folded(words: str) -> frozenset[str]:
    """What these words come to."""
    return frozenset(map(folded, words.split()))


def _without_label(tokens: list[_Token]) -> list[_Token]:
    """Without “Note:” in front. One other colon says what the first words are."""
    words = [word for word, _ in tokens]
    if ":" not in words:
        return tokens
    if words[1:2] == [":"] and words[0] in all_folded(_LABELS):
        return _without_label(tokens[2:])
    if words.count(":") == 1 and not {IS, ARE, END, ASKS} & set(words[:-1]):
        return [(IS, "name") if word == ":" else (word, sort) for word, sort in tokens]
    return tokens


def _without_call(tokens: list[_Token]) -> list[_Token]:
    """Without “you should” in front: “you should use tabs” asks to use tabs."""
    words = [word for word, _ in tokens]
    start = 1 if words[:2] in (["we", MUST], ["you", MUST]) else 0
    return tokens[start + (words[start : start + 1] == [MUST]) :]


def _rather_than(tokens: list[_Token]) -> list[_Token]:
    """“prefer tabs to spaces” as “prefer tabs over spaces”; not “prefer to use tabs”."""
    words = [word.removesuffix("~s") for word, _ in tokens]
    if "prefer" not in words or "over" in words:
        return tokens
    thing = words.index("prefer") + 1
    if "to" not in words[thing + 1 :] or words[thing] == "to":
        return tokens
    at = words.index("to", thing)
    return [*tokens[:at], ("over", "word"), *tokens[at + 1 :]]
