"""The steps on a local disk that obstore does not take: all blocking, for use in a thread.

obstore neither syncs what it writes nor chooses who may read it, follows symbolic links, and hides
its own half-written files. A durable, private folder needs these few functions beside it; on S3
none of them has a counterpart or a need.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path

from perdure.artifacts.artifact import ALGORITHM

#: The folder of what is being written. Nothing in it has ever been acknowledged.
INCOMING = "incoming"
#: obstore writes to a name with this ending, and renames it when the last byte is written.
_PART = "#1"


def make_folders(root: Path, path: str) -> None:
    """Make the root and the folders in which `path` stands, for the owner alone, durably.

    The root may be a link, if the user wants it elsewhere; nothing below it may.
    """
    if not root.is_dir():
        _make(root)
    folder = root
    for part in path.split("/")[:-1]:
        folder /= part
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
    *folders, name = path.split("/")
    place = root
    for folder in folders:
        place /= folder
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            return False
    return stat.S_ISREG(os.lstat(place / name).st_mode)


def is_kept(root: Path) -> bool:
    """Whether the root holds the folder of artifacts; False if nothing was ever put there.

    Raises `NotADirectoryError` if something else is in that place.
    """
    folder = root / ALGORITHM
    with contextlib.suppress(FileNotFoundError):
        _no_link(folder)
        return True
    return False


def discard(root: Path, path: str) -> None:
    """Remove what an unfinished write has left; never an error, since `sweep` comes by later."""
    for ending in ("", _PART):
        with contextlib.suppress(OSError):
            os.unlink(root / f"{path}{ending}")


def sweep(root: Path, age: float) -> int:
    """Remove what crashed writers left, if nothing was written to it for `age` seconds.

    Returns how many files were removed. It looks at the folder itself, because obstore's listing
    leaves out what obstore has not finished.
    """
    folder = root / INCOMING
    swept = 0
    with contextlib.suppress(FileNotFoundError):
        _no_link(folder)
        with os.scandir(folder) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if not stat.S_ISDIR(status.st_mode) and time.time() - status.st_mtime > age:
                    with contextlib.suppress(FileNotFoundError):  # another process sweeps too
                        os.unlink(entry.path)
                        swept += 1
    return swept


def _make(folder: Path) -> None:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        return
    sync_folder(folder.parent)


def _no_link(folder: Path) -> None:
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "a link or a file stands where a folder should")
