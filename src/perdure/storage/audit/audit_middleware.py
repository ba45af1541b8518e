"""Middleware that adds audit entries to writes and, if configured, to reads."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec

from perdure.config.settings import AuditConfig
from perdure.core.errors import (
    Conflict,
    Corrupted,
    DeadlineExceeded,
    InvalidInput,
    KeyRefused,
    Unavailable,
    Unsupported,
)
from perdure.storage.adapter import Capability
from perdure.storage.audit.audit_chain import SECRETS, Hasher
from perdure.storage.audit.audit_entries import (
    TRAIL,
    Action,
    AuditEntry,
    EntryWriter,
    as_put,
    expiry,
    is_same,
    of_query,
    of_summary,
    trail_writes,
)
from perdure.storage.concurrency import ATTEMPTS, back_off
from perdure.storage.middleware import (
    Call,
    Commit,
    Find,
    Get,
    Handler,
    Remove,
    Resident,
    Rewrite,
    SearchCall,
    Stage,
    Summarize,
    TimeLeft,
    collection_of,
)
from perdure.storage.options import STRONG, Options
from perdure.storage.query import All, Compare, Op, Query
from perdure.storage.records import type_of
from perdure.storage.rows import Batch, Check, Delete, Put, Recode, Row
from perdure.storage.store import Store

#: An entry is committed together with its write, and found again.
_NEEDED = (
    Capability.TRANSACTIONS,
    Capability.VERSIONS,
    Capability.LISTING,
    Capability.QUERY,
)


class Audit(Resident[Store]):
    """Adds audit entries.

    It reads what is about to be overwritten, and reads again if that changed before the commit.
    Expectations of the caller still raise `Conflict`. If others keep writing the same records
    first, for hundreds of milliseconds, it gives up with `Unavailable`.

    `Remove` becomes a search and commits of deletes, because removed content is hashed. It is not
    one transaction: rows go in pages, each with its entries; after an error or a crash later pages
    are still there. A row changed meanwhile is removed if the query still fits it.

    The entries of a rewrite are committed before it; a row that it skips has an entry all the same.
    """

    stage: ClassVar[Stage] = Stage.AUDIT

    def __init__(self, config: AuditConfig) -> None:
        for name in (*config.collections, *config.reads):
            if name in SECRETS or name == TRAIL:
                raise InvalidInput(
                    f"The collection {name!r} is the audit trail's own.", hint="Leave it out."
                )
        self._config = config
        self._written = Chosen(config.collections)
        self._read = Chosen(config.reads)
        self._hasher: Hasher | None = None

    def attach(self, store: Store) -> None:
        """Raises `Unsupported` if the backend cannot commit an entry together with its write."""
        missing = [each for each in _NEEDED if each not in store.adapter.capabilities]
        if missing and (self._config.collections or self._config.reads):
            raise Unsupported(
                f"{type(store.adapter).__name__} has no capability {missing[0].value!r}, which an"
                " audit trail needs.",
                hint="Open the bank on sqlite:// or postgresql://, or set no audit.collections.",
            )
        super().attach(store)
        self._entries = EntryWriter(store.now, self._config.actor)

    def __call__(self, call: Call, proceed: Handler) -> Awaitable[Any]:
        # Not async itself: what leaves no entries should not pay for a coroutine.
        if isinstance(call, Commit):
            return self._commit(call, proceed) if self._concerns(call.batch) else proceed(call)
        name = collection_of(call)
        if isinstance(call, Remove | Rewrite):
            if name not in self._written and name != TRAIL:
                return proceed(call)
            if isinstance(call, Remove):
                return self._remove(call, proceed)
            return self._rewrite(call, proceed)
        return self._reading(call, proceed) if name in self._read else proceed(call)

    def _concerns(self, batch: Batch) -> bool:
        for write in batch.writes:  # any() would cost more than it looks at
            if write.collection in self._written or write.collection == TRAIL:
                return True
        return False

    async def _commit(self, call: Commit, proceed: Handler) -> Any:
        batch, time_left = call.batch, TimeLeft(call.options)
        for write in batch.writes:
            if write.collection == TRAIL and not trail_writes.get():
                raise _refusal()
        hasher = await self._ready()
        conflict: Conflict | None = None
        for attempt in range(ATTEMPTS):
            before = await self._before(batch, proceed, time_left, again=conflict is not None)
            if conflict is not None and not holds(batch, conflict, before):
                raise conflict
            try:
                versions = await proceed(
                    Commit(self._with_entries(batch, before, hasher), time_left.options())
                )
                return versions[: len(batch.writes)]
            except Conflict as exc:
                if (exc.collection, exc.key) not in before:
                    raise
                conflict = exc
            await back_off(attempt)
        raise Unavailable(
            "Others kept writing the same records, so that none could be written with its audit"
            " entry.",
            hint="Nothing was changed. Try again.",
        ) from conflict

    async def _before(
        self, batch: Batch, proceed: Handler, time_left: TimeLeft, *, again: bool
    ) -> Before:
        """The rows a batch overwrites; not read where none is expected, unless `again`."""
        before: Before = {}
        wanted: dict[str, list[str]] = {}
        for write in batch.writes:
            if write.collection in self._written:
                before[write.collection, write.key] = None
                if write.expected != 0 or again:
                    wanted.setdefault(write.collection, []).append(write.key)
        for name, keys in wanted.items():
            rows = await self._rows(name, keys, proceed, time_left)
            before.update(zip([(name, key) for key in keys], rows, strict=True))
        return before

    async def _rows(
        self, name: str, keys: Sequence[str], proceed: Handler, time_left: TimeLeft
    ) -> list[Row | None]:
        """The current rows; unreadable ones without content, so that they can be deleted."""
        options = time_left.options(STRONG)
        try:
            rows: list[Row | None] = await proceed(Get(name, keys, options))
            return rows
        except (Corrupted, KeyRefused):
            if len(keys) > 1:
                return [(await self._rows(name, [key], proceed, time_left))[0] for key in keys]
        (stored,) = await self.store.adapter.get(name, keys, options)
        if stored is None:
            return [None]
        return [msgspec.structs.replace(stored, value=b"", content_type="")]

    def _with_entries(self, batch: Batch, before: Before, hasher: Hasher) -> Batch:
        writes: list[Put | Delete] = []
        entries: list[Put] = []
        theirs = frozenset(batch.checks)
        checks: list[Check] = []
        for write in batch.writes:
            if write.collection not in self._written:
                writes.append(write)
                continue
            row = before[write.collection, write.key]
            writes.append(pinned(write, row))
            if row is not None:
                check = Check(write.collection, write.key, row.version, row.created)
                if check not in theirs:
                    checks.append(check)
            entries.append(as_put(self._about(write, row, hasher)))
        return Batch((*writes, *entries), (*batch.checks, *checks), batch.events, batch.changes)

    def _about(self, write: Put | Delete, row: Row | None, hasher: Hasher) -> AuditEntry:
        version = 0 if row is None else row.version
        before = hasher.of_row(row)
        if isinstance(write, Delete):
            return self._entries.entry(
                Action.DELETE,
                write.collection,
                write.key,
                version_before=version,
                hash_before=before,
            )
        return self._entries.entry(
            Action.PUT,
            write.collection,
            write.key,
            version_before=version,
            version_after=version + 1,
            hash_before=before,
            hash_after=hasher.of_content(write),
            expires=expiry(write),
        )

    async def _remove(self, call: Remove, proceed: Handler) -> int:
        query, time_left = call.query, TimeLeft(call.options)
        if query.collection == TRAIL:
            if not trail_writes.get():
                raise _refusal()
            removed: int = await proceed(call)
            return removed
        count = 0
        rows = await self._found(query, proceed, time_left)
        try:
            for start in range(0, len(rows), _PAGE):
                page = rows[start : start + _PAGE]
                if await self._remove_rows(query.collection, page, proceed, time_left):
                    count += len(page)
                    continue
                for row in page:  # a busy one does not keep the others
                    is_removed = await self._remove_one(query, row.key, proceed, time_left)
                    if is_removed is None:
                        raise Unavailable(
                            f"Others kept writing what was to be removed; {count:,} records were.",
                            hint=_ON,
                        )
                    count += is_removed
        except DeadlineExceeded as exc:
            raise DeadlineExceeded(
                f"The time allowed was over; {count:,} records were removed.",
                hint=f"Allow more time. {_ON}",
            ) from exc
        return count

    async def _remove_one(
        self, query: Query, key: str, proceed: Handler, time_left: TimeLeft
    ) -> bool | None:
        """False if the query does not fit the record any more; None if others keep writing it."""
        where = All((query.where, Compare("key", Op.EQ, key)))
        one = Query(query.collection, where, query.prefix)
        for attempt in range(ATTEMPTS):
            found = await self._found(one, proceed, time_left)
            if not found:
                return False
            if await self._remove_rows(query.collection, found, proceed, time_left):
                return True
            await back_off(attempt)
        return None

    async def _remove_rows(
        self, name: str, rows: Sequence[Row], proceed: Handler, time_left: TimeLeft
    ) -> bool:
        """Remove rows with their entries; or nothing, if one of them was changed."""
        batch = Batch(tuple(Delete(name, row.key) for row in rows))
        before: Before = {(name, row.key): row for row in rows}
        whole = self._with_entries(batch, before, await self._ready())
        try:
            await proceed(Commit(whole, time_left.options()))
        except Conflict:
            return False
        return True

    async def _found(self, query: Query, proceed: Handler, time_left: TimeLeft) -> list[Row]:
        """The rows that a query finds now; damaged ones without their content."""
        options = time_left.options(STRONG)
        try:
            found: list[Row] = await proceed(Find(query, options))
            return found
        except (Corrupted, KeyRefused):
            stored = await self.store.adapter.find(query, options)
        keys = [row.key for row in stored]
        rows = await self._rows(query.collection, keys, proceed, time_left)
        return [row for row in rows if row is not None]

    async def _rewrite(self, call: Rewrite, proceed: Handler) -> int:
        if call.collection == TRAIL:
            await self._check_same(call, proceed)
        else:
            await self._leave(await self._about_rewrite(call), proceed, call.options)
        rewritten: int = await proceed(call)
        return rewritten

    async def _check_same(self, call: Rewrite, proceed: Handler) -> None:
        """Compared with what is stored: the row in a `Recode` is the caller's word only."""
        keys = [recode.row.key for recode in call.recodes]
        rows = await self._rows(TRAIL, keys, proceed, TimeLeft(call.options))
        for row, recode in zip(rows, call.recodes, strict=True):
            if row is not None and not is_same(row, recode):
                raise _refusal()

    async def _about_rewrite(self, call: Rewrite) -> list[AuditEntry]:
        """One entry for each row whose content changes; one for all that keep theirs."""
        hasher = await self._ready()
        entries = [
            self._entries.entry(
                Action.REWRITE,
                call.collection,
                recode.row.key,
                version_before=recode.row.version,
                version_after=recode.row.version,
                hash_before=hasher.of_row(recode.row),
                hash_after=hasher.of_content(recode),
                expires=expiry(recode.row),
            )
            for recode in call.recodes
            if not keeps_content(recode)
        ]
        if others := len(call.recodes) - len(entries):
            entries.append(self._entries.entry(Action.REWRITE, call.collection, count=others))
        return entries

    async def _reading(self, call: Get | Find | Summarize | SearchCall, proceed: Handler) -> Any:
        answer = await proceed(call)
        hasher = await self._ready()
        entries: list[AuditEntry] = []
        if isinstance(call, Get):
            found = zip(call.keys, answer, strict=True)
            entries += [self._about_read(call.collection, key, row, hasher) for key, row in found]
        elif isinstance(call, Find):
            name, shape = call.query.collection, of_query(call.query)
            entries.append(self._entries.entry(Action.FIND, name, count=len(answer), query=shape))
            entries += [self._about_read(name, row.key, row, hasher) for row in answer]
        elif isinstance(call, SearchCall):
            entries.append(
                self._entries.entry(
                    Action.SEARCH, call.collection, count=call.count(answer), query=call.kind
                )
            )
        else:
            name, shape = call.summary.query.collection, of_summary(call.summary)
            entries.append(
                self._entries.entry(Action.SUMMARIZE, name, count=len(answer), query=shape)
            )
        await self._leave(entries, proceed, call.options)
        return answer

    def _about_read(self, name: str, key: str, row: Row | None, hasher: Hasher) -> AuditEntry:
        version, hash_ = (0, "") if row is None else (row.version, hasher.of_row(row))
        return self._entries.entry(
            Action.READ,
            name,
            key,
            version_before=version,
            version_after=version,
            hash_before=hash_,
            hash_after=hash_,
        )

    async def _leave(
        self, entries: Iterable[AuditEntry], proceed: Handler, options: Options
    ) -> None:
        puts = tuple(as_put(entry) for entry in entries)
        if puts:
            await proceed(Commit(Batch(puts), Options(deadline=options.deadline)))

    async def _ready(self) -> Hasher:
        if self._hasher is None:
            await self.store.ready(type_of(AuditEntry))
            self._hasher = await Hasher.of(self.store)
        return self._hasher


