"""Errors of the disk, S3 and obstore as errors of Perdure."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from perdure.artifacts.artifact import damaged, missing
from perdure.artifacts.artifact_places import S3Address
from perdure.core.errors import (
    AccessDenied,
    StorageError,
    StorageFull,
    Unavailable,
)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.EISDIR}
_BUSY = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}
# obstore keeps the number of the system's error, and what a server answered, in its text only.
_os_error = re.compile(r"\(os error (\d+)\)").search
_status = re.compile(r"status code: (\d{3})").search
_code = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)").search
_DENYING = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"}
_ELSEWHERE = {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraint"}


@contextmanager
def translated(root: Path, tagged: str = "") -> Iterator[None]:
    """Turn errors of the disk or obstore into Perdure's.
    `tagged` is the artifact being read; None while one is written.
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


@contextmanager
def translated_from_s3(address: S3Address, tagged: str = "") -> Iterator[None]:
    """The same for a server; not found raises `ArtifactMissing` if `tagged` is given.
    The server's text is left out: it repeats the request, with the access key in it.
    """
    try:
        yield
    except (OSError, BaseError) as exc:
        raise _translate_from_s3(exc, address, tagged) from exc


def is_passing(exc: BaseException) -> bool:
    """Whether a retry may succeed: no answer, or trouble on the server."""
    if not isinstance(exc, BaseError) or isinstance(exc, PermissionDeniedError):
        return False
    status = _status(str(exc))
    return status is None or int(status[1]) >= 500 or status[1] == "429"


def _translate_from_s3(exc: OSError | BaseError, address: S3Address, tagged: str) -> StorageError:
    text = str(exc)
    found, status = _code(text), _status(text)
    code = (found[1] or found[2]) if found is not None else ""
    number = int(status[1]) if status is not None else 0
    if code == "NoSuchBucket" or (code == "" and number == 404 and not tagged):
        return AccessDenied(
            f"There is no bucket {address.bucket!r}, or it is not to be seen with this key.",
            hint="Make the bucket, or mend artifacts.url.",
        )
    if isinstance(exc, FileNotFoundError) and tagged:
        return missing(tagged)
    if number == 301 or code in _ELSEWHERE:
        return AccessDenied(
            f"The bucket {address.bucket!r} is in another region than"
            f" {address.region or 'us-east-1'}.",
            hint="Add region=… to artifacts.url.",
        )
    denied = isinstance(exc, PermissionDeniedError | UnauthenticatedError)
    if denied or number in {401, 403} or code in _DENYING:
        return AccessDenied(
            f"{_place(address)} does not let this key in{f' ({code})' if code else ''}.",
            hint="Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or ~/.aws/credentials), the"
            " region, and what the key is allowed to do in the bucket.",
        )
    if number == 507 or code in {"QuotaExceeded", "XMinioStorageFull"}:
        return StorageFull(f"There is no room left in {_place(address)}.", hint="Make room there.")
    if isinstance(exc, BaseError) and (is_passing(exc) or number >= 500):
        what = f"answers with {number}" if number else "does not answer"
        return Unavailable(
            f"{_place(address)} {what}; it was tried for up to {address.retry:g} seconds.",
            hint="Check the network and the endpoint, and try again; nothing was changed.",
        )
    if "169.254.169.254" in text:
        return AccessDenied(
            "There is no key for S3.",
            hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use ~/.aws/credentials.",
        )
    detail = f" ({code or number})" if code or number else ""
    return StorageError(
        f"{_place(address)} refuses the request{detail}.",
        hint="Check artifacts.url and the settings of the bucket.",
    )


def _place(address: S3Address) -> str:
    at = f" at {address.endpoint}" if address.endpoint else ""
    return f"The bucket {address.bucket!r}{at}"
