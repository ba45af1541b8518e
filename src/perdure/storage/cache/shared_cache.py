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
* A deletion by query drops all that it holds of the bank: which rows are gone is not known.

Writers announce their writes by messages. If the connection for messages breaks, some may have been
missed, and everything that this process caches is dropped when it is back.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

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
    """These rows were written; without any, anything in the bank."""

    sender: str
    places: list[Place]


#: The server's time at which it was read, and the fields of a `Row`.
_Slot: TypeAlias = tuple[int, str, bytes, str, int, int, int, int, int | None, int]
_slot = msgspec.msgpack.Decoder(_Slot)
_message = msgspec.msgpack.Decoder(_Message)


class SharedCache:
    """The shared cache of one bank. `on_message` and `on_lost` say what is to be dropped."""

    def __init__(
        self,
        url: str,
        ttl: float,
        on_message: Callable[[Sequence[Place]], None],
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
        names = [f"{collection}:{key}" for key in keys]
        answer = await self._call(cache_server.LOOK, token, lease, *names)
        try:
            return self._read(answer, token, keys) if answer else SharedLookup()
        except (ValueError, TypeError, IndexError):
            return SharedLookup()  # not what our script would answer

    async def put(self, collection: str, rows: Iterable[Row], look: SharedLookup) -> None:
        """Add rows that were read with a lease; those written meanwhile are refused."""
        pairs: list[str | bytes] = []
        for row in rows:
            if row.key in look.leased and len(row.value) <= LARGEST:
                slot = (look.moment, *msgspec.structs.astuple(row))
                content = cache_server.ROW + msgspec.msgpack.encode(slot)
                pairs += [f"{collection}:{row.key}", content]
        if pairs and self.is_ready:
            await self._call(cache_server.PUT, look.token, int(self._ttl * 1_000), *pairs)

    async def drop(self, places: Sequence[Place]) -> None:
        """Drop these rows everywhere, or without any all of this bank.

        The server is not asked before they are gone from it.
        """
        message = msgspec.msgpack.encode(_Message(self._name, list(places)))
        names = [f"{collection}:{key}" for collection, key in places]
        script = cache_server.DROP if names else cache_server.END
        told = False
        try:
            told = await self._insist(script, self._channel, message, *names)
        finally:
            if not told:  # also if we are being cancelled
                self._is_outdated = True
                self._lose("it could not be told of a write")

    async def _catch_up(self) -> None:
        """Empty it, if a write could not be announced; call it before anything is asked."""
        if self._is_outdated:
            self._is_outdated = False
            await self.drop(())
            if self._is_outdated:
                raise TimeoutError("it does not answer")

    @property
    def _channel(self) -> str:
        return f"perdure:{self._bank}"

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

    async def _call(self, script: str, *args: Any) -> Any:
        """A script's answer; None if the server is away, or does not answer now."""
        server = self._server
        if server is None:
            return None
        prefix, begun = f"{self._channel}:{server.run}:", time.monotonic()
        # A new era each time: a script that is run late must not bring an old one back.
        given = (prefix, secrets.token_hex(8), *args)
        try:
            answer = await server.run_script(script, [f"{prefix}era"], given)
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

    async def _insist(self, script: str, *args: Any) -> bool:
        """Run a script that must run and may run twice; True if it was answered."""
        for _ in range(TELLINGS):
            if await self._call(script, *args) is not None:
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
                self._on_message(message.places)


def _row(content: bytes, key: str) -> tuple[Row | None, int]:
    """The row in a slot and its moment; None if it cannot be trusted."""
    try:
        moment, *fields = _slot.decode(content)
    except msgspec.DecodeError:
        return None, 0
    row = Row(*fields)
    sound = row.key == key and row.checksum == checksum(
        row.key, row.content_type, row.schema, row.value
    )
    return (row if sound else None), moment
