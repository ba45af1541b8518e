"""A folder of backups. Each of them is a bank in a SQLite file, wherever it was made from.

::

    perdure-backup.json                          whose folder this is, its format, its wrapped key
    lock                                         held by the one who writes
    snapshots/20261116T075612.358Z-3f9a1c2b/     a backup
        bank.db                                  the records at one moment
        bank.db.artifacts -> ../../artifacts     so that it can be opened, and verified, as a bank
        manifest.json                            the digest of bank.db, and which artifacts it needs
    artifacts/sha256/9f/9f86d0…                  large artifacts, shared by all backups
    incoming/…                                   what is being written

Everything is written under ``incoming/``, synced, and moved to its place in one step: a backup as a
whole folder, when its manifest is in it. So whatever is under ``snapshots/`` was finished, and what
a crash leaves is under ``incoming/``, where the next run removes it.

Rows are as they are in the bank: what is encrypted there needs the same key. If the bank has a
master key, the folder has a key of its own, wrapped by it: bank.db is a `sealed_file` then, its
digest an HMAC, and artifacts are encrypted, too. What stays in clear are manifests and the hashes
of artifacts. The folder is made for its owner alone.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perdure.artifacts import folder_objects
from perdure.artifacts.artifact import PIECE
from perdure.artifacts.artifact_contents import ArtifactContents
from perdure.artifacts.artifact_encryption import ArtifactSealer
from perdure.artifacts.artifact_errors import translated
from perdure.bank.backup_manifest import (
    FORMAT,
    MANIFEST,
    MARK,
    BackupCheck,
    BackupManifest,
    BackupMark,
    WrappedKey,
    damaged_file,
    encode_manifest,
    made_by,
    read_manifest,
    read_mark,
)
from perdure.core.clock import from_datetime, new_id, to_datetime
from perdure.core.errors import (
    ArtifactMissing,
    BadBackup,
    Corrupted,
    InvalidInput,
    KeyRefused,
    Unavailable,
)
from perdure.storage.adapter import Snapshot
from perdure.storage.concurrency import in_thread
from perdure.storage.rows import Layout
from perdure.storage.store import Progress

if TYPE_CHECKING:
    from perdure.storage.encryption.master_keys import MasterKeys

LATEST = "latest"
BANK = "bank.db"

_ABOUT = b"perdure backup"
_MILLISECOND = 1_000
#: What a run that was killed before it could leave its mark has made at most.
_BEFORE_MARK = {"lock", "incoming"}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}").fullmatch
_CONSTANT = re.compile(r"[A-Za-z0-9_.-]*").fullmatch


class BackupFolder:
    """A folder of backups. What is not async blocks."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.incoming = self.path / "incoming"
        self.artifacts = self.path / "artifacts"
        self._snapshots = self.path / "snapshots"
        self._key: bytes | None = None

    async def unlock(self, masters: MasterKeys | None) -> None:
        """Get ready to read. Raises `BadBackup` for another folder, `KeyRefused` without its key"""
        await self._use((await in_thread(self.check)).key, masters)

    async def prepare(self, masters: MasterKeys | None, *, plain: bool) -> BackupMark:
        """Returns the folder's mark, or that of one to be made."""
        mark = await in_thread(self.mark)
        if mark is None:
            if masters is None or plain:
                return BackupMark(FORMAT, made_by())
            from perdure.storage.encryption.master_keys import KEY_BYTES

            self._key = os.urandom(KEY_BYTES)
            master = await masters.current()
            wrapped = base64.b64encode(master.wrap(self._key, _ABOUT)).decode()
            return BackupMark(FORMAT, made_by(), WrappedKey(wrapped, master.fingerprint))
        if mark.key is None and masters is not None and not plain:
            raise InvalidInput(
                f"The bank has a master key, and the backups in {self.path} are not encrypted.",
                hint="Name another folder, or say that the backup may be in clear (--plain).",
            )
        await self._use(mark.key, masters)
        return mark

    async def _use(self, kept: WrappedKey | None, masters: MasterKeys | None) -> None:
        if kept is None:
            return
        master = None if masters is None else await masters.named(kept.master)
        if master is None:
            raise KeyRefused(
                f"The backup is encrypted with the master key {kept.master}, which is not given.",
                hint="Set encryption.key, or name it in encryption.former_keys.",
            )
        try:
            self._key = master.unwrap(base64.b64decode(kept.wrapped, validate=True), _ABOUT)
        except (ValueError, Corrupted) as exc:
            raise damaged_file(self.path / MARK, "has a key that cannot be read") from exc

    def _key_of(self, name: str) -> bytes | None:
        if self._key is None:
            return None
        from perdure.storage.encryption.master_keys import derived

        return b"".join(derived(self._key, f"backup {name} {half}") for half in "12")

    @cached_property
    def contents(self) -> ArtifactContents:
        sealer = None if self._key is None else ArtifactSealer(_FolderKey(self._key))
        return ArtifactContents(self.artifacts, sealer)

    def mark(self) -> BackupMark | None:
        """The folder's mark; None if it is empty or not there. Raises `BadBackup` if it holds
        something else, or backups of another format.
        """
        file = self.path / MARK
        with translated(self.path):
            if file.exists():
                return read_mark(file)
            if self.path.exists() and {each.name for each in self.path.iterdir()} - _BEFORE_MARK:
                raise self._foreign("holds other files")
        return None

    def check(self) -> BackupMark:
        """Raises `BadBackup` if this is no folder of backups that this version reads."""
        mark = self.mark()
        if mark is None:
            raise self._foreign("holds no backups")
        return mark

    def names(self) -> list[str]:
        self.check()
        with translated(self.path):
            if not self._snapshots.is_dir():
                return []
            return sorted(each.name for each in self._snapshots.iterdir() if each.is_dir())

    def list_backups(self) -> list[BackupCheck]:
        found = []
        for name in self.names():
            try:
                found.append(BackupCheck(name, self.manifest(name)))
            except BadBackup as exc:
                found.append(BackupCheck(name, None, exc.message))
        return found

    def choose(self, name: str = LATEST) -> BackupManifest:
        """The manifest of a backup, or of the newest one. Raises `BadBackup` if there is none, or
        if it cannot be used: no other takes its place.
        """
        names = self.names()
        if name not in names and (name != LATEST or not names):
            raise BadBackup(
                f"There is no snapshot {'' if name == LATEST else repr(name) + ' '}in {self.path}.",
                hint="`perdure bank backups` lists them, and `perdure bank backup` makes one.",
            )
        return self.manifest(names[-1] if name == LATEST else name)

    def manifest(self, name: str) -> BackupManifest:
        return read_manifest(self._snapshots / name)

    def _bank_of(self, name: str) -> Path:
        folder = self._snapshots / name
        return (folder if folder.exists() else self.incoming / name) / BANK

    @asynccontextmanager
    async def records(self, name: str, taken: int) -> AsyncIterator[Snapshot]:
        """The backup may be unfinished."""
        from perdure.storage.backends.sqlite import snapshots

        file = self._bank_of(name)
        async with snapshots.read_file(file, taken, self._key_of(name)) as found:
            if not all(map(_is_harmless, await found.layouts())):
                raise damaged_file(file, "declares a collection that cannot be one")
            yield found

    async def verify(
        self,
        manifest: BackupManifest,
        progress: Progress,
        sound: set[str] | None = None,
        *,
        faults: dict[str, str] | None = None,
    ) -> None:
        """Read all of a backup, finished or not, except artifacts in `sound`. Raises `BadBackup` at
        the first file that is not what was written; with `faults`, bad artifacts are put there
        instead, each with the reason.
        """
        sound = set() if sound is None else sound
        file = self._bank_of(manifest.id)
        with translated(self.path):
            try:
                found = await in_thread(self._digest, file)
            except FileNotFoundError:
                raise damaged_file(file, "is missing") from None
        if found != (manifest.digest, manifest.bytes):
            raise damaged_file(file, "has another content than was written")
        progress("checking the backup's records", manifest.rows, manifest.rows)
        for done, tagged in enumerate(manifest.artifacts, 1):
            if tagged not in sound:
                try:
                    async for _ in self.contents.chunks(tagged, PIECE):
                        pass
                    sound.add(tagged)
                except (ArtifactMissing, Corrupted, InvalidInput, KeyRefused) as exc:
                    if faults is None:
                        what = f"The backup is damaged: {exc.message}"
                        raise BadBackup(what, hint=_MEND) from exc
                    faults[tagged] = exc.message
            progress("checking the backup's artifacts", done, len(manifest.artifacts))

    def _digest(self, file: Path) -> tuple[str, int]:
        """Links are not followed."""
        found = hmac.new(self._key, digestmod="sha256") if self._key else hashlib.sha256()
        size = 0
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as source:
            while piece := source.read(PIECE):
                found.update(piece)
                size += len(piece)
        return found.hexdigest(), size

    def check_apart(self, artifacts: Path) -> None:
        """Raises `InvalidInput` if this folder and that of a bank's artifacts contain one another:
        both use the same names, so pruning here would delete there.
        """
        ours, theirs = self.path.resolve(), artifacts.resolve()
        if ours.is_relative_to(theirs) or theirs.is_relative_to(ours):
            raise InvalidInput(
                f"The backups in {self.path} and the artifacts of the bank in {artifacts} cannot"
                " lie in one another.",
                hint="Name another folder, best on another disk.",
            )

    @asynccontextmanager
    async def writing(self, mark: BackupMark) -> AsyncIterator[None]:
        """Make the folder if needed, lock it, and remove what an earlier run left unfinished.
        `mark` is what `prepare` returned. Raises `BadBackup` if it holds something else, or backups
        of another format, and `Unavailable` if somebody is writing to it; nothing is changed then.
        """
        with ExitStack() as held:
            await in_thread(self._seize, mark, held)
            yield

    def begin(self, taken: int) -> Path:
        """A folder for an unfinished backup. Its name sorts behind all others, even if the clock
        was set back.
        """
        moment = max([taken, *(_moment(name) + _MILLISECOND for name in self.names())])
        stamp = f"{to_datetime(moment):%Y%m%dT%H%M%S}.{moment // _MILLISECOND % 1_000:03d}Z"
        folder = self.incoming / f"{stamp}-{new_id()[-8:]}"
        folder_objects.make_folders(folder, "")
        return folder

    async def write_records(self, folder: Path, source: Snapshot) -> tuple[int, int, str]:
        from perdure.storage.backends.sqlite import snapshots

        file = folder / BANK
        rows = await snapshots.write_file(file, source, self._key_of(folder.name))
        digest, size = await in_thread(self._digest, file)
        return rows, size, digest

    def finish(self, folder: Path, manifest: BackupManifest) -> None:
        """Write the manifest; from then on it is a backup."""
        _write(folder / MANIFEST, encode_manifest(manifest))
        with suppress(OSError):  # a disk without links, such as many a USB stick
            (folder / f"{BANK}.artifacts").symlink_to(Path("..", "..", "artifacts"))
        folder_objects.settle(folder / BANK)
        folder_objects.sync_folder(folder)
        _move(folder, self._snapshots / folder.name)

    async def prune(self, names: list[str]) -> None:
        """Remove these backups, then the artifacts that none of the others needs. If one that stays
        cannot be read, no artifact is removed: it may need any of them.
        """
        await in_thread(self._remove, names)
        left = await in_thread(self.list_backups)
        if any(each.manifest is None for each in left):
            return
        needed = {tagged for each in left if each.manifest for tagged in each.manifest.artifacts}
        doomed = [
            found.path async for tagged, found in self.contents.listed() if tagged not in needed
        ]
        for path in doomed:
            await self.contents.delete(path)

    def _remove(self, names: list[str]) -> None:
        for name in names:  # all of it at once, as far as anybody can see
            _move(self._snapshots / name, self.incoming / f"gone-{name}")
            shutil.rmtree(self.incoming / f"gone-{name}", ignore_errors=True)

    def _seize(self, mark: BackupMark, held: ExitStack) -> None:
        with translated(self.path):
            if self.mark() is None:
                folder_objects.make_folders(self.path, "")
            # The lock goes with the process, however that ends.
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            held.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._busy() from None
            found = self.mark()
            if found is None:
                fresh = self.incoming / f"{MARK}-{new_id()}"
                folder_objects.make_folders(fresh.parent, "")
                _write(fresh, msgspec.json.encode(mark))
                _move(fresh, self.path / MARK)
            elif found != mark:
                raise self._busy()
            for left in (self.incoming, self.artifacts / "incoming"):
                shutil.rmtree(left, ignore_errors=True)
            for folder in (self.incoming, self._snapshots, self.artifacts):
                folder_objects.make_folders(folder, "")

    def _busy(self) -> Unavailable:
        return Unavailable(
            f"Another backup is being written to {self.path}.", hint="Try again when it is done."
        )

    def _foreign(self, what: str) -> BadBackup:
        return BadBackup(
            f"{self.path} is not a folder of Perdure backups: it {what}.",
            hint="Name an empty folder, or one that `perdure bank backup` has made.",
        )


