"""The bare database as a contestant: apsw, a key and a value, and nothing else.

Same durability as a bank's default: write-ahead log, synchronous=NORMAL. Everything else is as
SQLite comes, so its checkpoints happen inside the insert that fills the log.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import apsw

_INSERT = "INSERT INTO messages(key, value) VALUES(?, ?)"
_FILL = 500

Pair = tuple[str, str]


class Raw:
    """One table in one file."""

    def __init__(self, path: Path) -> None:
        self.db = apsw.Connection(str(path))
        self.db.pragma("journal_mode", "wal")
        self.db.pragma("synchronous", "NORMAL")
        self.db.execute("CREATE TABLE messages(key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        #: Insert one pair, in a transaction of its own.
        self.insert: Callable[[Pair], object] = functools.partial(self.db.execute, _INSERT)

    def insert_many(self, pairs: Sequence[Pair]) -> None:
        """Insert all of them in one transaction."""
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany(_INSERT, pairs)
        self.db.execute("COMMIT")

    def fill(self, session: str, texts: Sequence[str]) -> None:
        """Put a session there before anything is measured."""
        rows = pairs(session, texts)
        for start in range(0, len(rows), _FILL):
            self.insert_many(rows[start : start + _FILL])

    def clear(self, session: str) -> None:
        """Remove a session."""
        self.db.execute(
            "DELETE FROM messages WHERE key >= ? AND key < ?", (f"{session}/", f"{session}0")
        )

    def close(self) -> None:
        self.db.close()


def pairs(session: str, texts: Sequence[str], first: int = 0) -> list[Pair]:
    """Rows for these texts, numbered within the session."""
    return [(f"{session}/{number:08d}", text) for number, text in enumerate(texts, start=first)]
