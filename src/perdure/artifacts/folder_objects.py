"""Objects in a folder.

An object is written under ``incoming/``, made durable, and then renamed. So a file under a path
is whole; a crash leaves files only under ``incoming/``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import io
import os
import re
import shutil
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, ClassVar

from perdure.artifacts.artifact import COPIES, PIECE, ArtifactPlace, damaged
from perdure.artifacts.artifact_errors import translated
from perdure.artifacts.artifact_places import ObjectPlace, ReceivedObject, StoredObject
from perdure.core.clock import new_id
from perdure.storage.concurrency import in_thread


class FolderObjects(ObjectPlace):
    """The objects in a folder. The folder is made when the first one is put."""

    kind: ClassVar[ArtifactPlace] = ArtifactPlace.DISK

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def shown(self) -> str:
        return str(self.root)

    @asynccontextmanager
    async def receive(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[ReceivedObject]:
        """At worst a file stays under ``incoming/``, until it is swept."""
        path = f"{INCOMING}/{new_id()}"
        try:
            size = await self._write(path, pieces)
            yield _ReceivedFile(self.root, path, size)
        finally:
            await asyncio.shield(asyncio.to_thread(discard, self.root, path))

    async def find(self, path: str, tagged: str) -> StoredObject | None:
        with translated(self.root, tagged):
            try:
                if not await asyncio.to_thread(is_plain, self.root, path):
                    raise damaged(
                        tagged, f"a link or folder stands at {self.root / path}, not its file"
                    )
                status = await asyncio.to_thread((self.root / path).lstat)
            except FileNotFoundError:
                return None
        return StoredObject(path, status.st_size, status.st_mtime_ns // 1000)

    async def read(self, found: StoredObject, tagged: str) -> AsyncGenerator[bytes, None]:
        # Not through obstore: it opens the file anew for each range, and so could mix two files.
        with translated(self.root, tagged):
            file = await asyncio.to_thread(open_plain, self.root / found.path)
        try:
            while True:
                with translated(self.root, tagged):
                    piece = await asyncio.to_thread(file.read, PIECE)
                if not piece:
                    return
                yield piece
        finally:
            await asyncio.to_thread(file.close)

    async def renew(self, path: str) -> bool:
        with translated(self.root):
            try:
                await asyncio.to_thread(renew, self.root / path)
            except FileNotFoundError:
                return False
        return True

    async def delete(self, path: str) -> None:
        with translated(self.root):
            await asyncio.to_thread(remove, self.root, path)

    async def listed(self, folder: str) -> AsyncIterator[StoredObject]:
        with translated(self.root):
            if not await asyncio.to_thread(is_kept, self.root, folder):
                return
        pages = _pages(self.root, folder)
        while True:
            with translated(self.root):
                page = await asyncio.to_thread(next, pages, None)
            if page is None:
                return
            for found in page:
                yield found

    async def _write(self, path: str, pieces: AsyncIterator[bytes]) -> int:
        with translated(self.root):
            out = await in_thread(_create, self.root, path)
        try:
            async for piece in pieces:  # the source's errors are not ours to translate
                with translated(self.root):
                    await in_thread(out.write, piece)
            with translated(self.root):
                await in_thread(_sync, out)
            return out.tell()
        finally:
            with contextlib.suppress(OSError):  # it was told by what came before
                await in_thread(out.close)


class _ReceivedFile(ReceivedObject):
    """A file under ``incoming/``, whose bytes are on disk."""

    def __init__(self, root: Path, path: str, size: int) -> None:
        self._root = root
        self._path = path
        self.size = size

    async def place(self, path: str) -> None:
        with translated(self._root):
            await asyncio.to_thread(place, self._root, self._path, path)

    async def replace(self, path: str) -> bool:
        with translated(self._root):
            return await asyncio.to_thread(replace, self._root, self._path, path)


#: The folder of what is being written. Nothing in it has ever been acknowledged.
INCOMING = "incoming"
#: A second name of a received file, until it is renamed to its final one.
_SECOND = ".placing"
_is_object = re.compile(
    r"sha256/([0-9a-f]{2})/\1[0-9a-f]{62}|copies/[0-9a-f]{64}/[0-9a-f]{32}"
    r"|incoming/[0-9a-f]{32}(\.placing)?"
).fullmatch
_is_object_folder = re.compile(
    r"\.|sha256(/[0-9a-f]{2})?|copies(/[0-9a-f]{64})?|incoming"
).fullmatch


def make_folders(root: Path, path: str) -> None:
    """Make the root and the folders of `path`, private and durable. The root may be a link;
    nothing below it may.
    """
    for folder in (*reversed(root.parents), root):
        if not folder.is_dir():
            _make(folder)
    for folder in _folders(root, path):
        _make(folder)
        _no_link(folder)


def _create(root: Path, path: str) -> BinaryIO:
    make_folders(root, path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return os.fdopen(os.open(root / path, flags, 0o600), "wb")


def _sync(out: BinaryIO) -> None:
    out.flush()
    os.fsync(out.fileno())


def settle(file: Path) -> None:
    """Make a written file private and wait until its bytes are on disk."""
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fchmod(handle, 0o600)
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def place(root: Path, received: str, path: str) -> None:
    """Give a received file its final name, durably; it keeps its own, for another try."""
    second = root / f"{received}{_SECOND}"
    for attempt in range(_ATTEMPTS):
        _second_name(root / received, second)
        try:
            make_folders(root, path)
            second.rename(root / path)
            sync_folder((root / path).parent)
        except FileNotFoundError:
            # Somebody who deleted the last copy in a folder, perhaps this one, has removed that.
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def replace(root: Path, received: str, path: str) -> bool:
    """The same, over an existing file; False if there is none (any more)."""
    second = root / f"{received}{_SECOND}"
    _second_name(root / received, second)
    with contextlib.suppress(FileNotFoundError):
        check_folders(root, path)
        with _alone(root):
            os.lstat(root / path)
            second.rename(root / path)
        sync_folder((root / path).parent)
        return True
    return False


def remove(root: Path, path: str) -> None:
    """Remove a file, durably; no error if there is none. Excludes a concurrent `replace`."""
    with contextlib.suppress(FileNotFoundError):
        check_folders(root, path)
        with _alone(root):
            (root / path).unlink()
        forget_name(root, path)


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Exclude others, in any process, that remove or replace a file.
    On file systems without locks (some network ones) a small race remains.
    """
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _second_name(file: Path, second: Path) -> None:
    second.unlink(missing_ok=True)
    try:
        os.link(file, second)
    except OSError as exc:
        if exc.errno not in _NO_LINKS:
            raise
        shutil.copyfile(file, second)
        settle(second)


