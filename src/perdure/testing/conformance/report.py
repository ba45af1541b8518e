"""Results of a run, its level, and how they are shown."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from perdure.storage.adapter import Capability
from perdure.testing.conformance.trials import CORE


class ConformanceLevel(msgspec.Struct, frozen=True, order=True):
    """How far a backend goes. Each level includes those before it."""

    number: int
    name: str


LEVELS: dict[ConformanceLevel, frozenset[Capability]] = {
    ConformanceLevel(1, "key-value"): frozenset(),
    ConformanceLevel(2, "versioned"): frozenset(
        {Capability.VERSIONS, Capability.LISTING, Capability.TTL},
    ),
    ConformanceLevel(3, "transactional"): frozenset(
        {Capability.TRANSACTIONS, Capability.QUERY, Capability.TAGS, Capability.AGGREGATE}
    ),
    ConformanceLevel(4, "complete"): frozenset(
        {
            Capability.OUTBOX,
            Capability.DURABLE,
            Capability.STRONG,
            Capability.SHARED,
            Capability.ERASURE,
            Capability.SNAPSHOTS,
            Capability.EXTENSIONS,
        }
    ),
}


class CapabilityStatus(StrEnum):
    """What is known of a capability."""

    PROVEN = "proven"
    FAILED = "failed"
    NOT_DECLARED = "not declared"
    NOT_TRIED = "not tried"


class Result(msgspec.Struct, frozen=True):
    """How one check ended."""

    name: str
    group: str
    guarantee: str
    outcome: Literal["passed", "failed"]
    seconds: float
    detail: str = ""

    @property
    def id(self) -> str:
        return f"{self.group}-{self.name}"


class CapabilityResult(msgspec.Struct, frozen=True):
    """One line of the table of capabilities."""

    capability: str
    declared: bool
    standing: CapabilityStatus
    passed: int
    failed: int


class ConformanceReport(msgspec.Struct, frozen=True):
    """What the kit found. ``print(report)`` shows it; `to_builtins` is ready for JSON."""

    url: str
    adapter: str
    declared: frozenset[Capability]
    results: tuple[Result, ...]
    seconds: float

    @property
    def failures(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.outcome == "failed")

    @property
    def passed(self) -> bool:
        """Whether everything declared holds, as far as it was tried."""
        return bool(self.results) and not self.failures

    @property
    def table(self) -> tuple[CapabilityResult, ...]:
        return tuple(self._line(group) for group in (CORE, *Capability))

    @property
    def level(self) -> ConformanceLevel | None:
        """The highest level whose capabilities are all proven; None if anything failed."""
        if not self.passed:
            return None
        proven = {
            line.capability for line in self.table if line.standing is CapabilityStatus.PROVEN
        }
        reached = None
        for level, capabilities in LEVELS.items():
            if not {CORE, *(capability.value for capability in capabilities)} <= proven:
                break
            reached = level
        return reached

    def to_builtins(self) -> dict[str, Any]:
        level = self.level
        return {
            "url": self.url,
            "adapter": self.adapter,
            "passed": self.passed,
            "level": None if level is None else msgspec.to_builtins(level),
            "capabilities": msgspec.to_builtins(self.table),
            "results": msgspec.to_builtins(self.results),
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        lines = [f"{self.adapter} at {self.url}", ""]
        lines += [
            f"  {line.capability:<13} {'declared' if line.declared else '–':<9}"
            f" {line.standing.value:<16}{_counts(line)}".rstrip()
            for line in self.table
        ]
        for result in self.failures:
            lines += ["", f"FAILED {result.id}: {result.guarantee}", f"  {result.detail}"]
        return "\n".join([*lines, "", self.verdict])

    @property
    def verdict(self) -> str:
        count = len(self.results)
        if self.failures:
            return f"{len(self.failures)} of {count} checks failed: no level."
        level = self.level
        reached = f"level {level.number}, {level.name}" if level else "no level was tried in full"
        return f"All {count} checks passed in {self.seconds:.1f} s: {reached}."

    def _line(self, group: str) -> CapabilityResult:
        outcomes = [result.outcome for result in self.results if result.group == group]
        failed = outcomes.count("failed")
        declared = group == CORE or group in self.declared
        if not declared:
            standing = CapabilityStatus.NOT_DECLARED
        elif not outcomes:
            standing = CapabilityStatus.NOT_TRIED
        else:
            standing = CapabilityStatus.FAILED if failed else CapabilityStatus.PROVEN
        return CapabilityResult(str(group), declared, standing, len(outcomes) - failed, failed)


def _counts(line: CapabilityResult) -> str:
    total = line.passed + line.failed
    return f"{line.passed}/{total}" if total else ""
