"""Backups: a folder of snapshots that can be checked, and loaded into a bank of any kind.

::

    perdure-backup.json                      says whose folder this is, and in which format
    lock                                     held by the one who writes
    snapshots/20261116T075612.358Z-3f9a1c2b/ the records at one moment
        manifest.json                        what belongs to it: counts and SHA-256 of every file
        records/notes.pages                  a collection; see `pages`
        events.pages, artifacts.pages        events; hashes and sizes of the large artifacts
    artifacts/sha256/9f/9f86d0…              large artifacts, shared by all snapshots
    incoming/…                               what is being written

Everything is written under ``incoming/``, synced, and moved to its place in one step: a snapshot
as a whole folder, when its manifest is in it. So whatever is under ``snapshots/`` was finished, and
what a crash leaves is under ``incoming/``, where the next run removes it.

Rows are kept as they are stored: what is encrypted stays encrypted, and needs the same key. If the
bank has a master key, the files are encrypted as well (see `sealing`), since rows of an encrypted
file, and artifacts, come out of the bank in clear. The folder is made for its owner alone.
"""

from perdure.storage.backups.folder import LATEST, BackupFolder, Listed
from perdure.storage.backups.manifest import FORMAT, KeptArtifact, Manifest, Mark
from perdure.storage.backups.objects import KeptObjects
from perdure.storage.backups.records import KeptSnapshot, artifacts_of, keep, keep_artifacts
from perdure.storage.backups.sealing import Clear, Seal, new_key, opened

__all__ = [
    "FORMAT",
    "LATEST",
    "BackupFolder",
    "Clear",
    "KeptArtifact",
    "KeptObjects",
    "KeptSnapshot",
    "Listed",
    "Manifest",
    "Mark",
    "Seal",
    "artifacts_of",
    "keep",
    "keep_artifacts",
    "new_key",
    "opened",
]
