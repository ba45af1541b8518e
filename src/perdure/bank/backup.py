"""Backups of a whole bank: its records at one moment, and the artifacts they refer to.

Artifacts never change, so they are copied beside the records, in two passes. The first comes before
the snapshot of the records and does most of the work. The second comes after it and finds what was
put meanwhile: an artifact is there before a record refers to it. What is deleted between the passes
was copied by the first; it stays in the backup, since records of the snapshot may still refer to
it. Only an artifact that came and went within that time can be missed. It is named in the manifest
if the snapshot refers to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perdure import config as configuration
from perdure.artifacts import ARTIFACT_ROWS, ArtifactStore
from perdure.artifacts.artifact import Place, hash_of_key
from perdure.bank.bank import Bank
from perdure.config import Config
from perdure.core.errors import ArtifactMissing, BadBackup, Corrupted, InvalidInput
from perdure.storage import assembly
from perdure.storage.adapter import Capability, Delivered, Entry
from perdure.storage.backups import (
    FORMAT,
    BackupFolder,
    Clear,
    KeptArtifact,
    KeptObjects,
    Manifest,
    Mark,
    Seal,
    artifacts_of,
    keep,
    keep_artifacts,
    new_key,
    opened,
)
from perdure.storage.backups.files import PIECE
from perdure.storage.snapshots import WatchedSnapshot
from perdure.storage.store import Progress
from perdure.storage.threads import in_thread

if TYPE_CHECKING:
    from perdure.storage.encryption.masters import MasterKeys, Source

#: Whose tags are the hashes that records refer to.
_REFERENCES = "perdure_references"


class Backup(msgspec.Struct, frozen=True):
    """A backup that was made."""

    folder: str
    snapshot: Manifest
    #: Whether it can be read only with the master key.
    encrypted: bool
    #: Artifacts that were not in the folder before, and their size.
    copied: int
    copied_bytes: int
    #: Older snapshots that were removed.
    removed: tuple[str, ...] = ()


class Checked(msgspec.Struct, frozen=True):
    """A snapshot in a folder, and what is wrong with it."""

    id: str
    #: None if it cannot even be read.
    manifest: Manifest | None
    error: str = ""

    @property
    def sound(self) -> bool:
        return not self.error


def silent(what: str, done: int, total: int) -> None:
    """Progress that nobody wants to see."""


async def backup(
    bank: Bank,
    folder: Path | str,
    *,
    keep_last: int | None = None,
    verify: bool = True,
    plain: bool = False,
    master_key: Source | None = None,
    progress: Progress = silent,
) -> Backup:
    """Keep the bank as it is now in a folder of backups, while others read and write.

    The folder is made if it is not there. Artifacts that it holds already are not copied again.
    With `verify`, everything that was written is read again and compared. With `keep_last`, only
    so many snapshots stay, and the artifacts that they need. `master_key` is what the bank was
    opened with, if it was.

    If the bank has a master key, the backup is encrypted; `plain` leaves it in clear. Records that
    are encrypted one by one stay so, and need that key in either case.

    Interrupted, even by kill -9, it leaves the earlier snapshots as they were.

    Raises `BadBackup` if the folder is not one of backups, `Unavailable` if another backup is
    being written to it, `StorageFull` and `AccessDenied`.
    """
    if keep_last is not None and keep_last < 1:
        raise InvalidInput("At least one snapshot is kept.", hint="Use 1 or more.")
    bank.store.require(Capability.SNAPSHOTS)
    place = BackupFolder(Path(folder))
    masters = assembly.master_keys(bank.config, master_key)
    mark, seal = await _seal_for(place, masters, plain=plain)
    with place.writing(mark):
        run = _Run(bank, place, seal, progress)
        made = await run.make()
        if verify:
            await run.check(made)
        removed = list[str]()
        if keep_last is not None:
            others = [name for name in place.names() if name != made.id]
            removed = others[: max(0, len(others) + 1 - keep_last)]
            await in_thread(_prune, place, removed, seal)
    return Backup(
        folder=str(place.path),
        snapshot=made,
        encrypted=mark.key is not None,
        copied=len(run.copied),
        copied_bytes=sum(artifact.size for artifact in run.copied),
        removed=tuple(removed),
    )


async def check_backups(
    folder: Path | str,
    *,
    config: Config | None = None,
    verify: bool = True,
    master_key: Source | None = None,
    progress: Progress = silent,
) -> list[Checked]:
    """The snapshots of a folder, oldest first; with `verify`, every file of them is read.

    Raises `BadBackup` if it is not a folder of backups, `KeyRefused` without the key it needs.
    """
    place = BackupFolder(Path(folder))
    mark = place.check()
    masters = assembly.master_keys(config or configuration.load(), master_key)
    seal = await opened(mark.key, masters) if verify else Clear()
    found, sound = [], set[KeptArtifact]()
    for listed in await in_thread(place.listed):
        error = listed.error
        if listed.manifest is not None and verify:
            try:
                await verify_snapshot(place, listed.manifest, seal, progress, sound)
            except BadBackup as exc:
                error = exc.message
        found.append(Checked(listed.id, listed.manifest, error))
    return found


async def verify_snapshot(
    place: BackupFolder,
    manifest: Manifest,
    seal: Seal,
    progress: Progress,
    sound: set[KeptArtifact] | None = None,
) -> None:
    """Read every file and artifact of a snapshot; those in `sound` need not be read again.

    Raises `BadBackup` at the first that is not what was written.
    """
    sound = set() if sound is None else sound
    names = place.verify_files(manifest)
    done = 0
    while await in_thread(next, names, None) is not None:
        done += 1
        progress("checking the backup's records", done, len(manifest.files))
    objects = KeptObjects(place.artifacts, place.incoming, seal)
    listed = artifacts_of(manifest, place.place(manifest.id), seal)
    done = 0
    while (artifact := await in_thread(next, listed, None)) is not None:
        if artifact not in sound:
            await in_thread(objects.verify, artifact)
            sound.add(artifact)
        done += 1
        progress("checking the backup's artifacts", done, manifest.artifacts.items)


async def large_artifacts(store: ArtifactStore) -> list[str]:
    """The artifacts that are not rows, as they are now.

    Listed before any of them is copied: else somebody who puts one after another could keep us
    at it for ever.
    """
    found = [each async for each in store.located() if each.place is not Place.ROW]
    return list(dict.fromkeys(each.artifact for each in found))


async def _seal_for(
    place: BackupFolder, masters: MasterKeys | None, *, plain: bool
) -> tuple[Mark, Seal]:
    """The mark of the folder, or of one to be made, and how its files are kept."""
    mark = place.mark()
    if mark is None:
        if masters is None or plain:
            return Mark(FORMAT, _made_by()), Clear()
        key, seal = await new_key(masters)
        return Mark(FORMAT, _made_by(), key), seal
    if mark.key is None and masters is not None and not plain:
        raise InvalidInput(
            f"The bank has a master key, and the backups in {place.path} are not encrypted.",
            hint="Name another folder, or say that the backup may be in clear (--plain).",
        )
    return mark, await opened(mark.key, masters)


def _made_by() -> str:
    with suppress(metadata.PackageNotFoundError):  # run from a folder of sources
        return f"perdure {metadata.version('perdure')}"
    return "perdure"


class _Run:
    """One backup that is being made."""

    def __init__(self, bank: Bank, place: BackupFolder, seal: Seal, progress: Progress) -> None:
        self._bank = bank
        self._place = place
        self._seal = seal
        self._progress = progress
        self._objects = KeptObjects(place.artifacts, place.incoming, seal)
        self._artifacts: dict[str, KeptArtifact] = {}
        self._damaged: list[str] = []
        self._rows: set[str] = set()  # artifacts that are rows
        self._referred: set[str] = set()
        #: Artifacts that were not in the folder before.
        self.copied: list[KeptArtifact] = []

    async def make(self) -> Manifest:
        await self._copy_artifacts()
        adapter = self._bank.store.adapter
        async with adapter.snapshot() as snapshot:
            taken = self._bank.store.now()
            folder = self._place.begin(taken)
            watched = WatchedSnapshot(snapshot, self._see)
            records = await keep(watched, folder, self._seal, self._progress)
        await self._copy_artifacts()
        kept = [self._artifacts[tagged] for tagged in sorted(self._artifacts)]
        missing = self._referred - self._rows - self._artifacts.keys()
        made = Manifest(
            id=folder.name,
            taken=taken,
            made_by=_made_by(),
            backend=type(adapter).__name__,
            collections=records.collections,
            events=records.events,
            last_event=records.last_event,
            artifacts=await in_thread(keep_artifacts, kept, folder, self._seal),
            artifact_bytes=sum(artifact.size for artifact in kept),
            damaged=(*records.damaged, *self._damaged),
            missing=tuple(sorted(missing)),
        )
        await in_thread(self._place.finish, folder, made)
        return made

    async def check(self, made: Manifest) -> None:
        """Read again what this run wrote; of what was there before, see that it is there."""
        new = set(self.copied)
        before = [artifact for artifact in self._artifacts.values() if artifact not in new]
        for artifact in before:
            if not self._objects.has(artifact):
                raise BadBackup(
                    f"The artifact {artifact.hash} has vanished from {self._place.path}.",
                    hint="Make the backup again.",
                )
        await verify_snapshot(self._place, made, self._seal, self._progress, set(before))

    def _see(self, collection: str, page: Sequence[Entry | Delivered]) -> None:
        if collection not in (_REFERENCES, ARTIFACT_ROWS):
            return
        for entry in page:
            if isinstance(entry, Entry) and collection == _REFERENCES:
                self._referred.update(name for name, _ in entry.tags)
            elif isinstance(entry, Entry):
                self._rows.add(hash_of_key(entry.row.key) or "")

    async def _copy_artifacts(self) -> None:
        """Copy the large ones that are not there yet; the small ones are rows."""
        store = self._bank.artifacts
        new = [tagged for tagged in await large_artifacts(store) if tagged not in self._artifacts]
        for done, tagged in enumerate(new, 1):
            try:
                await self._copy(tagged, await store.size(tagged))
            except ArtifactMissing:
                continue  # deleted since it was listed
            except Corrupted:
                if tagged not in self._damaged:
                    self._damaged.append(tagged)
            self._progress("keeping artifacts", done, len(new))

    async def _copy(self, tagged: str, size: int) -> None:
        artifact = KeptArtifact(tagged, size)
        if not await in_thread(self._objects.has, artifact):
            async with aclosing(self._bank.artifacts.stream(tagged, PIECE)) as content:
                artifact = await self._objects.put(tagged, content)
            self.copied.append(artifact)
        self._artifacts[tagged] = artifact


def _prune(place: BackupFolder, doomed: Sequence[str], seal: Seal) -> None:
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
