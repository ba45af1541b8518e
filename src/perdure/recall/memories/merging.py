"""Whether two memories say the same, contradict each other, or neither.

To take two things for one loses one of them for good; to keep one thing twice costs a line. So only
what is sure counts: two texts say the same if they come to the same words in the same order, once
articles, fillers, cases, and a few spellings of one thing are taken away. Numbers, plurals, names,
paths, negations, tenses and prepositions all count. A clause may stand in front or at the end: “for
tests use pytest”, “use pytest for tests”.

Two texts contradict each other if they are single sentences that differ in one respect only:

* one denies the other: “use tabs”, “never use tabs”;
* one thing has two values: “the port is 8123”, “the port is 9000”. Values are numbers, dates, names
  and paths; other words only of what there is one of: “the default theme is dark”. What happens on
  a day or at an hour may happen at another as well: “the shop is closed on May 3”;
* something is in two opposite states: “the cache is enabled”, “the cache is disabled”;
* a preference is turned around: “prefer tabs over spaces”, “prefer spaces over tabs”.

Known limits, all on the safe side: paraphrases are not recognised (“the database is PostgreSQL”,
“we store everything in PostgreSQL”), nor are negations in other languages than English; a sentence
with “may”, “some”, “also”, or in the past tense, contradicts nothing. Vectors have no say: those of
“likes tea” and “likes coffee” are as close as those of two sentences that say the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal, TypeAlias

from perdure.recall.memories.statements import (
    ARE,
    ASKS,
    CLAUSES,
    END,
    INSTEAD,
    IS,
    JOINING,
    NOT,
    WAS,
    Statement,
    all_folded,
    read,
)

__all__ = ["Relation", "Statement", "read", "relation"]

Relation: TypeAlias = Literal["same", "contrary", "other"]

#: With one of these in a sentence, its contrary may be true as well.
_OPEN = (
    "may might could perhaps maybe sometimes often usually some many most few any also too another"
    " other one or either both until unless except"
)
_PRONOUNS = (
    "it this that there they he she i you here what which these those today tomorrow tonight"
)
#: There is one of what is called this.
_UNIQUE = "default favorite preferred current main primary only official"
_OPPOSITES = (
    "enabled/disabled on/off true/false required/optional mandatory/optional open/closed"
    " public/private allowed/forbidden synchronous/asynchronous working/broken active/inactive"
    " possible/impossible valid/invalid installed/uninstalled supported/unsupported"
)
#: What gives a thing its number, beside “is”.
_GIVES = "listen cost take last expire default set use keep"
#: The same, if the number comes at once: “wait for 3 seconds”, but not “wait for job 3”.
_COUNTS = "have need require allow wait retry indent"
#: What happens at one time only; otherwise “it is open on May 3” and “on May 4” may both be true.
_ONCE = "due born scheduled planned"
_SECONDS = {"ms": 0.001, "second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}


def relation(one: Statement, other: Statement) -> Relation:
    """What two statements are to each other. Symmetric."""
    if not one.words or not other.words:
        return "other"
    if one.words == other.words or _is_turned(one.words, other.words):
        return "same"
    return "contrary" if _are_contrary(one, other) else "other"


def _is_turned(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether a clause at the end of one stands in front in the other."""
    if len(one) != len(other) or END in one:
        return False
    return any(
        one[at:] + one[:at] == other
        for at in range(1, len(one))
        if one[at] in CLAUSES or one[0] in CLAUSES
    )


def _are_contrary(one: Statement, other: Statement) -> bool:
    if _is_open(one) or _is_open(other):
        return False
    tests: tuple[Callable[[Statement, Statement], bool], ...] = (
        _is_denied,
        _have_other_values,
        _are_reversed,
    )
    return any(test(one, other) for test in tests)


def _is_open(statement: Statement) -> bool:
    """Whether it says nothing definite about now. In May, a name, is no “may”."""
    words = {
        word for word, sort in zip(statement.words, statement.sorts, strict=True) if sort == "word"
    }
    return not words.isdisjoint(all_folded(_OPEN) | {WAS, END, ASKS})


