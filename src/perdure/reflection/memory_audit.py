"""The care of memories: what is wrong with them, in figures that can be compared over time.

    report = await MemoryAudit(services).run("planner")

Looks for duplicates, contradictions, what is stale, was never used, has no evidence, is too long or
holds a secret, and for memories that no topic covers. Changes nothing but its own score; `propose`
leaves mends in the inbox.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec

from perdure.context.injection_records import Injection
from perdure.core.clock import SECOND
from perdure.core.display import one_line
from perdure.history.log_records import checked_agent
from perdure.recall.memory_records import Memory
from perdure.reflection.inbox import InboxMessage, post
from perdure.reflection.operation_checks import MemoryOperation
from perdure.reflection.restatements import cannot_be_same, words_in_common
from perdure.reflection.word_sets import word_set
from perdure.services import Services
from perdure.storage.concurrency import in_thread
from perdure.storage.record_keys import numbered
from perdure.storage.records import Key, system_record
from perdure.storage.transaction import Transaction

FindingKind: TypeAlias = Literal[
    "duplicate",
    "contradiction",
    "stale",
    "never used",
    "without evidence",
    "too long",
    "secret",
    "without topic",
]
_DAY = 86_400 * SECOND
#: Days without being said again after which a memory that nobody used is stale; and days that one
#: must be kept to count as that, or as never used: it may have been learnt from an old history.
_STALE, _NEW = 180, 30
#: Characters: a memory is a sentence or a few.
_LONG = 600
#: Shares of words in common of two memories that say the same, or say otherwise of the same.
_SAME, _RIVAL = 0.75, 0.6
#: What costs no points: it is said, and may be as it should.
_FREE = frozenset[FindingKind]({"never used", "without topic"})


@system_record("memory_audits")
class AuditScore(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of one audit. Times are microseconds."""

    id: Annotated[str, Key()]  # agent/number
    time: int
    memories: int
    #: The share of memories, in percent, with which nothing is wrong.
    score: int
    #: The share of memories that a topic covers.
    coverage: float = 0.0
    findings: dict[str, int] = {}


class MemoryFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that is wrong with memories, or may be."""

    kind: FindingKind
    #: ``planner/M-7``.
    keys: tuple[str, ...]
    what: str
    #: What would mend it.
    mend: MemoryOperation | None = None


class MemoryAuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit found; `scores` are this one's and those before, oldest first."""

    agent: str
    findings: list[MemoryFinding]
    scores: list[AuditScore]

    @property
    def latest(self) -> AuditScore:
        return self.scores[-1]


