"""Valkey and Redis, through the `valkey` package.

For records that should be quick to reach from many machines and may be lost: caches, presence,
sessions that expire. `address` reads the URL, `admission` checks the server, `rows` lays out
records and lists them, `scripts` are its atomic steps, `writer` writes, `links` keeps
connections.

What it can do, and why no more:

- VERSIONS and TRANSACTIONS: a script checks everything and then writes everything, atomically,
  also in the server's log and for replicas. A cluster cannot do that, so it is refused.
- LISTING by a sorted set. A page is as of one moment; a longer listing has several.
- TTL by the adapter's clock; the server frees the memory a minute later.
- SHARED, and ERASURE: the server is asked to rewrite its log and snapshots.

Not DURABLE or STRONG: that depends on the server's configuration, which can change at any time.
With ``appendonly yes`` and ``appendfsync always`` everything acknowledged survives, with
``everysec`` all but the last second, without a log nothing. Strong writes are accepted, and are
as durable as others. A server that evicts any key (``maxmemory-policy allkeys-…``) is refused;
with ``volatile-…`` expiring records may be lost early when it is full.

Columns are not kept, since there is no QUERY.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from perdure.core.clock import Clock, now
from perdure.core.display import install_hint
from perdure.core.errors import (
    Conflict,
    NewerSchema,
    NotAStore,
    TooLarge,
    UnknownBackend,
)
from perdure.storage.adapter import Capability, newer_schema
from perdure.storage.backends.sql_adapter import LayoutAdapter, not_open
from perdure.storage.options import Options
from perdure.storage.query import All, Query
from perdure.storage.rows import Batch, Check, Fill, Layout, Put, Recode, Row, Size

try:
    import valkey  # noqa: F401  # the modules below need it
except ImportError as exc:
    raise UnknownBackend(
        "Valkey stores need the package valkey, which is not installed or cannot be loaded.",
        hint=install_hint("valkey"),
    ) from exc

from perdure.storage.backends.valkey import address, admission, erasure, rows, scripts
from perdure.storage.backends.valkey.links import ValkeyLink, ValkeyPool
from perdure.storage.backends.valkey.writer import Answer, ValkeyWriter, sweep_tickets

#: The size of a batch that the server surely accepts in one command.
_BATCH_BYTES = 400 * 1024 * 1024
_BATCH_WRITES = 200_000
_SWEPT_AT_ONCE = 500

_log = logging.getLogger(__name__)
_EVERYTHING = All(())


class ValkeyAdapter(LayoutAdapter):
    """A store below a prefix, in a database of a Valkey or Redis server."""

    system: ClassVar[str] = "valkey"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.VERSIONS,
            Capability.LISTING,
            Capability.TTL,
            Capability.TRANSACTIONS,
            Capability.SHARED,
            Capability.ERASURE,
        }
    )

    def __init__(self, url: str, clock: Clock = now) -> None:
        super().__init__(clock)
        self._server = address.parse(url)
        self._names = rows.ValkeyNames(self._server.prefix)
        self._links: ValkeyPool | None = None
        self._writer: ValkeyWriter | None = None

    async def exists(self) -> bool:
        links = ValkeyPool(self._server)
        with links.translated():
            try:
                found = await links.patiently(
                    lambda link: link.call(b"EXISTS", self._names.meta), away=False
                )
            finally:
                await links.close()
        return bool(found)

    async def initialize(self) -> None:
        links = ValkeyPool(self._server)
        with links.translated():
            try:
                await links.patiently(self._create, away=False)
            except BaseException:
                await links.close()
                raise
        self._links = links
        self._writer = ValkeyWriter(links, self._names)

    async def close(self) -> None:
        if self._writer is not None and self._links is not None:
            await self._writer.close()
            await self._links.close()

    async def _create(self, link: ValkeyLink) -> None:
        admission.check(await link.call(b"INFO"), self._server)
        await link.run(scripts.PROBE, [self._names.probe(uuid.uuid4().hex)], [])
        await self._check_format(link)
        await sweep_tickets(link, self._names, self._clock())
        self._layouts = await self._load(link)

    async def _check_format(self, link: ValkeyLink) -> None:
        label = self._server.label
        await link.call(b"HSETNX", self._names.meta, b"format", rows.FORMAT)
        found = await link.call(b"HGET", self._names.meta, b"format")
        try:
            number = int(found)
        except (TypeError, ValueError):
            raise NotAStore(
                f"{label} holds something that is not a store of Perdure.",
                hint="Use another prefix: ?prefix=….",
            ) from None
        if number > rows.FORMAT:
            raise NewerSchema(
                f"The store {label} has format {number}, newer than this code's {rows.FORMAT}.",
                hint="Upgrade Perdure; the store was left untouched.",
            )

    async def _load(self, link: ValkeyLink) -> dict[str, Layout]:
        """The collections that are there, also those that nobody declares in this process."""
        flat: list[bytes] = await link.call(b"HGETALL", self._names.collections)
        return {
            name.decode(): msgspec.json.decode(layout, type=Layout)
            for name, layout in zip(flat[::2], flat[1::2], strict=True)
        }

    async def prepare(self, layout: Layout, *, make: bool = True) -> frozenset[str] | None:
        if layout.tagged:
            raise self._unsupported(Capability.TAGS)
        name = layout.name.encode()

        async def work(link: ValkeyLink) -> bool:
            found = await link.call(b"HGET", self._names.collections, name)
            if found is None and not make:
                return False
            known = msgspec.json.encode(layout)
            if found != known:
                await link.call(b"HSET", self._names.collections, name, known)
            return True

        if not await self._open_links().run(work):  # it may run twice
            return None
        self._layouts[layout.name] = layout
        return frozenset()

    async def fill(self, collection: str, fills: Sequence[Fill]) -> None:
        self._layout(collection)

    async def activate(self, layout: Layout) -> None:
        self._layout(layout.name)

    async def get(self, collection: str, keys: Sequence[str], options: Options) -> list[Row | None]:
        self._layout(collection)
        links = self._open_links()
        names = [self._names.row(collection, key) for key in keys]

        async def work(link: ValkeyLink) -> list[bytes | None]:
            found: list[bytes | None] = []
            for start in range(0, len(names), rows.PAGE):
                found += await link.call(b"MGET", *names[start : start + rows.PAGE])
            return found

        if not names:
            return []
        stored = await links.run(work, options.deadline)
        moment = self._clock()
        return [
            None if each is None else _live(rows.unpack(key, each), moment)
            for key, each in zip(keys, stored, strict=True)
        ]

    async def find(self, query: Query, options: Options) -> list[Row]:
        (order, *rest) = query.total_order()
        if query.where != _EVERYTHING or order.column != "key" or rest:
            raise self._unsupported(Capability.QUERY)
        self._layout(query.collection)
        if query.limit == 0:
            return []
        return await self._open_links().run(
            lambda link: rows.find(link, self._names, query, self._clock), options.deadline
        )

    async def commit(self, batch: Batch, options: Options) -> list[int]:
        if batch.events:
            raise self._unsupported(Capability.OUTBOX)
        for part in (*batch.writes, *batch.checks):
            self._layout(part.collection)
        moment = self._clock()
        names = list(dict.fromkeys(write.collection for write in batch.writes))
        numbers = {name: number for number, name in enumerate(names, 1)}
        places = [*_indexes(self._names, names), *self._places((*batch.checks, *batch.writes))]
        args: list[bytes | int] = [moment, len(names), len(batch.checks), len(batch.writes)]
        args += [rows.check(check.version, check.created) for check in batch.checks]
        for write in batch.writes:
            number = numbers[write.collection]
            if isinstance(write, Put):
                args += rows.write(number, write, moment)
            else:
                args += rows.delete(number, write.expected)
        answer = await self._write(scripts.COMMIT, places, args, options.deadline)
        match answer:
            case [b"done", bytes(versions)]:
                return [int(version) for version in versions.split(b",")] if versions else []
            case [b"write", int(number), int(found)]:
                write = batch.writes[number - 1]
                raise Conflict(write.collection, write.key, expected=write.expected, found=found)
            case [b"newer", int(number), int(stored)]:
                write = batch.writes[number - 1]
                ours = write.schema if isinstance(write, Put) else 0
                raise newer_schema(write.collection, write.key, stored, ours)
            case _:
                raise _unmet(batch.checks, answer)

    async def recode(
        self, collection: str, recodes: Sequence[Recode], checks: Sequence[Check]
    ) -> int:
        for name in (collection, *(check.collection for check in checks)):
            await self._known(name)
        places = list(self._places(checks))
        places += [self._names.row(collection, recode.row.key) for recode in recodes]
        args: list[bytes | int] = [self._clock(), len(checks), len(recodes)]
        args += [rows.check(check.version, check.created) for check in checks]
        for recode in recodes:
            args += rows.recode(recode)
        answer = await self._write(scripts.RECODE, places, args)
        match answer:
            case [b"done", bytes(count)]:
                return int(count)
            case _:
                raise _unmet(checks, answer)

    async def scrub(self) -> None:
        """The server rewrites its log and its snapshot, if it keeps any. Raises `Unavailable` if
        the user may not have that done.
        """
        await self._open_links().run(lambda link: erasure.scrub(link, self._server))

    async def sweep(self, limit: int) -> int:
        moment = self._clock()
        links = self._open_links()
        swept = 0
        await links.run(lambda link: sweep_tickets(link, self._names, moment))
        for name in await links.run(self._load):
            places = list(_indexes(self._names, [name]))
            while swept < limit:
                some = min(limit - swept, _SWEPT_AT_ONCE)
                count = await links.run(
                    lambda link, at=places, n=some: link.run(scripts.SWEEP, at, [moment, n])  # type: ignore[misc]
                )
                swept += count
                if count < some:
                    break
        return swept

    async def _write(
        self,
        script: scripts.Script,
        places: Sequence[bytes],
        args: Sequence[bytes | int],
        deadline: float | None = None,
    ) -> Answer:
        writer = self._writer
        if writer is None:
            raise not_open()
        size = sum(len(arg) for arg in args if isinstance(arg, bytes))
        if size > _BATCH_BYTES or len(places) > _BATCH_WRITES:
            raise TooLarge(
                f"A batch of {len(places):,} records and {size:,} bytes is too large for Valkey.",
                hint=f"Write up to {_BATCH_WRITES:,} records and {_BATCH_BYTES:,} bytes at once.",
            )
        while True:
            answer = await writer.run(script, places, args, deadline)
            if answer != [b"gone"]:
                return answer
            await self._make_again()

    async def _make_again(self) -> None:
        """A server without persistence was restarted, or it was emptied."""
        _log.warning("the store %s is empty: its server has lost it", self._server.label)

        async def work(link: ValkeyLink) -> None:
            for name, layout in self._layouts.items():
                known = msgspec.json.encode(layout)
                await link.call(b"HSET", self._names.collections, name.encode(), known)
            await self._check_format(link)

        await self._open_links().run(work)

    async def sizes(self) -> list[Size]:
        async def work(link: ValkeyLink) -> list[Size]:
            names = sorted(await self._load(link))
            return [
                Size(name, await link.call(b"ZCARD", self._names.index(name)), None)
                for name in names
            ]

        return await self._open_links().run(work)

    async def salvage(self, collection: str, after: str, limit: int) -> list[Row]:
        await self._known(collection)
        return await super().salvage(collection, after, limit)

    def _places(self, parts: Sequence[Any]) -> Iterator[bytes]:
        return (self._names.row(part.collection, part.key) for part in parts)

    async def _load_layouts(self) -> dict[str, Layout]:
        return await self._open_links().run(self._load)

    def _open_links(self) -> ValkeyPool:
        if self._links is None:
            raise not_open()
        return self._links


def _live(row: Row, moment: int) -> Row | None:
    return None if row.expires is not None and row.expires <= moment else row


def _indexes(names: rows.ValkeyNames, collections: Sequence[str]) -> Iterator[bytes]:
    for name in collections:
        yield names.index(name)
        yield names.expiry(name)


def _unmet(checks: Sequence[Check], answer: Answer) -> Conflict:
    _, number, found = answer
    check = checks[int(number) - 1]
    return Conflict(check.collection, check.key, expected=check.version, found=int(found))
