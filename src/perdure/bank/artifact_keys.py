"""Data keys for encrypted artifacts, which lie outside of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.artifacts import ArtifactStore
from perdure.artifacts.artifact_encryption import SCOPE, ArtifactSealer
from perdure.config import EncryptionConfig
from perdure.core.errors import KeyRefused, PerdureError
from perdure.storage.row_rewrites import Failure
from perdure.storage.store import Progress

if TYPE_CHECKING:
    from perdure.storage.encryption import Encryption
    from perdure.storage.encryption.data_keys import DataKeys


def object_sealer(encryption: Encryption | None, config: EncryptionConfig) -> ArtifactSealer | None:
    """Reads encrypted artifacts and, if everything or the file is encrypted, encrypts them."""
    if encryption is None:
        return None
    return ArtifactSealer(ObjectKeys(encryption), writing=config.everything or config.whole_file)


class ObjectKeys:
    """Data keys by name: the scope and the generation."""

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
        if ring is None or not ring.record.generations:
            return False  # also the newest one may have been destroyed
        return str(ring.record.generations[-1].number) == generation

    @property
    def _keys(self) -> DataKeys:
        return self._encryption.keys


class SealedObjects:
    """Rotates the keys of large artifacts before an old key is destroyed."""

    def __init__(self, artifacts: ArtifactStore) -> None:
        self._artifacts = artifacts

    async def renew(self, scope: str, generation: int, progress: Progress | None) -> int:
        from perdure.storage.encryption.key_rotation import NotRenewed

        if scope != SCOPE:
            return 0
        current, failures = f"{scope}#{generation}", list[Failure]()

        def note(tagged: str, error: PerdureError) -> None:
            failures.append(Failure(f"{scope.partition(':')[2]}/{tagged}", error.message))

        done = await self._artifacts.seal_again(lambda name: name != current, progress, note)
        if failures:
            raise NotRenewed(done, failures)
        return done

    async def needed(self, scope: str) -> set[int]:
        if scope != SCOPE:
            return set()
        names = await self._artifacts.key_names()
        return {int(name.rpartition("#")[2]) for name in names if name.startswith(f"{scope}#")}
