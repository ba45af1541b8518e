"""One-shot runs of a bank: begun, resumed, listed."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from perdure.agents.agent_lease import AgentLeases, HeldLease
from perdure.agents.one_shot.agent_command import checked_command, prompt_way
from perdure.agents.one_shot.harness import OneShotHarness
from perdure.agents.one_shot.run_records import PromptTo, RunIteration, RunRecord, RunSettings
from perdure.agents.one_shot.run_state import Progress, RunState
from perdure.agents.one_shot.work_files import count_tasks, read_text
from perdure.core.clock import new_id
from perdure.core.errors import Conflict, InvalidInput, NotFound
from perdure.core.input_types import require_text
from perdure.gateway.calls import CallOptions
from perdure.gateway.prices import picodollars
from perdure.sessions.sessions import Sessions

AGENT = "one-shot"  # Whose sessions the runs are, unless one is named.
_LEASE = 30.0  # Seconds.
_MOST_RUNS, _MOST_DOLLARS, _MOST_HOURS = 100_000, 1_000_000.0, 24.0 * 366


class OneShotRuns:
    """Begins and resumes one-shot runs: see `Bank.one_shot`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._services = sessions.services
        self._store = sessions.services.store

    async def run(
        self,
        spec: str | os.PathLike[str],
        *,
        tasks: str | os.PathLike[str] = "TASKS.md",
        log: str | os.PathLike[str] = "LOG.md",
        checks: str | Sequence[str] = (),
        command: Sequence[str] = (),
        folder: str | os.PathLike[str] = ".",
        session: str | None = None,
        max_runs: int = 20,
        max_cost: float = 5.0,
        max_hours: float = 8.0,
        silence: float = 1800.0,
        pause: float = 5.0,
        investigator: str = "",
        model: str = "",
        prompt_to: PromptTo | None = None,
        recall: bool = False,
        progress: Progress | None = None,
    ) -> RunRecord:
        """Wake an agent for one run at a time until it is done, asks a person, is stuck, or a cap
        is reached; returns how it stands then.

        `command` is the agent's program and its arguments (``["claude", "-p"]``); without it, a
        model is asked through the gateway (`model`, or as configured). Paths are relative to
        `folder`, where it works. `checks` are commands for a shell that must succeed. `max_cost` is
        in dollars; `silence` is how many seconds an agent may give no sign of life. `investigator`
        is a command that is asked once if the run seems stuck; without it, a model is, if one is
        configured. `progress` is called when something was written down.

        Raises `InvalidInput` if a file, a cap or the command is unusable, `NoModel` if there is
        neither a command nor a model.
        """
        place = _absolute(folder)
        settings = RunSettings(
            folder=str(place),
            spec=str(_absolute(place / spec)),
            tasks=str(_absolute(place / tasks)),
            log=str(_absolute(place / log)),
            checks=(checks,) if isinstance(checks, str) else tuple(checks),
            command=checked_command(command),
            prompt_to=prompt_to or prompt_way(command),
            investigator=investigator,
            model=model,
            recall=recall,
            max_runs=_runs(max_runs),
            max_cost=_money(max_cost),
            max_seconds=_amount(max_hours, "max_hours", _MOST_HOURS) * 3600,
            silence=_amount(silence, "silence", 7 * 86_400),
            pause=_amount(pause, "pause", 86_400, least=0.0),
        )
        _check_files(settings)
        if not settings.command:
            self._services.gateway.catalog.candidates(CallOptions(model=model))
        id = f"run-{new_id()[-8:].lower()}"
        name = session or f"{AGENT}/{Path(spec).stem}-{id[-8:]}"
        now = self._store.now()
        opened = await self._sessions.open(name, strategy="one-shot", tags={"run": id})
        record = RunRecord(id=id, session=opened.name, settings=settings, started=now, updated=now)
        leases, lease = await self._taken(record)
        await self._store.collection(RunRecord).put(record)
        state = RunState(self._store, record, lease, progress)
        return await OneShotHarness(self._services, opened, state, leases).run()

    async def resume(
        self,
        run: str | None = None,
        *,
        feedback: str = "",
        max_runs: int | None = None,
        max_cost: float | None = None,
        max_hours: float | None = None,
        folder: str | os.PathLike[str] = ".",
        progress: Progress | None = None,
    ) -> RunRecord:
        """Go on with a run, after whatever ended it: by default the newest of the folder that is
        not done. `feedback` answers what its agent asked. Caps can be raised, and stay finite.

        Raises `NotFound` if there is none, `InvalidInput` if it is done, `Conflict` if it is being
        worked on.
        """
        found = await self.get(run) if run is not None else await self._newest(folder)
        if found.status == "done":
            raise InvalidInput(f"{found.id} is done: {found.reason}", hint="Begin another one.")
        leases, lease = await self._taken(found)
        found = await self.get(found.id)  # as the former holder left it
        settings = found.settings
        settings = msgspec.structs.replace(
            settings,
            max_runs=settings.max_runs if max_runs is None else _runs(max_runs),
            max_cost=settings.max_cost if max_cost is None else _money(max_cost),
            max_seconds=settings.max_seconds
            if max_hours is None
            else _amount(max_hours, "max_hours", _MOST_HOURS) * 3600,
        )
        given = self._services.mask_data({"feedback": require_text(feedback, "feedback")})
        record = msgspec.structs.replace(
            found,
            settings=settings,
            status="running",
            reason="",
            question="",
            feedback=given["feedback"] or found.feedback,
            # Who goes on with a run that was stuck wants it to be tried again.
            investigated=found.iterations if found.status == "stuck" else found.investigated,
        )
        await self._store.collection(RunRecord).put(record)
        session = await self._sessions.existing(record.session)
        state = RunState(self._store, record, lease, progress)
        return await OneShotHarness(self._services, session, state, leases).run()

    async def get(self, run: str) -> RunRecord:
        """By its id, or the end of it if unique. Raises `NotFound`."""
        records = self._store.collection(RunRecord)
        if (found := await records.get(run)) is not None:
            return found
        fitting = [each for each in await self.all() if run and each.id.endswith(run)]
        if len(fitting) != 1:
            raise NotFound(
                f"There is no run {run!r}.", hint="`perdure runs` lists those there are."
            )
        return fitting[0]

    async def all(self) -> list[RunRecord]:
        """The newest first."""
        found = await self._store.collection(RunRecord).query().values()
        return sorted(found, key=lambda each: -each.started)

    async def iterations(self, run: str) -> list[RunIteration]:
        """Of a run, oldest first."""
        record = await self.get(run)
        rows = await self._store.collection(RunIteration).query().prefix(f"{record.id}/").values()
        return sorted(rows, key=lambda each: each.number)

    async def _newest(self, folder: str | os.PathLike[str]) -> RunRecord:
        place = str(_absolute(folder))
        for each in await self.all():
            if each.settings.folder == place and each.status != "done":
                return each
        raise NotFound(
            f"No run of {place} is left to be resumed.",
            hint="Name one: `perdure runs` lists those there are.",
        )

    async def _taken(self, record: RunRecord) -> tuple[AgentLeases, HeldLease]:
        leases = AgentLeases(self._store, seconds=_LEASE)
        lease = await leases.take(f"{record.session}/{record.id}")
        if lease is None:
            raise Conflict(
                "one_shot_runs",
                record.id,
                message=f"Another process works on {record.id}.",
                hint="Wait for it, or end it first.",
            )
        return leases, lease


