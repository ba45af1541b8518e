"""Encrypted artifacts: the data keys of the store, for objects that lie outside of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.artifacts import ArtifactStore
from perdure.artifacts.sealing import SCOPE, Sealer
from perdure.config import EncryptionConfig
from perdure.core.errors import KeyRefused
from perdure.storage.store import Progress

if TYPE_CHECKING:
    from perdure.storage.encryption import Encryption
    from perdure.storage.encryption.keys import DataKeys


def object_sealer(encryption: Encryption | None, config: EncryptionConfig) -> Sealer | None:
    """What encrypts large artifacts, if they are to be: with everything else, or not at all."""
    if encryption is None or not config.everything:
        return None
    return Sealer(ObjectKeys(encryption))


class ObjectKeys:
    """Data keys by name: the scope and the generation, as an object bears them."""

    def __init__(self, encryption: Encryption) -> None:
        self._encryption = encryption

    async def current(self, scope: str, /) -> tuple[str, bytes]:
        generation, key = await self._keys.current(scope)
        return f"{scope}#{generation}", key

    async def key(self, name: str, /) -> bytes:
        scope, mark, generation = name.rpartition("#")
        if not mark or not generation.isdigit():
            raise KeyRefused(
                f"An artifact was encrypted with a key named {name!r}, which is none of this bank.",
                hint="Open it with the bank that it belongs to.",
            )
        return await self._keys.key(scope, int(generation))

    async def is_current(self, name: str, /) -> bool:
        scope, _, generation = name.rpartition("#")
        ring = await self._keys.reload(scope) if scope else None
        return ring is not None and str(ring.record.newest) == generation

    @property
    def _keys(self) -> DataKeys:
        return self._encryption.keys


class SealedObjects:
    """Joins rotations: large artifacts get the new key, too, before the old one is destroyed."""

    def __init__(self, artifacts: ArtifactStore) -> None:
        self._artifacts = artifacts

    async def renew(self, scope: str, generation: int, progress: Progress | None) -> int:
        if scope != SCOPE:
            return 0
        current = f"{scope}#{generation}"
        return await self._artifacts.seal_again(lambda name: name != current, progress)

    async def needed(self, scope: str) -> set[int]:
        if scope != SCOPE:
            return set()
        names = await self._artifacts.key_names()
        return {int(name.rpartition("#")[2]) for name in names if name.startswith(f"{scope}#")}
