"""Reads, verifies and prunes the audit trail."""

from __future__ import annotations

from datetime import datetime

import msgspec

from perdure.core import clock
from perdure.core.errors import InvalidInput, Unavailable
from perdure.storage.audit import audit_chain
from perdure.storage.audit.audit_chain import Hasher, Verdict
from perdure.storage.audit.audit_entries import (
    FOLDER,
    TRAIL,
    Action,
    AuditEntry,
    EntryWriter,
    as_put,
    first_id,
    time_of,
    trail_writes,
)
from perdure.storage.concurrency import ATTEMPTS, back_off
from perdure.storage.options import DEFAULT, STRONG, Options
from perdure.storage.query import All, Compare, Condition, Op, Query, SortOrder
from perdure.storage.records import type_of
from perdure.storage.rows import Batch, Row
from perdure.storage.store import Store

#: Stands for a collection in entries about denied requests.
SERVER = "server"
_PAGE = 500
_DECLARED = type_of(AuditEntry)


class TrailPage(msgspec.Struct, frozen=True):
    """A page of entries."""

    entries: list[AuditEntry]
    #: Give it as `after` for the following page; None on the last.
    next: str | None = None


class AuditTrail:
    """The trail of a store, even if it no longer audits anything."""

    def __init__(self, store: Store, *, actor: str = "") -> None:
        self._store = store
        #: Who prunes, unless `acting_as` says so; empty: the user of the system.
        self._actor = actor

    async def entries(
        self,
        *,
        collection: str | None = None,
        key: str | None = None,
        actor: str | None = None,
        action: Action | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
        newest_first: bool = False,
        after: str | None = None,
        options: Options = DEFAULT,
    ) -> TrailPage:
        """A page of matching entries, in order of time: since <= at < until.

        `after` is an entry's id, or a page's `next`: the page begins behind it. The cost of a page
        does not depend on the number of entries.
        """
        if limit < 1:
            raise InvalidInput(f"A page of {limit} entries is none.", hint="Use 1 or more.")
        if not await self._is_there():
            return TrailPage([])
        wanted = [
            Compare(column, Op.EQ, value)
            for column, value in (
                ("collection", collection),
                ("record", key),
                ("actor", actor),
                ("action", None if action is None else _action(action)),
            )
            if value is not None
        ]
        span = _Span(since, until, newest_first=newest_first)
        # Without conditions, the order of keys is the order of time, and costs no index.
        query = span.filtered(wanted, after) if wanted else span.all(after)
        query = msgspec.structs.replace(query, limit=limit + 1)
        rows = await self._store.find(query, options)
        found = [entry for entry in map(_DECLARED.decode, rows) if span.holds(entry)]
        more = len(found) > limit
        return TrailPage(found[:limit], found[limit - 1].id if more else None)

    async def history_of(self, collection: str, key: str) -> list[AuditEntry]:
        found, after = list[AuditEntry](), None
        while True:
            page = await self.entries(
                collection=collection, key=key, limit=_PAGE, after=after, options=STRONG
            )
            found += page.entries
            after = page.next
            if after is None:
                return found

    async def verify(self, collection: str, key: str) -> Verdict:
        """Whether the entries of one record join, up to its current state.

        If the record is older than its audit, or old entries were pruned, `Verdict.begins_at` is
        not 0. Without any entry nothing can be said. Raises `Unavailable` if the record is written
        again and again, each time before its entries are read.
        """
        row, entries = await self._at_rest(collection, key)
        found = audit_chain.follow(entries)
        if found.state is not None:
            now = clock.to_datetime(self._store.now())
            version = 0 if row is None else row.version
            hash_ = (await Hasher.of(self._store)).of_row(row)
            if not found.state.admits(version, hash_, now):
                found.gaps.append(found.state.gap("", now, version, hash_))
        return Verdict(collection, key, found.entries, found.begins_at, tuple(found.gaps))

    async def prune(self, before: datetime) -> int:
        """Returns how many; first records the pruning. `InvalidInput` for a future time."""
        bound = clock.from_datetime(before)
        if bound > self._store.now():
            raise InvalidInput(
                "Entries can be pruned up to now, not beyond.", hint="Give an earlier moment."
            )
        if not await self._is_there():
            return 0
        finder = self._store.collection(AuditEntry).query().where("at", "<", before)
        count = await finder.count(STRONG)
        if not count:
            return 0
        note = EntryWriter(self._store.now, self._actor).entry(
            Action.PRUNE, TRAIL, count=count, query=f"at < {before.isoformat()}"
        )
        token = trail_writes.set(True)
        try:
            await self._store.commit(Batch((as_put(note),)), STRONG)
            return await finder.delete(STRONG)
        finally:
            trail_writes.reset(token)

    async def record_denial(self, operation: str, *, count: int = 1) -> None:
        """That a server refused requests, of whom and why `acting_as` says. Also where nothing else
        is audited.
        """
        await self._store.ready(_DECLARED)
        writer = EntryWriter(self._store.now, self._actor)
        entry = writer.entry(Action.DENY, SERVER, count=count, query=operation)
        token = trail_writes.set(True)
        try:
            await self._store.commit(Batch((as_put(entry),)), DEFAULT)
        finally:
            trail_writes.reset(token)

    async def _at_rest(self, collection: str, key: str) -> tuple[Row | None, list[AuditEntry]]:
        for attempt in range(ATTEMPTS):
            row = await self._row(collection, key)
            entries = await self.history_of(collection, key)
            if _identity(row) == _identity(await self._row(collection, key)):
                return row, entries
            await back_off(attempt)
        raise Unavailable(
            f"{collection}/{key} keeps changing while its trail is read.",
            hint="Try again when it is written less often.",
        )

    async def _row(self, collection: str, key: str) -> Row | None:
        if collection not in self._store.declared and not await self._is_known(collection):
            return None
        (row,) = await self._store.read(collection, (key,), STRONG)
        return row

    async def _is_known(self, collection: str) -> bool:
        return any(size.collection == collection for size in await self._store.adapter.sizes())

    async def _is_there(self) -> bool:
        return bool(await self._store.ready(_DECLARED, make=False))


