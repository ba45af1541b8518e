"""Backups of a whole bank: its records at one moment, and the artifacts they refer to.

The records are copied into a new SQLite file; see `backup_folder`. Artifacts never change, so they
are copied beside it, in two passes: most before the snapshot of the records, then those put
meanwhile (an artifact is there before a record refers to it). Only an artifact that came and went
within that time can be missed. What is damaged or gone in the bank, and sound in the folder since
an earlier backup, is part of the new one, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perdure import config as configuration
from perdure.artifacts import ARTIFACT_ROWS
from perdure.artifacts.artifact import ALGORITHM, PIECE, hash_of_key
from perdure.artifacts.artifact_errors import translated
from perdure.bank.backup_folder import BackupFolder
from perdure.bank.backup_manifest import BackupCheck, BackupManifest, made_by
from perdure.bank.bank_copy import large_artifacts, silent
from perdure.config import Config
from perdure.core.errors import ArtifactMissing, BadBackup, Corrupted, InvalidInput
from perdure.core.input_types import require_path
from perdure.history.turn_log import KEPT
from perdure.services import Services
from perdure.storage import assembly, registry
from perdure.storage.adapter import Capability, Snapshot
from perdure.storage.concurrency import in_thread
from perdure.storage.rows import RowCopy, checksum
from perdure.storage.snapshots import WatchedSnapshot, closing
from perdure.storage.store import Progress

if TYPE_CHECKING:
    from perdure.storage.encryption.master_keys import Source

#: Whose tags are the hashes that records refer to, and whose keys end with what turns refer to.
_REFERENCES, _USES = "perdure_references", "perdure_uses"
_DIGITS = 64
_NAMED = 100  # Damaged records that are named; of more, the rest is only counted.


class Backup(msgspec.Struct, frozen=True):
    """A backup that was made."""

    folder: str
    snapshot: BackupManifest
    encrypted: bool  # Whether it can be read only with the master key.
    #: Artifacts that were not in the folder before, or damaged there, and their size.
    copied: int
    copied_bytes: int
    removed: tuple[str, ...] = ()  # Older backups that were removed.
    not_removed: str = ""  # Why none was removed though there are too many.


async def backup(
    bank: Services,
    folder: Path | str,
    *,
    keep_last: int | None = None,
    verify: bool = True,
    plain: bool = False,
    master_key: Source | None = None,
    progress: Progress | None = None,
) -> Backup:
    """Back up the bank as it is now to a folder, while others read and write.

    The folder is made if needed. Artifacts that it holds already are not copied again. `verify`
    reads all records and artifacts of the new backup; a damaged artifact is copied again.
    `keep_last` removes older backups and the artifacts that only they need; but none if the new one
    was not verified, or if something was damaged or missing in the bank. `master_key` is what the
    bank was opened with, if it was.

    If the bank has a master key, the backup is encrypted, unless `plain`. Records that are
    encrypted one by one stay so, and need that key in either case.

    Interrupted, even by kill -9, or found bad when it is verified, it leaves the earlier backups as
    they were, and no new one.

    Raises `BadBackup` if the folder is not one of backups, `InvalidInput` if it is inside the
    folder of the bank's artifacts or the other way round, `Unavailable` if another backup is being
    written to it, `StorageFull` and `AccessDenied`.
    """
    if keep_last is not None and keep_last < 1:
        raise InvalidInput("At least one snapshot is kept.", hint="Use 1 or more.")
    bank.store.require(Capability.SNAPSHOTS)
    place = BackupFolder(Path(folder))
    for other in (bank.artifacts.place, bank.artifacts.former):
        if isinstance(other, Path):
            await in_thread(place.check_apart, other)
    mark = await place.prepare(assembly.master_keys(bank.config, master_key), plain=plain)
    async with place.writing(mark):
        with translated(place.path):
            run = _BackupRun(bank, place, progress or silent, verify=verify)
            made = await run.make()
            doubt = "" if verify else "The new snapshot was not verified."
            if made.damaged or made.missing:
                doubt = "Something in the bank is damaged or missing, and an older snapshot may"
                doubt += " have it."
            older = [] if keep_last is None else await in_thread(_older, place, keep_last, made)
            if keep_last is not None and not doubt:
                await place.prune(older)
    return Backup(
        folder=str(place.path),
        snapshot=made,
        encrypted=mark.key is not None,
        copied=len(run.copied),
        copied_bytes=sum(run.copied.values()),
        removed=() if doubt else tuple(older),
        not_removed=doubt if older else "",
    )


async def check_backups(
    folder: Path | str,
    *,
    config: Config | None = None,
    verify: bool = True,
    master_key: Source | None = None,
    progress: Progress | None = None,
) -> list[BackupCheck]:
    """The backups of a folder, oldest first; `verify` reads every file of them. Raises `BadBackup`
    if it is not a folder of backups, `KeyRefused` without the key it needs.
    """
    place = BackupFolder(require_path(folder, "folder"))
    listed = await in_thread(place.list_backups)
    if not verify:
        return listed
    await place.unlock(assembly.master_keys(config or configuration.load(), master_key))
    found, sound = [], set[str]()
    for each in listed:
        if each.manifest is not None:
            try:
                await place.verify(each.manifest, progress or silent, sound)
            except BadBackup as exc:
                each = BackupCheck(each.id, each.manifest, exc.message)  # noqa: PLW2901
        found.append(each)
    return found


def _older(place: BackupFolder, count: int, newest: BackupManifest) -> list[str]:
    """All backups of this bank but so many of the newest. Those of other banks stay."""
    listed = place.list_backups()
    own = [each.id for each in listed if each.manifest and each.manifest.bank == newest.bank]
    return own[:-count]


class _BackupRun:
    def __init__(
        self, bank: Services, place: BackupFolder, progress: Progress, *, verify: bool
    ) -> None:
        self._bank = bank
        self._place = place
        self._progress = progress
        self._verify = verify
        self._artifacts: dict[str, int] = {}
        self._broken: list[str] = []  # records
        self._damaged: list[str] = []  # artifacts
        self._rows: set[str] = set()  # artifacts that are rows
        self._referred: set[str] = set()  # by turns, and by records, of which some may be gone
        self.copied: dict[str, int] = {}  # New or repaired artifacts, and their sizes.

    async def make(self) -> BackupManifest:
        place, adapter = self._place, self._bank.store.adapter
        await self._copy_artifacts()
        async with adapter.snapshot() as snapshot:
            taken = self._bank.store.now()
            folder = await in_thread(place.begin, taken)
            watched = WatchedSnapshot(snapshot, self._progress, see=self._see)
            rows, size, digest = await place.write_records(folder, watched)
        await self._copy_artifacts()
        if self._verify:
            async with place.records(folder.name, taken) as written:
                await self._read_back(written, rows)
        missing = await self._missing()
        rescued = [each for each in (*self._damaged, *missing) if await self._rescue(each)]
        manifest = BackupManifest(
            id=folder.name,
            taken=taken,
            made_by=made_by(),
            backend=type(adapter).__name__,
            bank=registry.location(self._bank.url),
            rows=rows,
            bytes=size,
            digest=digest,
            artifacts=dict(sorted(self._artifacts.items())),
            damaged=(*_named(self._broken), *self._damaged),
            missing=tuple(missing),
            rescued=tuple(rescued),
        )
        if self._verify:  # what was there before was read already
            before = self._artifacts.keys() - self.copied.keys()
            await place.verify(manifest, self._progress, before)
        await in_thread(place.finish, folder, manifest)
        return manifest

    def _see(self, collection: str, page: Sequence[RowCopy]) -> None:
        self._broken += _damaged_rows(collection, page)
        keys = [entry.row.key for entry in page]
        if collection == _REFERENCES:
            self._referred.update(name for entry in page for name, _ in entry.tags)
        elif collection == ARTIFACT_ROWS:
            self._rows.update(hash_of_key(key) or "" for key in keys)
        elif collection == _USES:  # see `history.artifact_uses`
            used = (key[-_DIGITS:] for key in keys if not key.startswith(KEPT))
            self._referred.update(f"{ALGORITHM}:{digits}" for digits in used)

    async def _read_back(self, written: Snapshot, rows: int) -> None:
        """Raises `BadBackup` if the file does not give back what was put into it."""
        done, broken = 0, list[str]()
        for layout in await written.layouts():
            async with closing(written.entries(layout.name)) as pages:
                async for page in pages:
                    broken += _damaged_rows(layout.name, page)
                    done += len(page)
                    self._progress("checking the backup's records", done, rows)
        if (done, sorted(broken)) != (rows, sorted(self._broken)):
            raise BadBackup(
                f"What was written to {self._place.path} does not come back as it was.",
                hint="Check the disk, and try again. Earlier snapshots are as they were.",
            )

    async def _missing(self) -> list[str]:
        gone = self._referred - self._rows - self._artifacts.keys() - set(self._damaged)
        # What deletes records by a query leaves behind what they referred to.
        return sorted([tagged for tagged in gone if await self._bank.artifacts.count(tagged)])

    async def _rescue(self, tagged: str) -> bool:
        contents = self._place.contents
        if not await contents.is_sound(tagged):
            return False
        self._artifacts[tagged] = await contents.size(tagged)
        return True

    async def _copy_artifacts(self) -> None:
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
            self._progress("copying artifacts", done, len(new))

    async def _copy(self, tagged: str, size: int) -> None:
        if not await self._has(tagged, size):
            async with (
                aclosing(self._bank.artifacts.stream(tagged, PIECE)) as content,
                self._place.contents.receive(content) as incoming,
            ):
                await incoming.place()
            self.copied[tagged] = size
        self._artifacts[tagged] = size

    async def _has(self, tagged: str, size: int) -> bool:
        contents = self._place.contents
        try:
            if await contents.size(tagged) != size:
                return False
        except (ArtifactMissing, Corrupted):
            return False
        return not self._verify or await contents.is_sound(tagged)


def _damaged_rows(collection: str, page: Sequence[RowCopy]) -> list[str]:
    rows = (entry.row for entry in page)
    return [
        f"{collection}/{row.key}"
        for row in rows
        if row.checksum != checksum(row.key, row.content_type, row.schema, row.value)
    ]


def _named(broken: list[str]) -> list[str]:
    if len(broken) <= _NAMED:
        return broken
    return [*broken[:_NAMED], f"and {len(broken) - _NAMED:,} more"]
