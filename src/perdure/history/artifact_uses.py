"""Which artifacts turns refer to: for deciding whether one is still needed."""

from __future__ import annotations

from collections.abc import AsyncIterator

from perdure.artifacts import Referrer
from perdure.core.turns import Position
from perdure.history.log_records import Use
from perdure.history.turn_log import KEPT
from perdure.storage.options import STRONG
from perdure.storage.store import Store


class Uses:
    """The references of turns, for `ArtifactStore`, which deletes nothing that a turn uses.

    An artifact that existed before a turn used it counts as used for good (its owner may need it),
    but it is no error if it is gone.
    """

    def __init__(self, store: Store) -> None:
        self._uses = store.collection(Use)

    async def count(self, artifact: str, /) -> int:
        """How many turns use it; one more if it existed before any turn used it."""
        return len(await self._of(artifact))

    async def of(self, artifact: str, /) -> AsyncIterator[Referrer]:
        for use in await self._of(artifact):
            yield Referrer(artifact, _name(use))

    async def all(self) -> AsyncIterator[Referrer]:
        async for use in self._uses.walk(options=STRONG):
            if not use.id.startswith(KEPT):
                yield Referrer(use.artifact, _name(use))

    async def _of(self, artifact: str) -> list[Use]:
        return await self._uses.query().where("artifact", "=", artifact).values(STRONG)


def _name(use: Use) -> str:
    if use.id.startswith(KEPT):
        return "whoever put it before a turn used it"
    session, _, rest = use.id.rpartition("/")
    return f"{session}#{Position(int(rest.partition('.')[0]))}"
