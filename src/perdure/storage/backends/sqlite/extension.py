"""What takes part in the transactions of a SQLite bank; see `perdure.storage.extension`.

It may also keep derived files beside the bank, named by `sidecar`. They are removed when deleted
content is to be unreadable, and are never in clear beside an encrypted bank.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw

from perdure.storage.extension import Extension

_SUFFIX = ".vectors"


class SQLiteExtension(Extension):
    """Called by the adapter that it is attached to, mostly on its writing connection."""

    @abstractmethod
    def weight(self, change: Any) -> int:
        """The event loop's cost of a change, in bytes written."""

    @abstractmethod
    def apply(self, db: apsw.Connection, changes: Sequence[Any]) -> None:
        """Apply the changes of one commit, unchecked, in order, inside its transaction."""

    @abstractmethod
    def is_to_blame(self, error: Exception) -> bool:
        """Whether this may have made a commit fail, and would let it pass if repeated."""

    @abstractmethod
    def connected(self, db: apsw.Connection) -> None:
        """A connection to read with was opened."""

    @abstractmethod
    def scrub(self, db: apsw.Connection) -> None:
        """Leave nothing readable of what was deleted; VACUUM follows. Not in a transaction."""

    @abstractmethod
    def clear(self, db: apsw.Connection) -> None:
        """Remove everything: the store is about to hold other rows. In a transaction."""

    @abstractmethod
    def close(self) -> None:
        """The adapter is closed, and may be opened again."""


def sidecar(bank: Path, name: str, number: int) -> Path:
    return bank.with_name(f"{bank.name}.{name}.{number}{_SUFFIX}")


def remove_sidecars(bank: Path, name: str | None = None) -> None:
    """Remove the files of this name, or all, overwriting their content first."""
    which = r"\w+" if name is None else re.escape(name)
    pattern = re.compile(rf"{re.escape(bank.name)}\.{which}\.\d+{re.escape(_SUFFIX)}(\.\w+)?")
    for path in bank.parent.iterdir():
        if pattern.fullmatch(path.name):
            with suppress(OSError):
                with path.open("r+b") as file:
                    file.write(bytes(path.stat().st_size))
                    file.flush()
                    os.fsync(file.fileno())
                path.unlink()
