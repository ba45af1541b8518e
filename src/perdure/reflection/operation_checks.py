"""What a model may ask for: operations on memories, never a rewritten store.

    add        something new: a kind, a text, tags, evidence
    reinforce  a memory was said again
    update     a memory says it better, or is of another kind
    merge      several memories are one
    retire     a memory does not hold any more
    topic      something that is talked about
    layer      a reference layer is recommended: a draft for the administrator
    note       a message to the administrator; with two keys, that these contradict each other

There is none that deletes, pins, shares, or sets a number. Each cites turns, with words that code
finds there, and has a word in common with them. An update or a merge may rest on the quotes that
the memories have; most words of its text are theirs, or cited. An answer
that is no list of operations changes nothing, nor does one of which more than half cites what is
not there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from perdure.core.errors import PerdureError
from perdure.recall.memory_records import (
    MAX_TAGS,
    MAX_TEXT,
    Memory,
    MemoryQuote,
    checked_kind,
    checked_tags,
    checked_text,
)
from perdure.reflection.cited_turns import Citation, EvidenceFinder, TurnWords, normalised
from perdure.reflection.restatements import is_negated
from perdure.reflection.word_sets import word_set

OperationName: TypeAlias = Literal[
    "add", "reinforce", "update", "merge", "retire", "topic", "layer", "note"
]
OPERATIONS: tuple[OperationName, ...] = get_args(OperationName)
#: Operations of each kind in one run.
CAPS: dict[str, int] = {
    "add": 60,
    "reinforce": 200,
    "update": 20,
    "merge": 20,
    "retire": 10,
    "topic": 20,
    "layer": 3,
    "note": 10,
}
#: Keys that each takes: at least, at most.
_KEYS = {"reinforce": (1, 1), "update": (1, 1), "retire": (1, 1), "merge": (2, 8), "note": (0, 8)}
#: They may rest on what the memories cite already.
_RESTS = frozenset({"update", "merge"})
#: Whose words are evidence for a preference and for a decision.
_MAY_SAY = {"preference": ("user",), "decision": ("user", "assistant")}
_LONGEST_NOTE = 2_000
_LONGEST_LAYER = 60_000
#: Of more operations than these, more than half must be well founded.
_FEW = 2

_fence = re.compile(r"^```[a-z]*\s*\n(.*)\n```\s*$", re.DOTALL).match
_numbers = re.compile(r"\d+(?:[.,:]\d+)*").findall


class MemoryOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation as it was asked for."""

    op: OperationName
    #: ``M-7``; ``N-2`` is the second memory that this run adds.
    keys: tuple[str, ...] = ()
    kind: str = ""
    text: str = ""
    #: Of a layer.
    title: str = ""
    tags: tuple[str, ...] = ()
    evidence: tuple[Citation, ...] = ()
    reason: str = ""


class CheckedOperation(msgspec.Struct, frozen=True):
    """An operation whose evidence was found."""

    asked: MemoryOperation
    quotes: tuple[MemoryQuote, ...] = ()
    #: When the newest of the cited turns began. Microseconds; 0 if none is cited.
    time: int = 0
    #: It is for the administrator to decide: a preference or a decision that was read somewhere.
    proposed: bool = False
    #: The versions of memories that the model has read, by key; None if they are those of now.
    versions: Mapping[str, int] | None = None


class Refused(msgspec.Struct, frozen=True):
    """An operation that is not applied, and why."""

    asked: MemoryOperation
    why: str


class InvalidAnswer(Exception):
    """An answer is no list of operations; nothing of it is used."""


def parse_answer(text: str) -> list[MemoryOperation]:
    """The operations in an answer. Raises `InvalidAnswer`."""
    bare = text.strip()
    if (fenced := _fence(bare)) is not None:
        bare = fenced[1]
    try:
        data = json.loads(bare)
    except (ValueError, RecursionError):
        raise InvalidAnswer("it is no JSON") from None
    listed = data.get("operations") if isinstance(data, dict) else data
    if not isinstance(listed, list):
        raise InvalidAnswer("it has no list of operations")
    try:
        return [msgspec.convert(_given(each), MemoryOperation) for each in listed]
    except msgspec.ValidationError as exc:
        raise InvalidAnswer(f"an operation is malformed: {exc}") from None


def _given(data: Any) -> Any:
    """Without what is null: strict schemas demand every field."""
    if isinstance(data, dict):
        return {str(key): _given(value) for key, value in data.items() if value is not None}
    return [_given(each) for each in data] if isinstance(data, list) else data


async def check_answer(
    text: str,
    finder: EvidenceFinder,
    names: Mapping[str, str],
    memories: Mapping[str, Memory],
    added: Sequence[CheckedOperation] = (),
    *,
    versions: Mapping[str, int] | None = None,
) -> tuple[list[CheckedOperation], list[Refused]]:
    """The operations of an answer that are well founded, and the others. `names` are sessions by
    what the view calls them, `memories` those that there are by key, `added` what ``N-1`` and so on
    stand for, `versions` what was shown of memories, if not all as they are. Raises `InvalidAnswer`
    for one that is no list of operations, or of which more than half cites what is not there.
    """
    asked = parse_answer(text)
    good, bad = list[CheckedOperation](), list[Refused]()
    for operation in asked:
        why = None if versions is None else _unknown(operation, memories, versions)
        checked = (
            Refused(operation, why)
            if why is not None
            else await _checked(operation, finder, names, memories, added)
        )
        if isinstance(checked, Refused):
            bad.append(checked)
        else:
            good.append(replace(checked, versions=versions))
    unfounded = sum(each.why == NO_EVIDENCE for each in bad)
    if len(asked) > _FEW and 2 * unfounded > len(asked):
        raise InvalidAnswer(f"{unfounded} of {len(asked)} operations cite what is not there")
    return good, bad


