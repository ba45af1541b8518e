"""Artifacts are named by the hash of their content: ``sha256:9f86d0…``.
Row keys and file paths are made only here, from a hash checked character by character. So no name
can point out of the store's root, and two spellings of a hash cannot become two files.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Protocol, TypeAlias, runtime_checkable

import msgspec

from perdure.core.clock import new_id
from perdure.core.display import with_article
from perdure.core.errors import AccessDenied, ArtifactMissing, Corrupted, InvalidInput
from perdure.storage.record_references import Reference

#: Smaller artifacts are rows of the bank. Safe to change at any time: reads try both places.
INLINE_BELOW = 64 * 1024

#: The folder of the final places, and the first segment of a row's key.
ALGORITHM = "sha256"
COPIES = "copies"

# Not "$": it would let a trailing newline through.
_HASH = r"sha256:[0-9a-f]{64}\Z"
_is_hash = re.compile(_HASH).match
_is_key = re.compile(r"sha256/([0-9a-f]{64})").fullmatch
_is_path = re.compile(r"sha256/([0-9a-f]{2})/(\1[0-9a-f]{62})").fullmatch
_is_copy = re.compile(r"copies/([0-9a-f]{64})/[0-9a-f]{32}").fullmatch


class Artifact(Reference, frozen=True):
    """A reference to a blob, as records keep it; not where its bytes are. Raises `InvalidInput`
    if the hash or the size is not valid.
    """

    hash: Annotated[str, msgspec.Meta(pattern=f"^{_HASH}")]
    size: Annotated[int, msgspec.Meta(ge=0)]

    def __post_init__(self) -> None:
        checked(self.hash)
        if type(self.size) is not int or self.size < 0:
            raise InvalidInput(
                f"{self.size!r} cannot be the size of an artifact.",
                hint="Give its number of bytes.",
            )

    @classmethod
    def of(cls, content: bytes) -> Artifact:
        return cls(f"{ALGORITHM}:{hashlib.sha256(content).hexdigest()}", len(content))

    @property
    def hex(self) -> str:
        """The bare hash, as ``sha256sum`` prints it."""
        return self.hash.partition(":")[2]

    def __str__(self) -> str:
        return self.hash


class ArtifactPlace(StrEnum):
    """Where an artifact's bytes are."""

    ROW = "row"
    DISK = "disk"
    S3 = "s3"


class Located(msgspec.Struct, frozen=True):
    """An artifact that is in the store, sound or not.
    `modified_us` is the last write (microseconds since 1970); `bytes` is the space it takes,
    compressed or encrypted.
    """

    artifact: str
    place: ArtifactPlace
    modified_us: int
    bytes: int = 0


class FaultKind(StrEnum):
    """What can be wrong with a stored artifact."""

    #: Its bytes are not those that were put.
    DAMAGED = "damaged"
    #: It is referred to, and nowhere.
    MISSING = "missing"
    #: It is there, and this user may not read it.
    UNREADABLE = "unreadable"
    #: It is sound, but who refers to it says that it has another size.
    WRONG_SIZE = "wrong size"
    #: It is sound, and nothing refers to it: no fault, unless somebody misses it.
    ORPHAN = "orphan"


class ArtifactFault(msgspec.Struct, frozen=True):
    """`artifact` is the tagged hash, or the damaged stored key; `place` is None if nowhere."""

    artifact: str
    place: ArtifactPlace | None
    kind: FaultKind
    what: str
    #: Who refers to it, where that is what is wrong.
    referrer: str = ""


def checked(tagged: object) -> str:
    """Returns the hash. Raises `InvalidInput` unless it is ``sha256:`` and 64 lower-case hex
    digits.
    """
    if isinstance(tagged, Artifact):
        return tagged.hash
    if not isinstance(tagged, str) or not _is_hash(tagged):
        shown = repr(tagged)
        raise InvalidInput(
            f"{shown if len(shown) <= 100 else shown[:100] + '…'} is not the hash of an artifact.",
            hint='Give "sha256:" and 64 lower-case hexadecimal digits, or what put returned.',
        )
    return tagged


def row_key(tagged: str) -> str:
    return checked(tagged).replace(":", "/")


