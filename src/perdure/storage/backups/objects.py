"""The large artifacts of a backup: files named by the hash of their content, shared by snapshots.

A file holds the content as it is; in an encrypted backup, one sealed piece after another, each with
its length before it.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from io import BufferedWriter
from pathlib import Path

from perdure.core.errors import BadBackup
from perdure.core.ids import new_id
from perdure.storage.backups import files
from perdure.storage.backups.files import PIECE
from perdure.storage.backups.manifest import KeptArtifact
from perdure.storage.backups.sealing import Seal
from perdure.storage.threads import in_thread

_LENGTH = struct.Struct(">I")
_is_hash = re.compile(r"sha256:[0-9a-f]{64}").fullmatch
_is_name = re.compile(r"[0-9a-f]{64}").fullmatch


class KeptObjects:
    """The artifacts in a folder of backups."""

    def __init__(self, root: Path, incoming: Path, seal: Seal) -> None:
        self._root = root
        self._incoming = incoming
        self._seal = seal

    def has(self, artifact: KeptArtifact) -> bool:
        """Whether it is there with the right size; whether it is sound, `verify` tells."""
        try:
            return self._place(artifact.hash).lstat().st_size == self._size(artifact.size)
        except FileNotFoundError:
            return False

    async def put(self, tagged: str, content: AsyncIterator[bytes]) -> KeptArtifact:
        """Keep an artifact, whose bytes come in pieces of `PIECE`; it is on disk afterwards.

        It takes the place of what was kept under this hash, sound or not. Raises `BadBackup` if
        the bytes are not those of the artifact; nothing is kept then.
        """
        fresh, target = self._incoming / new_id(), self._place(tagged)
        try:
            found, size = await self._receive(fresh, tagged, content)
            if found != tagged:
                raise BadBackup(
                    f"The artifact {tagged} is damaged in the bank, and was not kept.",
                    hint="Run `perdure verify` to see all damage.",
                )
        except BaseException:
            with suppress(OSError):
                fresh.unlink()
            raise
        await in_thread(_settle, fresh, target)
        return KeptArtifact(tagged, size)

    async def _receive(
        self, fresh: Path, tagged: str, content: AsyncIterator[bytes]
    ) -> tuple[str, int]:
        """Write the bytes to a file, durably; returns their hash and number."""
        digest, size, number = hashlib.sha256(), 0, 0
        out = _new_file(fresh)  # at once: a thread could be cancelled with the file open
        try:
            async for piece in content:
                await in_thread(self._write, out, piece, f"{tagged} {number}")
                await in_thread(digest.update, piece)
                size += len(piece)
                number += 1
            await in_thread(_sync, out)
        finally:
            with suppress(OSError):  # it was synced, or there was an error already
                out.close()
        return f"sha256:{digest.hexdigest()}", size

    def pieces(self, artifact: KeptArtifact) -> Generator[bytes, None, None]:
        """The content. Raises `BadBackup` at the end at the latest, if it is not what was kept."""
        file = self._place(artifact.hash)
        digest, size = hashlib.sha256(), 0
        try:
            handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise _bad(file, "is missing") from None
        with os.fdopen(handle, "rb") as source:
            number = 0
            while sealed := self._read(source.read):
                try:
                    piece = self._seal.unseal(sealed, f"{artifact.hash} {number}")
                except ValueError as exc:
                    raise _bad(file, f"cannot be decrypted: {exc}") from exc
                digest.update(piece)
                size += len(piece)
                number += 1
                yield piece
        if f"sha256:{digest.hexdigest()}" != artifact.hash or size != artifact.size:
            raise _bad(file, "has another content than was written")

    def verify(self, artifact: KeptArtifact) -> None:
        """Read it. Raises `BadBackup` if it is not what was kept."""
        for _ in self.pieces(artifact):
            pass

    def found(self, tagged: str) -> KeptArtifact | None:
        """The artifact with this hash, if it is there and sound. Reads it."""
        try:
            taken = self._place(tagged).lstat().st_size
            artifact = KeptArtifact(tagged, self._content_size(taken))
            self.verify(artifact)
        except (FileNotFoundError, BadBackup):
            return None
        return artifact

    def hashes(self) -> Iterator[str]:
        """Every artifact that is there."""
        for parent, _, names in os.walk(self._root):
            for name in names:
                if _is_name(name) and Path(parent).name == name[:2]:
                    yield f"sha256:{name}"

    def remove(self, tagged: str) -> None:
        self._place(tagged).unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------

    def _place(self, tagged: str) -> Path:
        if not _is_hash(tagged):  # of a damaged list: it must not lead out of the folder
            raise BadBackup(
                f"{tagged[:80]!r} is not the hash of an artifact.", hint="Use another snapshot."
            )
        digits = tagged.partition(":")[2]
        return self._root / "sha256" / digits[:2] / digits

    def _size(self, content: int) -> int:
        if not self._seal.overhead:
            return content
        return content + -(-content // PIECE) * (_LENGTH.size + self._seal.overhead)

    def _content_size(self, taken: int) -> int:
        if not self._seal.overhead:
            return taken
        more = _LENGTH.size + self._seal.overhead
        return taken - -(-taken // (PIECE + more)) * more

    def _write(self, out: BufferedWriter, piece: bytes, place: str) -> None:
        sealed = self._seal.seal(piece, place)
        if self._seal.overhead:
            out.write(_LENGTH.pack(len(sealed)))
        out.write(sealed)

    def _read(self, read: Callable[[int], bytes]) -> bytes:
        if not self._seal.overhead:
            return read(PIECE)
        header = read(_LENGTH.size)
        if len(header) < _LENGTH.size:
            return b""
        return read(min(_LENGTH.unpack(header)[0], PIECE + self._seal.overhead))


def _new_file(file: Path) -> BufferedWriter:
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _settle(fresh: Path, target: Path) -> None:
    files.make_folder(target.parent)
    files.move(fresh, target)


def _bad(file: Path, what: str) -> BadBackup:
    return BadBackup(
        f"The backup is damaged: the artifact {file} {what}.",
        hint="If the bank still has it, the next `perdure bank backup` mends it. Else bring this"
        " file back from a copy of the folder, or restore without it (--skip-damaged).",
    )


def _sync(out: BufferedWriter) -> None:
    out.flush()
    os.fsync(out.fileno())
