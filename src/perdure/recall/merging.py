"""Whether two memories say the same, contradict each other, or neither.

To take two things for one loses one of them for good; to keep one thing twice costs a line. So only
what is sure counts: two texts say the same if they come to the same words in the same order, once
articles, fillers, cases, plurals, and a few spellings of one thing are taken away. Numbers, names,
paths, negations, tenses and prepositions all count. A clause may stand in front or at the end: “for
tests use pytest”, “use pytest for tests”.

Two texts contradict each other if they are single sentences that differ in one respect only:

* one denies the other: “use tabs”, “never use tabs”;
* one thing has two values: “the port is 8123”, “the port is 9000”. Values are numbers, dates, names
  and paths; other words only of what there is one of: “the default theme is dark”;
* something is in two opposite states: “the cache is enabled”, “the cache is disabled”;
* a preference is turned around: “prefer tabs over spaces”, “prefer spaces over tabs”.

Known limits, all on the safe side: paraphrases are not recognised (“the database is PostgreSQL”,
“we store everything in PostgreSQL”), nor are negations in other languages than English; a sentence
with “may”, “some”, “also”, or in the past tense, contradicts nothing. Vectors have no say: those of
“likes tea” and “likes coffee” are as close as those of two sentences that say the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Literal, TypeAlias

import msgspec

Relation: TypeAlias = Literal["same", "contrary", "other"]
#: Which sort of word it is.
Sort: TypeAlias = Literal["word", "number", "name"]
_Token: TypeAlias = tuple[str, Sort]

#: What some words come to.
NOT, IS, ARE, WAS, MUST, INSTEAD, END, ASKS = "¬", "=", "==", "was", "must", "instead", ".", "?"


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


_LIGHT = _listed(
    "a an the please just really very actually basically simply always each every currently now"
    " do does so well"
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
    ("folder", "directory directories"),
    ("repo", "repository repositories"),
    ("db", "database databases"),
    ("config", "configuration"),
    ("docs", "documentation"),
    ("run", "execute"),
    ("second", "seconds secs sec"),
    ("minute", "minutes mins"),
    ("favorite", "favourite"),
    ("color", "colour"),
)
_SAID_AS = {word: meant for meant, words in _SYNONYMS for word in words.split()}
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
)
#: Units as they are written behind a number, and what they come to.
_UNITS = {"s": "second", "min": "minute", "h": "hour", "d": "day"} | {
    unit: unit for unit in ("ms", "kb", "mb", "gb", "tb", "kib", "mib", "gib", "px", "k", "m")
}
_SECONDS = {"ms": 0.001, "second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
#: A clause that begins with one of these may stand in front as well.
_CLAUSES = _listed("for in on at when if before after with during while by")
#: Words that stay as they are, beside those.
_FUNCTION = _listed("over under to of from than and or but without instead you we i it")
#: With one of these in a sentence, its contrary may be true as well.
_OPEN = (
    "may might could perhaps maybe sometimes often usually some many most few any also too another"
    " other one or either both until unless except"
)
_PRONOUNS = "it this that there they he she i you here what which these those"
#: There is one of what is called this.
_UNIQUE = "default favorite preferred current main primary only official"
_OPPOSITES = (
    "enabled/disabled on/off true/false required/optional mandatory/optional open/closed"
    " public/private allowed/forbidden synchronous/asynchronous working/broken active/inactive"
    " possible/impossible valid/invalid installed/uninstalled supported/unsupported"
)
#: What gives a thing its number, beside “is”.
_GIVES = "listen cost take last expire default set use keep"
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
_possessive = re.compile(r"['’](?:s|re|ll|ve|d|m)?$")
_dashes = re.compile(r"[-–—]").split


class Statement(msgspec.Struct, frozen=True):
    """A text, taken apart."""

    words: tuple[str, ...]
    sorts: tuple[Sort, ...]

    @property
    def content(self) -> frozenset[str]:
        """Its words without those that only join others."""
        return frozenset(self.words) - _JOINING


_JOINING = frozenset({NOT, IS, ARE, WAS, MUST, END, ASKS}) | _CLAUSES | _FUNCTION


def relation(one: Statement, other: Statement) -> Relation:
    """What two statements are to each other. Symmetric."""
    if not one.words or not other.words:
        return "other"
    if one.words == other.words or _is_turned(one.words, other.words):
        return "same"
    return "contrary" if _are_contrary(one, other) else "other"


def read(text: str) -> Statement:
    """Take a text apart."""
    tokens = _without_label(list(_meant(list(_tokens(text)))))
    while tokens and tokens[-1][0] == END:
        tokens.pop()
    tokens = _without_call(tokens)
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
        yield "=", "word"
    elif _identifier(bare):
        yield bare, "name"
    elif (contraction := _contracted(bare)) is not None or bare.casefold() == "cannot":
        stem = "can" if contraction is None else contraction[1].casefold()
        yield {"ca": "can", "wo": "will", "sha": "shall"}.get(stem, stem), "word"
        yield "not", "word"
    else:
        for part in filter(None, _dashes(_possessive.sub("", bare))):
            is_name = (named and part[0].isupper()) or (len(part) > 1 and named and part.isupper())
            yield part.casefold(), "name" if is_name and part != "I" else "word"


def _counted(figure: str, unit: str) -> Iterator[_Token]:
    figure = figure.rstrip(".,:/_-").casefold()
    if _thousands(figure):
        figure = figure.replace(",", "")
    if unit in _UNITS:
        yield figure, "number"
        yield _UNITS[unit], "word"
    else:
        yield f"{figure}{unit}", "number"


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
                yield folded(word), "word"


@lru_cache(maxsize=20_000)
def folded(word: str) -> str:
    """A word without its plural or ``-ing``; tense and other endings stay."""
    from perdure.recall.words import terms  # it loads the stemmer

    if word in _SAID_AS:
        return _SAID_AS[word]
    if word in _FUNCTION or word in _CLAUSES or not (word.isascii() and word.isalpha()):
        return word
    found = terms(word)
    if len(found) != 1:
        return word
    singular = word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word
    ending = _DERIVED(singular)
    stem = _SAID_AS.get(found[0], found[0])
    return f"{stem}~{ending[0]}" if ending is not None and found[0] != singular else stem


@cache
def _all(words: str) -> frozenset[str]:
    return frozenset(map(folded, words.split()))


@cache
def _opposites() -> frozenset[frozenset[str]]:
    return frozenset(_all(pair.replace("/", " ")) for pair in _OPPOSITES.split())


def _without_label(tokens: list[_Token]) -> list[_Token]:
    """Without “Note:” in front. One other colon says what the first words are."""
    words = [word for word, _ in tokens]
    if ":" not in words:
        return tokens
    if words[1:2] == [":"] and words[0] in _all(_LABELS):
        return _without_label(tokens[2:])
    if words.count(":") == 1 and not {IS, ARE, END, ASKS} & set(words[:-1]):
        return [(IS, "word") if word == ":" else (word, sort) for word, sort in tokens]
    return tokens


def _without_call(tokens: list[_Token]) -> list[_Token]:
    """Without “we” and “you should” in front: “you should use tabs” asks to use tabs."""
    words = [word for word, _ in tokens]
    start = 1 if words[:1] == ["we"] or words[:2] == ["you", MUST] else 0
    return tokens[start + (words[start : start + 1] == [MUST]) :]


# Comparing ------------------------------------------------------------------------------------


def _is_turned(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether a clause at the end of one stands in front in the other."""
    if len(one) != len(other) or END in one:
        return False
    return any(
        one[at:] + one[:at] == other
        for at in range(1, len(one))
        if one[at] in _CLAUSES or one[0] in _CLAUSES
    )


