"""The folder of backups: who may write, what is in it, what is left over."""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from perdure.core.clock import from_datetime, to_datetime
from perdure.core.errors import BadBackup, InvalidInput, Unavailable
from perdure.core.ids import new_id
from perdure.storage.backups import files, manifest
from perdure.storage.backups.manifest import MARK, Manifest, Mark
from perdure.storage.backups.pages import damaged
from perdure.storage.threads import in_thread

LATEST = "latest"
_MILLISECOND = 1_000
#: What a run that was killed before it could leave its mark has made at most.
_BEFORE_MARK = {"lock", "incoming"}


class Listed(msgspec.Struct, frozen=True):
    """A snapshot of a folder: its manifest, or why it cannot be used."""

    id: str
    manifest: Manifest | None
    error: str = ""


class BackupFolder:
    """A folder of backups. All methods block, but for `writing`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.incoming = self.path / "incoming"
        self.artifacts = self.path / "artifacts"
        self._snapshots = self.path / "snapshots"

    @asynccontextmanager
    async def writing(self, mark: Mark) -> AsyncIterator[None]:
        """Make the folder if need be, and keep others from writing to it.

        What an earlier run left unfinished is removed. `mark` is that of the folder, or of one
        that is to be made.

        Raises `BadBackup` if it holds something else, or backups of a newer format, and
        `Unavailable` if somebody is writing to it; nothing is changed then.
        """
        with ExitStack() as held:
            await in_thread(self._seize, mark, held)
            yield

    def mark(self) -> Mark | None:
        """What the folder says of itself; None if it is empty or not there.

        Raises `BadBackup` if it holds something else, or backups of a newer format.
        """
        file = self.path / MARK
        with files.translated(self.path):
            try:
                mark = msgspec.json.decode(file.read_bytes(), type=Mark)
            except FileNotFoundError:
                if self.path.exists() and self._names() - _BEFORE_MARK:
                    raise self._foreign("holds other files") from None
                return None
            except msgspec.DecodeError as exc:
                raise damaged(file, "cannot be read") from exc
        manifest.check_format(mark.format, file)
        return mark

    def check(self) -> Mark:
        """Its mark. Raises `BadBackup` if this is no folder of backups that this version reads."""
        mark = self.mark()
        if mark is None:
            raise self._foreign("holds no backups")
        return mark

    def check_apart(self, artifacts: Path) -> None:
        """Raises `InvalidInput` if the folder of a bank's artifacts lies in this one, or around it.

        Both have the same names in them: what is old here would be deleted there.
        """
        ours, theirs = self.path.resolve(), artifacts.resolve()
        if ours.is_relative_to(theirs) or theirs.is_relative_to(ours):
            raise InvalidInput(
                f"The backups in {self.path} and the artifacts of the bank in {artifacts} cannot"
                " lie in one another.",
                hint="Name another folder, best on another disk.",
            )

    def names(self) -> list[str]:
        """The snapshots, oldest first."""
        self.check()
        with files.translated(self.path):
            if not self._snapshots.is_dir():
                return []
            return sorted(each.name for each in self._snapshots.iterdir() if each.is_dir())

    def listed(self) -> list[Listed]:
        """The snapshots, oldest first, with what their manifests say."""
        found = []
        for name in self.names():
            try:
                found.append(Listed(name, manifest.read(self.place(name))))
            except BadBackup as exc:
                found.append(Listed(name, None, exc.message))
        return found

    def choose(self, snapshot: str = LATEST) -> Manifest:
        """The manifest of a snapshot, or of the newest one.

        Raises `BadBackup` if there is none, or if it cannot be used: no other takes its place.
        """
        names = self.names()
        if not names:
            raise BadBackup(
                f"There is no snapshot in {self.path}.", hint="Make one with `perdure bank backup`."
            )
        name = names[-1] if snapshot == LATEST else snapshot
        if name not in names:
            raise BadBackup(
                f"There is no snapshot {name!r} in {self.path}.",
                hint=f"The newest is {names[-1]}; `perdure bank backups` lists all.",
            )
        return manifest.read(self.place(name))

    def place(self, name: str) -> Path:
        """The folder of a snapshot."""
        return self._snapshots / name

    # Writing ----------------------------------------------------------------------------------

    def begin(self, taken: int) -> Path:
        """A folder for a new snapshot, in which it is not yet one; its name will be its own.

        The name is behind those of all others, also if the clock was set back.
        """
        moment = max([taken, *(_moment(name) + _MILLISECOND for name in self.names())])
        stamp = f"{to_datetime(moment):%Y%m%dT%H%M%S}.{moment // _MILLISECOND % 1_000:03d}Z"
        folder = self.incoming / f"{stamp}-{new_id()[-8:]}"
        files.make_folder(folder)
        return folder

    def finish(self, folder: Path, made: Manifest) -> None:
        """Write the manifest, and let the snapshot be one."""
        files.write(folder / manifest.MANIFEST, manifest.encode(made))
        files.sync_tree(folder)
        files.move(folder, self.place(folder.name))

    def remove(self, name: str) -> None:
        """Remove a snapshot: all of it at once, as far as anybody can see."""
        doomed = self.incoming / f"gone-{name}"
        files.move(self.place(name), doomed)
        files.remove_tree(doomed)

    # ------------------------------------------------------------------------------------------

    def verify_files(self, made: Manifest) -> Iterator[str]:
        """Read every file of a snapshot; yields each name when it was found to be sound.

        Raises `BadBackup` at the first that is not. Artifacts are not looked at.
        """
        folder = self.place(made.id)
        for kept in made.files:
            file = folder / kept.name
            with files.translated(self.path):
                try:
                    found, size = files.digest(file)
                except FileNotFoundError:
                    raise damaged(file, "is missing") from None
            if size != kept.bytes:
                raise damaged(file, f"has {size:,} bytes and not {kept.bytes:,}")
            if found != kept.sha256:
                raise damaged(file, "has another content than was written")
            yield kept.name

    def _foreign(self, what: str) -> BadBackup:
        return BadBackup(
            f"{self.path} is not a folder of Perdure backups: it {what}.",
            hint="Name an empty folder, or one that `perdure bank backup` has made.",
        )

    def _leave(self, mark: Mark) -> None:
        fresh = self.incoming / f"{MARK}-{new_id()}"
        files.make_folder(fresh.parent)
        files.write(fresh, msgspec.json.encode(mark))
        files.move(fresh, self.path / MARK)

    def _busy(self) -> Unavailable:
        return Unavailable(
            f"Another backup is being written to {self.path}.", hint="Try again when it is done."
        )

    def _seize(self, mark: Mark, held: ExitStack) -> None:
        """Make the folder ready; what has to be let go in the end is in `held`."""
        with files.translated(self.path):
            if self.mark() is None:
                files.make_folder(self.path)
            self._lock(held)
            if self.mark() is None:
                self._leave(mark)
            elif self.mark() != mark:
                raise self._busy()
            files.remove_tree(self.incoming)
            for folder in (self.incoming, self._snapshots, self.artifacts):
                files.make_folder(folder)

    def _lock(self, held: ExitStack) -> None:
        # The lock goes with the process, however that ends.
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        held.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._busy() from None

    def _names(self) -> set[str]:
        return {each.name for each in self.path.iterdir()}


def _moment(name: str) -> int:
    """The time in a snapshot's name; 0 if there is none."""
    try:
        found = datetime.strptime(name.partition("-")[0], "%Y%m%dT%H%M%S.%f%z")
    except ValueError:
        return 0
    return from_datetime(found)
