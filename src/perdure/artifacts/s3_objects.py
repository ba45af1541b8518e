"""Objects on S3 or a compatible server, through obstore.

Content is first written to a nameless local temporary file, and uploaded once it is complete.
Uploading at once under a temporary name would leave halves behind, pay for each object twice, and
fail above the 5 GB that S3 copies in one request.

A reader sees the whole object or none. An upload replaces an object of that path, which has the
same content; a create-only request, which obstore does not retry, would gain nothing. Afterwards
the server is asked what it has. Range reads must all belong to the same upload.

obstore retries failures (5xx, broken and slow connections, short bodies) for `S3Address.retry`
seconds; deletions are retried here. Parts of incomplete uploads stay until a lifecycle rule of
the bucket aborts them.
"""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, ClassVar

import obstore
from obstore.exceptions import (
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from perdure.artifacts.artifact import PIECE, ArtifactPlace, damaged, missing
from perdure.artifacts.artifact_errors import translated
from perdure.artifacts.artifact_places import (
    ObjectPlace,
    ReceivedObject,
    S3Address,
    StoredObject,
    check_endpoint,
)
from perdure.core import clock
from perdure.core.errors import AccessDenied, StorageError, StorageFull, Unavailable

#: Up to this size an object goes up in one request, and down in one range.
_PART = 8 * 1024 * 1024
_PARTS_AT_ONCE = 2
_LIST_PAGE = 1000
_RETRIES = 100  # it is the time that limits them
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
# obstore keeps what a server answered in its text only.
_status = re.compile(r"status code: (\d{3})").search
_code = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)").search
_DENYING = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"}
_ELSEWHERE = {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraint"}


class S3Objects(ObjectPlace):
    """The objects under a prefix in a bucket, which must be there."""

    kind: ClassVar[ArtifactPlace] = ArtifactPlace.S3

    def __init__(self, address: S3Address) -> None:
        self.address = address
        self._store = _connect(address)

    @property
    def shown(self) -> str:
        return str(self.address)

    @asynccontextmanager
    async def receive(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[ReceivedObject]:
        folder = Path(tempfile.gettempdir())
        with translated(folder):
            spool = await asyncio.to_thread(tempfile.TemporaryFile)
        try:
            size = 0
            async for piece in pieces:
                with translated(folder):
                    await asyncio.to_thread(spool.write, piece)
                size += len(piece)
            yield _Spooled(self.address, self._store, spool, size)
        finally:
            await asyncio.shield(asyncio.to_thread(spool.close))

    async def find(self, path: str, tagged: str) -> StoredObject | None:
        with translated_from_s3(self.address, tagged):
            try:
                found = await obstore.head_async(self._store, path)
            except FileNotFoundError:
                return None
        return StoredObject(
            path, found["size"], clock.from_datetime(found["last_modified"]), found["e_tag"]
        )

    async def read(self, found: StoredObject, tagged: str) -> AsyncGenerator[bytes, None]:
        for start in range(0, found.size, _PART):
            end = min(start + _PART, found.size)
            with translated_from_s3(self.address, tagged):
                try:
                    answer = await obstore.get_async(
                        self._store,
                        found.path,
                        options={"range": (start, end), "if_match": found.etag},
                    )
                    piece = bytes(await answer.buffer_async())
                except PreconditionError as exc:
                    raise Unavailable(
                        f"The artifact {tagged} was written anew while it was read.",
                        hint="Read it again.",
                    ) from exc
            if len(piece) != end - start:
                raise damaged(tagged, f"{len(piece):,} bytes came for {end - start:,}")
            yield piece

    async def renew(self, path: str) -> bool:
        """No-op: S3 is durable, puts are noted elsewhere, and S3 cannot copy an object onto
        itself.
        """
        return await self.find(path, "") is not None

    async def delete(self, path: str) -> None:
        with translated_from_s3(self.address):
            deadline = time.monotonic() + self.address.retry
            pause = _FIRST_PAUSE
            while True:
                try:
                    await obstore.delete_async(self._store, path)
                except FileNotFoundError:
                    return
                except BaseError as exc:
                    if not is_passing(exc) or time.monotonic() + pause > deadline:
                        raise
                else:
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def listed(self, folder: str) -> AsyncIterator[StoredObject]:
        listing = obstore.list(self._store, folder, chunk_size=_LIST_PAGE)
        while True:
            with translated_from_s3(self.address):
                page = await anext(listing, None)
            if page is None:
                return
            for found in page:
                modified = clock.from_datetime(found["last_modified"])
                yield StoredObject(found["path"], found["size"], modified, found["e_tag"])


class _Spooled(ReceivedObject):
    """Bytes in a temporary file, to be uploaded."""

    def __init__(self, address: S3Address, store: S3Store, spool: IO[bytes], size: int) -> None:
        self._address = address
        self._store = store
        self._spool = spool
        self.size = size

    async def place(self, path: str) -> None:
        await asyncio.to_thread(self._spool.seek, 0)
        with translated_from_s3(self._address):
            if self.size <= _PART:
                content = await asyncio.to_thread(self._spool.read)
                await obstore.put_async(self._store, path, content, use_multipart=False)
            else:
                await obstore.put_async(
                    self._store,
                    path,
                    self._pieces(),
                    use_multipart=True,
                    chunk_size=_PART,
                    max_concurrency=_PARTS_AT_ONCE,
                )
            try:
                found = await obstore.head_async(self._store, path)
            except FileNotFoundError:
                return  # somebody deleted it right away: whoever put it looks for it at the end
        # Not its ETag: another upload of the same content may have come after ours.
        if found["size"] != self.size:
            raise Unavailable(
                f"The server keeps {found['size']:,} of the {self.size:,} bytes of {path}.",
                hint="Put the artifact again; if that does not help, look at the server's disk.",
            )

    async def replace(self, path: str) -> bool:
        """Checks right before the upload; a deletion during it is not noticed here."""
        if not await self._is_there(path):
            return False
        await self.place(path)
        return await self._is_there(path)

    async def _is_there(self, path: str) -> bool:
        with translated_from_s3(self._address):
            try:
                await obstore.head_async(self._store, path)
            except FileNotFoundError:
                return False
        return True

    async def _pieces(self) -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(self._spool.read, PIECE):
            yield piece


def _connect(address: S3Address) -> S3Store:
    endpoint = address.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3", "")
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL", "")
    plain = bool(endpoint) and check_endpoint(endpoint, allow_http=address.allow_http)
    settings = _keys_in_files()
    if address.region:
        settings["region"] = address.region
    if endpoint:
        settings["endpoint"] = endpoint
    if address.virtual_host:
        settings["virtual_hosted_style_request"] = "true"
    return S3Store(
        address.bucket,
        prefix=address.prefix or None,
        config=settings,  # type: ignore[arg-type]  # every value may be text
        # One object at a time, by the request that every server knows.
        disable_bulk_delete=True,
        client_options={
            "allow_http": plain,
            "timeout": timedelta(seconds=address.timeout),
            "connect_timeout": timedelta(seconds=min(address.timeout, 5.0)),
        },
        retry_config={
            "max_retries": _RETRIES,
            "retry_timeout": timedelta(seconds=address.retry),
            "backoff": {
                "init_backoff": timedelta(seconds=_FIRST_PAUSE),
                "max_backoff": timedelta(seconds=_LONGEST_PAUSE),
                "base": 2,
            },
        },
    )


def _keys_in_files() -> dict[str, str]:
    """Keys of the user's AWS profile, which obstore does not read; none if variables hold some."""
    variables = (
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    )
    if any(os.environ.get(name) for name in variables):
        return {}
    named = os.environ.get("AWS_SHARED_CREDENTIALS_FILE")
    file = Path(named).expanduser() if named else Path.home() / ".aws" / "credentials"
    profiles = configparser.RawConfigParser()
    try:
        profiles.read(file, encoding="utf-8")
        profile = profiles[os.environ.get("AWS_PROFILE") or "default"]
    except (KeyError, configparser.Error, UnicodeDecodeError, OSError):
        return {}
    found = {
        "access_key_id": profile.get("aws_access_key_id"),
        "secret_access_key": profile.get("aws_secret_access_key"),
        "session_token": profile.get("aws_session_token"),
    }
    return {name: text for name, text in found.items() if text}


@contextmanager
def translated_from_s3(address: S3Address, tagged: str = "") -> Iterator[None]:
    """Turn errors of a server into Perdure's; `ArtifactMissing` only if `tagged` is given. The
    server's text is left out: it repeats the request, with the access key in it.
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
