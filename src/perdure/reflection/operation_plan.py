"""Turns checked operations into new versions of memories, and into proposals. Pure.

What is said once more in other words is not kept twice: an `add` is a `reinforce` if an active
memory says the same: it was made from the same words of a turn, and took as much of them, or it
has no word that the other, or what that one cites, lacks. If it took less, the `add` is an
`update`. A turn counts as evidence once.

What a person wrote, edited or pinned is left as it is, and the change proposed; so is a preference
or decision that nobody said who may, and a change of what is not as the model read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.core.errors import PerdureError
from perdure.recall.memories import memory_writer as rules
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
    version_id,
)
from perdure.reflection.operation_checks import (
    CAPS,
    MALFORMED,
    OUTDATED,
    OVER_CAP,
    OVERTAKEN,
    CheckedOperation,
    MemoryOperation,
    OperationName,
    Refused,
)
from perdure.reflection.reflection_records import MemoryRevision
from perdure.reflection.restatements import Restatements

AUTHOR = machine("reflection")
#: Of what a weight lacks, so much is added for evidence from a turn that is new.
_GAIN = 0.1

#: What an operation makes of a memory; None if that is nothing.
_Change: TypeAlias = Callable[[Memory, CheckedOperation], Memory | None]


class Proposal(msgspec.Struct, frozen=True):
    """A change that only the administrator makes."""

    asked: MemoryOperation
    memories: tuple[Memory, ...]
    quotes: tuple[MemoryQuote, ...]
    #: One of them changed after the model had read it.
    is_late: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(memory.name for memory in self.memories)


class AppliedChange(msgspec.Struct, frozen=True):
    """An operation, and the memories that it was applied to."""

    op: OperationName
    checked: CheckedOperation
    ids: tuple[str, ...]


class OperationPlan:
    """What operations make of an agent's memories. `last_number` is the last that was given,
    `former` are memories as they were before changes.
    """

    def __init__(
        self,
        agent: str,
        memories: Iterable[Memory],
        *,
        last_number: int,
        now: int,
        former: Iterable[Memory] = (),
        author: Author = AUTHOR,
        caps: Mapping[str, int] = CAPS,
    ) -> None:
        self.agent = agent
        self._before = {memory.id: memory for memory in memories}
        #: Memories that are not as before.
        self._changed = dict[str, Memory]()
        self._now = now
        self._author = author
        self._caps = caps
        self.first_number = last_number
        self.last_number = last_number
        #: Memories that ``N-1`` and so on stand for: in the order of `add`.
        self._added = list[str]()
        self._counts = Counter[str]()
        self._known = Restatements(self._before.values())
        retired = (memory for memory in self._before.values() if not memory.is_active)
        self._overtaken = Restatements(
            replace(memory, id=version_id(memory), status="active")
            for memory in (*former, *retired)
        )
        self.applied = list[AppliedChange]()
        self.proposals = list[Proposal]()
        self.drafts = list[CheckedOperation]()
        self.refused = list[Refused]()
        #: New memories for which there was no room any more.
        self.over_cap = list[CheckedOperation]()

    def revisions(self) -> tuple[MemoryRevision, ...]:
        """What changed, in the order of ids."""
        return tuple(
            MemoryRevision(self._before.get(id), memory)
            for id, memory in sorted(self._changed.items())
            if self._before.get(id) != memory
        )

    def memories(self) -> list[Memory]:
        """All memories as they will be."""
        return [memory for _, memory in sorted((self._before | self._changed).items())]

    def get(self, id: str) -> Memory | None:
        """A memory as it will be."""
        return self._changed.get(id) or self._before.get(id)

    def key_of(self, id: str) -> str:
        memory = self.get(id)
        return "" if memory is None else memory.key

    def apply(self, operations: Iterable[CheckedOperation]) -> None:
        for checked in operations:
            name = checked.asked.op
            if self._counts[name] >= self._caps.get(name, 0):
                self._refuse(checked, OVER_CAP)
                if name == "add":
                    self.over_cap.append(checked)
                continue
            done = self._done()
            try:  # nothing is changed before all of it is checked
                why = self._apply(checked)
            except PerdureError:  # one bad field costs one operation, not the run
                why = MALFORMED
            if why is not None:
                self._refuse(checked, why)
            elif self._done() > done:  # what was known before takes no room
                self._counts[name] += 1

    def _done(self) -> int:
        return len(self.applied) + len(self.proposals) + len(self.drafts)

    def _apply(self, checked: CheckedOperation) -> str | None:
        match checked.asked.op:
            case "add" | "topic":
                return self._add(checked)
            case "layer":
                self.drafts.append(checked)
                return None
            case "note":
                return self._note(checked)
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
            memory = self.get(id)
            if memory is not None and not memory.pinned and round(weight, 4) != memory.weight:
                self._changed[id] = replace(memory, weight=round(weight, 4))

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
        older = self._known.find(draft)
        if older is None and self._is_overtaken(draft):
            if asked.op == "add":
                self._added.append("")
            return OVERTAKEN
        if checked.proposed:
            self._added.append("" if older is None else older.id)
            if older is None:
                self._propose(checked, [])
            return None
        if older is None and (better := self._completed(draft, checked)) is not None:
            self._put(better)
            self._added += [better.id] * (asked.op == "add")
            self._applied("update", checked, better.id)
            return None
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

    def _completed(self, draft: Memory, checked: CheckedOperation) -> Memory | None:
        """A memory as a draft says it, that says more of the same words of a turn."""
        less = self._known.find_less(draft)
        if less is None or self._is_for_person(less, checked):
            return None
        joint = _reinforced(less, checked) or less
        quotes = joined_quotes(less.quotes, draft.quotes)
        return replace(joint, text=draft.text, quotes=quotes, mixed=True)

    def _is_overtaken(self, draft: Memory) -> bool:
        """Whether a draft says what a memory said, from the same turns, before it was changed or
        retired: to read these again does not bring it back.
        """
        found = self._overtaken.find(draft)
        if found is None:
            return False
        known = {quote.turn for quote in found.quotes}.union(found.provenance)
        return known.issuperset(draft.provenance)

    def _on_one(self, checked: CheckedOperation, change: _Change) -> str | None:
        (key,) = dict.fromkeys(checked.asked.keys)
        memory = self.by_key(key)
        if memory is None or not memory.is_active:
            return OUTDATED
        if checked.asked.op == "reinforce":
            if self._has_changed(memory, checked):
                return OUTDATED  # who said so meant what it said before
        elif self._is_for_person(memory, checked):
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
            memory = self.by_key(key)
            if memory is None or not memory.is_active:
                return OUTDATED
            found.append(memory)
        ids = [memory.id for memory in found]
        if len(set(ids)) < len(ids) or len({memory.kind == "topic" for memory in found}) > 1:
            return OUTDATED
        if any(self._is_for_person(memory, checked) for memory in found):
            self._propose(checked, found)
            return None
        text = checked_text(asked.text) if asked.text else None
        target, *others = found
        kind = checked_kind(asked.kind) if asked.kind else target.kind
        for other in others:
            self._put(replace(other, status="merged", into=target.id, pinned=False))
        target = self.get(target.id) or target  # it may have named one of them as contradicting it
        merged = replace(rules.merged(target, others, text, self._now), kind=kind)
        self._put(
            replace(
                merged,
                provenance=joined(merged.provenance, _turns(checked.quotes)),
                quotes=joined_quotes(merged.quotes, checked.quotes),
            )
        )
        self._applied("merge", checked, *ids)
        return None

    def _note(self, checked: CheckedOperation) -> str | None:
        found = [self.by_key(key) for key in checked.asked.keys if key.upper().startswith("M-")]
        if any(m is None or not m.is_active or self._has_changed(m, checked) for m in found):
            return OUTDATED
        self.drafts.append(checked)
        return None

    def _is_for_person(self, memory: Memory, checked: CheckedOperation) -> bool:
        """Whether a change is proposed only."""
        is_own = memory.by_person or memory.pinned
        return is_own or checked.proposed or self._has_changed(memory, checked)

    def _has_changed(self, memory: Memory, checked: CheckedOperation) -> bool:
        """Whether a memory is not as the model read it that asks for this."""
        before = self._before.get(memory.id)
        if before is None or checked.versions is None:
            return False
        return checked.versions.get(memory.key) != before.version

    def by_key(self, key: str) -> Memory | None:
        """The memory that ``M-7`` names, or ``N-2``."""
        kind, _, number = key.strip().upper().partition("-")
        if not number.isdecimal() or int(number) < 1:
            return None
        if kind == "N":
            place = int(number) - 1
            return self.get(self._added[place]) if place < len(self._added) else None
        return self.get(memory_id(self.agent, int(number)))

    def _put(self, changed: Memory) -> None:
        """Keep a memory as it is now; a change makes a version, once in a run."""
        before = self._before.get(changed.id)
        if before is not None and _is_change(before, changed):
            changed = replace(changed, version=before.version + 1, author=self._author)
        former = self.get(changed.id)
        if former is not None and (changed.text != former.text or not changed.is_active):
            for rival in changed.contradicts:
                if (other := self.get(rival)) is not None:
                    left = tuple(id for id in other.contradicts if id != changed.id)
                    self._changed[rival] = replace(other, contradicts=left)
            changed = replace(changed, contradicts=())
        self._changed[changed.id] = changed
        self._known.put(changed)

    def _propose(self, checked: CheckedOperation, memories: Sequence[Memory]) -> None:
        is_late = any(self._has_changed(memory, checked) for memory in memories)
        self.proposals.append(Proposal(checked.asked, tuple(memories), checked.quotes, is_late))

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
