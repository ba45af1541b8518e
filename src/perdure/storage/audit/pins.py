"""What makes one write with its entry out of a read and a commit: pins, expectations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from perdure.core.errors import Conflict
from perdure.storage.rows import Batch, Delete, Put, Recode, Row

_EVERYTHING = "*"
_SYSTEM = "perdure_"

#: Rows as they are before a write, by collection and key; None where there is none.
Before: TypeAlias = dict[tuple[str, str], Row | None]


class Chosen:
    """Collections that were named; a star stands for all that are not Perdure's own."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._own = _EVERYTHING in self._names

    def __contains__(self, name: str) -> bool:
        return name in self._names or (self._own and not name.startswith(_SYSTEM))


def pinned(write: Put | Delete, row: Row | None) -> Put | Delete:
    """The write for the row as it was read, and no other; a check beside it says which row.

    A version is expected where a check would not do, or where it spares the backend a look.
    """
    if write.expected is not None or (row is not None and isinstance(write, Delete)):
        return write
    return msgspec.structs.replace(write, expected=0 if row is None else row.version)


def keeps_content(recode: Recode) -> bool:
    """Whether a rewrite leaves the content what it was."""
    row = recode.row
    return (recode.value, recode.content_type) == (row.value, row.content_type)


def holds(batch: Batch, conflict: Conflict, before: Before) -> bool:
    """Whether what the caller expects of a row is true of it as it is now."""
    place = conflict.collection, conflict.key
    row = before[place]
    version, created = (0, 0) if row is None else (row.version, row.created)
    return all(
        write.expected in {None, version}
        for write in batch.writes
        if (write.collection, write.key) == place
    ) and all(
        (check.version, check.created) == (version, created)
        for check in batch.checks
        if (check.collection, check.key) == place
    )