def _are_contrary(one: Statement, other: Statement) -> bool:
    for each in (one, other):
        if not {WAS, END, ASKS}.isdisjoint(each.words) or not _all(_OPEN).isdisjoint(each.words):
            return False
    tests: tuple[Callable[[Statement, Statement], bool], ...] = (
        _is_denied,
        _have_other_values,
        _are_reversed,
    )
    return any(test(one, other) for test in tests)


def _is_denied(one: Statement, other: Statement) -> bool:
    """One has a “not” more, and nothing else is different."""
    if sorted((one.words.count(NOT), other.words.count(NOT))) != [0, 1]:
        return False
    bare, others = (tuple(word for word in each.words if word != NOT) for each in (one, other))
    return len(bare) > 1 and (bare == others or _is_turned(bare, others))


def _have_other_values(one: Statement, other: Statement) -> bool:
    """The same is said of the same, but for one value."""
    if len(one.words) != len(other.words) or NOT in one.words + other.words:
        return False
    places = [
        at for at, pair in enumerate(zip(one.words, other.words, strict=True)) if len({*pair}) > 1
    ]
    verb = _verb_before(one.words, places[0])
    if verb is None:
        return False
    if one.words[verb] == IS and not set(one.words[:verb]) - _all(_PRONOUNS) - _JOINING:
        return False
    if _are_amounts(one, other, places):
        return True
    return one.words[verb] == IS and _are_states(one, other, places, verb)


