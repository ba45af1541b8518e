"""A small team over a project: it reads what the user wants and keeps the task graph.

    team = Team(project.services, project.location)
    run = await team.run("Rotate the keys before Friday; #12 is not urgent any more.")
    print(run.outcome.recap)

Supervisor, planner and historian are asked at the same time, each with a deadline: what has arrived
by then is used, and rules stand in for the rest. They ask for operations; `team_decisions` decides
which are carried out, in one transaction. Everything that goes into that is recorded first, so a
run can be computed again (`replay`) and taken back (`undo`).
"""

from __future__ import annotations

import asyncio
import builtins
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from perdure.core import clock
from perdure.core.errors import InvalidInput, NotFound, PerdureError
from perdure.gateway.calls import CallOptions, Request
from perdure.project.memory_scope import MemoryScope
from perdure.project.project_location import ProjectLocation
from perdure.project.task_graph import TaskGraph
from perdure.project.task_transfer import merge_changes, task_line
from perdure.project.team.team_decisions import consolidate, dispute_key
from perdure.project.team.team_executor import WorkOrder, execute
from perdure.project.team.team_prompts import JUDGE, judge_prompt, role_prompt
from perdure.project.team.team_records import (
    ROLES,
    RoleAnswer,
    TeamDispute,
    TeamInputs,
    TeamOutcome,
    TeamRun,
    WorkResult,
    parse_team_run,
    team_run_key,
)
from perdure.reflection.inbox import InboxMessage, post
from perdure.reflection.reflection import Reflection
from perdure.reflection.reflection_records import next_number
from perdure.services import Services
from perdure.sessions.session_info import agents_with_sessions
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.gateway.calls import Purpose

#: Open tasks that roles are shown, the most urgent; the newest sessions, of each the last turns.
_TASKS, _SESSIONS, _TURNS, _CHARACTERS = 200, 6, 4, 2_000
_MAX_TOKENS = 4_000


class TeamReplay(msgspec.Struct, frozen=True):
    """A run computed again: `same` if it is the recorded one, byte for byte."""

    same: bool
    recorded: bytes
    computed: bytes


