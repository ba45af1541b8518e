"""Reflection of a bank: starts runs, takes up those that were killed, lists and undoes them.

    runs = await bank.reflect(agent="planner")
    await bank.reflection.undo("planner/R-3")

A run is of one agent, and reads what its sessions have new. If nothing is, there is no run. If the
day's budget does not hold all of it, the run reads the oldest part, and the next one goes on.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Callable

from msgspec.structs import replace

from perdure.core.clock import SECOND
from perdure.core.errors import Conflict, InvalidInput, PerdureError
from perdure.gateway.budgets import BudgetRoom
from perdure.history.log_records import agent_of, checked_agent
from perdure.reflection import lease as leases
from perdure.reflection.apply_run import RunFindings, give_up_run, plan_run, undo_run
from perdure.reflection.inbox import Inbox, post
from perdure.reflection.model_calls import BatchCalls, LiveCalls, ModelCalls, has_batch_mode
from perdure.reflection.reflection_records import (
    PHASES,
    UNFINISHED,
    ReflectionCursor,
    ReflectionRun,
    RunChanges,
    RunMode,
    RunPreview,
    Trigger,
    next_number,
    no_run,
    parse_run,
    run_id,
)
from perdure.reflection.run_messages import message, told_waiting, too_much
from perdure.reflection.run_questions import (
    REFLECT,
    QuestionBuilder,
    RunQuestion,
    RunQuestions,
)
from perdure.reflection.run_scope import RunScope, as_of, find_scope, read_again
from perdure.reflection.run_walk import RunWalk
from perdure.services import Services
from perdure.sessions.session_info import agents_with_sessions
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

_HOUR = 3_600 * SECOND
#: Seconds between two looks whether a run is due, and until the first.
_LOOK, _FIRST_LOOK = 300.0, 60.0

_log = logging.getLogger(__name__)


class Reflection:
    """Reflects on a bank. `calls` asks models; made from the gateway, if none is given."""

    def __init__(
        self, services: Services, *, calls: ModelCalls | None = None, lease: float = leases.LEASE
    ) -> None:
        self._services = services
        self._store: Store = services.store
        self._given = calls
        self._lease = lease
        self.inbox = Inbox(services)

    @property
    def has_model(self) -> bool:
        """Whether a model is configured for `reflect`."""
        return self._given is not None or bool(self._services.config.gateway.models.reflect)

    # Runs -------------------------------------------------------------------------------------

    async def reflect(
        self,
        agent: str | None = None,
        *,
        session: str | None = None,
        again: bool = False,
        live: bool = False,
        wait: bool = True,
        trigger: Trigger = "hand",
        foresee: Callable[[RunPreview], None] | None = None,
    ) -> builtins.list[ReflectionRun]:
        """Reflect on what is new in an agent's sessions, in all, or in one; a run for each agent
        that has something new. `again` reads everything once more. By schedule, only sessions
        that are idle are read. `foresee` is told what each run may take, before it begins.

        Where the provider has a batch mode, it is asked by that, at half price, unless this is to
        be `live`. Answers may take hours: without `wait`, the run is returned as it is once its
        questions are sent, and goes on when this is called again, or by schedule.

        Raises `Conflict` if another process reflects for that agent now, and there is no other to
        reflect for; `NotFound` if there is no such session.
        """
        names = await self._agents(agent, session)
        found = builtins.list[ReflectionRun]()
        for name in names:
            try:
                run = await self._reflect_on(
                    name,
                    session=session,
                    again=again,
                    live=live,
                    wait=wait and len(names) == 1,  # all are asked before one is waited for
                    trigger=trigger,
                    foresee=foresee,
                )
            except Conflict as exc:
                if len(names) == 1:
                    raise
                _log.info("%s", exc)  # the other agents do not wait for this one
            else:
                found += [] if run is None else [run]
        return await self._finished(found) if wait else found

    async def _reflect_on(
        self,
        agent: str,
        *,
        session: str | None,
        again: bool,
        live: bool,
        wait: bool,
        trigger: Trigger,
        foresee: Callable[[RunPreview], None] | None,
    ) -> ReflectionRun | None:
        idle = self._services.config.reflection.idle if trigger == "schedule" else None
        async with leases.held(self._store, agent, self._lease) as lease:
            if (run := await self._unfinished(agent)) is not None:
                return await self._go_on(lease, run, wait=wait)
            scope = await find_scope(self._store, agent, session=session, idle=idle, again=again)
            if not scope.spans:
                return None
            mode = self._mode(live=live)
            walk, built = await self._walk(scope, mode)
            if foresee is not None:
                foresee(await self._preview(scope, walk, built, mode))
            run = await self._begin(lease, scope, built, trigger, mode)
            if run.state == "refused":
                return run
            return await walk.finish(lease, run, self._calls(run, built.questions, wait=wait))

    async def _go_on(
        self, lease: leases.LeaseHolder, run: ReflectionRun, *, wait: bool
    ) -> ReflectionRun:
        if run.mode and not self.has_model:  # its answers are paid for
            why = (
                "It waits for a process that has a model for `reflect`: none is configured here."
                f" `perdure reflect undo {run.name}` gives it up."
            )
            return replace(run, why=why)
        # Its questions are about what was read then.
        scope = as_of(run, await find_scope(self._store, run.agent, again=True))
        walk, built = await self._walk(scope, run.mode, run)
        return await walk.finish(lease, run, self._calls(run, built.questions, wait=wait))

    async def _finished(self, runs: builtins.list[ReflectionRun]) -> builtins.list[ReflectionRun]:
        """These runs when all are over, as far as this process can do that."""

        async def finish(run: ReflectionRun) -> ReflectionRun:
            if run.is_finished or (run.mode and not self.has_model):
                return run
            try:
                async with leases.held(self._store, run.agent, self._lease) as lease:
                    found, _ = await self.get(run.name)
                    return (
                        found if found.is_finished else await self._go_on(lease, found, wait=True)
                    )
            except Conflict as exc:
                _log.info("%s", exc)
                return run

        try:
            async with asyncio.TaskGroup() as group:
                waiting = [group.create_task(finish(run)) for run in runs]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in waiting]

    async def preview(
        self,
        agent: str | None = None,
        *,
        session: str | None = None,
        again: bool = False,
        live: bool = False,
    ) -> builtins.list[RunPreview]:
        """What `reflect` would read and may take. Asks no model, changes nothing."""
        found = builtins.list[RunPreview]()
        for name in await self._agents(agent, session):
            scope = await find_scope(self._store, name, session=session, again=again)
            if scope.spans:
                mode = self._mode(live=live)
                walk, built = await self._walk(scope, mode)
                found.append(await self._preview(scope, walk, built, mode))
        return found

    async def list(
        self, agent: str | None = None, *, limit: int = 50
    ) -> builtins.list[ReflectionRun]:
        """Runs of an agent, or of all; the newest first."""
        query = self._store.collection(ReflectionRun).query()
        if agent is not None:  # keys are numbered: not all of years are read to find the newest
            query = query.where("agent", "=", checked_agent(agent))
            return await query.order_by("-key").limit(limit).values()
        runs = await query.values()
        return sorted(runs, key=lambda run: (-run.started, run.id))[:limit]

    async def get(self, name: str, /) -> tuple[ReflectionRun, RunChanges | None]:
        """A run, and what it changed, if that is still known. Raises `NotFound`."""
        id = parse_run(name)
        run = await self._store.collection(ReflectionRun).get(id)
        if run is None:
            raise no_run(name)
        return run, await self._store.collection(RunChanges).get(id)

    async def undo(self, name: str) -> ReflectionRun:
        """Put back what a run changed; see `apply_run.undo_run`. One that is not finished is given
        up: its batches are cancelled, and what it was to read stays new.
        """
        run, _ = await self.get(name)
        if not run.is_finished:
            return await self._give_up(run)
        recall = await self._services.loaded_recall()
        return await undo_run(self._store, recall.memories.writer, name)

    async def _give_up(self, run: ReflectionRun) -> ReflectionRun:
        batches = self._services.gateway.batch
        async with leases.held(self._store, run.agent, self._lease) as lease:
            for phase in PHASES:
                if (batch := await batches.by_key(run.calls_key(phase))) is not None:
                    await batches.cancel(batch)
            return await give_up_run(self._store, lease, run)

    # By schedule ------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Reflect every so many hours while the bank is open."""
        self._services.jobs.every("reflection", _LOOK, self.reflect_if_due, first=_FIRST_LOOK)

    async def reflect_if_due(self) -> builtins.list[ReflectionRun]:
        """Reflect for each agent whose last run is long enough ago."""
        every, found = (
            self._services.config.reflection.every * _HOUR,
            builtins.list[ReflectionRun](),
        )
        for agent in await agents_with_sessions(self._store):
            last = await self._store.collection(ReflectionCursor).get(agent)
            newest = (await self.list(agent, limit=1))[:1]
            started = max([last.time if last else 0, *(run.started for run in newest)])
            if self._store.now() - started < every and not any(
                run.state in UNFINISHED for run in newest
            ):
                continue
            try:
                found += await self.reflect(agent, trigger="schedule", wait=False)
            except Conflict as exc:
                _log.info("%s", exc)
            except PerdureError as exc:  # the other agents do not wait for this one
                _log.warning("reflection for %s failed: %s", agent, exc)
        return found

    # ------------------------------------------------------------------------------------------

    async def _agents(self, agent: str | None, session: str | None) -> builtins.list[str]:
        if session is not None:
            if agent not in (None, agent_of(session)):
                raise InvalidInput(
                    f"{session} is not a session of {agent}.", hint="Leave the agent out."
                )
            return [agent_of(session)]
        return (
            [checked_agent(agent)] if agent is not None else await agents_with_sessions(self._store)
        )

    async def _unfinished(self, agent: str) -> ReflectionRun | None:
        query = self._store.collection(ReflectionRun).query().where("agent", "=", agent)
        found = await query.where("state", "in", [*UNFINISHED]).values()
        return min(found, key=lambda run: run.id, default=None)

    async def _walk(
        self, scope: RunScope, mode: RunMode, run: ReflectionRun | None = None
    ) -> tuple[RunWalk, RunQuestions]:
        recall = await self._services.loaded_recall()
        builder = QuestionBuilder(
            self._services, recall, scope, asks=bool(mode), live=mode == "live"
        )
        built = await builder.build(run)
        return RunWalk(self._services, recall, scope, builder, built), built

    def _calls(
        self, run: ReflectionRun, questions: builtins.list[RunQuestion], *, wait: bool
    ) -> ModelCalls | None:
        if not run.mode:  # also if there is a model by now: it was not asked anything
            return None
        if self._given is not None:
            return self._given
        if run.mode == "live":
            return LiveCalls(self._services.gateway)
        sessions = {each.call.id: each.call.span.session for each in questions if each.call.span}
        return BatchCalls(self._services.gateway, sessions, waits=wait)

    def _mode(self, *, live: bool) -> RunMode:
        if not self.has_model:
            return ""
        if live or self._given is not None:
            return "live"
        return "batch" if has_batch_mode(self._services.gateway, REFLECT) else "live"

    async def _preview(
        self, scope: RunScope, walk: RunWalk, built: RunQuestions, mode: RunMode
    ) -> RunPreview:
        operations: tuple[str, ...] = ()
        if not self.has_model:
            run = _new_run(scope.agent, 0, self._store.now())
            found = await walk.find_without_model(run)
            plan = await plan_run(
                self._store,
                run,
                RunFindings(operations=found.operations),
                now=self._store.now(),
                half_life=self._services.config.reflection.half_life,
            )
            operations = tuple(f"{each.op}: {each.checked.asked.text}" for each in plan.applied)
        return RunPreview(
            agent=scope.agent,
            mode=mode,
            sessions=len(built.spans),
            turns=sum(span.last - span.first + 1 for span in built.spans),
            questions=built.count,
            tokens=built.estimate.tokens,
            cost=built.estimate.cost,
            left=built.left.tokens,
            cost_left=built.left.cost,
            waiting_turns=built.waiting_turns,
            waiting_sessions=built.waiting_sessions,
            operations=operations,
        )

    async def _begin(
        self,
        lease: leases.LeaseHolder,
        scope: RunScope,
        built: RunQuestions,
        trigger: Trigger,
        mode: RunMode,
    ) -> ReflectionRun:
        """Write down what is intended, before anything is sent. Raises `Conflict` if the lease was
        lost meanwhile.
        """

        async def body(transaction: Transaction) -> ReflectionRun | PerdureError:
            if (lost := await lease.refusal(transaction)) is not None:
                return lost
            number = await next_number(transaction, f"reflection/{scope.agent}")
            made = replace(
                _new_run(scope.agent, number, transaction.now()),
                trigger=trigger,
                mode=mode,
                spans=built.spans,
                sessions=tuple(scope.sessions),
                calls=tuple(question.call for question in built.questions),
                expected_tokens=built.estimate.tokens,
                expected_cost=built.estimate.cost,
                left_before=built.left.tokens,
                cost_left_before=built.left.cost,
                waiting_turns=built.waiting_turns,
                waiting_sessions=built.waiting_sessions,
                view=built.view if mode else 0,
                window=built.window,
            )
            if mode and not built.is_affordable:
                ended = transaction.now()
                made = replace(made, state="refused", why=too_much(built), ended=ended)
                made = replace(made, calls=(), spans=(), cost=0)
                title = f"Reflection for {scope.agent} did not begin: its budget is too small"
                await post(transaction, message(made, "spend", title, made.why))
            elif mode and built.waiting_turns and built.left != BudgetRoom():
                title = f"Reflection for {scope.agent} reads what is new in parts"
                await post(transaction, message(made, "spend", title, told_waiting(made)))
            if scope.again and made.state != "refused":
                await read_again(transaction, scope)
            await transaction.collection(ReflectionRun).put(made)
            return made

        begun = await self._store.transact(body)
        if isinstance(begun, PerdureError):
            raise begun
        return begun


def _new_run(agent: str, number: int, now: int) -> ReflectionRun:
    return ReflectionRun(id=run_id(agent, number), agent=agent, state="extracting", started=now)
