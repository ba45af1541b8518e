"""A memory in words, as it stands beside a prompt. Whoever puts it there escapes it.

M-7 (preference, 2 months ago): Prefers small commits.
M-9 (fact, 3 days ago): since 2026-05-01: The port is 9000. (before: The port is 8123.)
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.clock import to_datetime
from perdure.recall.injecting import ago
from perdure.recall.memories.records import Memory


def line(memory: Memory, moment: int, rivals: Iterable[Memory] = (), *, agent: str = "") -> str:
    """One line: key, kind, age, what it says, and what its active `rivals` say.

    `agent` is who reads it: memories of others are called by their whole names.
    """
    key = memory.key if memory.agent == (agent or memory.agent) else memory.name
    text = " ".join(said(memory, rivals).split())
    return f"{key} ({memory.kind}, {ago(memory.last, moment)}): {text}"


def said(memory: Memory, rivals: Iterable[Memory] = ()) -> str:
    """What a memory says, with the dates if others contradict it: the leading one comes first."""
    others = [each for each in rivals if each.id in memory.contradicts and each.is_active]
    if not others:
        return memory.text
    leader = max(memory, *others, key=_precedence)
    if leader.id != memory.id:
        return f"{memory.text} (but since {_day(leader.since)}, {leader.key}: {leader.text})"
    former = "; ".join(each.text for each in sorted(others, key=_precedence, reverse=True))
    return f"since {_day(memory.since)}: {memory.text} (before: {former})"


def leads(memory: Memory, rivals: Iterable[Memory]) -> bool:
    """Whether it is the one to go by, of those that contradict each other."""
    others = (each for each in rivals if each.id in memory.contradicts and each.is_active)
    return all(_precedence(memory) > _precedence(other) for other in others)


def _precedence(memory: Memory) -> tuple[bool, int, int]:
    return (memory.pinned, memory.since, memory.number)


def _day(moment: int) -> str:
    return f"{to_datetime(moment):%Y-%m-%d}"