def _refusal() -> InvalidInput:
    return InvalidInput(
        "The audit trail cannot be written to, changed or deleted.",
        hint="AuditTrail(store).prune(before=…) removes old entries, and leaves one that says so.",
    )


#: Rows removed in one commit.
_PAGE = 100
_ON = "Try again: it goes on with the others."
_EVERYTHING = "*"
_SYSTEM = "perdure_"
#: Perdure's own that hold what people and agents said, know and decided. The others are made from
#: them, or are bookkeeping.
_SAID = frozenset(
    f"{_SYSTEM}{name}"
    for name in (
        *("sessions", "turns", "state_records", "entries"),
        *("memories", "layers", "layer_texts", "recall"),
    )
)

Before: TypeAlias = dict[tuple[str, str], Row | None]


class Chosen:
    """Named collections; a star stands for those that users declare, sessions and memories."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._own = _EVERYTHING in self._names

    def __contains__(self, name: str) -> bool:
        if name in self._names:
            return True
        return self._own and (not name.startswith(_SYSTEM) or name in _SAID)


def pinned(write: Put | Delete, row: Row | None) -> Put | Delete:
    """A write, and a check, that apply only to the row as it was read."""
    if write.expected is not None or (row is not None and isinstance(write, Delete)):
        return write
    return msgspec.structs.replace(write, expected=0 if row is None else row.version)


def keeps_content(recode: Recode) -> bool:
    row = recode.row
    return (recode.value, recode.content_type) == (row.value, row.content_type)


def holds(batch: Batch, conflict: Conflict, before: Before) -> bool:
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
