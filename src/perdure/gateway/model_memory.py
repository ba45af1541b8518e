"""Circuits and preferences that survive the process: one small row for each model.

They are written when nobody else writes, and read before the first call of a process. Each process
learns by itself; one that starts takes over what was last written. A killed process loses what it
learned in about the last second. None of this ever makes a call fail.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Annotated

import msgspec

from perdure.core.clock import SECOND
from perdure.core.errors import PerdureError
from perdure.gateway.breaker import Breaker, BreakerMemory
from perdure.gateway.model_selection import HealthMarks, ModelHealth
from perdure.jobs import GoOn, Runner, Wake
from perdure.storage.records import Key, system_record
from perdure.storage.store import Store

_log = logging.getLogger(__name__)


@system_record("models", ttl="30d")
class LearnedModel(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a model. Holds the names of tasks, and nothing that was said."""

    id: Annotated[str, Key()]
    name: str
    #: When this was so. Microseconds.
    at: int
    circuit: BreakerMemory
    health: dict[str, HealthMarks] = {}


class ModelMemory:
    """Keeps what `Breaker` and `ModelHealth` learn."""

    def __init__(self, store: Store, health: ModelHealth, jobs: Runner | None = None) -> None:
        self._store = store
        self._models = store.collection(LearnedModel)
        self._health = health
        self._changed: dict[str, Breaker] = {}
        self._found: dict[str, LearnedModel] | None = None
        self._loading = asyncio.Lock()
        self._wake: Wake | None = jobs.idle("models", self._work) if jobs is not None else None

    async def load(self) -> None:
        """Read what there is, once. Never raises: without it everything is as at a first start."""
        async with self._loading:
            if self._found is not None:
                return
            found = dict[str, LearnedModel]()
            try:
                found = {each.name: each async for each in self._models.walk()}
            except PerdureError as exc:
                _log.info("what was learned of models cannot be read: %s", exc)
            self._found = found

    def knows(self, name: str) -> bool:
        return name in (self._found or {})

    def restore(self, name: str, breaker: Breaker) -> None:
        """Take over what is known of a model that this process has not called yet."""
        found = (self._found or {}).pop(name, None)
        if found is not None:
            elapsed = max(0, self._store.now() - found.at) / SECOND
            breaker.restore(found.circuit, elapsed)
            self._health.restore(name, found.health, elapsed)

    def note(self, name: str, breaker: Breaker) -> None:
        """A call of this model has ended. Never waits."""
        self._changed[name] = breaker
        if self._wake is not None:
            self._wake()

    async def flush(self) -> None:
        changed, self._changed = self._changed, {}
        if not changed:
            return
        now = self._store.now()
        rows = [
            LearnedModel(_key(name), name, now, breaker.memory(), self._health.memory(name))
            for name, breaker in changed.items()
        ]
        try:
            await self._models.put_many(rows)
        except PerdureError as exc:
            _log.info("what was learned of models cannot be written: %s", exc)

    async def _work(self, _: GoOn) -> bool:
        await self.flush()
        return False


def _key(name: str) -> str:
    """Hashed: a model may be named by an address, which is no key."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
