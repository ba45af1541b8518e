"""The cache that processes share: a Valkey or Redis server.

Nothing depends on it. Every call waits for 50 ms at most; a late answer counts as a miss. After two
timeouts in a row, or a broken connection, the server is not used until a background task has
reached it again. If a write could not be announced, everything it holds of this bank is dropped
first. Timeouts while our own event loop is busy do not count.

* A row's age is by the server's own clock, from the moment its reader got the lease, before the
  store was read.
* A restarted server may come back with old data. So names begin with the id of its run, and every
  connection asks for that id.
* What cannot be read, or does not fit its checksum, is a miss.

Writers announce their writes by messages. If the connection for messages breaks, some may have been
missed, and everything that this process caches is dropped when it is back.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from perdure.core.display import install_hint
from perdure.core.errors import UnknownBackend
from perdure.storage import registry
from perdure.storage.cache import cache_server
from perdure.storage.cache.cache_entries import LARGEST, NEVER, Place
from perdure.storage.cache.cache_server import CacheServer, LoopBusy, checked
from perdure.storage.rows import Row, checksum

#: Seconds between two attempts to reach a server that is away.
RETRY = 1.0
#: Seconds that a reader has to bring the row.
LEASE = 5.0
#: How often a write is told while our own event loop is too busy to see the answer.
TELLINGS = 5
WARN_EVERY = 60.0  # seconds

_log = logging.getLogger(__name__)


class SharedRow(msgspec.Struct, frozen=True):
    """A row and its possible age in seconds."""

    row: Row
    age: float


class SharedLookup(msgspec.Struct, frozen=True):
    """The rows found, and the keys that we have the lease of."""

    found: dict[str, SharedRow] = {}
    leased: frozenset[str] = frozenset()
    token: bytes = b""
    #: The server's time, in microseconds.
    moment: int = 0


class _Message(msgspec.Struct, array_like=True):
    """These keys were written; without any, anything in the collection or the bank."""

    sender: str
    collection: str = ""
    keys: list[str] = []


class _Slot(msgspec.Struct, array_like=True):
    moment: int
    key: str
    value: bytes
    content_type: str
    schema: int
    version: int
    created: int
    updated: int
    expires: int | None
    checksum: int


_slot = msgspec.msgpack.Decoder(_Slot)
_message = msgspec.msgpack.Decoder(_Message)


class SharedCache:
    """The shared cache of one bank. `on_message` and `on_lost` say what is to be dropped."""

    def __init__(
        self,
        url: str,
        ttl: float,
        on_message: Callable[[str, Sequence[str]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._url = checked(url)
        self._ttl = ttl
        self._on_message = on_message
        self._on_lost = on_lost
        self._name = secrets.token_hex(8)
        self._tokens = itertools.count()
        #: Something was written, or cleared, that the server does not know.
        self._is_outdated = False
        self._bank = ""
        self._keeper: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._server: CacheServer | None = None
        self._warned = NEVER
        #: When a call was given up; NEVER, if the last one was answered.
        self._missed = NEVER
        #: Whether the server can be asked: it is there, and knows all that we have written.
        self.is_ready = False

    async def open(self, bank: str) -> None:
        """The server may be away. Raises `UnknownBackend` without its package, `InvalidURL`."""
        try:
            import valkey.asyncio  # noqa: F401  # it takes a tenth of a second
        except ImportError as exc:
            raise UnknownBackend(
                "A shared cache needs valkey, which is not installed.",
                hint=install_hint("valkey"),
            ) from exc
        self._bank = bank
        CacheServer(self._url)  # the address is all right
        self._tried.clear()
        self._keeper = asyncio.create_task(self._keep())
        # Usually it answers at once, and is used from the first call on.
        await self._tried.wait()

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            self._keeper = None

    async def look(self, collection: str, keys: Sequence[str]) -> SharedLookup:
        if not self.is_ready:
            return SharedLookup()
        token = cache_server.LEASE + f"{self._name}{next(self._tokens)}".encode()
        lease = int(LEASE * 1_000)
        answer = await self._call(
            cache_server.LOOK, self._eras(collection), self._slots(collection), token, lease, *keys
        )
        try:
            return self._read(answer, token, keys) if answer else SharedLookup()
        except (ValueError, TypeError, IndexError):
            return SharedLookup()  # not what our script would answer

    async def put(self, collection: str, rows: Iterable[Row], look: SharedLookup) -> None:
        """Add rows that were read with a lease; those written meanwhile are refused."""
        pairs: list[str | bytes] = []
        for row in rows:
            if row.key in look.leased and len(row.value) <= LARGEST:
                slot = _Slot(look.moment, *msgspec.structs.astuple(row))
                pairs += [row.key, cache_server.ROW + msgspec.msgpack.encode(slot)]
        if pairs and self.is_ready:
            life = int(self._ttl * 1_000)
            eras, slots = self._eras(collection), self._slots(collection)
            await self._call(cache_server.PUT, eras, slots, look.token, life, *pairs)

    async def drop(self, places: Sequence[Place], collections: Sequence[str] = ()) -> None:
        """Drop these rows everywhere; the server is not asked before they are gone from it."""
        told = False
        try:
            told = await self._tell(places, collections)
        finally:
            if not told:  # also if we are being cancelled
                self._is_outdated = True
                self._lose("it could not be told of a write")

    async def clear(self) -> None:
        """Drop everything of this bank, here and in other processes; now, or later."""
        if not await self._end(self._eras("")[:1], _Message(self._name)):
            self._is_outdated = True
            self._lose("it could not be emptied")

    async def _tell(self, places: Iterable[Place], collections: Iterable[str]) -> bool:
        keys: dict[str, list[str]] = {}
        for collection, key in places:
            keys.setdefault(collection, []).append(key)
        for collection, some in keys.items():
            message = msgspec.msgpack.encode(_Message(self._name, collection, some))
            eras, slots = self._eras(collection), self._slots(collection)
            if not await self._insist(
                partial(self._call, cache_server.DROP, eras, slots, self._channel, message, *some)
            ):
                return False
        for collection in collections:
            if not await self._end(self._eras(collection)[1:], _Message(self._name, collection)):
                return False
        return True

    async def _end(self, eras: Sequence[str], message: _Message) -> bool:
        content = msgspec.msgpack.encode(message)

        async def end() -> Any:
            # A new era each time: one that is carried out late must not bring an old one back.
            args = (secrets.token_hex(8), self._channel, content)
            return await self._run(cache_server.END, eras, args)

        return await self._insist(end)

    async def _catch_up(self) -> None:
        """Empty it, if a write could not be announced; call it before anything is asked."""
        if self._is_outdated:
            self._is_outdated = False
            await self.clear()
            if self._is_outdated:
                raise TimeoutError("it does not answer")

    @property
    def _channel(self) -> str:
        return f"perdure:{self._bank}"

    @property
    def _prefix(self) -> str:
        run = self._server.run if self._server is not None else ""
        return f"perdure:{self._bank}:{run}:"

    def _eras(self, collection: str) -> tuple[str, str]:
        return f"{self._prefix}era", f"{self._prefix}era:{collection}"

    def _slots(self, collection: str) -> str:
        return f"{self._prefix}{collection}:"

    def _read(self, answer: list[bytes | None], token: bytes, keys: Sequence[str]) -> SharedLookup:
        moment = int(answer[0] or b"")
        found: dict[str, SharedRow] = {}
        for key, held in zip(keys, answer[1:], strict=True):
            if held is not None and held[:1] == cache_server.ROW:
                row, since = _row(held[1:], key)
                age = (moment - since) / 1e6
                if row is not None and 0 <= age <= self._ttl:
                    found[key] = SharedRow(row, age)
        leased = [key for key, held in zip(keys, answer[1:], strict=True) if held == token]
        return SharedLookup(found, frozenset(leased), token, moment)

    async def _call(self, script: str, eras: Sequence[str], slots: str, *args: Any) -> Any:
        """A script's answer; None if the server is away, or does not answer now."""
        return await self._run(script, eras, (slots, secrets.token_hex(8), *args))

    async def _run(self, script: str, names: Sequence[str], args: Sequence[Any]) -> Any:
        server = self._server
        if server is None:
            return None
        begun = time.monotonic()
        try:
            answer = await server.run_script(script, names, args)
        except LoopBusy:
            return None
        except server.failures as exc:
            # Calls that waited at the same time, and for the same thing, are one failure.
            if isinstance(exc, TimeoutError) and not NEVER < self._missed <= begun:
                self._missed = time.monotonic()
            else:
                self._lose(str(exc) or "it does not answer")
            return None
        self._missed = NEVER
        return answer

    async def _insist(self, tell: Callable[[], Awaitable[Any]]) -> bool:
        """Run a script that must run and may run twice; True if it was answered."""
        for _ in range(TELLINGS):
            if await tell() is not None:
                return True
            if self._server is None:
                break
        return False

    def _lose(self, reason: str) -> None:
        self.is_ready = False
        if self._server is not None:
            self._server = None
            self._warn(reason)
            if self._listening is not None:
                self._listening.cancel()

    def _warn(self, reason: str) -> None:
        if time.monotonic() > self._warned + WARN_EVERY:
            where = registry.shown(self._url)
            said = reason.rstrip(".")
            _log.warning("The shared cache %s is left alone for now: %s.", where, said)
            self._warned = time.monotonic()

    async def _keep(self) -> None:
        while True:
            server = CacheServer(self._url)
            listening = self._listening = asyncio.create_task(self._join(server))
            try:
                await asyncio.wait([listening])
                if not listening.cancelled():
                    failure = listening.exception()
                    if failure is not None and not isinstance(failure, server.failures):
                        raise failure
                    self._warn(str(failure) or "it does not answer")
            finally:
                listening.cancel()
                self._server, self.is_ready = None, False
                await server.close()
                self._tried.set()
            await asyncio.sleep(RETRY)

    async def _join(self, server: CacheServer) -> None:
        await server.subscribe(self._channel)
        self._server, self._missed = server, NEVER
        await self._catch_up()
        # Messages about what this process has kept until now may have been missed.
        self._on_lost()
        self.is_ready = True
        self._tried.set()
        while True:
            content = await server.next_message()
            try:
                message = _message.decode(content)
            except msgspec.DecodeError:
                self._on_lost()  # whatever it was to tell
                continue
            if message.sender != self._name:
                self._on_message(message.collection, message.keys)


def _row(content: bytes, key: str) -> tuple[Row | None, int]:
    """The row in a slot and its moment; None if it cannot be trusted."""
    try:
        slot = _slot.decode(content)
    except msgspec.DecodeError:
        return None, 0
    _, *facts = msgspec.structs.astuple(slot)
    row = Row(*facts)
    sound = row.key == key and row.checksum == checksum(
        row.key, row.content_type, row.schema, row.value
    )
    return (row if sound else None), slot.moment
