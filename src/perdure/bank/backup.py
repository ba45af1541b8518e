"""Backups of a whole bank: its records at one moment, and the artifacts they refer to.

Artifacts never change, so they are copied beside the records, in two passes. The first comes before
the snapshot of the records and does most of the work. The second comes after it and finds what was
put meanwhile: an artifact is there before a record refers to it. What is deleted between the passes
was copied by the first; it stays in the backup, since records of the snapshot may still refer to
it. Only an artifact that came and went within that time can be missed. It is named in the manifest
if the snapshot refers to it. What is damaged or gone in the bank, and sound in the folder since an
earlier backup, is part of the new snapshot, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perdure import config as configuration
from perdure.artifacts import ARTIFACT_ROWS, ArtifactStore
from perdure.artifacts.artifact import ALGORITHM, Place, hash_of_key
from perdure.bank.bank import Bank
from perdure.config import Config
from perdure.core.errors import ArtifactMissing, BadBackup, Corrupted, InvalidInput
from perdure.history.log import KEPT
from perdure.storage import assembly, urls
from perdure.storage.adapter import Capability
from perdure.storage.backups import (
    FORMAT,
    BackupFolder,
    Clear,
    KeptArtifact,
    KeptObjects,
    KeptSnapshot,
    Manifest,
    Mark,
    Seal,
    artifacts_of,
    keep,
    keep_artifacts,
    new_key,
    opened,
    pruning,
)
from perdure.storage.backups.files import PIECE, translated
from perdure.storage.backups.manifest import KeptFile
from perdure.storage.references import row_key
from perdure.storage.rows import Delivered, Entry
from perdure.storage.snapshots import WatchedSnapshot, closing
from perdure.storage.store import Progress
from perdure.storage.threads import in_thread

if TYPE_CHECKING:
    from perdure.storage.encryption.master_keys import MasterKeys, Source

#: Whose tags are the hashes that records refer to, and whose keys end with what turns refer to.
_REFERENCES, _USES = "perdure_references", "perdure_uses"
_DIGITS = 64


class Backup(msgspec.Struct, frozen=True):
    """A backup that was made."""

    folder: str
    snapshot: Manifest
    #: Whether it can be read only with the master key.
    encrypted: bool
    #: Artifacts that were not in the folder before, or damaged there, and their size.
    copied: int
    copied_bytes: int
    #: Older snapshots that were removed.
    removed: tuple[str, ...] = ()
    #: Why none was removed though more than wanted are there; empty if nothing was in the way.
    not_removed: str = ""


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
    progress: Progress | None = None,
) -> Backup:
    """Keep the bank as it is now in a folder of backups, while others read and write.

    The folder is made if it is not there. Artifacts that it holds already are not copied again.
    With `verify`, all files of the new snapshot and all its artifacts are read, also those that
    were there before; a damaged one is copied from the bank again. With `keep_last`, only so many
    snapshots stay, and the artifacts that they need; but none is removed if the new one was not
    verified, or if something was damaged or missing in the bank. `master_key` is what the bank
    was opened with, if it was.

    If the bank has a master key, the backup is encrypted; `plain` leaves it in clear. Records that
    are encrypted one by one stay so, and need that key in either case.

    Interrupted, even by kill -9, it leaves the earlier snapshots as they were.

    Raises `BadBackup` if the folder is not one of backups, `InvalidInput` if it lies in the folder
    of the bank's artifacts or the other way round, `Unavailable` if another backup is being written
    to it, `StorageFull` and `AccessDenied`.
    """
    if keep_last is not None and keep_last < 1:
        raise InvalidInput("At least one snapshot is kept.", hint="Use 1 or more.")
    bank.store.require(Capability.SNAPSHOTS)
    place = BackupFolder(Path(folder))
    for other in (bank.artifacts.place, bank.artifacts.former):
        if isinstance(other, Path):
            await in_thread(place.check_apart, other)
    masters = assembly.master_keys(bank.config, master_key)
    mark, seal = await _seal_for(place, masters, plain=plain)
    async with place.writing(mark):
        run = _Run(bank, place, seal, progress or silent, verify=verify)
        with translated(place.path):
            made = await run.make()
            if verify:
                await run.check(made)
            doubt = pruning.doubt(made, verified=verify)
            doomed = (
                [] if keep_last is None else await in_thread(pruning.older, place, keep_last, made)
            )
            if keep_last is not None and not doubt:
                await in_thread(pruning.prune, place, doomed, seal)
    return Backup(
        folder=str(place.path),
        snapshot=made,
        encrypted=mark.key is not None,
        copied=len(run.copied),
        copied_bytes=sum(artifact.size for artifact in run.copied),
        removed=() if doubt else tuple(doomed),
        not_removed=doubt if doomed else "",
    )


async def check_backups(
    folder: Path | str,
    *,
    config: Config | None = None,
    verify: bool = True,
    master_key: Source | None = None,
    progress: Progress | None = None,
) -> list[Checked]:
    """The snapshots of a folder, oldest first; with `verify`, every file of them is read.

    Raises `BadBackup` if it is not a folder of backups, `KeyRefused` without the key it needs.
    """
    place = BackupFolder(Path(folder))
    progress = progress or silent
    mark = await in_thread(place.check)
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
    *,
    damaged: dict[str, str] | None = None,
) -> None:
    """Read every file and artifact of a snapshot; those in `sound` need not be read again.

    Raises `BadBackup` at the first that is not what was written. If `damaged` is given, artifacts
    that are not are put there, each with what is wrong.
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
            try:
                await in_thread(objects.verify, artifact)
            except BadBackup as exc:
                if damaged is None:
                    raise
                damaged[artifact.hash] = exc.message
            else:
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
    mark = await in_thread(place.mark)
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

    def __init__(
        self, bank: Bank, place: BackupFolder, seal: Seal, progress: Progress, *, verify: bool
    ) -> None:
        self._verify = verify
        self._bank = bank
        self._place = place
        self._seal = seal
        self._progress = progress
        self._objects = KeptObjects(place.artifacts, place.incoming, seal)
        self._artifacts: dict[str, KeptArtifact] = {}
        self._damaged: list[str] = []
        self._rows: set[str] = set()  # artifacts that are rows
        self._used: set[str] = set()  # by turns
        self._referred: set[str] = set()  # by records, of which some may be gone
        #: Artifacts that were not in the folder before, or damaged there.
        self.copied: list[KeptArtifact] = []

    async def make(self) -> Manifest:
        await self._copy_artifacts()
        adapter = self._bank.store.adapter
        async with adapter.snapshot() as snapshot:
            taken = self._bank.store.now()
            folder = await in_thread(self._place.begin, taken)
            watched = WatchedSnapshot(snapshot, self._see)
            records = await keep(watched, folder, self._seal, self._progress)
        await self._copy_artifacts()
        made = Manifest(
            id=folder.name,
            taken=taken,
            made_by=_made_by(),
            backend=type(adapter).__name__,
            bank=urls.location(self._bank.url),
            collections=records.collections,
            events=records.events,
            last_event=records.last_event,
            artifacts=KeptFile("artifacts.pages", 0, 0, ""),  # follows
            damaged=(*records.damaged, *self._damaged),
        )
        made = await self._with_artifacts(made, folder)
        await in_thread(self._place.finish, folder, made)
        return made

    async def check(self, made: Manifest) -> None:
        """Read again what this run wrote; what was there before was read already."""
        before = set(self._artifacts.values()) - set(self.copied)
        await verify_snapshot(self._place, made, self._seal, self._progress, before)

    async def _with_artifacts(self, made: Manifest, folder: Path) -> Manifest:
        """The manifest with the artifacts that belong to it, from wherever they could be had."""
        missing = await self._missing(KeptSnapshot(made, folder, self._seal))
        rescued = [each for each in (*self._damaged, *missing) if await self._rescue(each)]
        kept = [self._artifacts[tagged] for tagged in sorted(self._artifacts)]
        return msgspec.structs.replace(
            made,
            artifacts=await in_thread(keep_artifacts, kept, folder, self._seal),
            artifact_bytes=sum(artifact.size for artifact in kept),
            missing=tuple(missing),
            rescued=tuple(rescued),
        )

    async def _missing(self, kept: KeptSnapshot) -> list[str]:
        """The artifacts that the snapshot refers to, and that the bank has not."""
        there = self._rows | self._artifacts.keys() | set(self._damaged)
        referred = self._referred - there
        if referred:
            referred = await _of_records(kept, referred)
        return sorted(self._used - there | referred)

    async def _rescue(self, tagged: str) -> bool:
        """Take what an earlier backup has kept of an artifact, if it is sound."""
        found = await in_thread(self._objects.found, tagged)
        if found is not None:
            self._artifacts[tagged] = found
        return found is not None

    def _see(self, collection: str, page: Sequence[Entry | Delivered]) -> None:
        if collection not in (_REFERENCES, _USES, ARTIFACT_ROWS):
            return
        for entry in page:
            if not isinstance(entry, Entry):
                continue
            key = entry.row.key
            if collection == _REFERENCES:
                self._referred.update(name for name, _ in entry.tags)
            elif collection == ARTIFACT_ROWS:
                self._rows.add(hash_of_key(key) or "")
            elif not key.startswith(KEPT):  # see `history.uses`
                self._used.add(f"{ALGORITHM}:{key[-_DIGITS:]}")

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
        if not await in_thread(self._has, artifact):
            async with aclosing(self._bank.artifacts.stream(tagged, PIECE)) as content:
                artifact = await self._objects.put(tagged, content)
            self.copied.append(artifact)
        self._artifacts[tagged] = artifact

    def _has(self, artifact: KeptArtifact) -> bool:
        """Whether the folder has it; if all is to be verified, whether it is sound there."""
        if not self._objects.has(artifact):
            return False
        return not self._verify or self._objects.found(artifact.hash) is not None


async def _of_records(kept: KeptSnapshot, artifacts: set[str]) -> set[str]:
    """Those of the artifacts that records of the snapshot refer to.

    What deletes records by a query leaves behind what they referred to.
    """
    keys: dict[str, set[str]] = {}
    async with closing(kept.entries(_REFERENCES)) as pages:
        async for page in pages:
            for entry in page:
                if found := artifacts & {name for name, _ in entry.tags}:
                    keys[entry.row.key] = found
    referred = set[str]()
    for layout in await kept.layouts():
        if any(key.startswith(f"{layout.name}/") for key in keys):
            async with closing(kept.entries(layout.name)) as pages:
                async for page in pages:
                    for entry in page:
                        referred |= keys.get(row_key(layout.name, entry.row.key), set())
    return referred
