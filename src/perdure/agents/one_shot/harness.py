"""Runs an agent again and again until its tasks are done, or something else ends it.

Each step is written down before the next begins (`run_records` lists the phases), so that whoever
resumes a run after a crash goes on from the last one. All writes are made under the run's lease.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perdure.agents.agent_lease import AgentLeases, beat
from perdure.agents.one_shot import run_prompts
from perdure.agents.one_shot.agent_command import with_prompt
from perdure.agents.one_shot.exit_records import AgentReport, read_report
from perdure.agents.one_shot.investigator import Investigation, ask_model, read_investigation
from perdure.agents.one_shot.model_agent import SYSTEM, TOOLS, ModelAgent
from perdure.agents.one_shot.model_files import ModelFiles
from perdure.agents.one_shot.process_group import (
    ERR,
    OUT,
    RECORD,
    GroupLimits,
    GroupResult,
    end_left_over,
    read_output,
    run_group,
)
from perdure.agents.one_shot.run_records import (
    CheckResult,
    ProcessEnding,
    RunIteration,
    RunRecord,
    RunStatus,
    iteration_key,
)
from perdure.agents.one_shot.run_state import RunState
from perdure.agents.one_shot.run_verdicts import RunVerdict, unfinished, verdict_on
from perdure.agents.one_shot.work_files import WorkFolder, append_log, bank_files, read_text
from perdure.agents.process_identity import ProcessIdentity
from perdure.core.display import plural
from perdure.core.errors import BudgetTooSmall
from perdure.core.messages import Message, Text, assistant, user
from perdure.gateway.calls import CallOptions
from perdure.gateway.prices import dollars
from perdure.gateway.quality import is_refusal
from perdure.history.strategies.one_shot_strategy import OneShotBrief
from perdure.services import Services
from perdure.sessions.session import Session

replace = msgspec.structs.replace
_TAIL = 2_000  # Characters of a check's output that are kept.
_ERROR = 300
_LONGEST_PAUSE = 300.0


class OneShotHarness:
    """Works on one run, which it has the lease of."""

    def __init__(
        self,
        services: Services,
        session: Session,
        state: RunState,
        leases: AgentLeases,
    ) -> None:
        self._services = services
        self._session = session
        self._state = state
        self._leases = leases
        self._settings = state.record.settings
        self._folder = WorkFolder(self._settings, bank_files(services.url))

    @property
    def _record(self) -> RunRecord:
        return self._state.record

    async def run(self) -> RunRecord:
        """Until the run is over, or waits for a person. Cancelled, it ends the agent, and the run
        can be resumed.
        """
        beating = asyncio.create_task(beat(self._leases), name="perdure-run-lease")
        try:
            await self._work()
        except asyncio.CancelledError:
            await asyncio.shield(self._state.finish("stopped", "It was interrupted."))
            raise
        finally:
            beating.cancel()
            for held in list(self._leases.held.values()):
                await self._leases.release(held)
        return self._record

    async def _work(self) -> None:
        while True:
            iterations = await self._state.iterations()
            last = iterations[-1] if iterations else None
            if last is None or last.phase == "decided":
                if self._record.status != "running":
                    return
                if reason := self._state.cap():
                    await self._state.finish("capped", reason)
                    return
                await self._pause(iterations)
                await self._prompt(iterations)
            elif last.phase == "prompted":
                await self._wake(last)
            elif last.phase == "running":
                await self._recover(last)
            elif last.phase == "ended":
                await self._look(last)
            else:
                await self._decide(iterations)

    # The steps --------------------------------------------------------------------------------

    async def _prompt(self, iterations: Sequence[RunIteration]) -> None:
        record, settings = self._record, self._settings
        number, before = record.iterations + 1, await self._folder.look()
        texts = {
            "spec": read_text(settings.spec),
            "tasks": read_text(settings.tasks),
            "log": read_text(settings.log, tail=True),
            "facts": run_prompts.facts_for(record, iterations),
        }
        brief = OneShotBrief(id=record.session, **self._services.mask_data(texts))
        await self._state.put_fenced(brief)
        prompt = run_prompts.prompt_for(record)
        system, tools = ("", ()) if settings.command else (SYSTEM, TOOLS)
        try:
            context = await self._session.context(
                prompt, system=system, tools=tools, recall=settings.recall
            )
        except BudgetTooSmall as exc:
            question = f"The specification and the tasks do not fit: {exc} Shorten them."
            await self._state.finish("needs_feedback", "The brief is too long.", question)
            return
        begun = RunIteration(
            id=iteration_key(record.id, number),
            number=number,
            turn=0,
            started=self._services.store.now(),
            before=before,
        )
        changed = replace(record, iterations=number, feedback="", advice="")
        within = self._state.within(begun, changed)
        await self._session.append([], context=context, within=within)
        begins = f"run {number} of at most {settings.max_runs} begins"
        if number == 1:
            begins += f"; {self._limit_of_money()}"
        self._state.tell(number, "prompted", begins)

    async def _wake(self, iteration: RunIteration) -> None:
        await self._session.resume(iteration.turn)
        if self._settings.command:
            await self._wake_command(iteration)
        else:
            await self._wake_model(iteration)

    async def _wake_command(self, iteration: RunIteration) -> None:
        settings, spool = self._settings, self._spool()
        context = await self._session.context()
        text = run_prompts.as_text(context.messages)
        command, stdin = with_prompt(settings.command, settings.prompt_to, text)
        begun = replace(iteration, phase="running", spool=str(spool))
        result = await run_group(
            command,
            spool,
            folder=settings.folder,
            limits=self._limits(settings.log, settings.tasks, str(spool / RECORD)),
            started=self._noting(begun),
            prompt=stdin,
            environ={
                "PERDURE_RUN": self._record.id,
                "PERDURE_RUN_RECORD": str(spool / RECORD),
            },
        )
        await self._take(begun, result)

    async def _wake_model(self, iteration: RunIteration) -> None:
        settings = self._settings
        running = replace(iteration, phase="running")
        await self._state.save(running)
        self._state.tell(iteration.number, "running", "a model works on it")

        async def check() -> tuple[CheckResult, ...]:
            return await self._checks(running)

        files = ModelFiles(settings, self._folder)
        agent = ModelAgent(
            self._services.gateway,
            self._session,
            settings,
            files,
            check=check,
            within=self._state.fence,
        )
        left = settings.max_cost - self._record.cost
        try:
            async with asyncio.timeout(self._state.seconds_left()):
                report = await agent.run(left)
            ending: ProcessEnding = "failed" if report.error else "finished"
        except TimeoutError:
            await self._session.close_turn()
            report, ending = agent.spent, "overtime"
        await self._ended(running, report, ending, None)

    async def _take(self, iteration: RunIteration, result: GroupResult) -> None:
        """Write down what a command printed, and that it has ended."""
        spool = Path(iteration.spool)
        report = read_report(result.out, result.err, read_output(spool, RECORD))
        reply = _reply(report, result)
        if report.record is None and not report.refused and is_refusal(assistant(report.text)):
            report = replace(report, refused=report.text.strip()[:_ERROR])
        if result.ending != "finished" and not report.error:
            report = replace(report, error=_error_of(result, self._settings.silence))
        await self._ended(iteration, report, result.ending, result.code, reply)
        shutil.rmtree(spool, ignore_errors=True)

    async def _ended(
        self,
        iteration: RunIteration,
        report: AgentReport,
        ending: ProcessEnding,
        code: int | None,
        reply: Message | None = None,
    ) -> None:
        masked = {"error": report.error[:_ERROR], "refused": report.refused[:_ERROR]}
        record = report.record
        if record is not None:
            masked |= {"summary": record.summary, "question": record.question}
        plain = self._services.mask_data(masked)
        if record is not None:
            record = replace(record, summary=plain["summary"], question=plain["question"])
        ended = replace(
            iteration,
            phase="ended",
            ended=self._services.store.now(),
            process=None,
            spool="",
            ending=ending,
            code=code,
            exit=record,
            error=plain["error"],
            refused=plain["refused"],
            cost=report.cost,
        )
        charged = self._state.charged(report.cost, report.known_cost, report.tokens)
        if reply is None:
            await self._state.save(ended, charged)
        else:
            within = self._state.within(ended, charged)
            await self._session.append(reply, key=f"{ended.id}/reply", within=within)
        said = "did not say how" if record is None else f"says {record.status.replace('_', ' ')}"
        told = [f"it {run_prompts.ENDINGS[ending]}", f"it {said}"]
        if report.cost is None:
            counted = f" ({report.tokens:,} tokens)" if report.tokens else ""
            told.append(f"what it cost is not known{counted}")
        self._state.tell(ended.number, "ended", "; ".join(told))

    async def _recover(self, iteration: RunIteration) -> None:
        """An agent that was at work when its harness died. If it ended by itself and left a record,
        nothing is lost; else it is ended, and its run counts as interrupted.
        """
        if iteration.process is None:
            await self._session.close_turn()
            cost = await self._state.noted_cost(iteration.started)
            await self._ended(iteration, AgentReport(text="", cost=cost), "interrupted", None)
            return
        lived = await end_left_over(iteration.process)
        spool = Path(iteration.spool)
        out, err = read_output(spool, OUT), read_output(spool, ERR)
        report = read_report(out, err, read_output(spool, RECORD))
        ending: ProcessEnding = "interrupted" if lived or report.record is None else "finished"
        await self._take(iteration, GroupResult(ending=ending, code=None, out=out, err=err))

    async def _look(self, iteration: RunIteration) -> None:
        """What became of it: files and checks. The files are looked at first: checks may leave some
        behind.
        """
        if iteration.process is not None:
            await end_left_over(iteration.process)
        settings = self._settings
        after = await self._folder.look()
        changes = await self._folder.changes(iteration.before, iteration.started)
        checks = await self._checks(iteration)
        error = iteration.error or next(map(_check_error, (c for c in checks if not c.passed)), "")
        plain = self._services.mask_data({"changes": changes, "error": error})
        looked = replace(
            iteration,
            phase="checked",
            process=None,
            after=after,
            changes=plain["changes"],
            error=plain["error"],
            checks=checks,
        )
        if after.log == iteration.before.log:
            heading = f"## Run {looked.number} ({self._record.id})"
            append_log(settings.log, heading, run_prompts.log_entry(looked))
        await self._state.save(looked)
        tasks = after.tasks
        told = [f"{plural(tasks.open, 'task')} open, {tasks.done} done"]
        if checks:
            told.append(f"{looked.checks_passed} checks pass")
        told.append(f"{'something' if looked.changed else 'nothing'} changed")
        self._state.tell(looked.number, "checked", "; ".join(told))

    async def _checks(self, iteration: RunIteration) -> tuple[CheckResult, ...]:
        found = list[CheckResult]()
        for command in self._settings.checks:
            result = await self._shell(command, iteration)
            tail = f"{result.out}\n{result.err}".strip()[-_TAIL:]
            if result.ending in {"silent", "overtime"}:
                tail += f"\n(It was ended: {result.ending}.)"
            tail = self._services.mask_data({"tail": tail})["tail"]
            code = -1 if result.code is None else result.code
            if result.ending != "finished":
                code = code or -1
            found.append(CheckResult(command, code, tail))
        return tuple(found)

    async def _decide(self, iterations: Sequence[RunIteration]) -> None:
        last, record = iterations[-1], self._record
        verdict = verdict_on(iterations, record.investigated)
        if verdict.verdict in {"stuck", "unsure", "doubtful"}:
            found = None
            if not record.investigated:
                if last.process is not None:
                    await end_left_over(last.process)
                found = await self._investigated(iterations, verdict.reason)
            record, verdict = self._after(found, verdict, last)
        statuses: dict[str, RunStatus] = {
            "done": "done",
            "needs_feedback": "needs_feedback",
            "stuck": "stuck",
        }
        status = statuses.get(verdict.verdict, "running")
        stopped = status != "running"
        record = replace(
            record,
            status=status,
            reason=verdict.reason if stopped else "",
            question=verdict.question if stopped else "",
        )
        decided = replace(last, phase="decided", process=None, decision=verdict.verdict)
        await self._state.save(decided, record)
        self._state.tell(
            last.number, "decided", f"{verdict.verdict.replace('_', ' ')}: {verdict.reason}"
        )

    def _after(
        self, found: Investigation | None, verdict: RunVerdict, last: RunIteration
    ) -> tuple[RunRecord, RunVerdict]:
        """What an investigator makes of a verdict; what it means, if there is none."""
        record = self._record
        if found is None:
            if verdict.verdict == "doubtful":
                return record, RunVerdict("needs_feedback", verdict.reason, "Is it done?")
            return record, RunVerdict("stuck", verdict.reason)
        record = replace(
            self._state.charged(found.cost), investigated=last.number, advice=found.advice
        )
        said = found.advice or found.question or found.verdict
        reason = f"{verdict.reason} The investigator says: {said}"
        if found.verdict == "stop":
            return record, RunVerdict("stuck", reason)
        if found.verdict == "needs_feedback":
            return record, RunVerdict("needs_feedback", reason, found.question or found.advice)
        if found.verdict == "done" and not unfinished(last):
            return record, RunVerdict("done", reason)
        return record, RunVerdict("continue", reason)

    async def _investigated(
        self, iterations: Sequence[RunIteration], reason: str
    ) -> Investigation | None:
        settings, last = self._settings, iterations[-1]
        prompt = run_prompts.investigation(self._record, iterations, reason)
        if settings.investigator:
            result = await self._shell(settings.investigator, last, prompt)
            found = read_investigation(result.out, result.err)
        elif settings.command and not self._has_model():
            return None
        else:
            files = {
                "The specification": read_text(settings.spec),
                "The tasks": read_text(settings.tasks),
                "The log": read_text(settings.log, tail=True),
            }
            options = {
                "agent": self._session.agent,
                "session": self._session.name,
                "model": settings.model,
            }
            found = await ask_model(self._services.gateway, prompt, files, options)
        if found is not None:
            said, key = [user(prompt), assistant(found.text or found.verdict)], f"{last.id}/asked"
            await self._session.append(said, key=key, within=self._state.fence)
            self._state.tell(last.number, "investigated", f"the investigator says: {found.verdict}")
        return found

    def _has_model(self) -> bool:
        models = self._services.config.gateway.models
        return bool(models.chat or models.judge)

    def _limit_of_money(self) -> str:
        """Whether `max_cost` can hold, as far as it is known before anything was spent."""
        settings = self._settings
        most, hours = dollars(settings.max_cost), f"{settings.max_seconds / 3600:g} hours"
        if settings.command:
            return (
                f"it may cost {most}, counted only if the agent tells its costs, and take {hours}"
            )
        gateway = self._services.gateway
        for each in gateway.catalog.candidates(CallOptions(model=settings.model)):
            if gateway.prices.find(each.provider.name, each.model) is None:
                return (
                    f"the price of {each.name} is not known, so that {most} cannot limit it: its"
                    f" tokens are counted, and it ends by its runs and after {hours}"
                )
        return f"it may cost {most} and take {hours}"

    # How commands are run ---------------------------------------------------------------------

    def _limits(self, *files: str) -> GroupLimits:
        left = max(self._state.seconds_left(), 1.0)
        return GroupLimits(silence=self._settings.silence, seconds=left, files=files)

    async def _pause(self, iterations: Sequence[RunIteration]) -> None:
        """After failures in a row: what is down needs time to come back."""
        fails = 0
        for each in reversed(iterations):
            if each.ending != "failed" or each.changed:
                break
            fails += 1
        if fails:
            pause = min(self._settings.pause * 2 ** (fails - 1), _LONGEST_PAUSE)
            await asyncio.sleep(min(pause, max(self._state.seconds_left(), 0.0)))

    async def _shell(self, command: str, iteration: RunIteration, prompt: str = "") -> GroupResult:
        spool = self._spool()
        try:
            return await run_group(
                ["/bin/sh", "-c", command],
                spool,
                folder=self._settings.folder,
                limits=self._limits(),
                started=self._noting(iteration, tell=False),
                prompt=prompt,
                environ={"PERDURE_RUN": self._record.id},
            )
        finally:
            shutil.rmtree(spool, ignore_errors=True)

    def _spool(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="perdure-run-"))

    def _noting(self, iteration: RunIteration, *, tell: bool = True) -> Callable[..., Any]:
        async def started(process: ProcessIdentity) -> None:
            await self._state.save(replace(iteration, process=process))
            if tell:
                self._state.tell(
                    iteration.number, "running", f"the agent runs as process {process.pid}"
                )

        return started


def _reply(report: AgentReport, result: GroupResult) -> Message:
    """What was printed, as an answer: nothing of it is left out."""
    texts = [report.text.strip()] if report.is_structured else []
    texts += [result.out.strip(), result.err.strip()]
    parts = tuple(Text(text) for text in texts if text) or (Text("(It printed nothing.)"),)
    return Message("assistant", parts, partial=result.ending == "interrupted")


def _error_of(result: GroupResult, silence: float) -> str:
    if result.ending == "silent":
        return f"No sign of life for {silence:g} seconds."
    if result.ending == "overtime":
        return "Its time was over, or it printed without end."
    if result.ending == "interrupted":
        return "Its harness died."
    lines = [line.strip() for line in (result.err or result.out).splitlines() if line.strip()]
    return f"Exit code {result.code}: {lines[-1] if lines else 'it printed nothing'}"[:_ERROR]


def _check_error(check: CheckResult) -> str:
    lines = [line.strip() for line in check.tail.splitlines() if line.strip()]
    return f"`{check.command}` fails: {' / '.join(lines[-5:])}"[:_ERROR]