class _Span:
    def __init__(
        self, since: datetime | None, until: datetime | None, *, newest_first: bool
    ) -> None:
        self._since = None if since is None else clock.from_datetime(since)
        self._until = None if until is None else clock.from_datetime(until)
        self._newest_first = newest_first

    def holds(self, entry: AuditEntry) -> bool:
        at = clock.from_datetime(entry.at)
        return (self._since is None or at >= self._since) and (
            self._until is None or at < self._until
        )

    def all(self, after: str | None) -> Query:
        """Every entry in key order, from the end that comes first; not cut at the other."""
        if after is not None:
            time_of(after)  # checks it
        elif self._newest_first and self._until is not None:
            after = first_id(self._until)
        elif not self._newest_first and self._since is not None:
            after = first_id(self._since)
        mark = None if after is None else (after,)
        order = (SortOrder("key", self._newest_first),)
        return Query(TRAIL, prefix=FOLDER, order=order, after=mark)

    def filtered(self, wanted: list[Compare], after: str | None) -> Query:
        conditions: list[Condition] = [*wanted]
        if self._since is not None:
            conditions.append(Compare("at", Op.GE, self._since))
        if self._until is not None:
            conditions.append(Compare("at", Op.LT, self._until))
        mark = None if after is None else (time_of(after), after)
        order = (SortOrder("at", self._newest_first),)
        return Query(TRAIL, where=All(tuple(conditions)), order=order, after=mark)


def _action(action: Action | str) -> str:
    try:
        return Action(action).value
    except ValueError:
        raise InvalidInput(
            f"There is no action {action!r} in an audit trail.",
            hint=f"Use one of {', '.join(Action)}.",
        ) from None


def _identity(row: Row | None) -> tuple[int, int, int] | None:
    return None if row is None else (row.version, row.created, row.checksum)
