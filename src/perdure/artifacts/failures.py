"""Errors of the disk and of obstore as errors of Perdure."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from obstore.exceptions import BaseError, PermissionDeniedError

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
# obstore keeps the number of the system's error in its text only.
_os_error = re.compile(r"\(os error (\d+)\)").search


@contextmanager
def translated(root: Path, tagged: str = "") -> Iterator[None]:
    """Turns what the disk or obstore raises inside into an error that says what to do.

    `tagged` names the artifact that is being read; nothing is missing while one is being written.
    """
    try:
        yield
    except (OSError, BaseError) as exc:
        raise _translate(exc, root, tagged) from exc


def _translate(exc: OSError | BaseError, root: Path, tagged: str) -> StorageError:
    found = _os_error(str(exc))
    number = exc.errno if isinstance(exc, OSError) else None
    if number is None and found is not None:
        number = int(found[1])
    reason = (exc.strerror if isinstance(exc, OSError) else None) or str(exc).partition("\n")[0]
    if isinstance(exc, FileNotFoundError) and tagged:
        return missing(tagged)
    if number in _FULL:
        return StorageFull(
            f"There is no room left in {root}; the artifact was not stored.",
            hint="Free some disk space and put it again.",
        )
    if number in _DENIED or isinstance(exc, PermissionDeniedError):
        return AccessDenied(
            f"The artifacts in {root} may not be read or written: {reason}.",
            hint="Check that it is a folder of yours and that you may write there.",
        )
    if number == errno.ENOENT:
        return AccessDenied(
            f"The artifact was not stored: {root}, or what was written there, has been removed.",
            hint="Find out what removes files there, and put it again.",
        )
    if number in _BUSY:
        return Unavailable(
            f"The artifacts in {root} cannot be opened now: {reason}.",
            hint="Close some files, or raise the limit (ulimit -n), and try again.",
        )
    if number == errno.EIO and tagged:
        return damaged(tagged, "the disk cannot read it")
    return StorageError(
        f"The artifacts in {root} cannot be used: {reason}.",
        hint="Run `perdure doctor`, and look for links or other programs' files in that folder.",
    )
