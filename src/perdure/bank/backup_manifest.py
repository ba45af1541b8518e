"""The files beside a backup's records: the folder's mark, and each backup's manifest."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import msgspec

from perdure.core.errors import BadBackup

FORMAT = 2  # Raised when the files change; another one than ours is refused.
MARK, MANIFEST = "perdure-backup.json", "manifest.json"  # In the folder; beside each bank.db.


class WrappedKey(msgspec.Struct, frozen=True):
    """The key of a folder in base64, and the fingerprint of the master key that wraps it."""

    wrapped: str
    master: str


class BackupMark(msgspec.Struct, frozen=True):
    """Identifies a folder of backups. It has a key if they are encrypted."""

    format: int
    made_by: str = ""
    key: WrappedKey | None = None


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds."""

    #: Its name: the time in UTC (or, if the clock was set back, one just behind the last one's),
    #: and a few characters that make it unique.
    id: str
    taken: int  # When its records were as they are in it, in microseconds since 1970.
    #: The program, the kind of bank, and where that was, without a password.
    made_by: str
    backend: str
    bank: str
    rows: int
    #: The size of bank.db, and its SHA-256; in an encrypted folder, an HMAC.
    bytes: int
    digest: str
    artifacts: dict[str, int]  # The large artifacts that it needs, and their sizes.
    damaged: tuple[str, ...] = ()  # Damaged in the bank already; records are kept as they were.
    missing: tuple[str, ...] = ()  # Artifacts that the bank lacked already.
    rescued: tuple[str, ...] = ()  # Of these, artifacts that the folder had from before.

    @property
    def artifact_bytes(self) -> int:
        return sum(self.artifacts.values())


class BackupCheck(msgspec.Struct, frozen=True):
    """A backup in a folder, and what is wrong with it; without a manifest it cannot be read."""

    id: str
    manifest: BackupManifest | None
    error: str = ""

    @property
    def sound(self) -> bool:
        return not self.error


class _SignedManifest(msgspec.Struct, frozen=True):
    format: int
    sha256: str = ""
    manifest: msgspec.Raw = msgspec.Raw()


def encode_manifest(manifest: BackupManifest) -> bytes:
    raw = msgspec.json.encode(manifest)
    return msgspec.json.encode(
        _SignedManifest(FORMAT, hashlib.sha256(raw).hexdigest(), msgspec.Raw(raw))
    )


def read_manifest(folder: Path) -> BackupManifest:
    """Raises `BadBackup` if it is missing, damaged, or of another format."""
    file = folder / MANIFEST
    try:
        signed = msgspec.json.decode(file.read_bytes(), type=_SignedManifest)
        _check_format(signed.format, file)
        if hashlib.sha256(bytes(signed.manifest)).hexdigest() != signed.sha256:
            raise ValueError("its own hash does not fit")
        manifest = msgspec.json.decode(bytes(signed.manifest), type=BackupManifest)
        if manifest.id != folder.name:
            raise ValueError(f"it is the manifest of {manifest.id}")
    except (OSError, ValueError) as exc:
        reason = "it is missing" if isinstance(exc, FileNotFoundError) else str(exc)
        raise damaged_file(file, f"cannot be read: {reason}") from exc
    return manifest


def read_mark(file: Path) -> BackupMark:
    """Raises `BadBackup` if it is damaged, or of another format."""
    try:
        mark = msgspec.json.decode(file.read_bytes(), type=BackupMark)
    except msgspec.DecodeError as exc:
        raise damaged_file(file, "cannot be read") from exc
    _check_format(mark.format, file)
    return mark


def _check_format(found: int, file: Path) -> None:
    if found != FORMAT:
        raise BadBackup(
            f"{file} has format {found}; this version reads {FORMAT}.",
            hint="Use the version of Perdure that made it. Nothing was changed.",
        )


def damaged_file(file: Path, what: str) -> BadBackup:
    return BadBackup(
        f"The backup is damaged: {file} {what}.",
        hint="Restore another snapshot (`perdure bank backups` lists them), or bring this file back"
        " from a copy of the folder.",
    )


def made_by() -> str:
    with suppress(metadata.PackageNotFoundError):  # run from a folder of sources
        return f"perdure {metadata.version('perdure')}"
    return "perdure"
