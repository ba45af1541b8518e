"""Forgets what projects hold of sessions and turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.errors import Unavailable
from perdure.core.turns import Position
from perdure.history.forget_sessions import ForgetScope
from perdure.project.forget_project_files import forget_files
from perdure.project.journal import without_todos
from perdure.project.task_records import Task
from perdure.project.team.team_records import TeamRun
from perdure.project.work_records import ProjectNote, TurnSummary, WorkSession
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction


class ProjectForgetting:
    """What projects hold of turns, as a `ForgetPlace`: summaries and what is made of them, the
    files of people included; runs of teams and their notes. If a turn that a run saw is forgotten,
    its text, what models answered and the historian's notes and reasons go. Tasks, goals and
    milestones stay: they are what people and agents plan. Commits of shared files are git's.
    """

    collections = frozenset(
        {
            *("perdure_team_runs", "perdure_tasks"),
            *("perdure_project_sessions", "perdure_project_turns", "perdure_project_notes"),
        }
    )

    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs = store.collection(TeamRun)
        self._tasks = store.collection(Task)

    async def forget(self, scope: ForgetScope) -> None:
        await self._forget_work(scope)
        await self._forget_runs(scope)

    async def _forget_work(self, scope: ForgetScope) -> None:
        sessions = self._store.collection(WorkSession)
        found: list[WorkSession] = []
        for name in scope.sessions:
            found += await sessions.query().where("session", "=", name).values()
        if scope.agent is not None:
            found += [
                each
                for each in await sessions.query().values()
                if each.session.startswith(f"{scope.agent}/") and each not in found
            ]
        for work in found:
            turns = self._store.collection(TurnSummary)
            known = [each async for each in turns.walk(f"{work.key}/")]
            todos = _todos_of(known, scope.turns)
            cleared = await forget_files(self._store, work, scope.turns, todos)
            if scope.turns:
                await self._forget_turns(work.key, scope.turns, todos)
            else:
                await turns.query().prefix(f"{work.key}/").delete()
                notes = self._store.collection(ProjectNote).query()
                await notes.where("session", "=", work.session).delete()
                await self._store.collection(WorkSession).delete(work.key)
            if not cleared:
                raise Unavailable(
                    f"Files of {work.session} could not be cleared.",
                    hint="Mend the rights of .perdure in its project, and forget it again.",
                )

    async def _forget_turns(self, key: str, numbers: Sequence[int], todos: set[str]) -> None:
        """Summaries of turns go, and what later ones took over from them."""

        async def body(transaction: Transaction) -> None:
            sessions = transaction.collection(WorkSession)
            turns = transaction.collection(TurnSummary)
            work = await sessions.get(key)
            if work is None:
                return
            for each in [each async for each in turns.walk(f"{key}/")]:
                left = tuple(todo for todo in each.todos if todo.text not in todos)
                text = without_todos(each.journal, todos)
                if each.turn in numbers:
                    await turns.delete(each.key)
                elif (left, text) != (each.todos, each.journal):
                    await turns.put(replace(each, todos=left, journal=text))
            edits = {
                path: value
                for path, value in work.edits.items()
                if not _is_about(json.loads(path), numbers)
            }
            await sessions.put(replace(work, edits=edits, version=work.version + 1))

        await self._store.transact(body)

    async def _forget_runs(self, scope: ForgetScope) -> None:
        async for run in self._runs.walk():
            shown = run.inputs.transcripts
            left = tuple(each for each in shown if not _is_of(each, scope))
            if left == shown:
                continue
            notes = {e.text for e in run.outcome.applied if e.role == "historian" and e.text}
            await self._forget_notes(run.project, notes)
            bare = TeamRun(
                id=run.id,
                project=run.project,
                state=run.state,
                started=run.started,
                ended=run.ended,
                inputs=replace(run.inputs, transcripts=left),
                answers=tuple(replace(each, text="") for each in run.answers),
                outcome=_without(run.outcome, notes),
                stored=_without(run.stored, notes),
                learnt=run.learnt,
                work=run.work,
                transcripts_forgotten=True,
            )
            await self._runs.put(bare)

    async def _forget_notes(self, project: str, texts: set[str]) -> None:
        async for task in self._tasks.walk(f"{project}/"):
            left = replace(
                task,
                notes=tuple(each for each in task.notes if each.text not in texts),
                reason="" if any(each in task.reason for each in texts) else task.reason,
                blocked="(forgotten)" if task.blocked in texts else task.blocked,
            )
            if left != task:
                await self._tasks.put(left)


def _todos_of(turns: Sequence[TurnSummary], numbers: Sequence[int]) -> set[str]:
    """Items that some turns put on the client's list."""
    found, before = set[str](), set[str]()
    for each in turns:
        after = {todo.text for todo in each.todos}
        if each.turn in numbers:
            found |= after - before
        before = after
    return found


def _is_about(path: list[str], numbers: Sequence[int]) -> bool:
    if path[:1] == ["turns"]:
        return len(path) < 2 or path[1] in {f"T-{number}" for number in numbers}
    return path[:1] != ["scratchpad"]


def _without(value: Any, texts: set[str]) -> Any:
    """A value whose texts are empty where they have one of these."""
    plain = json.loads(msgspec.json.encode(value))
    return msgspec.convert(_emptied(plain, texts), type(value))


def _emptied(value: Any, texts: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _emptied(each, texts) for key, each in value.items()}
    if isinstance(value, list):
        return [_emptied(each, texts) for each in value]
    return "" if isinstance(value, str) and any(each in value for each in texts) else value


def _is_of(transcript: str, scope: ForgetScope) -> bool:
    """Whether a transcript, which begins with the name of its turn, is in the scope."""
    session, _, turn = transcript.partition("\n")[0].rpartition("#")
    if scope.agent is not None and session.startswith(f"{scope.agent}/"):
        return True
    if session not in scope.sessions:
        return False
    return not scope.turns or Position.parse(turn).turn in scope.turns
