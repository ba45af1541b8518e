"""What only Valkey can get wrong: servers that forget, restart, are full, or not good enough."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from valkey.exceptions import BusyLoadingError, ValkeyError

from perdure.core.errors import (
    AccessDenied,
    Conflict,
    Corrupted,
    DeadlineExceeded,
    InvalidURL,
    NewerSchema,
    NotAStore,
    StorageFull,
    TooLarge,
    Unavailable,
    Unsupported,
)
from perdure.storage import registry
from perdure.storage.backends import server_pool
from perdure.storage.backends import valkey as backend
from perdure.storage.backends.valkey import ValkeyAdapter, address, rows
from perdure.storage.compression import Compression
from perdure.storage.options import DEFAULT, Options
from perdure.storage.query import Query, SortOrder
from perdure.storage.records import Compressed, Indexed, Key, record
from perdure.storage.rows import Batch, Delete, Layout, Put, Recode, Row, Size, checksum
from perdure.storage.store import Store
from perdure.testing import run
from perdure.testing.manual_clock import ManualClock
from tests.valkey_server import ValkeyServer

LAYOUT = Layout("notes", expires=True)
WORDS = "it takes the server forty seconds to answer what nobody has asked before in this house"
Open: TypeAlias = Callable[..., Awaitable[ValkeyAdapter]]
MakeServer: TypeAlias = Callable[..., ValkeyServer]


def put(
    key: str, value: bytes = b"value", expected: int | None = None, expires: int | None = None
) -> Put:
    sum_ = checksum(key, "text/plain", 1, value)
    return Put("notes", key, value, "text/plain", 1, sum_, expires=expires, expected=expected)


async def row_of(store: ValkeyAdapter, key: str, options: Options = DEFAULT) -> Row | None:
    (row,) = await store.get("notes", [key], options)
    return row


async def value_of(store: ValkeyAdapter, key: str) -> bytes | None:
    row = await row_of(store, key)
    return None if row is None else row.value


@pytest.fixture
async def open_store(valkey_url: str) -> AsyncIterator[Open]:
    """Opens adapters, all on one place unless told otherwise."""
    opened: list[ValkeyAdapter] = []

    async def open_one(url: str = valkey_url, **options: Any) -> ValkeyAdapter:
        adapter = ValkeyAdapter(url, **options)
        await adapter.initialize()
        opened.append(adapter)
        await adapter.prepare(LAYOUT)
        return adapter

    yield open_one
    for adapter in opened:
        await adapter.close()


@pytest.fixture
async def store(open_store: Open) -> ValkeyAdapter:
    return await open_store()


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    """Starts servers of this test's own."""
    servers: list[ValkeyServer] = []

    def make(**settings: Any) -> ValkeyServer:
        servers.append(ValkeyServer(**settings))
        return servers[-1]

    yield make
    for server in servers:
        server.dispose()


# Addresses ----------------------------------------------------------------------------------------


def test_what_an_address_says() -> None:
    server = address.parse("rediss://me:p%40ss@[::1]:7000/3?prefix=a.b&pool=2&ca=/x.pem")
    assert (server.host, server.port, server.database) == ("::1", 7000, 3)
    assert (server.username, server.password) == ("me", "p@ss")
    assert (server.tls, server.authority, server.prefix, server.pool) == (True, "/x.pem", "a.b", 2)
    assert "p@ss" not in f"{server} {server!r} {server.label}"
    plain = address.parse("valkey://")
    assert (plain.host, plain.port, plain.database) == ("localhost", 6379, 0)
    assert (plain.username, plain.password, plain.tls) == (None, None, False)
    assert plain.label == "valkey://localhost:6379/0?prefix=perdure"