def open_plain(file: Path) -> io.FileIO:
    """Open a file for reading that `is_plain` has approved."""
    return io.FileIO(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def forget_name(root: Path, path: str) -> None:
    """Make a removal durable; the folder of copies goes with the last of them."""
    folder = (root / path).parent
    if path.startswith(f"{COPIES}/"):
        with contextlib.suppress(OSError):  # there are others, or somebody else removed it
            folder.rmdir()
            folder = folder.parent
    with contextlib.suppress(FileNotFoundError):
        sync_folder(folder)


def renew(file: Path) -> None:
    """Make a file count as put now, and its name durable: a collector needs the time, and another
    writer may not have synced the folder yet.
    """
    os.utime(file, follow_symlinks=False)
    sync_folder(file.parent)


def is_plain(root: Path, path: str) -> bool:
    """Whether `path` is a regular file reached through no link. Raises `FileNotFoundError`.
    Cannot stop the owner from swapping a folder for a link right afterwards; the folders are
    private.
    """
    file = root / path
    return all(map(_is_folder, _folders(root, path))) and stat.S_ISREG(os.lstat(file).st_mode)


def check_folders(root: Path, path: str) -> None:
    for folder in _folders(root, path):
        _no_link(folder)


def is_kept(root: Path, folder: str) -> bool:
    """Whether the root holds this folder. Raises `NotADirectoryError` if it is something else."""
    with contextlib.suppress(FileNotFoundError):
        check_folders(root, f"{folder}/_")
        return True
    return False


def discard(root: Path, path: str) -> None:
    """Remove an unfinished write; never an error, since `sweep` follows later."""
    for ending in ("", _SECOND):
        with contextlib.suppress(OSError):
            (root / f"{path}{ending}").unlink()


def sweep(root: Path, age: float) -> int:
    """Remove leftovers of crashed writers not written to for `age` seconds; returns how many.
    Never an error: housekeeping must not keep a bank from opening.
    """
    swept = 0
    with contextlib.suppress(OSError):
        _no_link(root / INCOMING)
        with os.scandir(root / INCOMING) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # another process may sweep, too
                    status = entry.stat(follow_symlinks=False)
                    if not stat.S_ISDIR(status.st_mode) and time.time() - status.st_mtime > age:
                        Path(entry.path).unlink()
                        swept += 1
    return swept


def remove_objects(root: Path) -> bool:
    """Remove what has the name of an object, or of an unfinished write, and the folders that this
    leaves empty. Whether the root itself went: what somebody else put there stays. Raises OSError.
    """
    if root.is_symlink():
        return False
    for where, _, names in os.walk(root, topdown=False, onerror=_raised):
        folder = Path(where)
        for file in (folder / name for name in names):
            if _is_object(file.relative_to(root).as_posix()) and not file.is_symlink():
                file.unlink(missing_ok=True)
        if _is_object_folder(folder.relative_to(root).as_posix()):
            with contextlib.suppress(OSError):  # there is more in it
                folder.rmdir()
    return not root.exists()


def _pages(root: Path, folder: str) -> Iterator[list[StoredObject]]:
    """The files in a folder, folder by folder. Raises OSError if one is a link."""
    for where, folders, names in os.walk(root / folder, onerror=_raised):
        for name in folders:
            with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                _no_link(Path(where, name))
        found = []
        for name in names:
            file = Path(where, name)
            with contextlib.suppress(FileNotFoundError):  # as above
                status = file.lstat()
                path = file.relative_to(root).as_posix()
                found.append(StoredObject(path, status.st_size, status.st_mtime_ns // 1000))
        yield found


def _raised(exc: OSError) -> None:
    if not isinstance(exc, FileNotFoundError):  # the last copy in it was deleted meanwhile
        raise exc


_ATTEMPTS = 20
#: What file systems without hard links answer.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return
    sync_folder(folder.parent)


def _folders(root: Path, path: str) -> list[Path]:
    *names, _ = path.split("/")
    return [root.joinpath(*names[:depth]) for depth in range(1, len(names) + 1)]


def _is_folder(folder: Path) -> bool:
    return stat.S_ISDIR(os.lstat(folder).st_mode)


def _no_link(folder: Path) -> None:
    if not _is_folder(folder):
        what = f"a link or a file stands where a folder should, at {folder}"
        raise NotADirectoryError(errno.ENOTDIR, what)
