"""Middleware that answers reads by key from memory where that is allowed.

It is below compression and encryption: encrypted rows are cached encrypted. The caller says how old
an answer may be:

* `EVENTUAL` takes rows read in the last `CacheConfig.ttl` seconds. An older row never hides what
  this process has written itself.
* `BOUNDED` takes rows known to be unchanged at a recent moment. A SQLite file tells for next to
  nothing whether others have written; if not, everything cached counts as just read. Elsewhere the
  moment of reading counts.
* `STRONG` asks the store, and caches the answer.

Absent rows and Perdure's own collections are not cached.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar, cast

import msgspec

from perdure.config.settings import CacheConfig
from perdure.core.clock import Clock
from perdure.core.errors import Conflict, Unsupported
from perdure.storage.cache.cache_entries import NEVER, CacheRead, CacheStats, Entries, Place
from perdure.storage.cache.shared_cache import SharedCache, SharedLookup
from perdure.storage.middleware import Call, Commit, Get, Handler, Remove, Resident, Rewrite, Stage
from perdure.storage.options import STRONG, Consistency, Options
from perdure.storage.records import Key, system_record
from perdure.storage.rows import Row
from perdure.storage.store import Store

#: Collections of Perdure itself: what reads them relies on the newest.
OWN = "perdure_"


class RowCache(Resident[Store]):
    """Used from one event loop. Whatever writes beside the chain in this process must `clear`."""

    stage: ClassVar[Stage] = Stage.CACHE

    def __init__(self, config: CacheConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._kept: dict[str, bool] = {}
        self.stats = CacheStats()
        self._entries = Entries(config.entries, self.stats)
        self._shared: SharedCache | None = None
        if config.shared:
            self._shared = SharedCache(
                config.shared, config.ttl, self._on_message, self._entries.clear
            )

    async def open(self) -> None:
        """Connect to the shared cache, if any. An unreachable server is no error.

        Raises `Unsupported` if banks of this kind cannot share a cache, `UnknownBackend` if the
        package for it is not installed, `InvalidURL` if its address cannot be used.
        """
        self._entries.start_over()
        await self._validate()
        if self._shared is None:
            return
        host = self.store
        place = await host.adapter.identity()
        if place is None:
            raise Unsupported(
                f"{type(host.adapter).__name__} has no identity that a shared cache could go by.",
                hint="Leave cache.shared empty, or open a bank on sqlite:// or postgresql://.",
            )
        await self._shared.open(await bank_name(host, place))

    async def close(self) -> None:
        if self._shared is not None:
            await self._shared.close()

    async def clear(self) -> None:
        """Drop everything, here, in the shared cache, and in other processes."""
        self._entries.clear()
        if self._shared is not None:
            await self._shared.drop(())

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        if isinstance(call, Get):
            if not self._keeps(call.collection):
                return await proceed(call)
            if call.options.consistency is Consistency.STRONG:
                return await self._refresh(call, proceed)
            return await self._get(call, proceed)
        if isinstance(call, Commit):
            places = self._places(call.batch.writes)
            return await self._write(call, proceed, places, self._places(call.batch.checks))
        if isinstance(call, Rewrite):
            places = self._within(call.collection, (recode.row.key for recode in call.recodes))
            return await self._write(call, proceed, places, self._places(call.checks))
        if isinstance(call, Remove) and self._keeps(call.query.collection):
            return await self._write(call, proceed, (), (), (call.query.collection,))
        return await proceed(call)

    async def _get(self, call: Get, proceed: Handler) -> list[Row | None]:
        start = time.monotonic()
        rows = self._known(call, call.keys, start)
        missing = [key for key in dict.fromkeys(call.keys) if key not in rows]
        too_old = any(self._entries.holds((call.collection, key)) for key in missing)
        if too_old and await self._validate():
            rows |= self._known(call, missing, start)
            missing = [key for key in missing if key not in rows]
        self.stats.hits += len(rows)
        if missing:
            with self._entries.reading(call.collection, missing) as reading:
                rows |= await self._fetch(call, reading, proceed)
        return [rows.get(key) for key in call.keys]

    def _known(self, call: Get, keys: Sequence[str], now: float) -> dict[str, Row]:
        oldest = call.options.max_staleness
        proven = oldest is not None
        since = now - (self._config.ttl if oldest is None else oldest)
        moment = self._clock()
        rows: dict[str, Row] = {}
        for key in keys:
            place = (call.collection, key)
            row = self._entries.get(place, since, proven=proven, moment=moment)
            if row is not None:
                rows[key] = row
        return rows

    async def _validate(self) -> bool:
        """Ask the store whether others have written; True if all that is cached is still right."""
        asked = time.monotonic()
        generation = await self.store.adapter.generation()
        if generation is None:
            return False
        return self._entries.confirm(asked, generation, time.monotonic())

    async def _fetch(self, call: Get, reading: CacheRead, proceed: Handler) -> dict[str, Row]:
        look = SharedLookup()
        if self._shared is not None and self._shared.is_ready:
            look = await self._look(call, reading)
        rows = {key: found.row for key, found in look.found.items()}
        rest = [key for key in reading.keys if key not in rows]
        self.stats.shared_hits += len(rows)
        self.stats.misses += len(rest)
        if not rest:
            return rows
        start = time.monotonic()
        answer: list[Row | None] = await proceed(Get(call.collection, rest, call.options))
        fresh = self._fresh(call.options, start)
        read = [row for row in answer if row is not None]
        for key, row in zip(rest, answer, strict=True):
            reading.keep(key, row, start, fresh)
        if self._shared is not None and look.leased and fresh == start:
            await self._shared.put(
                call.collection, [row for row in read if row.key not in reading.spoiled], look
            )
        return rows | {row.key: row for row in read}

    async def _look(self, call: Get, reading: CacheRead) -> SharedLookup:
        shared, start = cast("SharedCache", self._shared), time.monotonic()
        free = [key for key in reading.keys if key not in reading.spoiled]
        look = await shared.look(call.collection, free) if free else SharedLookup()
        oldest, moment = call.options.max_staleness, self._clock()
        young = {}
        for key, found in look.found.items():
            expires = found.row.expires
            if (oldest is None or found.age <= oldest) and (expires is None or expires > moment):
                young[key] = found
                reading.keep(key, found.row, start - found.age, start - found.age)
        return msgspec.structs.replace(look, found=young)

    async def _refresh(self, call: Get, proceed: Handler) -> list[Row | None]:
        self.stats.misses += len(call.keys)
        keys = list(dict.fromkeys(call.keys))
        with self._entries.reading(call.collection, keys) as reading:
            start = time.monotonic()
            answer: list[Row | None] = await proceed(call)
            for key, row in zip(call.keys, answer, strict=True):
                reading.keep(key, row, start, start)
        return answer

    def _fresh(self, options: Options, start: float) -> float:
        """The moment at which rows read with these options were surely current."""
        if not self.store.adapter.replicated or options.consistency is Consistency.STRONG:
            return start
        return NEVER if options.max_staleness is None else start - options.max_staleness

    async def _write(
        self,
        call: Call,
        proceed: Handler,
        places: Sequence[Place],
        checks: Sequence[Place],
        collections: Sequence[str] = (),
    ) -> Any:
        if not (places or checks or collections):
            return await proceed(call)
        with self._entries.writing(places, collections):
            try:
                return await proceed(call)
            except Conflict:
                # Whoever repeats it must not be given the same rows again.
                self._entries.drop(checks)
                places = [*places, *checks]
                raise
            finally:
                # However it ended: it may have been carried out.
                if self._shared is not None and (places or collections):
                    await self._shared.drop(places)  # without any, what was removed is not known

    def _on_message(self, places: Sequence[Place]) -> None:
        if places:
            self._entries.drop(places)
        else:
            self._entries.clear()

    def _keeps(self, collection: str) -> bool:
        kept = self._kept.get(collection)
        if kept is None:
            named = self._config.collections
            kept = not collection.startswith(OWN) and (not named or collection in named)
            self._kept[collection] = kept
        return kept

    def _places(self, parts: Iterable[Any]) -> list[Place]:
        return [(part.collection, part.key) for part in parts if self._keeps(part.collection)]

    def _within(self, collection: str, keys: Iterable[str]) -> list[Place]:
        return [(collection, key) for key in keys] if self._keeps(collection) else []


_NEW = Options(consistency=Consistency.STRONG, expected=0)


@system_record("cache_names")
class CacheName(msgspec.Struct, frozen=True):
    """A random name, kept in the bank: one created anew in the same place has another."""

    id: Annotated[str, Key()]
    name: str


async def bank_name(host: Store, place: str) -> str:
    """The name of this very bank. A copy, which has the same random name, lies elsewhere."""
    names = host.collection(CacheName)
    while (found := await names.get("bank", STRONG)) is None:
        with suppress(Conflict):  # another process was first
            await names.put(CacheName("bank", secrets.token_hex(16)), _NEW)
    return hashlib.sha256(f"{place}\0{found.name}".encode()).hexdigest()[:24]
