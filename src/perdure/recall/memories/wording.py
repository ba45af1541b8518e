"""A memory in words, as it stands beside a prompt. Whoever puts it there escapes it.

M-7 (preference, 2 months ago): Prefers small commits.
M-9 (fact, 3 days ago): since 2026-05-01: The port is 9000. (before: The port is 8123.)
M-8 (fact, 5 days ago): The port is 8123. (but since 2026-05-01, M-9: The port is 9000.)
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.clock import to_datetime
from perdure.recall.injecting import ago
from perdure.recall.memories.records import Memory, shown


def line(memory: Memory, moment: int, rivals: Iterable[Memory] = (), *, agent: str = "") -> str:
    """One line: key, kind, age, what it says, and what its active `rivals` say.

    `agent` is who reads it: memories of others are called by their whole names.
    """
    key = shown(memory.id, agent or memory.agent)
    text = " ".join(said(memory, rivals, agent=agent).split())
    return f"{key} ({memory.kind}, {ago(memory.last, moment)}): {text}"


def said(memory: Memory, rivals: Iterable[Memory] = (), *, agent: str = "") -> str:
    """What a memory says; if others contradict it, which one holds, and since when.

    The newest holds, unless an older one is pinned: then both say so. `agent` as for `line`.
    """
    others = _others(memory, rivals)
    if not others:
        return memory.text
    holds = leader(memory, others)
    if holds.id == memory.id:
        return _leading(memory, others, agent or memory.agent)
    name = shown(holds.id, agent or memory.agent)
    if _age(holds) > _age(memory):
        return f"{memory.text} (but since {_day(holds)}, {name}: {holds.text})"
    return (
        f"said on {_day(memory)}: {memory.text}"
        f" (but {name}, of {_day(holds)}, is pinned and holds: {holds.text})"
    )


def _leading(memory: Memory, others: Iterable[Memory], agent: str) -> str:
    """One that holds: what was so before, and what was said since although it is pinned."""
    ordered = sorted(others, key=_age, reverse=True)
    former = "; ".join(each.text for each in ordered if _age(each) < _age(memory))
    later = "; ".join(
        f"{shown(each.id, agent)}, of {_day(each)}, says: {each.text}"
        for each in ordered
        if _age(each) >= _age(memory)
    )
    beside = (
        f"before: {former}" if former else "",
        f"it is pinned and holds, although {later}" if later else "",
    )
    return f"since {_day(memory)}: {memory.text} ({'; '.join(filter(None, beside))})"


def leader(memory: Memory, rivals: Iterable[Memory]) -> Memory:
    """The one to go by, of this and those that contradict it: a pinned one, else the newest."""
    return max((memory, *_others(memory, rivals)), key=_precedence)


def leads(memory: Memory, rivals: Iterable[Memory]) -> bool:
    """Whether it is the one to go by, of those that contradict each other."""
    return leader(memory, rivals).id == memory.id


def _others(memory: Memory, rivals: Iterable[Memory]) -> list[Memory]:
    return [each for each in rivals if each.id in memory.contradicts and each.is_active]


def _precedence(memory: Memory) -> tuple[bool, int, int, str]:
    return (memory.pinned, *_age(memory))


def _age(memory: Memory) -> tuple[int, int, str]:
    """The later it was said, the more. No two have the same."""
    return (memory.since, memory.number, memory.id)


def _day(memory: Memory) -> str:
    return f"{to_datetime(memory.since):%Y-%m-%d}"
