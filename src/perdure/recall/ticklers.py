"""Which reminders are worth their line: those that models follow.

Each reminder that was sent and not followed makes its key a little lighter for that agent, each one
that was followed heavier, within narrow bounds: a habit tips the scales, it does not decide. Habits
fade: what was learned counts half after a month, and is gone after a year without a reminder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from perdure.core.clock import SECOND
from perdure.core.turns import Position
from perdure.history.forget_sessions import ForgetScope
from perdure.recall.hit_keys import split
from perdure.storage.records import Indexed, Key, system_record
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: What a score is multiplied by, at least and at most.
LIGHTEST, HEAVIEST = 0.7, 1.2
_HALF_LIFE = 30 * 86_400 * SECOND
#: So many reminders in vain, or followed, go half of the way to the bound.
_VAIN, _FOLLOWED = 4.0, 1.0
#: More than this is not counted: a habit can be unlearned.
_MOST = 12.0


@system_record("recall_habits", ttl="365d")
class Habit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of reminding an agent of something."""

    id: Annotated[str, Key()]  # agent/key
    #: The session of a turn: see `recall.hit_keys`.
    session: Annotated[str, Indexed()] = ""
    #: Reminders that were followed, and that were not, as of `time`; older ones count less.
    followed: float = 0.0
    vain: float = 0.0
    #: Microseconds.
    time: int = 0

    @property
    def key(self) -> str:
        return self.id.partition("/")[2]

    def faded(self, now: int) -> Habit:
        """The same as of now."""
        left: float = 0.5 ** (max(now - self.time, 0) / _HALF_LIFE)
        return msgspec.structs.replace(
            self, followed=self.followed * left, vain=self.vain * left, time=now
        )

    def weight(self, now: int) -> float:
        """From `LIGHTEST` to `HEAVIEST`; 1 if nothing was learned."""
        habit = self.faded(now)
        gain = (HEAVIEST - 1) * habit.followed / (habit.followed + _FOLLOWED)
        loss = (1 - LIGHTEST) * habit.vain / (habit.vain + _VAIN)
        return 1 + gain - loss


class Ticklers:
    """What agents make of reminders. A place for `history.forget_sessions`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._habits = store.collection(Habit)

    async def weights(self, agent: str, keys: Sequence[str]) -> dict[str, float]:
        """The weight of each key, for this agent."""
        now = self._store.now()
        found = await self._habits.get_many(f"{agent}/{key}" for key in keys)
        return {
            key: 1.0 if habit is None else habit.weight(now)
            for key, habit in zip(keys, found, strict=True)
        }

    async def shown(self, transaction: Transaction, agent: str, keys: Iterable[str]) -> None:
        """Note, in this transaction, that an agent was reminded of these."""
        wanted, now = list(dict.fromkeys(keys)), self._store.now()
        habits = transaction.collection(Habit)
        found = await habits.get_many(f"{agent}/{key}" for key in wanted)
        for key, habit in zip(wanted, found, strict=True):
            known = _habit(agent, key) if habit is None else habit.faded(now)
            await habits.put(
                msgspec.structs.replace(known, vain=min(known.vain + 1, _MOST), time=now)
            )

    async def followed(self, agent: str, key: str) -> None:
        """Note that an agent followed a reminder: it was not in vain."""

        def change(found: Habit | None) -> Habit:
            now = self._store.now()
            known = _habit(agent, key) if found is None else found.faded(now)
            return msgspec.structs.replace(
                known,
                followed=min(known.followed + 1, _MOST),
                vain=max(known.vain - 1, 0.0),
                time=now,
            )

        await self._habits.change(f"{agent}/{key}", change)

    # Forgetting -------------------------------------------------------------------------------

    @property
    def collections(self) -> frozenset[str]:
        return frozenset({self._habits.name})

    async def forget(self, scope: ForgetScope) -> None:
        """Destroy what was learned about turns, sessions or by an agent."""
        if scope.agent is not None:
            await self._habits.query().prefix(f"{scope.agent}/").delete()
        for session in scope.sessions:
            about = self._habits.query().where("session", "=", session)
            if not scope.turns:
                await about.delete()
                continue
            turns = frozenset(scope.turns)
            gone = [h.id for h in await about.values() if _turn_of(h.key) in turns]
            await self._habits.delete_many(gone)


def _habit(agent: str, key: str) -> Habit:
    return Habit(id=f"{agent}/{key}", session=split(key)[0])


def _turn_of(key: str) -> int:
    return Position.parse(split(key)[1]).turn