def object_path(tagged: str) -> str:
    """``sha256/9f/9f86d0…``: the whole hash is the file's name, to compare with `sha256sum`."""
    digits = checked(tagged).partition(":")[2]
    return f"{ALGORITHM}/{digits[:2]}/{digits}"


def hash_of_key(key: str) -> str | None:
    found = _is_key(key)
    return None if found is None else f"{ALGORITHM}:{found[1]}"


def copies_folder(tagged: str) -> str:
    return f"{COPIES}/{checked(tagged).partition(':')[2]}"


def new_copy_path(tagged: str) -> str:
    return f"{copies_folder(tagged)}/{new_id()}"


def hash_of_path(path: str) -> str | None:
    found = _is_path(path) or _is_copy(path)
    return None if found is None else f"{ALGORITHM}:{found[found.lastindex or 1]}"


def missing(tagged: str) -> ArtifactMissing:
    return ArtifactMissing(
        f"The artifact {tagged} is not in the store.",
        hint="Restore it from a backup, or put the same content again.",
    )


def damaged(tagged: str, what: str) -> Corrupted:
    return Corrupted(
        f"The artifact {tagged} is damaged: {what}.",
        hint="Put the same content again, or restore it from a backup; `perdure verify` shows all"
        " damage.",
        record=tagged,
    )


PIECE = 1024 * 1024  # at least INLINE_BELOW, or a first piece would tell nothing


@runtime_checkable
class ReadableFile(Protocol):
    """A file opened for reading bytes, or anything that reads like one."""

    def read(self, size: int, /) -> bytes: ...


ArtifactInput: TypeAlias = (
    bytes | bytearray | memoryview | Path | ReadableFile | AsyncIterable[bytes]
)


async def pieces(source: ArtifactInput) -> AsyncGenerator[bytes, None]:
    """The bytes of a source, in order, in pieces that are never empty.
    A file-like object is read from its current position to its end and left open. Raises
    `InvalidInput` for anything that does not yield bytes, `AccessDenied` for an unreadable file,
    and what an async iterable raises.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        content = bytes(source)
        for start in range(0, len(content), PIECE):
            yield content[start : start + PIECE]
    elif isinstance(source, Path):
        file = await asyncio.to_thread(_open, source)
        try:
            async for piece in _gathered(_read(file)):
                yield piece
        finally:
            await asyncio.to_thread(file.close)
    elif isinstance(source, AsyncIterable):
        async for piece in _gathered(source):
            yield piece
    elif isinstance(source, ReadableFile):
        async for piece in _gathered(_read(source)):
            yield piece
    else:
        raise InvalidInput(
            f"{with_article(type(source).__name__, 'A')} cannot be an artifact.",
            hint="Give bytes, a Path, a file opened in binary mode, or an async stream of bytes.",
        )


async def resumed(first: bytes, rest: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    yield first
    async for piece in rest:
        yield piece


async def _gathered(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Chunks of any size as pieces: one hop to the disk for each piece, not for each chunk."""
    held = bytearray()
    async for chunk in chunks:
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise InvalidInput(
                f"A stream of bytes gave a {type(chunk).__name__}.",
                hint="Open the file in binary mode, or encode what the stream yields.",
            )
        held += chunk
        while len(held) >= PIECE:
            yield bytes(held[:PIECE])
            del held[:PIECE]
    if held:
        yield bytes(held)


async def _read(file: ReadableFile) -> AsyncIterator[bytes]:
    while True:
        chunk = await asyncio.to_thread(_read_some, file)
        yield chunk  # the empty one at the end, too: it shows whether this is a file of bytes
        if not chunk:
            return


def _read_some(file: ReadableFile) -> bytes:
    try:
        return file.read(PIECE)
    except OSError as exc:
        raise AccessDenied(
            f"The file to be stored cannot be read: {exc.strerror or exc}.", hint="Try it again."
        ) from exc


def _open(path: Path) -> io.FileIO:
    try:
        return io.FileIO(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError) as exc:
        raise InvalidInput(f"There is no file {str(path)!r}.", hint="Check the path.") from exc
    except OSError as exc:
        raise AccessDenied(
            f"The file {str(path)!r} cannot be read: {exc.strerror}.", hint="Check who may read it."
        ) from exc
