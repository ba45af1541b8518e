"""Files that are private, durable, and there whole or not at all. All blocking."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perdure.core.errors import AccessDenied, StorageError, StorageFull

#: Bytes that are read at a time.
PIECE = 1024 * 1024
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def translated(folder: Path) -> Iterator[None]:
    """Turns errors of the disk into errors that say what to do."""
    try:
        yield
    except OSError as exc:
        if exc.errno in _FULL:
            raise StorageFull(
                f"There is no room left for the backup in {folder}.",
                hint="Free some disk space, or keep fewer snapshots, and try again.",
            ) from exc
        if isinstance(exc, PermissionError | NotADirectoryError) or exc.errno == errno.EROFS:
            raise AccessDenied(
                f"The backup in {folder} may not be read or written: {exc.strerror}.",
                hint="Choose a folder of yours, or mend its permissions.",
            ) from exc
        raise StorageError(
            f"The backup in {folder} could not be read or written: {exc}.",
            hint="Check the disk, and try again.",
        ) from exc


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, for the owner alone."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
        sync_folder(each.parent)


def write(file: Path, content: bytes) -> None:
    """Write a private file durably, under a name that nobody looks at."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def move(source: Path, target: Path) -> None:
    """Move what is finished to its place, in one step and durably."""
    source.rename(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Wait until the names in a folder and in those below it are on disk."""
    for parent, _, _ in os.walk(folder):
        sync_folder(Path(parent))


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it; no error if it is gone."""
    shutil.rmtree(folder, ignore_errors=True)


def digest(file: Path) -> tuple[str, int]:
    """SHA-256 and size of a file. Links are not followed."""
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(handle, "rb") as source:
        found, size = hashlib.sha256(), 0
        while piece := source.read(PIECE):
            found.update(piece)
            size += len(piece)
    return found.hexdigest(), size
