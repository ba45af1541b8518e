"""Forgets what runs hold of sessions and turns."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.agents.one_shot.run_records import RunIteration, RunRecord
from perdure.history.forget_sessions import ForgetScope
from perdure.storage.store import Store


class RunForgetting:
    """The records of runs, as a `ForgetPlace`: they go with their session, and when a turn of it
    is forgotten.
    """

    collections = frozenset({"perdure_one_shot_runs", "perdure_one_shot_iterations"})

    def __init__(self, store: Store) -> None:
        self._runs = store.collection(RunRecord)
        self._iterations = store.collection(RunIteration)

    async def forget(self, scope: ForgetScope) -> None:
        for session in scope.sessions:
            for run in await self._runs.query().where("session", "=", session).values():
                await self._forgotten(run, scope.turns)
        if scope.agent is not None:
            for run in await self._runs.query().values():
                if run.session.startswith(f"{scope.agent}/"):
                    await self._forgotten(run, ())

    async def _forgotten(self, run: RunRecord, turns: Sequence[int]) -> None:
        """What iterations said is gone; of a whole session, they are."""
        for each in await self._iterations.query().prefix(f"{run.id}/").values():
            if not turns:
                await self._iterations.delete(each.id)
            elif each.turn in turns:
                bare = RunIteration(
                    id=each.id,
                    number=each.number,
                    turn=each.turn,
                    phase=each.phase,
                    started=each.started,
                    ended=each.ended,
                    before=each.before,
                    after=each.after,
                    ending=each.ending,
                    cost=each.cost,
                    decision=each.decision,
                )
                await self._iterations.put(bare)
        if not turns:
            await self._runs.delete(run.id)
        else:
            said = msgspec.structs.replace(run, reason="", question="", feedback="", advice="")
            await self._runs.put(said)
