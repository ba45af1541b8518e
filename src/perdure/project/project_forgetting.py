"""Forgets what projects hold of sessions and turns."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.turns import Position
from perdure.history.forget_sessions import ForgetScope
from perdure.project.task_records import Task
from perdure.project.team.team_records import TeamRun
from perdure.storage.store import Store


class ProjectForgetting:
    """Runs of teams and their notes, as a `ForgetPlace`. If a turn that a run saw is forgotten,
    its text, what models answered and the historian's notes and reasons go. Tasks stay: they are
    what people and agents plan.
    """

    collections = frozenset({"perdure_team_runs", "perdure_tasks"})

    def __init__(self, store: Store) -> None:
        self._runs = store.collection(TeamRun)
        self._tasks = store.collection(Task)

    async def forget(self, scope: ForgetScope) -> None:
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
