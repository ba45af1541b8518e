"""Turns checked operations into new versions of memories, and into proposals. Pure.

What is said once more in other words is not kept twice: an `add` is a `reinforce` if an active
memory says the same: it was made from the same words of a turn, and took the same of them, or it
has no word that the other, or what that one cites, lacks. A turn counts as evidence
once: to read it again changes nothing.

What a person wrote, edited or pinned is left as it is, and the change proposed.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.core.errors import PerdureError
from perdure.recall.memories import memory_writer as rules
from perdure.recall.memories.similar_memories import normalised
from perdure.recall.memory_records import (
    MAX_TAGS,
    WEIGHTS,
    Author,
    Memory,
    MemoryQuote,
    checked_kind,
    checked_tags,
    checked_text,
    joined,
    joined_quotes,
    machine,
    memory_id,
)
from perdure.reflection.operation_checks import (
    CAPS,
    MALFORMED,
    OUTDATED,
    OVER_CAP,
    CheckedOperation,
    MemoryOperation,
    OperationName,
    Refused,
)
from perdure.reflection.reflection_records import MemoryRevision

AUTHOR = machine("reflection")
#: Of what a weight lacks, so much is added for evidence from a turn that is new.
_GAIN = 0.1
#: Shares of common words from which two texts are one: if they rest on the same quote, of the
#: shorter of them; else of the longer.
_SAME_QUOTE, _SAME = 0.34, 0.75
#: A word that more memories have tells nothing.
_COMMON = 200
#: Share of a quote's words that another has, if they are of the same words.
_QUOTED = 0.6

_numbers = re.compile(r"\d+(?:[.,:]\d+)*").findall
#: What an operation makes of a memory; None if that is nothing.
_Change: TypeAlias = Callable[[Memory, CheckedOperation], Memory | None]
_negated = re.compile(r"\b(?:not|never|no longer|don't|doesn't|isn't|without|no)\b|n't\b").search


class Proposal(msgspec.Struct, frozen=True):
    """A change that only the administrator makes."""

    asked: MemoryOperation
    keys: tuple[str, ...]
    quotes: tuple[MemoryQuote, ...]


class AppliedChange(msgspec.Struct, frozen=True):
    """An operation, and the memories that it was applied to."""

    op: OperationName
    checked: CheckedOperation
    ids: tuple[str, ...]


class OperationPlan:
    """What operations make of an agent's memories. `numbers` is the last number that was given."""

    def __init__(
        self,
        agent: str,
        memories: Iterable[Memory],
        *,
        last_number: int,
        now: int,
        author: Author = AUTHOR,
        caps: Mapping[str, int] = CAPS,
    ) -> None:
        self.agent = agent
        self._before = {memory.id: memory for memory in memories}
        self._now_is = dict(self._before)
        self._now = now
        self._author = author
        self._caps = caps
        self.first_number = last_number
        self.last_number = last_number
        #: Memories that ``N-1`` and so on stand for: in the order of `add`.
        self._added = list[str]()
        self._counts = Counter[str]()
        self._terms = functools.cache(_terms)
        self.applied = list[AppliedChange]()
        self.proposals = list[Proposal]()
        self.drafts = list[CheckedOperation]()
        self.refused = list[Refused]()

    def revisions(self) -> tuple[MemoryRevision, ...]:
        """What changed, in the order of ids."""
        return tuple(
            MemoryRevision(self._before.get(id), memory)
            for id, memory in sorted(self._now_is.items())
            if self._before.get(id) != memory
        )

    def memories(self) -> list[Memory]:
        """All memories as they will be."""
        return [memory for _, memory in sorted(self._now_is.items())]

    def key_of(self, id: str) -> str:
        return self._now_is[id].key

    def apply(self, operations: Iterable[CheckedOperation]) -> None:
        for checked in operations:
            name = checked.asked.op
            if self._counts[name] >= self._caps.get(name, 0):
                self._refuse(checked, OVER_CAP)
                continue
            before = dict(self._now_is)
            try:
                why = self._apply(checked)
            except PerdureError:  # one bad field costs one operation, not the run
                self._now_is, why = before, MALFORMED
            if why is not None:
                self._refuse(checked, why)
            else:
                self._counts[name] += 1

    def _apply(self, checked: CheckedOperation) -> str | None:
        match checked.asked.op:
            case "add" | "topic":
                return self._add(checked)
            case "layer" | "note":
                self.drafts.append(checked)
                return None
            case "reinforce":
                return self._on_one(checked, _reinforced)
            case "update":
                return self._on_one(checked, self._updated)
            case "retire":
                return self._on_one(checked, self._retired)
            case "merge":
                return self._merge(checked)

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Set the weights of topics, by id."""
        for id, weight in weights.items():
            memory = self._now_is[id]
            if not memory.pinned and round(weight, 4) != memory.weight:
                self._now_is[id] = replace(memory, weight=round(weight, 4))

    # ------------------------------------------------------------------------------------------

    def _add(self, checked: CheckedOperation) -> str | None:
        asked = checked.asked
        kind = "topic" if asked.op == "topic" else checked_kind(asked.kind)
        said = checked.time or self._now
        draft = Memory(
            id=memory_id(self.agent, self.last_number + 1),
            agent=self.agent,
            kind=kind,
            text=checked_text(asked.text),
            weight=WEIGHTS[kind],
            tags=checked_tags(asked.tags[:MAX_TAGS]),
            provenance=_turns(checked.quotes),
            quotes=checked.quotes,
            first=said,
            last=said,
            since=said,
            author=self._author,
            by_person=self._author.person,
        )
        older = self._same(draft)
        if older is None:
            self.last_number += 1
            self._put(draft)
        id = draft.id if older is None else older.id
        if asked.op == "add":
            self._added.append(id)
        if older is None:
            self._applied(asked.op, checked, id)
        elif (seen := _reinforced(older, checked)) is not None:
            self._put(seen)
            self._applied("reinforce", checked, id)
        return None

    def _same(self, draft: Memory) -> Memory | None:
        """The active memory that says the same as a draft, if there is one."""
        words = self._terms(draft.text)
        best: tuple[float, Memory] | None = None
        for memory in self._now_is.values():
            if not memory.is_active or (memory.kind == "topic") != (draft.kind == "topic"):
                continue
            if normalised(memory.text) == normalised(draft.text):
                return memory
            if draft.kind == "topic" or cannot_be_same(memory.text, draft.text):
                continue
            others = self._terms(memory.text)
            alike = len(words & others) / (max(len(words), len(others)) or 1)
            if _overlapping(memory.quotes, draft.quotes):
                enough = len(words & others) >= _SAME_QUOTE * min(len(words), len(others))
                # What only one of them took from there is another fact; the rest is wording.
                told = (words ^ others) & (self._quoted(memory) | self._quoted(draft))
            else:
                enough = alike >= _SAME
                told = (words - others - self._quoted(memory)) | (
                    others - words - self._quoted(draft)
                )
            if told or not enough:
                continue
            if best is None or alike > best[0]:
                best = alike, memory
        return None if best is None else best[1]

    def _quoted(self, memory: Memory) -> frozenset[str]:
        return self._terms(" ".join(quote.text for quote in memory.quotes))

    def _on_one(self, checked: CheckedOperation, change: _Change) -> str | None:
        (key,) = dict.fromkeys(checked.asked.keys)
        memory = self._memory(key)
        if memory is None or not memory.is_active:
            return OUTDATED
        if checked.asked.op != "reinforce" and (memory.by_person or memory.pinned):
            self._propose(checked, [memory])
            return None
        if (changed := change(memory, checked)) is not None:
            self._put(changed)
            self._applied(checked.asked.op, checked, memory.id)
        return None

    def _updated(self, memory: Memory, checked: CheckedOperation) -> Memory | None:
        asked = checked.asked
        changed = replace(
            memory,
            text=checked_text(asked.text) if asked.text else memory.text,
            kind=checked_kind(asked.kind) if asked.kind else memory.kind,
            tags=checked_tags(asked.tags[:MAX_TAGS]) if asked.tags else memory.tags,
            provenance=joined(memory.provenance, _turns(checked.quotes)),
            quotes=joined_quotes(memory.quotes, checked.quotes),
        )
        if changed == memory:
            return None
        if changed.text != memory.text:
            changed = replace(changed, mixed=True, since=self._now)
        return changed

    def _retired(self, memory: Memory, checked: CheckedOperation) -> Memory:
        # The turn that says so is noted: who wonders why finds it.
        return replace(
            rules.set_aside(memory, None),
            provenance=joined(memory.provenance, _turns(checked.quotes)),
            quotes=joined_quotes(checked.quotes, memory.quotes),
        )

    def _merge(self, checked: CheckedOperation) -> str | None:
        asked = checked.asked
        found = list[Memory]()
        for key in dict.fromkeys(asked.keys):
            memory = self._memory(key)
            if memory is None or not memory.is_active:
                return OUTDATED
            found.append(memory)
        ids = [memory.id for memory in found]
        if len(set(ids)) < len(ids) or len({memory.kind == "topic" for memory in found}) > 1:
            return OUTDATED
        if any(memory.by_person or memory.pinned for memory in found):
            self._propose(checked, found)
            return None
        target, *others = found
        for other in others:
            self._put(replace(other, status="merged", into=target.id, pinned=False))
        text = checked_text(asked.text) if asked.text else None
        merged = rules.merged(self._now_is[target.id], others, text, self._now)
        if asked.kind:
            merged = replace(merged, kind=checked_kind(asked.kind))
        self._put(
            replace(
                merged,
                provenance=joined(merged.provenance, _turns(checked.quotes)),
                quotes=joined_quotes(merged.quotes, checked.quotes),
            )
        )
        self._applied("merge", checked, *ids)
        return None

    def _memory(self, key: str) -> Memory | None:
        kind, _, number = key.strip().upper().partition("-")
        if not number.isdecimal() or int(number) < 1:
            return None
        if kind == "N":
            place = int(number) - 1
            return self._now_is[self._added[place]] if place < len(self._added) else None
        return self._now_is.get(memory_id(self.agent, int(number)))

    def _put(self, changed: Memory) -> None:
        """Keep a memory as it is now; a change makes a version, once in a run."""
        before = self._before.get(changed.id)
        if before is not None and _is_change(before, changed):
            changed = replace(changed, version=before.version + 1, author=self._author)
        former = self._now_is.get(changed.id)
        if former is not None and (changed.text != former.text or not changed.is_active):
            for rival in changed.contradicts:
                if (other := self._now_is.get(rival)) is not None:
                    left = tuple(id for id in other.contradicts if id != changed.id)
                    self._now_is[rival] = replace(other, contradicts=left)
            changed = replace(changed, contradicts=())
        self._now_is[changed.id] = changed

    def _propose(self, checked: CheckedOperation, memories: Sequence[Memory]) -> None:
        names = tuple(memory.name for memory in memories)
        self.proposals.append(Proposal(checked.asked, names, checked.quotes))

    def _refuse(self, checked: CheckedOperation, why: str) -> None:
        self.refused.append(Refused(checked.asked, why))

    def _applied(self, op: OperationName, checked: CheckedOperation, *ids: str) -> None:
        self.applied.append(AppliedChange(op, checked, ids))


def _reinforced(memory: Memory, checked: CheckedOperation) -> Memory | None:
    """A memory that was said once more; None if it has that evidence already."""
    known = {quote.turn for quote in memory.quotes}.union(memory.provenance)
    fresh = [turn for turn in _turns(checked.quotes) if turn not in known]
    if not fresh:
        return None
    said = checked.time or memory.last
    weight = memory.weight
    if not memory.by_person and not memory.pinned:
        weight = round(weight + _GAIN * (1 - weight), 4)
    return replace(
        memory,
        seen=memory.seen + len(fresh),
        first=min(memory.first, said),
        last=max(memory.last, said),
        weight=weight,
        provenance=joined(memory.provenance, fresh),
        quotes=joined_quotes(memory.quotes, checked.quotes),
    )


def _turns(quotes: Iterable[MemoryQuote]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(quote.turn for quote in quotes))


def _is_change(before: Memory, after: Memory) -> bool:
    return any(
        getattr(before, name) != getattr(after, name)
        for name in ("text", "kind", "tags", "status", "into", "pinned")
    )


def cannot_be_same(one: str, other: str) -> bool:
    """Whether two texts cannot be the same thing: other numbers, or one says no."""
    return sorted(set(_numbers(one))) != sorted(set(_numbers(other))) or (
        (_negated(one.casefold()) is None) != (_negated(other.casefold()) is None)
    )


def words_in_common(memories: Sequence[Memory]) -> Iterator[tuple[Memory, Memory, float]]:
    """Pairs of memories with words in common, and the share of these, of the longer one's. A topic
    is compared with topics only.
    """
    words = [_terms(memory.text) for memory in memories]
    having = dict[str, list[int]]()
    for place, some in enumerate(words):
        shared = Counter[int]()
        for word in some:
            if len(there := having.setdefault(word, [])) < _COMMON:
                shared.update(there)
            there.append(place)
        for other, count in sorted(shared.items()):
            one, two = memories[other], memories[place]
            if (one.kind == "topic") == (two.kind == "topic"):
                yield one, two, count / max(len(some), len(words[other]))


def _overlapping(one: Sequence[MemoryQuote], other: Sequence[MemoryQuote]) -> bool:
    """Whether two memories rest on the same words of a turn."""
    for quote in one:
        for another in other:
            if quote.turn == another.turn:
                a, b = set(normalised(quote.text).split()), set(normalised(another.text).split())
                if len(a & b) >= _QUOTED * min(len(a), len(b)):
                    return True
    return False


def _terms(text: str) -> frozenset[str]:
    from perdure.recall.words import terms  # it loads the stemmer

    return frozenset(terms(text))