@pytest.mark.parametrize(
    "url",
    [
        "valkey://:s3cret@host/0?prefx=typo",
        "valkey://:s3cret@host/0?prefix=a:b",
        "valkey://:s3cret@host/zero",
        "valkey://:s3cret@host/-1",
        "valkey://:s3cret@host/0?pool=0",
        "valkey://:s3cret@host/0?pool=many",
        "valkey://:s3cret@host:port/0",
        "valkey://:s3cret@host:99999/0",
        "valkey://:s3cret@host/0?ca=/x.pem",
        "valkey://me:12/s3cret@host/0",
        "valkey://me:12@s3cret@host/0",
        "valkey://me:12#s3cret@host/0",
        "valkey://me:s3cret/x@host/0",
    ],
)
def test_bad_addresses_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(InvalidURL) as caught:
        registry.adapter_for(url)
    assert caught.value.hint
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("scheme", ["valkey", "valkeys", "redis", "rediss"])
def test_schemes(scheme: str) -> None:
    assert isinstance(registry.adapter_for(f"{scheme}://localhost"), ValkeyAdapter)


# Servers that are not good enough -----------------------------------------------------------------


async def test_a_server_that_is_not_there(make_server: MakeServer) -> None:
    server = make_server()
    server.stop()
    async with asyncio.timeout(60):
        with pytest.raises(Unavailable, match="cannot be reached"):
            await ValkeyAdapter(server.url()).initialize()
        with pytest.raises(Unavailable):
            await ValkeyAdapter(server.url()).exists()


async def test_wrong_and_missing_passwords(make_server: MakeServer, open_store: Open) -> None:
    server = make_server(requirepass="s3cret words")
    place = f"127.0.0.1:{server.port}/0"
    for url in (f"valkey://{place}", f"valkey://:wrong-s3cret@{place}", f"valkey://me:x@{place}"):
        with pytest.raises(AccessDenied, match="refuses access") as caught:
            await ValkeyAdapter(url).initialize()
        assert "wrong-s3cret" not in "".join(traceback.format_exception(caught.value))
    store = await open_store(f"valkey://:s3cret%20words@{place}")
    await store.commit(Batch((put("a"),)), DEFAULT)
    assert await value_of(store, "a") == b"value"


async def test_a_user_with_half_the_rights_is_told_when_opening(
    make_server: MakeServer, open_store: Open
) -> None:
    """A right that is missing in the middle of a batch would leave half of it."""
    server = make_server()
    with contextlib.closing(server.client()) as client:
        client.execute_command(
            *("ACL", "SETUSER", "half", "on", ">pw", "~perdure:*", "+@all", "-zadd")
        )
        client.execute_command(*("ACL", "SETUSER", "whole", "on", ">pw", "~perdure:*", "+@all"))
        client.execute_command(*("ACL", "SETUSER", "blind", "on", ">pw", "~other:*", "+@all"))
    for user in ("half", "blind"):
        with pytest.raises(AccessDenied):
            await ValkeyAdapter(f"valkey://{user}:pw@127.0.0.1:{server.port}").initialize()
    store = await open_store(f"valkey://whole:pw@127.0.0.1:{server.port}")
    await store.commit(Batch((put("a"),)), DEFAULT)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"cluster_enabled": "yes"}, "is a cluster"),
        ({"maxmemory": "50mb", "maxmemory_policy": "allkeys-lru"}, "deletes any key"),
    ],
)
async def test_servers_that_cannot_keep_our_promises(
    make_server: MakeServer, settings: dict[str, str], reason: str
) -> None:
    server = make_server(**settings)
    with pytest.raises(Unsupported, match=reason):
        await ValkeyAdapter(server.url()).initialize()


def test_old_servers_are_refused() -> None:
    server = address.parse("valkey://")
    for info in (b"redis_version:5.0.14\r\n", b"# Server\r\n"):
        with pytest.raises(Unsupported, match="version"):
            backend.admission.check(info, server)
    backend.admission.check(b"redis_version:6.0.1\r\ncluster_enabled:0\r\n", server)