#: Why operations are refused.
NO_EVIDENCE = "its evidence is not there"
UNRELATED = "it has too few words in common with its evidence"
OPPOSITE = "it says the opposite, and cites nothing new"
INVENTED = "it names a number that its evidence does not"
MALFORMED = "it is malformed"
UNKNOWN_KEY = "it names a memory that was not shown"
OVER_CAP = "there were too many of its kind"
OUTDATED = "what it names has changed"
OVERTAKEN = "what it says was changed or retired since"


async def _checked(
    asked: MemoryOperation,
    finder: EvidenceFinder,
    names: Mapping[str, str],
    memories: Mapping[str, Memory],
    added: Sequence[CheckedOperation],
) -> CheckedOperation | Refused:
    if (why := _malformed(asked)) is not None:
        return Refused(asked, why)
    touched, said = list[Memory](), list[str]()
    for key in asked.keys:
        if key.upper().startswith("N-"):
            number = key[2:]
            for each in added[int(number) - 1 : int(number)] if number.isdecimal() else ():
                said += [each.asked.text, *(quote.text for quote in each.quotes)]
            continue
        if key not in memories:
            return Refused(asked, UNKNOWN_KEY)
        touched.append(memories[key])
    quotes, turns = list[MemoryQuote](), list[TurnWords]()
    for citation in asked.evidence:
        if (found := await finder.find(citation, names)) is not None:
            quotes.append(found[0])
            turns.append(found[1])
    rests = asked.op in _RESTS and any(memory.quotes for memory in touched)
    if not quotes and (asked.evidence or not rests):
        return Refused(asked, NO_EVIDENCE)
    said += [quote.text for quote in quotes]
    said += [text for memory in touched for text in (memory.text, *_texts(memory))]
    if (why := _unfounded(asked, touched, quotes, said, _words(turns))) is not None:
        return Refused(asked, why)
    time = max([turn.time for turn in turns], default=0)
    return CheckedOperation(
        asked, tuple(quotes), time, _was_only_read(asked, touched, quotes, turns)
    )


def _unknown(
    asked: MemoryOperation, memories: Mapping[str, Memory], versions: Mapping[str, int]
) -> str | None:
    """Why an operation is about memories that the model does not know, or nobody knows any more."""
    for key in asked.keys:
        if not key.upper().startswith("N-"):
            if key not in versions:
                return UNKNOWN_KEY
            if key not in memories:
                return OUTDATED
    return None


def _was_only_read(
    asked: MemoryOperation,
    touched: Sequence[Memory],
    quotes: Sequence[MemoryQuote],
    turns: Sequence[TurnWords],
) -> bool:
    """Whether a preference or a decision rests on what nobody said who may: on a page that a tool
    fetched, say.
    """
    if asked.op not in {"add", "update", "merge", "retire"}:
        return False
    kinds = {asked.kind.strip().casefold(), *(memory.kind for memory in touched)}
    return any(
        not any(_is_said(quote.text, turn.said.get(role, "")) for role in roles)
        for kind, roles in _MAY_SAY.items()
        if kind in kinds
        for quote, turn in zip(quotes, turns, strict=True)
    )


def _is_said(quote: str, text: str) -> bool:
    """Whether a quote stands in a text, or, from a rendition of it, is made of its words."""
    return normalised(quote) in text or (bool(words := word_set(quote)) and words <= word_set(text))


def _texts(memory: Memory) -> list[str]:
    return [quote.text for quote in memory.quotes]


def _words(turns: Sequence[TurnWords]) -> list[str]:
    return [text for turn in turns for text in turn.texts]


def _malformed(asked: MemoryOperation) -> str | None:
    least, most = _KEYS.get(asked.op, (0, 0))
    if not least <= len(dict.fromkeys(asked.keys)) <= most:
        return MALFORMED
    needs_text = asked.op in {"add", "topic", "layer", "note"}
    longest = {"layer": _LONGEST_LAYER, "note": _LONGEST_NOTE}.get(asked.op, MAX_TEXT)
    if (needs_text and not asked.text.strip()) or len(asked.text) > longest:
        return MALFORMED
    try:
        if asked.op == "add" or asked.kind:
            checked_kind(asked.kind)
        if asked.text and asked.op not in {"layer", "note"}:
            checked_text(asked.text)
        checked_tags(asked.tags[:MAX_TAGS])
    except PerdureError:
        return MALFORMED
    return None


def _unfounded(
    asked: MemoryOperation,
    touched: Sequence[Memory],
    quotes: Sequence[MemoryQuote],
    said: Sequence[str],
    turns: Sequence[str],
) -> str | None:
    """Whether an operation says what nobody said. `said` is what the memories say, and all quotes;
    `turns` are the cited turns as a whole.
    """
    cited = word_set(" ".join(quote.text for quote in quotes))
    words = word_set(asked.text)
    if asked.op in {"add", "topic"} and not cited & words:
        return UNRELATED
    if (
        asked.op in _RESTS
        and 2 * len(words & word_set(" ".join(said))) <= len(words)
        and asked.text
    ):
        return UNRELATED
    if asked.op in _RESTS and asked.text and not quotes:
        says_no = is_negated(asked.text)
        if all(is_negated(memory.text) != says_no for memory in touched):
            return OPPOSITE
    if asked.op in {"retire", "reinforce"} and not any(
        cited & word_set(f"{memory.text} {' '.join(memory.tags)}") for memory in touched
    ):
        return UNRELATED
    if asked.op in {"add", "update", "merge", "topic"}:
        numbers = {number for text in (*said, *turns) for number in _numbers(text)}
        if not numbers.issuperset(_numbers(asked.text)):
            return INVENTED
    return None