class Team:
    """The team of a project. `deadline` is what each role may take, in seconds."""

    def __init__(
        self,
        services: Services,
        location: ProjectLocation,
        *,
        deadline: float = 60.0,
        tasks: TaskGraph | None = None,
    ) -> None:
        self._services = services
        self._store = services.store
        self.tasks = tasks or TaskGraph(services, location)
        self.project = self.tasks.project
        self.deadline = deadline

    async def run(
        self,
        intent: str,
        *,
        seed: int | None = None,
        learn_from: Sequence[str] | None = None,
        work: WorkOrder | None = None,
    ) -> TeamRun:
        """One run. `learn_from` names agents whose transcripts the historian reads; those of this
        project if left out. Without `work` the executor has nothing to do.
        """
        sources = await self._sources() if learn_from is None else builtins.list(learn_from)
        seed = secrets.randbelow(2**31) if seed is None else seed
        inputs = await self._inputs(intent, seed, sources)
        run = await self._begin(inputs)
        asked, (learnt, trouble) = await asyncio.gather(
            asyncio.gather(*(self._ask(role, inputs) for role in ROLES)), self._learn(sources)
        )
        answers = builtins.list(asked)
        outcome = consolidate(inputs, answers)
        open_ = [each for each in outcome.disputes if not each.winner]
        answers += await asyncio.gather(*(self._judge(each, inputs) for each in open_))
        outcome = consolidate(inputs, answers)
        # First what was answered, then what follows from it: a run that is killed between the two
        # has changed nothing, and shows what it was about to do.
        run = await self._put(replace(run, answers=tuple(answers), outcome=outcome, learnt=learnt))
        stored, remarks = await merge_changes(self.tasks, outcome.before, outcome.after)
        run = await self._put(replace(run, stored=stored, remarks=(*trouble, *remarks)))
        await self._ask_person(run)
        done = () if work is None else await self._work(run, work)
        return await self._put(replace(run, work=done, state="done", ended=self._store.now()))

    async def list(self, limit: int = 0) -> builtins.list[TeamRun]:
        """The newest first. 0: all of them."""
        return await list_team_runs(self._services, self.project, limit)

    async def get(self, name: str) -> TeamRun:
        """Raises `NotFound`, `InvalidInput`."""
        return await find_team_run(self._services, self.project, name)

    async def replay(self, name: str) -> TeamReplay:
        """Compute a run again from its recorded inputs and answers. Nothing is asked or changed.
        Raises `InvalidInput` if turns that it was shown were forgotten since.
        """
        run = await self.get(name)
        _require_transcripts(run)
        decided = {
            dispute_key(each): each.winner for each in run.outcome.disputes if each.by == "person"
        }
        computed = consolidate(run.inputs, run.answers, decided)
        one, other = (_document(each) for each in (run.outcome, computed))
        return TeamReplay(one == other, one, other)

    async def decide(self, name: str, dispute: str, role: str) -> TeamRun:
        """A person settles what nobody could: the operation of that role is carried out.
        Raises `InvalidInput`.
        """
        run = await self.get(name)
        _require_transcripts(run)
        open_ = {dispute_key(each): each for each in run.outcome.disputes if not each.winner}
        found = open_.get(dispute)
        if run.state != "done" or found is None or role not in {e.role for e in found.sides}:
            raise InvalidInput(
                f"{run.name} has no open dispute {dispute!r} with {role}.",
                hint=f"`perdure team show {run.number}` lists them.",
            )
        known = {dispute_key(e): e.winner for e in run.outcome.disputes if e.by == "person"}
        outcome = consolidate(run.inputs, run.answers, {**known, dispute: role})
        before = {id: run.stored.get(id, line) for id, line in outcome.before.items()}
        stored, remarks = await merge_changes(self.tasks, run.outcome.after | before, outcome.after)
        return await self._put(
            replace(run, outcome=outcome, stored=stored, remarks=(*run.remarks, *remarks))
        )

    async def undo(self, name: str) -> TeamRun:
        """Take back what a run changed in the graph and in memories. What others changed since
        stays. Raises `InvalidInput` if it was undone before.
        """
        run = await self.get(name)
        if run.state == "undone":
            raise InvalidInput(f"{run.name} was undone before.", hint="Nothing was changed.")
        # A run that was killed may have changed the graph without having written how it was then.
        left = run.stored or run.outcome.after
        _, remarks = await merge_changes(self.tasks, left, run.outcome.before)
        for learnt in run.learnt:
            try:
                await Reflection(self._services).undo(learnt)
            except PerdureError as exc:  # memories that were changed since stay as they are
                remarks = (*remarks, exc.message)
        return await self._put(replace(run, state="undone", remarks=(*run.remarks, *remarks)))

    # Parts

    async def _sources(self) -> builtins.list[str]:
        """Whose transcripts are of this project: the clients that work in its folders."""
        scope = await MemoryScope.of_location(self._services, self.tasks.location)
        known = await agents_with_sessions(self._store)
        return [each for each in scope.agents if each in known]

    async def _inputs(self, intent: str, seed: int, sources: Sequence[str]) -> TeamInputs:
        now = self._store.now()
        tasks = await self.tasks.list(limit=_TASKS)
        return TeamInputs(
            intent=intent,
            seed=seed,
            now=clock.to_datetime(now).isoformat(timespec="microseconds"),
            tasks={each.id: task_line(each) for each in tasks},
            numbers={each.id: each.number for each in tasks},
            claimed={each.id: each.owner for each in tasks if each.is_held(now)},
            transcripts=tuple(await self._transcripts(sources)),
        )

    async def _transcripts(self, sources: Sequence[str]) -> builtins.list[str]:
        from perdure.sessions.session_info import list_sessions
        from perdure.sessions.sessions import Sessions

        sessions = Sessions(self._services, is_open=lambda: False)
        known = [
            e
            for agent in sources
            for e in await list_sessions(self._store, agent=agent, archived=False)
        ]
        known.sort(key=lambda each: each.active.timestamp() if each.active else 0.0, reverse=True)
        found = []
        for info in known[:_SESSIONS]:
            session = await sessions.existing(info.name)
            for turn in await session.turns(_TURNS):
                said = [f"{each.role}: {each.text}" for each in turn.messages if each.text]
                text = "\n".join(said)[:_CHARACTERS]
                found.append(f"{info.name}#T-{turn.number}\n{text}")
        return found

    async def _begin(self, inputs: TeamInputs) -> TeamRun:
        async def begin(transaction: Transaction) -> TeamRun:
            number = await next_number(transaction, f"team/{self.project}")
            run = TeamRun(
                id=team_run_key(self.project, number),
                project=self.project,
                started=transaction.now(),
                inputs=inputs,
            )
            await transaction.collection(TeamRun).put(run)
            return run

        return await self._store.transact(begin)

    async def _put(self, run: TeamRun) -> TeamRun:
        await self._store.collection(TeamRun).put(run)
        return run

    async def _ask(self, role: str, inputs: TeamInputs) -> RoleAnswer:
        words, prompt = role_prompt(role, inputs)
        return await self._call(role, "chat", words, prompt, inputs.seed)

    async def _judge(self, dispute: TeamDispute, inputs: TeamInputs) -> RoleAnswer:
        name = f"judge {dispute_key(dispute)}"
        return await self._call(name, "judge", JUDGE, judge_prompt(dispute, inputs), inputs.seed)

    async def _call(
        self, role: str, purpose: Purpose, words: str, prompt: str, seed: int
    ) -> RoleAnswer:
        """Never later than the deadline, and never an error: what went wrong is recorded."""
        gateway = self._services.gateway
        if not gateway.has(purpose):
            return RoleAnswer(role=role, state="reduced")
        request = Request(
            messages=[{"role": "system", "content": words}, {"role": "user", "content": prompt}],
            seed=seed,
            max_tokens=_MAX_TOKENS,
        )
        options = CallOptions(purpose=purpose, task="team", cache=False)
        try:
            async with asyncio.timeout(self.deadline):
                reply = await gateway.complete(request, options)
        except TimeoutError:
            return RoleAnswer(role=role, state="late")
        except PerdureError as exc:
            return RoleAnswer(role=role, state="failed", error=exc.message)
        usage = reply.usage
        return RoleAnswer(
            role=role,
            state="answered",
            text=reply.text,
            model=f"{reply.provider}/{reply.model}",
            tokens=0 if usage is None else (usage.input or 0) + (usage.output or 0),
            cost=reply.cost,
        )

    async def _learn(self, sources: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Let reflection make memories of what is new in the transcripts, within the deadline: a
        run that is cut off there is taken up by the next one. Returns its runs, and what went
        wrong: the graph does not wait for it.
        """
        found: builtins.list[str] = []
        why = ""
        try:
            async with asyncio.timeout(self.deadline):
                for agent in sources:
                    runs = await Reflection(self._services).reflect(agent, live=True)
                    found += [each.name for each in runs if each.state == "done"]
        except TimeoutError:
            why = "it did not end in time, and goes on in the next run"
        except PerdureError as exc:
            why = exc.message
        return tuple(found), (f"Learning from transcripts: {why}.",) if why else ()

    async def _ask_person(self, run: TeamRun) -> None:
        for dispute in run.outcome.disputes:
            if dispute.winner:
                continue
            key, roles = dispute_key(dispute), " or ".join(each.role for each in dispute.sides)
            await self._post(
                run,
                f"The team disagrees about {key}",
                f"{run.outcome.recap}\n"
                f'Decide: `perdure team decide {run.number} "{key}" ROLE`, with {roles}.',
            )

    async def _post(self, run: TeamRun, title: str, text: str) -> None:
        message = InboxMessage(
            id="", agent="team", kind="note", title=title, text=text, run=run.name
        )
        await self._store.transact(lambda transaction: post(transaction, message))

    async def _work(self, run: TeamRun, order: WorkOrder) -> tuple[WorkResult, ...]:
        if order.wait_because:
            ready = await self.tasks.ready(1)
            hint = "Approve it: `perdure team run … --approve`."
            await self._post(run, f"The executor waits: {order.wait_because}", hint)
            return tuple(
                WorkResult(
                    task=each.id, number=each.number, ending="waits", text=order.wait_because
                )
                for each in ready
            )
        found: builtins.list[WorkResult] = []
        for _ in range(order.tasks):
            result = await execute(self.tasks, order, name=run.name)
            if result is None:
                break
            found.append(result)
            if result.ending != "done":
                break  # it would be claimed again
        return tuple(found)


def _require_transcripts(run: TeamRun) -> None:
    """Raises `InvalidInput`."""
    if run.transcripts_forgotten:
        raise InvalidInput(
            f"{run.name} was shown turns that were forgotten since: it cannot be computed again.",
            hint="Begin a new run with `perdure team run`.",
        )


def _document(outcome: TeamOutcome) -> bytes:
    return msgspec.json.format(msgspec.json.encode(outcome, order="deterministic"), indent=2)


async def list_team_runs(services: Services, project: str, limit: int = 0) -> list[TeamRun]:
    """Runs of a project's team, the newest first. 0: all of them."""
    runs = services.store.collection(TeamRun).query().where("project", "=", project)
    found = sorted(await runs.values(), key=lambda each: -each.number)
    return found[:limit] if limit else found


async def find_team_run(services: Services, project: str, name: str) -> TeamRun:
    """Raises `NotFound`, `InvalidInput`."""
    found = await services.store.collection(TeamRun).get(parse_team_run(project, name))
    if found is None:
        raise NotFound(f"There is no run {name}.", hint="`perdure team list` lists them.")
    return found
