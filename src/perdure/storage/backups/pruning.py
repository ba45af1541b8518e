"""Older snapshots removed, with the artifacts that only they needed. All blocking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure.core.errors import BadBackup
from perdure.storage.backups.folder import BackupFolder
from perdure.storage.backups.manifest import KeptArtifact, Manifest
from perdure.storage.backups.objects import KeptObjects
from perdure.storage.backups.records import artifacts_of
from perdure.storage.backups.sealing import Seal


def doubt(newest: Manifest, *, verified: bool) -> str:
    """Why no other snapshot should be removed in favour of this one; empty if it can be trusted."""
    if newest.damaged or newest.missing:
        return "Something in the bank is damaged or missing, and an older snapshot may have it."
    return "" if verified else "The new snapshot was not verified."


def older(place: BackupFolder, count: int, newest: Manifest) -> list[str]:
    """All snapshots of this bank but so many of the newest. Those of other banks stay."""
    own = [name for name in place.names() if _bank_of(place, name) == newest.bank]
    return own[:-count]


def _bank_of(place: BackupFolder, name: str) -> str | None:
    try:
        return place.choose(name).bank
    except BadBackup:
        return None


def prune(place: BackupFolder, doomed: Sequence[str], seal: Seal) -> None:
    """Remove these snapshots, then the artifacts that none of the others needs.

    If one that stays cannot be read, no artifact is removed: it may need any of them.
    """
    for name in doomed:
        place.remove(name)
    kept = place.names()
    try:
        needed = {artifact.hash for name in kept for artifact in _artifacts(place, name, seal)}
    except BadBackup:
        return
    objects = KeptObjects(place.artifacts, place.incoming, seal)
    for tagged in list(objects.hashes()):
        if tagged not in needed:
            objects.remove(tagged)


def _artifacts(place: BackupFolder, name: str, seal: Seal) -> Iterator[KeptArtifact]:
    return artifacts_of(place.choose(name), place.place(name), seal)
