"""The executor: works on one task at a time, with a coding agent's command or a Perdure agent.

A task is done only if something shows it: a check that passes, or a commit. What an agent merely
says is kept as a note, and the task is given back.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from perdure.agents.one_shot.agent_command import prompt_way, with_prompt
from perdure.agents.one_shot.process_group import GroupLimits, run_group
from perdure.core.display import plural
from perdure.core.errors import LeaseLost, NotFound, PerdureError
from perdure.project.project_location import ProjectLocation
from perdure.project.task_graph import TaskGraph
from perdure.project.task_records import Task
from perdure.project.team.team_records import WorkEnding, WorkResult

if TYPE_CHECKING:
    from perdure.agents.agent import Agent
    from perdure.agents.process_identity import ProcessIdentity
    from perdure.project.anchors import Anchors

_KEPT = 4_000  # Characters of an answer that a note keeps.


class WorkAnswer(msgspec.Struct, frozen=True):
    """What came of a prompt."""

    text: str
    failed: str = ""


class TaskWorker(Protocol):
    """Works on what a prompt says."""

    async def __call__(self, prompt: str, seconds: float) -> WorkAnswer: ...


class WorkOrder(NamedTuple):
    """What the executor is to do. `check` is a command that passes if the work is sound."""

    worker: TaskWorker
    #: Tasks in one run, at most; and seconds for each.
    tasks: int = 1
    seconds: float = 1_800.0
    check: tuple[str, ...] = ()
    #: Why a person has to approve first: a branch that is behind. Empty: nobody has to.
    wait_because: str = ""


def command_worker(command: Sequence[str], folder: Path) -> TaskWorker:
    """A coding agent's command, such as ``claude -p``: the prompt on stdin or as an argument."""

    async def work(prompt: str, seconds: float) -> WorkAnswer:
        words, stdin = with_prompt(command, prompt_way(command), prompt)
        limits = GroupLimits(silence=seconds, seconds=seconds)
        with tempfile.TemporaryDirectory(prefix="perdure-team-") as spool:
            result = await run_group(
                words, Path(spool), folder=str(folder), limits=limits, started=_began, prompt=stdin
            )
        if result.ending == "finished":
            return WorkAnswer(result.out)
        words_ = result.err.strip().splitlines()
        why = words_[-1] if words_ else f"exit code {result.code}"
        return WorkAnswer(result.out, f"It {result.ending}: {why}")

    return work


def agent_worker(agent: Agent) -> TaskWorker:
    """An agent of the bank."""

    async def work(prompt: str, seconds: float) -> WorkAnswer:
        async with asyncio.timeout(seconds):
            reply = await agent.ask(prompt)
        return WorkAnswer(reply.text)

    return work


async def stale_reason(location: ProjectLocation, anchors: Anchors | None = None) -> str:
    """Why an agent should wait for approval: the branch is behind the one that it follows, or
    behind the main branch, and the project's policy is to ask. Empty: it may go on. After a rebase
    that was not pushed, what the other branch still has of the old line does not count.
    """
    git, settings = location.git, location.settings
    if git is None or settings is None or settings.on_stale != "ask":
        return ""
    for base in ("@{upstream}", "origin/HEAD", "main", "master"):
        listed = await git.try_run(
            "rev-list", "--right-only", "--cherry-pick", f"HEAD...{base}", "--"
        )
        commits = {*(listed or "").split()}
        if commits and anchors is not None:
            commits -= await anchors.true_at(commits, "HEAD")
        if commits:
            name = "its upstream" if base == "@{upstream}" else base
            return f"the branch is {plural(len(commits), 'commit')} behind {name}"
    return ""


async def execute(graph: TaskGraph, order: WorkOrder, *, name: str) -> WorkResult | None:
    """Claim the most urgent task and work on it; None if nothing is ready. Never raises for what
    the worker does: the task is given back with a note.
    """
    seconds, check = order.seconds, order.check
    git = graph.location.git
    before = (await git.head()).commit if git is not None else ""
    try:
        task = await graph.claim(by=name, lease=seconds * (2 if check else 1) + 120)
    except NotFound:
        return None
    try:
        return await _work_on(graph, task, order, before, name)
    except asyncio.CancelledError:  # somebody stopped the run: the next one may have the task
        await graph.release(task.id, by=name, token=task.token)
        raise


async def _work_on(
    graph: TaskGraph, task: Task, order: WorkOrder, before: str, name: str
) -> WorkResult:
    seconds, check, git = order.seconds, order.check, graph.location.git
    answer = await _attempt(lambda: order.worker(_prompt(task), seconds))
    failed, commits = answer.failed, list[str]()
    if git is not None and not failed:
        commits = await _new_commits(graph, before)
    passed = False
    if check and not failed:
        found = await _attempt(lambda: command_worker(check, graph.location.root)("", seconds))
        passed, failed = not found.failed, found.failed and f"The check failed. {found.failed}"
    text = answer.text.strip()[-_KEPT:]
    note = "\n".join(each for each in (text, failed) if each) or "It said nothing."
    try:
        await graph.note(task.id, note, by=name)
        if not failed and (passed or (commits and not check)):
            reason = "The check passed." if passed else "There are commits."
            await graph.done(task.id, by=name, token=task.token, reason=reason, commits=commits)
            return _result(task, "done", text, commits)
        await graph.release(task.id, by=name, token=task.token)
    except LeaseLost as exc:
        failed = exc.message
    if failed:
        return _result(task, "failed", failed, commits)
    return _result(task, "unproven", text, commits)


async def _attempt(work: Callable[[], Awaitable[WorkAnswer]]) -> WorkAnswer:
    try:
        return await work()
    except TimeoutError:
        return WorkAnswer("", "It did not end in time.")
    except PerdureError as exc:
        return WorkAnswer("", exc.message)


async def _new_commits(graph: TaskGraph, before: str) -> list[str]:
    git = graph.location.git
    if git is None:
        return []
    head = (await git.head()).commit
    if not head or head == before:
        return []
    span = f"{before}..{head}" if before else head
    listed = await git.try_run("rev-list", "--reverse", "--max-count=50", span)
    return (listed or head).split()


def _prompt(task: Task) -> str:
    parts = [f"Work on this task: {task.title}", task.description]
    parts.append("Commit what you did. Say at the end what is done and what is still open.")
    return "\n\n".join(each for each in parts if each)


def _result(task: Task, ending: WorkEnding, text: str, commits: Sequence[str]) -> WorkResult:
    return WorkResult(
        task=task.id, number=task.number, ending=ending, text=text, commits=tuple(commits)
    )


async def _began(_: ProcessIdentity) -> None:
    """Nobody takes over a command of the team: its claim runs out instead."""
