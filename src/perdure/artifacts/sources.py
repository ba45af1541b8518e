"""What can be put, as pieces of one size.

A piece is at least `PIECE` bytes long, unless it is the last one: whoever holds a shorter first
piece holds everything. Files are read in a thread.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from perdure.core.errors import AccessDenied, InvalidInput

PIECE = 1024 * 1024  # at least INLINE_BELOW, or a first piece would tell nothing


@runtime_checkable
class Readable(Protocol):
    """A file opened for reading bytes, or anything that reads like one."""

    def read(self, size: int, /) -> bytes: ...


Source: TypeAlias = bytes | bytearray | memoryview | Path | Readable | AsyncIterable[bytes]


async def pieces(source: Source) -> AsyncGenerator[bytes, None]:
    """The bytes of a source, in order; no piece is empty.

    A file-like object is read from where it stands to its end, and left open.

    Raises `InvalidInput` if the source is not one, or yields something else than bytes, and
    `AccessDenied` if it is a file that may not be read. What an async iterable raises goes through.
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
    elif isinstance(source, Readable):
        async for piece in _gathered(_read(source)):
            yield piece
    else:
        raise InvalidInput(
            f"A {type(source).__name__} cannot be an artifact.",
            hint="Give bytes, a Path, a file opened in binary mode, or an async stream of bytes.",
        )


async def resumed(first: bytes, rest: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """A stream whose first piece was taken off already."""
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


async def _read(file: Readable) -> AsyncIterator[bytes]:
    while True:
        chunk = await asyncio.to_thread(_read_some, file)
        yield chunk  # the empty one at the end, too: it shows whether this is a file of bytes
        if not chunk:
            return


def _read_some(file: Readable) -> bytes:
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