async def test_a_replica_is_named_as_such(make_server: MakeServer) -> None:
    primary = make_server(repl_diskless_sync_delay="0")
    replica = make_server(replicaof=f"127.0.0.1 {primary.port}")
    await _until(lambda: _info(replica)["master_link_status"] == "up")
    with pytest.raises(Unavailable, match="replica"):
        await ValkeyAdapter(replica.url()).initialize()


def _info(server: ValkeyServer) -> dict[str, Any]:
    with contextlib.closing(server.client()) as client:
        return client.info()


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 (a server's state, of which it does not tell)
            await asyncio.sleep(0.02)


async def test_somebody_elses_keys(valkey_server: ValkeyServer, valkey_url: str) -> None:
    prefix = valkey_url.rpartition("=")[2]
    with contextlib.closing(valkey_server.client()) as client:
        assert not await ValkeyAdapter(valkey_url).exists()
        client.set(f"{prefix}:meta", "mine")
        with pytest.raises(NotAStore):
            await ValkeyAdapter(valkey_url).initialize()
        assert client.get(f"{prefix}:meta") == b"mine"
        client.delete(f"{prefix}:meta")
        client.hset(f"{prefix}:meta", "format", "99")
        with pytest.raises(NewerSchema):
            await ValkeyAdapter(valkey_url).initialize()


async def test_existing_is_told(store: ValkeyAdapter, valkey_server: ValkeyServer) -> None:
    assert await ValkeyAdapter(store._server.label).exists()
    assert not await ValkeyAdapter(valkey_server.url()).exists()


# Encrypted connections ----------------------------------------------------------------------------


def _certificate(folder: Path) -> Path:
    """A certificate for localhost that vouches for itself, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    today = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / "server.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, *form)
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file


@pytest.fixture
async def tls_port(valkey_server: ValkeyServer, tmp_path: Path) -> AsyncIterator[int]:
    """The packaged server has no TLS: this stands in front of it and has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_certificate(tmp_path))

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("127.0.0.1", valkey_server.port)
        await asyncio.gather(pump(reader, inner[1]), pump(inner[0], writer))

    front = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield front.sockets[0].getsockname()[1]
    front.close()
    await front.wait_closed()


async def test_encrypted_connections(tls_port: int, tmp_path: Path, open_store: Open) -> None:
    file = tmp_path / "server.pem"
    store = await open_store(f"valkeys://localhost:{tls_port}/0?prefix=tls&ca={file}")
    await store.commit(Batch((put("a"),)), DEFAULT)
    assert await value_of(store, "a") == b"value"
    await store.close()
    for url in (
        f"rediss://localhost:{tls_port}/0",  # nobody vouches for it
        f"rediss://127.0.0.1:{tls_port}/0?ca={file}",  # it is for another name
    ):
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            await ValkeyAdapter(url).initialize()


# What is kept, and for how long -------------------------------------------------------------------


async def test_expired_rows_free_their_memory(
    valkey_server: ValkeyServer,
    open_store: Open,
    monkeypatch: pytest.MonkeyPatch,
    valkey_url: str,
) -> None:
    monkeypatch.setattr(rows, "GRACE", 50)
    store = await open_store()
    soon = time.time_ns() // 1_000 + 150_000
    await store.commit(
        Batch(tuple(put(f"{n}", b"x" * 50_000, expires=soon) for n in range(20))), DEFAULT
    )
    await store.commit(Batch((put("stays"),)), DEFAULT)
    prefix = valkey_url.rpartition("=")[2]
    with contextlib.closing(valkey_server.client()) as client:
        await _until(lambda: len(client.keys(f"{prefix}:r:*")) == 1)  # nobody swept
        assert await row_of(store, "3") is None
        assert [row.key for row in await store.find(Query("notes"), DEFAULT)] == ["stays"]
        # Writing goes on, and takes a few of the index's entries with it each time.
        assert client.zcard(f"{prefix}:i:notes") == 21
        await store.commit(Batch((put("another"),)), DEFAULT)
        assert client.zcard(f"{prefix}:i:notes") == 18
        assert await store.sweep(10) == 10
        assert await store.sweep(10) == 6
        assert await store.sweep(10) == 0
        assert client.zcard(f"{prefix}:x:notes") == 0
        assert client.zcard(f"{prefix}:i:notes") == 2
        assert [size.rows for size in await store.sizes()] == [2]