def _absolute(path: str | os.PathLike[str]) -> Path:
    return Path(path).resolve()


def _check_files(settings: RunSettings) -> None:
    for name in ("spec", "tasks"):
        path = Path(getattr(settings, name))
        if not path.is_file():
            raise InvalidInput(
                f"There is no file {path}.", hint=f"Write it, or name another one with --{name}."
            )
    if not count_tasks(read_text(settings.tasks)).all:
        raise InvalidInput(
            f"{settings.tasks} has no check boxes.",
            hint="Write a task as a line: - [ ] what is to be done.",
        )
    if not Path(settings.log).parent.is_dir() or Path(settings.log).is_dir():
        raise InvalidInput(
            f"{settings.log} cannot be a log.", hint="Name a file in a folder that exists."
        )
    if settings.log in {settings.spec, settings.tasks} or settings.spec == settings.tasks:
        raise InvalidInput("Two of the three files are the same.", hint="Give one file for each.")


def _runs(value: int) -> int:
    if type(value) is not int or not 1 <= value <= _MOST_RUNS:
        raise InvalidInput(
            f"max_runs is {value!r}.",
            hint=f"Give a number from 1 to {_MOST_RUNS:,}: no run goes on without end.",
        )
    return value


def _money(value: float) -> int:
    return picodollars(_amount(value, "max_cost", _MOST_DOLLARS))


def _amount(value: float, name: str, most: float, *, least: float | None = None) -> float:
    """Finite, above 0, or at least `least`."""
    if (
        type(value) not in {int, float}
        or not math.isfinite(value)
        or value > most
        or (value <= 0 if least is None else value < least)
    ):
        raise InvalidInput(
            f"{name} is {value!r}.",
            hint=f"Give a number above 0, at most {most:,.0f}: no run goes on without end.",
        )
    return float(value)