def _is_denied(one: Statement, other: Statement) -> bool:
    """One has a “not” more, and nothing else is different."""
    if sorted((one.words.count(NOT), other.words.count(NOT))) != [0, 1]:
        return False
    bare, others = (  # “it works”, “it does not work”
        tuple(word.removesuffix("~s") for word in each.words if word != NOT)
        for each in (one, other)
    )
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
    subject = set(one.words[:verb])
    if one.words[verb] in {IS, ARE} and not subject - all_folded(_PRONOUNS) - JOINING:
        return False
    if _are_amounts(one, other, places):
        return _are_at_one_time(one.words, verb, places[0])
    return _are_states(one, other, places, verb)


def _verb_before(words: tuple[str, ...], at: int) -> int | None:
    """Where the word stands that gives a value: “is”, else one like “costs”."""
    if IS in words or ARE in words:
        found = [n for n, word in enumerate(words) if word in {IS, ARE}]
        return found[0] if len(found) == 1 and found[0] < at else None
    verbs = [word.removesuffix("~s") for word in words]
    for n in range(at):
        if verbs[n] in all_folded(_GIVES) or verbs[n : n + 2] in (["run", "on"], ["live", "in"]):
            return n
    near = at - 1 - (at > 0 and words[at - 1] in CLAUSES)
    return near if near >= 0 and verbs[near] in all_folded(_COUNTS) else None


def _are_amounts(one: Statement, other: Statement, places: list[int]) -> bool:
    """Whether the texts differ in a number, or in a number and its unit, and nothing else."""
    at = places[0]
    if one.words[at] in _SECONDS and at and one.sorts[at - 1] == "number":
        at -= 1  # 30 seconds, 30 minutes
    if not one.sorts[at] == other.sorts[at] == "number" or set(places) - {at, at + 1}:
        return False
    units = [
        each.words[at + 1].removesuffix("~s") if at + 1 < len(each.words) else ""
        for each in (one, other)
    ]
    if units[0] == units[1]:
        return not _may_agree(one.words[at], other.words[at])
    if not set(units) <= _SECONDS.keys():
        return False
    amounts = [
        _float(each.words[at]) * _SECONDS[unit]
        for each, unit in zip((one, other), units, strict=True)
    ]
    return amounts[0] != amounts[1]


def _may_agree(one: str, other: str) -> bool:
    """Whether one figure only says more than the other: 3.11 and 3.11.2, 03-01 and 2026-03-01."""
    short, long = sorted((one, other), key=len)
    return long.endswith(f"-{short}") or ("." in short and long.startswith(f"{short}."))


def _are_at_one_time(words: tuple[str, ...], verb: int, at: int) -> bool:
    """Whether what is said to be on a day or at an hour is so only then."""
    if words[verb] not in {IS, ARE} or words[at - 1] not in {"at", "on", "in"}:
        return True
    between = words[verb + 1 : at - 1]
    return words[verb] == IS and (not between or between[-1] in all_folded(_ONCE))


def _are_states(one: Statement, other: Statement, places: list[int], verb: int) -> bool:
    """Names, opposite states, or any word for what there is one of; nothing stands beside it.

    Not if a sign stands for “is”: there is many a ``File: x`` and ``modified: y``.
    """
    (at, *more), words = places, one.words
    if more or not one.sorts[verb] == other.sorts[verb] == "word":
        return False
    are_names = one.sorts[at] == other.sorts[at] == "name"
    is_last = at == len(words) - 1
    if words[verb : verb + 2] == ("live~s", "in"):
        return are_names and is_last and at == verb + 2
    if words[verb] != IS or at != verb + 1:
        return False
    if frozenset((words[at], other.words[at])) in _opposites():
        return True
    return is_last and (are_names or not all_folded(_UNIQUE).isdisjoint(words[:verb]))


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


@cache
def _opposites() -> frozenset[frozenset[str]]:
    return frozenset(all_folded(pair.replace("/", " ")) for pair in _OPPOSITES.split())