class MemoryAudit:
    """Looks after the memories of a bank."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._store = services.store

    async def agents(self) -> list[str]:
        """All agents that have memories, by name."""
        query = self._store.collection(Memory).query().group_by("agent")
        return sorted(row["agent"] for row in await query.aggregate(all="count"))

    async def run(self, agent: str, *, keep: bool = True) -> MemoryAuditReport:
        """Audit an agent's active memories; with `keep`, the score is kept for comparison."""
        recall = await self._services.loaded_recall()
        memories = await recall.memories.list(checked_agent(agent))
        used, known = await self._used(agent), await self._known(agent)

        def look() -> list[MemoryFinding]:
            alone = (each for m in memories for each in self._of_one(m, used, known))
            return [*_pairs(memories), *alone, *_uncovered(memories)]

        findings = await in_thread(look)  # the words of thousands of memories take a while
        scores = [each async for each in self._store.collection(AuditScore).walk(f"{agent}/")]
        score = self._score(agent, len(scores) + 1, memories, findings)
        if keep:
            await self._store.collection(AuditScore).put(score)
        return MemoryAuditReport(agent=agent, findings=findings, scores=[*scores, score])

    async def propose(self, report: MemoryAuditReport) -> list[InboxMessage]:
        """Leave what would mend memories in the inbox; once, while it is open."""
        recall = await self._services.loaded_recall()
        posted = list[InboxMessage]()
        for finding in report.findings:
            if finding.mend is None:
                continue
            found = await recall.memories.get_many(finding.keys)
            versions = tuple(memory.version for memory in found if memory is not None)
            draft = InboxMessage(
                id="",
                agent=report.agent,
                kind="contradiction" if finding.kind == "contradiction" else "proposal",
                title=one_line(f"{finding.kind}: {', '.join(finding.keys)}", 100),
                text=finding.what,
                operation=None if finding.kind == "contradiction" else finding.mend,
                keys=finding.keys,
                versions=versions,
                quotes=tuple(q for m in found if m is not None for q in m.quotes),
            )

            async def body(transaction: Transaction, draft: InboxMessage = draft) -> InboxMessage:
                return await post(transaction, draft)

            posted.append(await self._store.transact(body))
        return posted

    async def _used(self, agent: str) -> frozenset[str]:
        """Names of memories that ever stood beside a prompt of this agent."""
        found = set[str]()
        async for injection in self._store.collection(Injection).walk(f"{agent}/"):
            found.update((*injection.full, *injection.ticklers))
        return frozenset(found)

    async def _known(self, agent: str) -> frozenset[str]:
        """Ids of memories that are kept long enough to have been used."""
        found = await self._store.collection(Memory).query().where("agent", "=", agent).execute()
        since = self._store.now() - _NEW * _DAY
        return frozenset(each.key for each in found if each.created_us <= since)

    def _of_one(
        self, memory: Memory, used: frozenset[str], known: frozenset[str]
    ) -> Iterator[MemoryFinding]:
        keys, days = (memory.name,), (self._store.now() - memory.last) // _DAY
        if memory.id in known and memory.name not in used and memory.kind != "topic":
            if days >= _STALE and not memory.pinned:
                mend = MemoryOperation(op="retire", keys=keys, reason="It is stale.")
                yield MemoryFinding("stale", keys, f"It was last said {days} days ago.", mend)
            elif days >= _NEW:
                yield MemoryFinding("never used", keys, "It never stood beside a prompt.")
        if not memory.provenance and not memory.by_person:
            yield MemoryFinding("without evidence", keys, "No turn tells where it is from.")
        if len(memory.text) > _LONG:
            what = f"It has {len(memory.text):,} characters; a memory is a sentence or a few."
            yield MemoryFinding("too long", keys, what)
        masked = self._services.mask_data({"text": memory.text})["text"]
        if masked != memory.text:
            mend = MemoryOperation(op="update", keys=keys, text=masked, reason="It has a secret.")
            yield MemoryFinding("secret", keys, "It holds what looks like a secret.", mend)

    def _score(
        self,
        agent: str,
        number: int,
        memories: Sequence[Memory],
        findings: Sequence[MemoryFinding],
    ) -> AuditScore:
        wrong = {key for each in findings if each.kind not in _FREE for key in each.keys}
        kinds = [each.kind for each in findings]
        said = [memory for memory in memories if memory.kind != "topic"]
        covered = len(said) - kinds.count("without topic")
        return AuditScore(
            id=f"{agent}/{numbered(number)}",
            time=self._store.now(),
            memories=len(memories),
            score=round(100 * (1 - len(wrong) / len(memories))) if memories else 100,
            coverage=round(covered / len(said), 3) if said else 1.0,
            findings={kind: kinds.count(kind) for kind in dict.fromkeys(sorted(kinds))},
        )


def _pairs(memories: Sequence[Memory]) -> Iterator[MemoryFinding]:
    """Memories that say the same, or say otherwise of the same thing."""
    known = {memory.id for memory in memories}
    linked = set[tuple[str, ...]]()
    for memory in memories:
        for rival in memory.contradicts:
            pair = tuple(sorted((memory.id, rival)))
            if rival in known and pair not in linked:
                linked.add(pair)
                other = next(each for each in memories if each.id == rival)
                what = f"“{one_line(memory.text, 100)}” and “{one_line(other.text, 100)}”"
                yield MemoryFinding("contradiction", (memory.name, other.name), what)
    for one, other, common in words_in_common(memories, min(_SAME, _RIVAL)):
        keys = (one.name, other.name)
        what = f"“{one_line(one.text, 100)}” and “{one_line(other.text, 100)}”"
        if cannot_be_same(one.text, other.text):
            if common >= _RIVAL and tuple(sorted((one.id, other.id))) not in linked:
                mend = MemoryOperation(op="note", keys=keys, text="They contradict each other.")
                yield MemoryFinding("contradiction", keys, f"{what} may contradict.", mend)
        elif common >= _SAME:
            mend = MemoryOperation(op="merge", keys=keys, reason="They say the same.")
            yield MemoryFinding("duplicate", keys, f"{what} say the same.", mend)


def _uncovered(memories: Sequence[Memory]) -> Iterator[MemoryFinding]:
    named = [memory.text.casefold() for memory in memories if memory.kind == "topic"]
    topics = {name: word_set(name) for name in named}
    spoken = [words for words in topics.values() if words]
    for memory in memories:
        if memory.kind == "topic":
            continue
        words = word_set(memory.text)
        if topics.keys().isdisjoint(memory.tags) and not any(some <= words for some in spoken):
            yield MemoryFinding("without topic", (memory.name,), "No topic covers it.")