def _verb_before(words: tuple[str, ...], at: int) -> int | None:
    """Where the word stands that gives a value: “is”, else one like “costs”."""
    if IS in words or ARE in words:
        found = words.index(IS) if words.count(IS) == 1 and ARE not in words else at
        return found if found < at else None
    gives = (n for n in range(at) if words[n] in _all(_GIVES) or words[n : n + 2] == ("run", "on"))
    return next(gives, None)


def _are_amounts(one: Statement, other: Statement, places: list[int]) -> bool:
    """Whether the texts differ in a number, or in a number and its unit, and nothing else."""
    at = places[0]
    if one.words[at] in _SECONDS and at and one.sorts[at - 1] == "number":
        at -= 1  # 30 seconds, 30 minutes
    if not one.sorts[at] == other.sorts[at] == "number" or set(places) - {at, at + 1}:
        return False
    units = [each.words[at + 1] if at + 1 < len(each.words) else "" for each in (one, other)]
    if units[0] == units[1]:
        return True
    if not set(units) <= _SECONDS.keys():
        return False
    amounts = [
        _float(each.words[at]) * _SECONDS[unit]
        for each, unit in zip((one, other), units, strict=True)
    ]
    return amounts[0] != amounts[1]


def _are_states(one: Statement, other: Statement, places: list[int], verb: int) -> bool:
    """Names, opposite states, or any word for what there is one of; nothing stands beside it."""
    if places != [verb + 1] or places[0] != len(one.words) - 1:
        return False
    (at,) = places
    return (
        one.sorts[at] == other.sorts[at] == "name"
        or frozenset((one.words[at], other.words[at])) in _opposites()
        or not _all(_UNIQUE).isdisjoint(one.words[:verb])
    )


def _are_reversed(one: Statement, other: Statement) -> bool:
    """“prefer A over B”, “prefer B over A”."""
    for mark in ("over", INSTEAD):
        if one.words.count(mark) == other.words.count(mark) == 1:
            before, after = _around(one.words, mark)
            others_before, others_after = _around(other.words, mark)
            for start in range(1, min(len(before), len(others_before))):
                a, b = before[start:], others_before[start:]
                turned = after[: len(b)] == b and others_after[: len(a)] == a and a != b
                same = before[:start] == others_before[:start]
                if turned and same and after[len(b) :] == others_after[len(a) :]:
                    return True
    return False


def _around(words: tuple[str, ...], mark: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    at = words.index(mark)
    return words[:at], words[at + 1 :]


def _float(figure: str) -> float:
    try:
        return float(figure.lstrip("~$€£#v"))
    except ValueError:
        return float("nan")  # equal to nothing
