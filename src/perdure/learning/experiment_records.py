"""What is stored of tests and of what became of them."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, TypeAlias

import msgspec

from perdure.learning.experiment_verdict import ExperimentVerdict
from perdure.storage.records import Indexed, Key, system_record

#: ``better`` waits to be accepted; the others but ``running`` are ends.
ExperimentState: TypeAlias = Literal[
    "running", "better", "harm", "equal", "promoted", "reverted", "dismissed"
]
Arm: TypeAlias = Literal["control", "variant"]
StepKind: TypeAlias = Literal[
    "started", "better", "harm", "equal", "promoted", "reverted", "dismissed"
]


class StrategyChanges(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How an agent works, where that is not as configured."""

    #: The model that answers first, by task; by ``*`` for every task without one of its own.
    models: dict[str, str] = {}
    #: The version of the agent's prompt; 0 is the current one.
    prompt_version: int = 0
    #: Tokens of the context; 0: as configured.
    budget: int = 0
    #: Whether recall adds to prompts; None: as configured.
    recall: bool | None = None

    def model_for(self, task: str) -> str:
        """``provider/model``, or empty: as the selector chooses."""
        return self.models.get(task) or self.models.get("*", "")

    def changes(self) -> dict[str, object]:
        """What differs from the configuration."""
        plain = StrategyChanges()
        return {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(plain, name)
        }


class SessionVariant(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent is to work in a session."""

    #: Of the test that the session is a part of; empty if there is none.
    experiment: str = ""
    arm: Arm = "control"
    strategy: StrategyChanges = StrategyChanges()

    @property
    def name(self) -> str:
        """For `Interaction.variant`: empty outside of tests."""
        return f"{self.experiment}/{self.arm}" if self.experiment else ""

    @property
    def model(self) -> str:
        """Empty: the selector puts the strategy's model first, with the others behind it."""
        return ""

    @property
    def prompt_version(self) -> int:
        return self.strategy.prompt_version

    @property
    def budget(self) -> int:
        return self.strategy.budget

    @property
    def recall(self) -> bool | None:
        return self.strategy.recall


@system_record("experiments")
class Experiment(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A test of a variant against how the agent works now, by session."""

    id: Annotated[str, Key()]
    agent: Annotated[str, Indexed()]
    state: Annotated[ExperimentState, Indexed()]
    #: Empty: all tasks.
    task: str = ""
    #: What started it, in words.
    reason: str = ""
    control: StrategyChanges
    variant: StrategyChanges
    #: Microseconds.
    started: int
    ended: int = 0
    #: Calls of the agent when it started.
    calls: int = 0
    verdict: ExperimentVerdict | None = None


@system_record("experiment_sessions", ttl="400d")
class ExperimentSession(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A session's side in a test, and what its answers were worth."""

    id: Annotated[str, Key()]
    experiment: Annotated[str, Indexed()]
    agent: Annotated[str, Indexed()]
    session: Annotated[str, Indexed()]
    arm: Arm
    #: Calls of known worth, and their utility in all.
    calls: int = 0
    total: float = 0.0


@system_record("agent_strategies")
class AgentStrategy(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The strategy that an agent was promoted to."""

    id: Annotated[str, Key()]
    agent: Annotated[str, Indexed()]
    strategy: StrategyChanges


@system_record("evolution_steps")
class EvolutionStep(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Something that happened to how an agent works, with its evidence."""

    id: Annotated[str, Key()]
    agent: Annotated[str, Indexed()]
    kind: StepKind
    #: Microseconds.
    at: int
    experiment: str = ""
    reason: str = ""
    before: StrategyChanges = StrategyChanges()
    after: StrategyChanges = StrategyChanges()
    evidence: ExperimentVerdict | None = None
    #: Who decided: a person's name, or ``automatic``.
    by: str = "automatic"


def name_key(name: str) -> str:
    """Hashed: agents and sessions may be named by anything."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
