"""The manifest: what belongs to a snapshot, and how to tell that it is whole."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec

from perdure.core.errors import BadBackup
from perdure.storage.backups.sealing import WrappedKey
from perdure.storage.layouts import Layout

#: Raised when the files change; a newer one than ours is refused.
FORMAT = 1
#: The marker of a folder, and the manifest of a snapshot.
MARK, MANIFEST = "perdure-backup.json", "manifest.json"

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}").fullmatch
_CONSTANT = re.compile(r"[A-Za-z0-9_.-]*").fullmatch


class KeptFile(msgspec.Struct, frozen=True):
    """A file of a snapshot."""

    #: Its path in the snapshot's folder.
    name: str
    #: Rows, events or artifacts in it.
    items: int
    bytes: int
    sha256: str


class KeptCollection(msgspec.Struct, frozen=True):
    """A collection, and the file with its rows."""

    layout: Layout
    file: KeptFile


class KeptArtifact(msgspec.Struct, frozen=True, array_like=True):
    """A large artifact; its content is in the folder that all snapshots share."""

    hash: str
    size: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot holds."""

    #: Its name: the time in UTC (or, if the clock was set back, one just behind the last one's),
    #: and a few characters that make it unique.
    id: str
    #: When its records were as they are in it, in microseconds since 1970.
    taken: int
    #: The program, and the kind of bank.
    made_by: str
    backend: str
    #: Where the bank was, without a password.
    bank: str
    collections: tuple[KeptCollection, ...]
    events: KeptFile
    #: The highest id that an event was given.
    last_event: int
    #: The list of large artifacts, and their size together.
    artifacts: KeptFile
    artifact_bytes: int = 0
    #: Records that were damaged in the bank already; they are kept as they were.
    damaged: tuple[str, ...] = ()
    #: Artifacts that the bank lacked already, though something refers to them.
    missing: tuple[str, ...] = ()
    #: Of the damaged and missing, the artifacts that are in it all the same: the folder had them.
    rescued: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(collection.file.items for collection in self.collections)

    @property
    def files(self) -> list[KeptFile]:
        return [*(kept.file for kept in self.collections), self.events, self.artifacts]

    @property
    def bytes(self) -> int:
        """What it takes, without the artifacts."""
        return sum(file.bytes for file in self.files)


class _Sealed(msgspec.Struct, frozen=True):
    """A manifest as it is written: with its format, and a hash over its own bytes."""

    format: int
    sha256: str = ""
    manifest: msgspec.Raw = msgspec.Raw()


class Mark(msgspec.Struct, frozen=True):
    """What says that a folder holds backups of ours."""

    format: int
    made_by: str = ""
    #: The key of an encrypted folder.
    key: WrappedKey | None = None


def encode(manifest: Manifest) -> bytes:
    raw = msgspec.json.encode(manifest)
    sealed = _Sealed(FORMAT, hashlib.sha256(raw).hexdigest(), msgspec.Raw(raw))
    return msgspec.json.encode(sealed)


def read(folder: Path) -> Manifest:
    """The manifest of a snapshot.

    Raises `BadBackup` if it is missing, damaged, or of a newer format.
    """
    file = folder / MANIFEST
    try:
        sealed = msgspec.json.decode(file.read_bytes(), type=_Sealed)
        check_format(sealed.format, file)
        if hashlib.sha256(bytes(sealed.manifest)).hexdigest() != sealed.sha256:
            raise ValueError("its own hash does not fit")
        manifest = msgspec.json.decode(bytes(sealed.manifest), type=Manifest)
        _check(manifest, folder)
    except (OSError, ValueError) as exc:
        reason = "it is missing" if isinstance(exc, FileNotFoundError) else str(exc)
        raise BadBackup(
            f"The snapshot {folder.name} cannot be read: {file} is damaged: {reason}.",
            hint="Restore another one; `perdure bank backups` lists them.",
        ) from exc
    return manifest


def check_format(found: int, file: Path) -> None:
    """Raises `BadBackup` for what a newer version wrote."""
    if found > FORMAT:
        raise BadBackup(
            f"{file} has format {found}; this version reads up to {FORMAT}.",
            hint="Upgrade Perdure. Nothing was changed.",
        )


def records_name(collection: str) -> str:
    return f"records/{collection}.pages"


def _check(manifest: Manifest, folder: Path) -> None:
    """Raises `ValueError` for names that lead elsewhere: they become paths, and SQL."""
    if manifest.id != folder.name:
        raise ValueError(f"it is the manifest of {manifest.id}")
    for kept in manifest.collections:
        layout = kept.layout
        names = [layout.name, *(column.name for column in layout.columns)]
        names += [name for index in layout.indexes for name in index.columns]
        names += [name for index in layout.indexes for name, _ in index.where]
        texts = [text for _, text in layout.constants() if isinstance(text, str)]
        if not all(map(_NAME, names)) or not all(map(_CONSTANT, texts)) or "__" in layout.name:
            raise ValueError("it declares a collection that cannot be one")
        if kept.file.name != records_name(layout.name):
            raise ValueError(f"it has {layout.name} in another file")
    if (manifest.events.name, manifest.artifacts.name) != ("events.pages", "artifacts.pages"):
        raise ValueError("it has events or artifacts in other files")
