"""Errors of the disk as errors of Perdure."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perdure.artifacts.artifact import damaged, missing
from perdure.core.errors import (
    AccessDenied,
    StorageError,
    StorageFull,
    Unavailable,
)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.EISDIR}
_BUSY = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}


@contextmanager
def translated(root: Path, tagged: str = "") -> Iterator[None]:
    """Turn errors of the disk into Perdure's. `tagged` is the artifact being read, if one is."""
    try:
        yield
    except OSError as exc:
        raise _translate(exc, root, tagged) from exc


def _translate(exc: OSError, root: Path, tagged: str) -> StorageError:
    number, reason = exc.errno, exc.strerror or str(exc)
    if isinstance(exc, FileNotFoundError) and tagged:
        return missing(tagged)
    if number in _FULL:
        return StorageFull(
            f"There is no room left in {root}; nothing was stored.",
            hint="Free some disk space, and try again.",
        )
    if number in _DENIED:
        return AccessDenied(
            f"{root} may not be read or written: {reason}.",
            hint="Check that it is a folder of yours and that you may write there.",
        )
    if number == errno.ENOENT:
        return AccessDenied(
            f"Nothing was stored: {root}, or what was written there, has been removed.",
            hint="Find out what removes files there, and try again.",
        )
    if number in _BUSY:
        return Unavailable(
            f"Files in {root} cannot be opened now: {reason}.",
            hint="Close some files, or raise the limit (ulimit -n), and try again.",
        )
    if number == errno.EIO and tagged:
        return damaged(tagged, "the disk cannot read it")
    return StorageError(
        f"{root} cannot be used: {reason}.",
        hint="Run `perdure doctor`, and look for links or other programs' files in that folder.",
    )