class _FolderKey:
    def __init__(self, key: bytes) -> None:
        self._key = key

    async def current(self, scope: str, /) -> tuple[str, bytes]:
        return "backup", self._key

    async def key(self, name: str, /) -> bytes:
        return self._key

    async def is_current(self, name: str, /) -> bool:
        return True


_MEND = (
    "If the bank still has it, the next `perdure bank backup` mends it. Else bring this file back"
    " from a copy of the folder, or restore without it (--skip-damaged)."
)


def _is_harmless(layout: Layout) -> bool:
    """Whether its names are names: they become SQL, and the file may come from anywhere."""
    names = [layout.name, *(column.name for column in layout.columns)]
    names += [name for index in layout.indexes for name in index.columns]
    names += [name for index in layout.indexes for name, _ in index.where]
    texts = [text for _, text in layout.constants() if isinstance(text, str)]
    return all(map(_NAME, names)) and all(map(_CONSTANT, texts)) and "__" not in layout.name


def _moment(name: str) -> int:
    """The time in a backup's name; 0 if there is none."""
    try:
        found = datetime.strptime(name.partition("-")[0], "%Y%m%dT%H%M%S.%f%z")
    except ValueError:
        return 0
    return from_datetime(found)


def _write(file: Path, content: bytes) -> None:
    """Write a private file durably, under a name that nobody looks at."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def _move(source: Path, target: Path) -> None:
    """Move what is finished to its place, in one step and durably."""
    source.rename(target)
    folder_objects.sync_folder(target.parent)