async def test_writing_again_changes_when_the_server_forgets(
    valkey_server: ValkeyServer, store: ValkeyAdapter, valkey_url: str
) -> None:
    name = f"{valkey_url.rpartition('=')[2]}:r:notes:a"
    later = time.time_ns() // 1_000 + 100 * 10**6
    with contextlib.closing(valkey_server.client()) as client:
        await store.commit(Batch((put("a", expires=later),)), DEFAULT)
        assert 100_000 < client.pttl(name) <= 100_000 + rows.GRACE + 1
        await store.commit(Batch((put("a"),)), DEFAULT)
        assert client.pttl(name) == -1
        await store.commit(Batch((put("a", expires=later),)), DEFAULT)
        await store.commit(Batch((Delete("notes", "a"),)), DEFAULT)
        assert client.exists(name) == 0
    assert await store.sizes() == [Size("notes", 0, None)]


async def test_a_full_server(make_server: MakeServer, open_store: Open) -> None:
    server = make_server(maxmemory="6mb")
    store = await open_store(server.url())
    filler = b"x" * 200_000
    written = 0

    async def fill() -> None:
        nonlocal written
        while True:
            batch = Batch((put(f"a{written}", filler), put(f"b{written}", filler)))
            await store.commit(batch, DEFAULT)
            written += 1

    with pytest.raises(StorageFull, match="nothing was written"):
        await fill()
    keys = [row.key for row in await store.find(Query("notes"), DEFAULT)]
    assert keys == sorted(f"{part}{n}" for n in range(written) for part in "ab")  # whole batches
    # It can still be opened, read, and emptied.
    again = await open_store(store._server.label)
    assert await value_of(again, "a0") == filler
    await again.commit(Batch(tuple(Delete("notes", key) for key in keys)), DEFAULT)
    await again.commit(Batch((put("room"),)), DEFAULT)
    assert await again.find(Query("notes"), DEFAULT) == [await row_of(again, "room")]


async def test_deleted_content_leaves_the_files(make_server: MakeServer, open_store: Open) -> None:
    server = make_server(appendfsync="always", save="3600 1000000")
    store = await open_store(server.url())
    await store.commit(Batch((put("a", b"a secret"), put("b", b"kept"))), DEFAULT)
    with contextlib.closing(server.client()) as client:
        client.save()
    await store.commit(Batch((Delete("notes", "a"),)), DEFAULT)
    assert b"a secret" in b"".join(server.files())
    await store.scrub()
    await _until(lambda: b"a secret" not in b"".join(server.files()))
    assert b"kept" in b"".join(server.files())
    server.restart()
    assert await value_of(store, "b") == b"kept"


async def test_who_may_not_scrub_is_told(make_server: MakeServer, open_store: Open) -> None:
    server = make_server(appendfsync="always")
    with contextlib.closing(server.client()) as client:
        rights = ("+@all", "-bgrewriteaof")
        client.execute_command("ACL", "SETUSER", "me", "on", ">pw", "~perdure:*", *rights)
    store = await open_store(f"valkey://me:pw@127.0.0.1:{server.port}")
    with pytest.raises(Unavailable, match="may still be in them"):
        await store.scrub()


async def test_damage_is_noticed(
    store: ValkeyAdapter, valkey_server: ValkeyServer, valkey_url: str
) -> None:
    prefix = valkey_url.rpartition("=")[2]
    whole = Store(store)
    await store.commit(Batch((put("a"), put("b"), put("c"))), DEFAULT)
    with contextlib.closing(valkey_server.client()) as client:
        client.setrange(f"{prefix}:r:notes:a", 60, b"?")
        client.set(f"{prefix}:r:notes:b", b"short")
    for key in "ab":
        with pytest.raises(Corrupted):
            await whole.read("notes", [key], DEFAULT)
    found = await store.salvage("notes", "", 10)
    assert [(row.key, row.checksum >= 0) for row in found] == [
        ("a", True),
        ("b", False),
        ("c", True),
    ]
    assert await store.commit(Batch((put("a"), put("b"))), DEFAULT) == [2, 1]
    assert await value_of(store, "b") == b"value"


