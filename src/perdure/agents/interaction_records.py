"""What is kept of interactions beside their words: a row for each, and figures added up.

=====================  =========================  ==================================================
collection             key                        what it holds
=====================  =========================  ==================================================
interactions           ``router/00000012``        how one message went; no words
agent_totals           ``router``                 all of an agent's interactions, added up
agent_patterns         ``router/HASH``            those of one task, model and version; or memory
=====================  =========================  ==================================================
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import msgspec

from perdure.gateway.outcomes import Judge
from perdure.storage.records import Indexed, Key, system_record
from perdure.storage.rows import Index

#: Entries of an agent's evolution that are kept, the newest ones.
MOST_ENTRIES = 200


@system_record(
    "interactions",
    ttl="400d",
    indexes=[
        Index(("agent", "ended")),
        Index(("session", "turn")),
        Index(("agent", "task", "provider", "success")),
        Index(("agent", "cost")),
    ],
)
class InteractionRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How one message of an agent went. Its words are in the session's log and in its episode."""

    id: Annotated[str, Key()]
    #: Unique in the bank, and growing for each agent.
    number: int
    agent: str
    agent_version: int = 0
    session: str = ""
    turn: int = 0
    task: str = ""
    provider: str = ""
    model: str = ""
    variant: str = ""
    success: bool = True
    error: str = ""
    cost: int | None = None  # Picodollars.
    latency: float = 0.0  # Seconds.
    #: From 0 to 1, once somebody has rated the answer; and who did.
    quality: float | None = None
    quality_by: Judge = "heuristic"
    #: Memories and reference layers that stood in its prompts.
    memories: tuple[str, ...] = ()
    #: The gateway's outcome of the answer: ratings come by it.
    outcome: Annotated[str | None, Indexed()] = None
    ended: int = 0  # Microseconds.


class Figures(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True, gc=False):
    """Interactions added up."""

    interactions: int = 0
    successes: int = 0
    #: Picodollars, of those interactions whose cost is known.
    cost: int = 0
    priced: int = 0
    latency: float = 0.0  # Seconds.
    #: Of those that were rated.
    quality: float = 0.0
    rated: int = 0

    def plus(self, found: InteractionRecord) -> Figures:
        return Figures(
            self.interactions + 1,
            self.successes + found.success,
            self.cost + (found.cost or 0),
            self.priced + (found.cost is not None),
            self.latency + found.latency,
            self.quality + (found.quality or 0.0),
            self.rated + (found.quality is not None),
        )

    def minus(self, found: InteractionRecord) -> Figures:
        return Figures(
            self.interactions - 1,
            self.successes - found.success,
            self.cost - (found.cost or 0),
            self.priced - (found.cost is not None),
            self.latency - found.latency,
            self.quality - (found.quality or 0.0),
            self.rated - (found.quality is not None),
        )

    def rerated(self, before: float | None, after: float) -> Figures:
        """The same with another rating of one of them."""
        return msgspec.structs.replace(
            self,
            quality=self.quality + after - (before or 0.0),
            rated=self.rated + (before is None),
        )

    def together(self, other: Figures) -> Figures:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Figures(*(one + another for one, another in pairs))

    @property
    def success_rate(self) -> float | None:
        return self.successes / self.interactions if self.interactions else None

    @property
    def average_cost(self) -> float | None:
        """Picodollars."""
        return self.cost / self.priced if self.priced else None

    @property
    def average_latency(self) -> float | None:
        return self.latency / self.interactions if self.interactions else None

    @property
    def average_quality(self) -> float | None:
        return self.quality / self.rated if self.rated else None


class EvolutionEntry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A change of what an agent does, and why: a promotion, a revert, a new version."""

    time: int  # Microseconds.
    change: str
    #: What was compared, with which result.
    evidence: dict[str, Any] = {}
    by: str = ""


@system_record("agent_totals")
class AgentTotals(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All interactions of an agent."""

    agent: Annotated[str, Key()]
    #: Given once: it begins the numbers of its interactions.
    number: int
    figures: Figures = Figures()
    evolution: tuple[EvolutionEntry, ...] = ()
    created: int = 0  # Microseconds.
    updated: int = 0


@system_record("agent_patterns", ttl="400d")
class PatternFigures(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Interactions of one task that one model answered for one version of the agent; or, with
    `memory`, in whose prompts that memory stood. Kept for 400 days after the last one.
    """

    id: Annotated[str, Key()]
    agent: str
    task: str = ""
    provider: str = ""
    model: str = ""
    agent_version: int = 0
    memory: str = ""
    figures: Figures = Figures()
    updated: int = 0  # Microseconds.


def interaction_key(agent: str, id: str) -> str:
    """An id may have its agent in it already: ``router/00000012``."""
    return id if id.startswith(f"{agent}/") else f"{agent}/{id}"


def patterns_of(found: InteractionRecord) -> list[PatternFigures]:
    """The patterns that an interaction counts for, without figures."""
    common = {"agent": found.agent, "task": found.task}
    by_model = {
        **common,
        "provider": found.provider,
        "model": found.model,
        "agent_version": found.agent_version,
    }
    every: list[dict[str, Any]] = [by_model, *({**common, "memory": m} for m in found.memories)]
    return [PatternFigures(id=_pattern_key(each), **each) for each in every]


def _pattern_key(fields: dict[str, Any]) -> str:
    named = sorted((name, value) for name, value in fields.items() if name != "agent")
    hashed = hashlib.sha256(msgspec.json.encode(named)).hexdigest()
    return f"{fields['agent']}/{hashed[:32]}"
