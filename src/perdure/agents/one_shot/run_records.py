"""The records of one-shot runs: one row for a run, one for each iteration.

An iteration is one fresh start of the agent. Its phase says what is known for sure; whoever finds
it after a crash goes on from there:

========  =======================================================================================
prompted  its prompt is in the session; the agent has not been started
running   the agent was started (`process`), or is about to be asked
ended     its output is in the session, its record was read
checked   the work tree was looked at, the checks have run
decided   what comes next is in the run's row
========  =======================================================================================
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from perdure.agents.process_identity import ProcessIdentity
from perdure.storage.record_keys import numbered
from perdure.storage.records import Compressed, Indexed, Key, system_record

RunStatus: TypeAlias = Literal["running", "done", "needs_feedback", "stuck", "capped", "stopped"]
Phase: TypeAlias = Literal["prompted", "running", "ended", "checked", "decided"]
#: How an agent's process ended: by itself, in failure, by the watchdog for its silence or when the
#: time was over, or with its harness.
ProcessEnding: TypeAlias = Literal["finished", "failed", "silent", "overtime", "interrupted"]
ExitStatus: TypeAlias = Literal["continue", "done", "needs_feedback"]
PromptTo: TypeAlias = Literal["stdin", "argument"]


class ExitRecord(msgspec.Struct, frozen=True):
    """How an agent says that it ends a run."""

    status: ExitStatus
    summary: str = ""
    question: str = ""  # What a person has to answer.


class TaskCount(msgspec.Struct, frozen=True):
    """The check boxes of a file."""

    open: int = 0
    done: int = 0

    @property
    def all(self) -> int:
        return self.open + self.done


class WorkState(msgspec.Struct, frozen=True):
    """What the files looked like."""

    fingerprint: str = ""  # Of everything but the log.
    commit: str = ""
    tasks: TaskCount = TaskCount()
    log: str = ""  # The hash of the log.


class CheckResult(msgspec.Struct, frozen=True):
    """How a check ended."""

    command: str
    code: int
    tail: str = ""  # The end of its output.

    @property
    def passed(self) -> bool:
        return self.code == 0


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was told. Caps are finite, always."""

    folder: str
    #: Absolute paths.
    spec: str
    tasks: str
    log: str
    checks: tuple[str, ...] = ()  # Run by a shell.
    command: tuple[str, ...] = ()  # Of the agent; empty: a model through the gateway.
    prompt_to: PromptTo = "stdin"
    investigator: str = ""  # A command, run by a shell; empty: a model, if one is configured.
    model: str = ""
    recall: bool = False
    max_runs: int = 20
    max_cost: int = 5 * 10**12  # Picodollars.
    max_seconds: float = 8 * 3600.0
    silence: float = 1800.0  # Seconds without a sign of life, until the agent is ended.
    pause: float = 5.0  # Seconds before the agent is started again after it failed; then doubled.


@system_record("one_shot_runs")
class RunRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A one-shot run."""

    id: Annotated[str, Key()]
    session: Annotated[str, Indexed()]
    settings: RunSettings
    status: RunStatus = "running"
    reason: str = ""  # Why it stopped, in words.
    question: str = ""  # What a person has to answer.
    feedback: str = ""  # What a person answered, for the next iteration.
    advice: str = ""  # What the investigator says to the next iteration.
    investigated: int = 0  # The iteration after which an investigator was sent; 0: never.
    iterations: int = 0
    started: int = 0  # Microseconds.
    updated: int = 0
    active: float = 0.0  # Seconds in which a harness worked on it.
    cost: int = 0  # Picodollars, as far as they are known.
    unknown_costs: int = 0  # Iterations whose costs nobody told.
    unpriced_tokens: int = 0  # Of model calls whose price is not known.

    @property
    def is_over(self) -> bool:
        return self.status == "done"


@system_record("one_shot_iterations")
class RunIteration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fresh start of the agent."""

    id: Annotated[str, Key()]  # run/number
    number: int
    turn: int  # Of the run's session.
    phase: Phase = "prompted"
    started: int = 0  # Microseconds.
    ended: int = 0
    #: A process that may still live, and the folder with what it printed.
    process: ProcessIdentity | None = None
    spool: str = ""
    before: WorkState = WorkState()
    after: WorkState = WorkState()
    ending: ProcessEnding = "finished"
    code: int | None = None  # The exit code; None if nobody saw it.
    exit: ExitRecord | None = None
    error: str = ""
    refused: str = ""
    cost: int | None = None  # Picodollars; None is unknown.
    changes: Annotated[str, Compressed()] = ""  # What changed, in words.
    checks: tuple[CheckResult, ...] = ()
    decision: str = ""

    @property
    def changed(self) -> bool:
        return self.before.fingerprint != self.after.fingerprint

    @property
    def checks_passed(self) -> str:
        """``1 of 2``; empty if there are none."""
        passed = sum(check.passed for check in self.checks)
        return f"{passed} of {len(self.checks)}" if self.checks else ""

    @property
    def checks_pass(self) -> bool:
        return all(check.passed for check in self.checks)


def iteration_key(run: str, number: int) -> str:
    return f"{run}/{numbered(number)}"
