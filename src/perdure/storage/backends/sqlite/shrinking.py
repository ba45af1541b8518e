"""Giving room back: a small bank whose file is full of holes is written anew.

Merging words and filing them leaves pages that nothing stands on. What is written next takes them,
so in a large bank they are few among many. In a small one they may be a tenth of the file, and
VACUUM takes a moment only: some fifteen milliseconds for each megabyte, in which others cannot
write, but read.
"""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import apsw

from perdure.storage.backends.sqlite import connections

#: Pages of a small bank (8 MB), at most.
_SMALL = 2_048
#: Free pages that are worth it, at least, and as a share of all.
_FEW, _SHARE = 16, 1 / 32


def is_due(db: apsw.Connection) -> bool:
    """Whether the file is small, and much of it free. A short look."""
    pages, free = db.pragma("page_count"), db.pragma("freelist_count")
    return bool(pages <= _SMALL and free >= max(_FEW, pages * _SHARE))


def shrink(path: Path, key: bytes | None) -> None:
    """Write the file anew, without the free pages. Not if anybody is writing: it can wait.

    Those who write meanwhile wait for it; nothing is lost if the process dies. Never raises for
    what SQLite cannot do, on a full disk or in a damaged file: that is for those who need it.
    """
    with suppress(apsw.Error), closing(connections.connect(path, key)) as db:
        db.set_busy_timeout(0)
        db.pragma("temp_store", "MEMORY")  # no copy of the bank in a folder of others
        db.execute("VACUUM")