async def test_batches_that_no_server_takes(
    store: ValkeyAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_BATCH_BYTES", 1_000)
    with pytest.raises(TooLarge, match="too large for Valkey"):
        await store.commit(Batch((put("a", b"x" * 1_000),)), DEFAULT)
    assert await row_of(store, "a") is None


async def test_long_listings_are_put_together(
    store: ValkeyAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "PAGE", 7)
    monkeypatch.setattr(rows, "_LOOKED_AT", 9)
    monkeypatch.setattr(rows, "_PAGE_BYTES", 300)
    gone = time.time_ns() // 1_000 - 1
    names = [f"{n:03d}" for n in range(100)]
    writes = [put(name, expires=gone if int(name) % 3 else None) for name in names]
    for start in range(0, 100, 10):  # each batch sweeps a few
        await store.commit(Batch(tuple(writes[start : start + 10])), DEFAULT)
    wanted = names[::3]

    async def found(**parts: Any) -> list[str]:
        return [row.key for row in await store.find(Query("notes", **parts), DEFAULT)]

    assert await found() == wanted
    assert await found(order=(SortOrder("key", descending=True),)) == wanted[::-1]
    assert await found(offset=5, limit=20) == wanted[5:25]
    assert await found(offset=30) == wanted[30:]
    assert await found(prefix="09", offset=1) == ["093", "096", "099"]


# Servers that go away -----------------------------------------------------------------------------


async def test_a_restart_without_a_log_loses_everything_and_writing_goes_on(
    make_server: MakeServer, open_store: Open, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server()
    store = await open_store(server.url())
    assert await store.commit(Batch((put("a"),)), DEFAULT) == [1]
    assert await store.commit(Batch((put("a"),)), DEFAULT) == [2]
    server.restart()
    assert await row_of(store, "a") is None
    with caplog.at_level(logging.WARNING):
        assert await store.commit(Batch((put("a"),)), DEFAULT) == [1]
    assert "has lost it" in caplog.text
    other = await open_store(store._server.label)
    assert [size.collection for size in await other.sizes()] == ["notes"]
    assert await value_of(other, "a") == b"value"


@pytest.mark.repeated
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_nothing_acknowledged_is_lost_or_done_twice_with_a_log(
    make_server: MakeServer, open_store: Open, how: str
) -> None:
    """Ten count up their own records while the server goes away again and again."""
    server = make_server(appendfsync="always")
    store = await open_store(server.url())
    done = [0] * 10
    ended = False

    async def count(n: int) -> None:
        while not ended:
            batch = Batch((put(f"{n}", b"%d" % (done[n] + 1)), put(f"{n}/twin")))
            assert await store.commit(batch, DEFAULT) == [done[n] + 1, done[n] + 1]
            done[n] += 1

    counting = [asyncio.create_task(count(n)) for n in range(10)]
    for _ in range(4):
        enough = sum(done) + 40
        await _until(lambda enough=enough: sum(done) >= enough)  # type: ignore[misc]
        await asyncio.to_thread(getattr(server, how))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(server.start)
    ended = True
    await asyncio.gather(*counting)
    assert sum(done) >= 160
    for n, number in enumerate(done):
        row = await row_of(store, f"{n}")
        assert row is not None
        assert (row.value, row.version) == (b"%d" % number, number)


async def test_readers_wait_for_a_server_that_comes_back(
    make_server: MakeServer, open_store: Open
) -> None:
    server = make_server(appendfsync="always")
    store = await open_store(server.url())
    await store.commit(Batch((put("a"),)), DEFAULT)
    server.kill()
    reading = asyncio.create_task(value_of(store, "a"))
    listing_ = asyncio.create_task(store.find(Query("notes"), DEFAULT))
    writing = asyncio.create_task(store.commit(Batch((put("b"),)), DEFAULT))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(server.start)
    assert await reading == b"value"
    assert len(await listing_) in (1, 2)
    assert await writing == [1]


async def test_a_server_that_is_loading_is_waited_for(
    make_server: MakeServer, open_store: Open
) -> None:
    server = make_server(
        save="3600 1", key_load_delay="1000", loading_process_events_interval_bytes="1024"
    )
    store = await open_store(server.url())
    rows_ = tuple(put(f"{n:03d}", b"x" * 500) for n in range(300))
    await store.commit(Batch(rows_), DEFAULT)
    starting = asyncio.create_task(asyncio.to_thread(server.restart))
    await _until(lambda: _is_loading(server))
    other = await open_store(store._server.label)
    assert await value_of(other, "299") == b"x" * 500
    assert await value_of(store, "299") == b"x" * 500
    await starting


def _is_loading(server: ValkeyServer) -> bool:
    with contextlib.closing(server.client()) as client:
        try:
            client.get("x")
        except BusyLoadingError:
            return True
        except ValkeyError:
            pass
    return False


async def test_patience_ends(
    make_server: MakeServer, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    store = await open_store(server.url())
    monkeypatch.setattr(server_pool, "PATIENCE", 0.3)
    # It stopped answering after it got the write: nobody knows.
    server.pause()
    with pytest.raises(Unavailable, match="unknown whether the write was done"):
        await store.commit(Batch((put("a"),)), DEFAULT)
    server.resume()
    server.stop()
    with pytest.raises(Unavailable, match="cannot be reached"):
        await row_of(store, "a")
    with pytest.raises(Unavailable, match="cannot be reached"):
        await store.commit(Batch((put("a"),)), DEFAULT)


class Unreliable:
    """Stands between a store and its server, and spoils the next request when told to."""

    def __init__(self, port: int) -> None:
        self._port = port
        #: Deliver it and lose the answer; or keep it back, and lose the connection at once.
        self.lose_the_answer = self.keep_it_back = False
        self.kept: tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source, target = await asyncio.open_connection("127.0.0.1", self._port)
        while request := await reader.read(65536):
            if self.keep_it_back:
                self.keep_it_back = False
                self.kept = request, source, target
                writer.close()
                return
            target.write(request)
            answer = await source.read(65536)
            if self.lose_the_answer:
                self.lose_the_answer = False
                break
            writer.write(answer)
        writer.close()
        target.close()

    async def deliver(self) -> bytes:
        """Deliver what was kept back; the server's answer, which nobody waits for any more."""
        assert self.kept is not None
        request, source, target = self.kept
        target.write(request)
        answer = await source.read(65536)
        target.close()
        return answer


@pytest.fixture
async def unreliable(
    valkey_server: ValkeyServer, open_store: Open, valkey_url: str
) -> AsyncIterator[tuple[Unreliable, ValkeyAdapter]]:
    proxy = Unreliable(valkey_server.port)
    front = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = front.sockets[0].getsockname()[1]
    store = await open_store(valkey_url.replace(str(valkey_server.port), f"{port}"))
    yield proxy, store
    await store.close()
    front.close()
    await front.wait_closed()


async def test_a_write_whose_answer_is_lost_is_done_once(
    unreliable: tuple[Unreliable, ValkeyAdapter],
) -> None:
    proxy, store = unreliable
    await store.commit(Batch((put("warm"),)), DEFAULT)  # the server knows the script
    proxy.lose_the_answer = True
    assert await store.commit(Batch((put("a"), put("b", expected=0))), DEFAULT) == [1, 1]
    assert not proxy.lose_the_answer
    proxy.lose_the_answer = True
    assert await store.commit(Batch((put("a", expected=1), Delete("notes", "b", 1))), DEFAULT) == [
        2,
        0,
    ]
    row = await row_of(store, "a")
    assert row is not None
    assert row.version == 2
    proxy.lose_the_answer = True
    recode = Recode(row, b"other", "text/plain", checksum("a", "text/plain", 1, b"other"))
    assert await store.recode("notes", [recode], []) == 1
    assert not proxy.lose_the_answer


async def test_a_write_that_arrives_late_is_not_done_again(
    unreliable: tuple[Unreliable, ValkeyAdapter],
) -> None:
    proxy, store = unreliable
    await store.commit(Batch((put("warm"),)), DEFAULT)
    for later in (False, True):
        proxy.keep_it_back = True
        assert await store.commit(Batch((put("a", b"first"),)), DEFAULT) == [1 + 2 * later]
        if later:  # another write came in between
            await store.commit(Batch((put("a", b"second"),)), DEFAULT)
        before = await row_of(store, "a")
        answer = await proxy.deliver()
        assert (b"late" in answer) == later
        assert await row_of(store, "a") == before
        await store.commit(Batch((put("a", b"third"),)), DEFAULT)


async def test_deadlines(make_server: MakeServer, open_store: Open) -> None:
    server = make_server()
    store = await open_store(server.url())
    soon = Options(deadline=0.1)
    server.pause()
    async with asyncio.timeout(60):  # it does not answer before
        with pytest.raises(DeadlineExceeded):
            await row_of(store, "a", soon)
    server.resume()
    server.stop()
    with pytest.raises(DeadlineExceeded, match="nothing was written"):
        await store.commit(Batch((put("a"),)), soon)
    with pytest.raises(DeadlineExceeded):
        await store.find(Query("notes"), soon)
    server.start()
    assert await row_of(store, "a") is None


async def test_cancelled_while_the_server_is_away(
    make_server: MakeServer, open_store: Open
) -> None:
    server = make_server()
    store = await open_store(server.url())
    await store.commit(Batch((put("a"),)), DEFAULT)
    server.pause()
    sent = asyncio.create_task(store.commit(Batch((put("a", b"sent"),)), DEFAULT))
    await asyncio.sleep(0.1)
    sent.cancel()
    await asyncio.sleep(0.05)
    assert not sent.done()  # it is carried to its end
    server.resume()
    with pytest.raises(asyncio.CancelledError):
        await sent
    assert await value_of(store, "a") == b"sent"
    server.stop()
    unsent = asyncio.create_task(store.commit(Batch((put("a", b"unsent"),)), DEFAULT))
    await asyncio.sleep(0.1)
    unsent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await unsent
    server.start()


async def test_twenty_writers_of_one_record(open_store: Open) -> None:
    stores = [await open_store() for _ in range(4)]

    async def add_ten(store: ValkeyAdapter) -> None:
        for _ in range(10):
            while True:
                row = await row_of(store, "sum")
                number, version = (0, 0) if row is None else (int(row.value), row.version)
                with contextlib.suppress(Conflict):
                    await store.commit(Batch((put("sum", b"%d" % (number + 1), version),)), DEFAULT)
                    break

    await asyncio.gather(*(add_ten(stores[n % 4]) for n in range(20)))
    row = await row_of(stores[0], "sum")
    assert row is not None
    assert (row.value, row.version) == (b"200", 200)


async def test_closing_leaves_no_keys_of_its_own(
    valkey_server: ValkeyServer, open_store: Open, valkey_url: str
) -> None:
    store = await open_store()
    await asyncio.gather(*(store.commit(Batch((put(f"{n}"),)), DEFAULT) for n in range(30)))
    prefix = valkey_url.rpartition("=")[2]
    with contextlib.closing(valkey_server.client()) as client:
        assert client.hlen(f"{prefix}:w") > 0
        await store.close()
        assert client.keys(f"{prefix}:w*") == []
        assert client.keys(f"{prefix}:p:*") == []


async def test_what_killed_writers_leave_is_swept(
    valkey_server: ValkeyServer, valkey_url: str
) -> None:
    clock = ManualClock()
    killed, other = (ValkeyAdapter(valkey_url, clock) for _ in range(2))
    await killed.initialize()
    await killed.prepare(LAYOUT)
    await killed.commit(Batch((put("a"),)), DEFAULT)
    await other.initialize()
    await other.prepare(LAYOUT)
    with contextlib.closing(valkey_server.client()) as client:
        place = f"{valkey_url.rpartition('=')[2]}:w"
        clock.advance(23 * 3_600)
        await other.commit(Batch((put("b"),)), DEFAULT)
        await other.sweep(100)
        assert client.hlen(place) == 2
        clock.advance(2 * 3_600)
        await other.sweep(100)
        assert client.hlen(place) == 1  # its own
        clock.advance(30 * 3_600)
        third = ValkeyAdapter(valkey_url, clock)  # a cache, which nobody sweeps
        await third.initialize()
        assert client.hlen(place) == 0
    assert await other.commit(Batch((put("b", expected=1),)), DEFAULT) == [2]
    for each in (killed, other, third):
        await each.close()


async def test_a_server_that_deletes_what_expires_keeps_tickets(
    make_server: MakeServer, open_store: Open
) -> None:
    server = make_server(maxmemory="6mb", maxmemory_policy="volatile-lru")
    store = await open_store(server.url())
    proxy = Unreliable(server.port)
    front = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = front.sockets[0].getsockname()[1]
    other = await open_store(store._server.label.replace(str(server.port), f"{port}"))
    await other.commit(Batch((put("warm"),)), DEFAULT)
    proxy.keep_it_back = True
    assert await other.commit(Batch((put("a", b"first"),)), DEFAULT) == [1]

    async def fill() -> None:
        for number in range(1_000):
            await store.commit(Batch((put(f"{number}", b"x" * 20_000),)), DEFAULT)

    with pytest.raises(StorageFull):
        await fill()
    assert b"done" in await proxy.deliver()  # it is known to have been done
    row = await row_of(store, "a")
    assert row is not None
    assert row.version == 1
    await other.close()
    front.close()
    await front.wait_closed()


async def test_the_kit_with_a_log(make_server: MakeServer) -> None:
    report = await run(make_server(appendfsync="everysec").url(), groups=["transactions", "ttl"])
    assert report.passed, report.failures


# Stores -------------------------------------------------------------------------------------------


@record("valkey_answers", ttl="1h")
class Answer(msgspec.Struct, frozen=True):
    question: Annotated[str, Key()]
    text: Annotated[str, Compressed()]
    kind: Annotated[str, Indexed()] = "plain"


async def test_a_store_as_a_cache(valkey_url: str) -> None:
    compression = Compression()
    store = Store(registry.adapter_for(valkey_url), middleware=[compression])
    compression.attach(store)
    async with store:
        answers = store.collection(Answer)
        dice, words = random.Random(7), WORDS.split()
        written = [Answer(f"q/{n:04d}", " ".join(dice.choices(words, k=40))) for n in range(700)]
        await answers.put_many(written)
        await answers.put_many(written[3:5])
        (row,) = await store.adapter.get("valkey_answers", ["q/0003"], DEFAULT)
        assert row is not None
        assert row.content_type == "application/json;zstd=1"
        assert row.expires is not None
        assert await answers.get_many(["q/0003", "q/0004", "none"]) == [*written[3:5], None]
        page = await answers.list("q/000", limit=3)
        assert [item.key for item in page.items] == ["q/0000", "q/0001", "q/0002"]
        with pytest.raises(Unsupported, match="query"):
            await answers.query().where("kind", "=", "plain").values()
        async with store.transaction() as tx:
            mine = tx.collection(Answer)
            found = await mine.get("q/0005")
            assert found is not None
            await mine.put(msgspec.structs.replace(found, text="changed"))
        assert (await answers.fetch("q/0005")).version == 2  # type: ignore[union-attr]
