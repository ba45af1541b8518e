"""Following the trail of one record: does each entry begin where the one before it ended?

An entry says what it found and what it left. If somebody changes a record without leaving an entry,
with the database's own tools or in a process that does not audit, the next entry finds something
else than the last one left.

Three things look like that and are not: a record that has expired is found absent; a rewrite may
have been skipped, so that both contents are possible after it; and entries of machines whose clocks
differ a little may stand in the wrong order.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from perdure.storage.audit.entries import Action, AuditEntry

#: By how much clocks may differ.
_SKEW = timedelta(seconds=60)
_CHANGES = frozenset({Action.PUT, Action.DELETE, Action.REWRITE})


class Gap(msgspec.Struct, frozen=True):
    """Where a trail does not join: what was found is not what had been left."""

    #: The entry that found it; empty if it is the record as it is now.
    entry: str
    at: datetime
    #: What the entry before had left.
    version_left: int
    hash_left: str
    version_found: int
    hash_found: str

    def __str__(self) -> str:
        found = f"version {self.version_found}" if self.version_found else "nothing"
        left = f"version {self.version_left}" if self.version_left else "nothing"
        if self.version_found == self.version_left:
            found += " with other content"
        return f"{self.at:%Y-%m-%d %H:%M:%S}: found {found}, where {left} had been left"


class Verdict(msgspec.Struct, frozen=True):
    """What the trail of one record says."""

    collection: str
    key: str
    #: Entries that tell of changes.
    entries: int
    #: The version that the first of them found: 0 if the trail goes back to the record's birth.
    begins_at: int
    gaps: tuple[Gap, ...]

    @property
    def ok(self) -> bool:
        """Whether all of it joins, up to the record as it is now."""
        return not self.gaps


class State(msgspec.Struct):
    """What a record should look like now."""

    version: int
    hashes: set[str]
    expires: datetime | None = None

    def admits(self, version: int, hash_: str, at: datetime) -> bool:
        """Whether it can have been found like that at this moment."""
        if version == self.version:
            return hash_ in self.hashes
        return version == 0 and self.expires is not None and self.expires <= at + _SKEW

    def gap(self, entry: str, at: datetime, version: int, hash_: str) -> Gap:
        return Gap(entry, at, self.version, min(self.hashes), version, hash_)


class Followed(msgspec.Struct):
    """Where the entries of one record lead."""

    #: Entries that tell of changes.
    entries: int
    begins_at: int = 0
    state: State | None = None
    gaps: list[Gap] = []


def follow(entries: Iterable[AuditEntry]) -> Followed:
    """Go through the entries of one record, given in the order of their ids.

    Entries of reads are passed over.
    """
    left = [entry for entry in entries if entry.action in _CHANGES]
    found = Followed(len(left))
    while left:
        state = found.state
        entry = left.pop(_first(left) if state is None else _next(left, state))
        version, hash_ = entry.version_before, entry.hash_before
        if state is None:
            found.begins_at = version
            found.state = state = State(version, {hash_})
        if entry.action is Action.REWRITE:
            if state.admits(version, hash_, entry.at):
                state.hashes.add(entry.hash_after)
            continue
        if not state.admits(version, hash_, entry.at):
            found.gaps.append(state.gap(entry.id, entry.at, version, hash_))
        found.state = State(entry.version_after, {entry.hash_after}, entry.expires)
    return found


def _first(entries: list[AuditEntry]) -> int:
    """Which entry comes first: among those of about the same time, one that none leads to."""
    near = [entry for entry in entries if entry.at <= entries[0].at + _SKEW]
    left = {(entry.version_after, entry.hash_after) for entry in near}
    found = [(entry.version_before, entry.hash_before) in left for entry in near]
    return found.index(False) if False in found else 0


def _next(entries: list[AuditEntry], state: State) -> int:
    """Which entry comes next: of those of about the same time, the first that fits."""
    for place, entry in enumerate(entries):
        if entry.at > entries[0].at + _SKEW:
            break
        if entry.action is Action.REWRITE or state.admits(
            entry.version_before, entry.hash_before, entry.at
        ):
            return place
    return _first(entries)
