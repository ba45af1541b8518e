"""The steps on a local disk that obstore does not take: all blocking, for use in a thread.

obstore neither syncs what it writes nor chooses who may read it, follows symbolic links, and hides
its own half-written files. A durable, private folder needs these few functions beside it; on S3
none of them has a counterpart or a need.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from perdure.artifacts.artifact import COPIES

#: The folder of what is being written. Nothing in it has ever been acknowledged.
INCOMING = "incoming"
#: obstore writes to a name with this ending, and renames it when the last byte is written.
_PART = "#1"
#: A second name of a received file, until it is renamed to its final one.
_SECOND = ".placing"


def make_folders(root: Path, path: str) -> None:
    """Make the root and the folders in which `path` stands, for the owner alone, durably.

    The root may be a link, if the user wants it elsewhere; nothing below it may.
    """
    for folder in (*reversed(root.parents), root):
        if not folder.is_dir():
            _make(folder)
    for folder in _folders(root, path):
        _make(folder)
        _no_link(folder)


def settle(file: Path) -> None:
    """Make a written file private and wait until its bytes are on disk.

    The file is opened again for this, because obstore has closed its own. That is enough: fsync
    writes every dirty page of the file, and reports an earlier failure that nobody has seen yet.
    """
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fchmod(handle, 0o600)
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def place(root: Path, received: str, path: str) -> None:
    """Give a received file its final name, durably; it keeps its own, for another try."""
    second = root / f"{received}{_SECOND}"
    _second_name(root / received, second)
    for attempt in range(_ATTEMPTS):
        try:
            make_folders(root, path)
            second.rename(root / path)
            sync_folder((root / path).parent)
        except FileNotFoundError:
            # Somebody who deleted the last copy in a folder has removed that, too.
            if attempt == _ATTEMPTS - 1 or not second.exists():
                raise
        else:
            return


def replace(root: Path, received: str, path: str) -> bool:
    """The same, over a file of this name; False if there is none (any more)."""
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
    """Remove a file, durably; no error if there is none. Nobody replaces it at that moment."""
    with contextlib.suppress(FileNotFoundError):
        check_folders(root, path)
        with _alone(root):
            (root / path).unlink()
        forget_name(root, path)


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Keep out others, in this process or another, who remove or replace a file.

    A file system without such locks, as some network ones are, leaves the moment between a look and
    a renaming.
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
    """Make the removal of a file durable; the folder of its copies goes with the last of them."""
    folder = (root / path).parent
    if path.startswith(f"{COPIES}/"):
        with contextlib.suppress(OSError):  # there are others, or somebody else removed it
            folder.rmdir()
            folder = folder.parent
    with contextlib.suppress(FileNotFoundError):
        sync_folder(folder)


def renew(file: Path) -> None:
    """Make a file that is put again count as put now, and its name as durable as a new one's.

    A collector that spares what was put lately needs the time; and another writer may have placed
    the file a moment ago and not have synced its folder yet.
    """
    os.utime(file, follow_symlinks=False)
    sync_folder(file.parent)


def is_plain(root: Path, path: str) -> bool:
    """Whether `path` leads to a regular file, through no link; False if a link or such is there.

    It cannot stop somebody who swaps a folder for a link right afterwards. Only the owner could,
    the folders being private.

    Raises `FileNotFoundError` if there is nothing.
    """
    file = root / path
    return all(map(_is_folder, _folders(root, path))) and stat.S_ISREG(os.lstat(file).st_mode)


def check_folders(root: Path, path: str) -> None:
    """Raises `NotADirectoryError` if a folder on the way to `path` is a link or a file."""
    for folder in _folders(root, path):
        _no_link(folder)


def is_kept(root: Path, folder: str) -> bool:
    """Whether the root holds this folder; False if nothing was ever put there.

    Raises `NotADirectoryError` if something else is in that place.
    """
    with contextlib.suppress(FileNotFoundError):
        check_folders(root, f"{folder}/_")
        return True
    return False


def discard(root: Path, path: str) -> None:
    """Remove what an unfinished write has left; never an error, since `sweep` comes by later."""
    for ending in ("", _PART, _SECOND):
        with contextlib.suppress(OSError):
            (root / f"{path}{ending}").unlink()


def sweep(root: Path, age: float) -> int:
    """Remove what crashed writers left, if nothing was written to it for `age` seconds.

    Returns how many files were removed. Never an error: housekeeping must not keep a bank from
    opening, and what cannot be removed now can be later. It looks at the folder itself, because
    obstore's listing leaves out what obstore has not finished.
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
    """The folders between the root and a file, outermost first."""
    *names, _ = path.split("/")
    return [root.joinpath(*names[:depth]) for depth in range(1, len(names) + 1)]


def _is_folder(folder: Path) -> bool:
    return stat.S_ISDIR(os.lstat(folder).st_mode)


def _no_link(folder: Path) -> None:
    if not _is_folder(folder):
        raise NotADirectoryError(errno.ENOTDIR, "a link or a file stands where a folder should")
