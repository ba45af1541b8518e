"""The cache that processes share. Two stores stand for two processes; Valkey is real."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from valkey.asyncio.connection import AbstractConnection

from perdure.core.errors import Conflict, InvalidURL, UnknownBackend, Unsupported
from perdure.storage.cache import cache_server, shared_cache
from perdure.storage.middleware import Call, Commit, Get, Handler, Stage
from perdure.storage.options import DEFAULT, STRONG, Options, bounded
from perdure.storage.rows import Batch, Check, Put
from perdure.testing.manual_clock import ManualClock
from tests.storage.caching import Cached, Fleeting, Thing, opened, until
from tests.storage.test_cache import Gate
from tests.valkey_server import ValkeyServer


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a lost server sooner; and do not lose one because the machine is busy."""
    monkeypatch.setattr(shared_cache, "RETRY", 0.05)
    monkeypatch.setattr(cache_server, "TIMEOUT", 1.0)


@pytest.fixture
def valkey(valkey_server: ValkeyServer) -> Iterator[str]:
    """The address of the server that is shared."""
    yield f"valkey://127.0.0.1:{valkey_server.port}/0"
    valkey_server.start()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'bank.db'}"


@pytest.fixture
async def bank(url: str, valkey: str) -> AsyncIterator[Cached]:
    async with opened(url, shared=valkey) as bank:
        yield bank


@pytest.fixture
async def other(url: str, valkey: str, bank: Cached) -> AsyncIterator[Cached]:
    async with opened(url, shared=valkey) as other:
        yield other


async def becomes(bank: Cached, wanted: int | None, seconds: float = 10.0) -> None:
    """Wait until this is what it answers."""
    async with asyncio.timeout(seconds):
        while await bank.get() != wanted:  # noqa: ASYNC110  # nothing tells when it is so
            await asyncio.sleep(0.001)


def slots(server: ValkeyServer, bank: Cached) -> list[bytes]:
    """The names under which rows of a bank are held."""
    with server.client() as client:
        names: list[bytes] = list(client.scan_iter(f"perdure:{bank.shared._bank}:*"))
    return [name for name in names if b":things:" in name and b":era" not in name]


def stranger(url: str) -> AbstractAsyncContextManager[Cached]:
    """Somebody who writes and tells nobody."""
    return opened(url)


# One reads for all --------------------------------------------------------------------------------


async def test_what_one_has_read_others_need_not(bank: Cached, other: Cached) -> None:
    await bank.things.put_many([Thing("a", 1), Thing("b", 2)])
    assert await bank.get() == 1
    found = await other.things.get_many(["b", "a", "c"])
    assert [thing and thing.n for thing in found] == [2, 1, None]
    assert (other.cache.stats.shared_hits, other.misses) == (1, 2)
    assert await other.get() == 1
    assert other.hits == 1


async def test_a_write_reaches_the_memory_of_others(bank: Cached, other: Cached) -> None:
    await bank.put(1)
    for each in (bank, other):
        assert await each.get() == 1
    await bank.put(2)
    assert await bank.get() == 2
    await becomes(other, 2, seconds=2.0)  # and not after a minute, as without
    await bank.things.query().delete()
    assert await bank.get() is None
    await becomes(other, None)
    await bank.put(3)
    assert await other.get() == 3
    await bank.cache.clear()
    await until(lambda: not len(other.cache._entries))


async def test_bounded_goes_by_the_age_in_the_shared_cache(
    url: str, bank: Cached, other: Cached
) -> None:
    await bank.put(1)
    assert await bank.get() == 1
    async with stranger(url) as somebody:
        await somebody.put(2)
    assert await other.get(bounded(60)) == 1
    assert other.cache.stats.shared_hits == 1
    await asyncio.sleep(0.05)  # so old it is then
    assert await other.get(bounded(0.04)) == 2
    assert await other.get(bounded(0)) == 2


async def test_what_was_read_elsewhere_is_not_made_fresh_by_a_look_at_the_file(
    url: str, valkey: str, bank: Cached
) -> None:
    """A write before this process began to watch the file is one that it has not seen."""
    await bank.put(1)
    assert await bank.get() == 1
    async with stranger(url) as somebody:
        await somebody.put(2)
    async with opened(url, shared=valkey) as late:
        assert await late.get() == 1
        assert late.cache.stats.shared_hits == 1
        assert await late.get(bounded(0)) == 2


async def test_a_slow_read_does_not_put_back_what_another_has_overwritten(
    url: str, valkey: str, bank: Cached
) -> None:
    gate = Gate(Get)
    async with opened(url, shared=valkey, below=[gate]) as slow:
        await bank.put(1)
        gate.close()
        reading = asyncio.create_task(slow.get())
        await gate.done.wait()
        await bank.put(2)
        await bank.things.delete("a")
        await bank.put(3)
        gate.open()
        assert await reading == 1
        assert await bank.get() == 3
        await becomes(slow, 3)


async def test_nor_does_one_whom_the_message_has_not_reached(
    url: str, valkey: str, bank: Cached, other: Cached
) -> None:
    gate = Gate(Get)
    async with opened(url, shared=valkey, below=[gate]) as slow:
        slow.shared._on_message = lambda *_: None
        await bank.put(1)
        gate.close()
        reading = asyncio.create_task(slow.get())
        await gate.done.wait()
        await bank.put(2)
        gate.open()
        assert await reading == 1
        assert [await each.get() for each in (bank, other)] == [2, 2]


async def test_of_two_who_read_at_once_only_one_brings_the_row(
    url: str, valkey: str, bank: Cached, other: Cached
) -> None:
    gate = Gate(Get)
    await bank.put(1)
    async with opened(url, shared=valkey, below=[gate]) as slow:
        gate.close()
        reading = asyncio.create_task(slow.get())
        await gate.done.wait()
        assert await bank.get() == 1
        assert await other.get() == 1
        assert other.cache.stats.shared_hits == 0, "the lease is with the slow one"
        gate.open()
        await reading
        await other.cache._validate()
        other.cache._entries.clear()
        assert await other.get() == 1
        assert other.cache.stats.shared_hits == 1


async def test_a_conflict_drops_it_there_too(url: str, bank: Cached, other: Cached) -> None:
    await bank.put(1)
    assert await bank.get() == 1
    async with stranger(url) as somebody:
        await somebody.put(2)
    assert await other.get() == 1
    with pytest.raises(Conflict):
        await other.put(9, "a", Options(expected=1))
    assert await other.get() == 2


async def test_a_conflict_drops_what_was_only_looked_at(
    url: str, bank: Cached, other: Cached
) -> None:
    await bank.put(1)
    assert await bank.get() == 1
    async with stranger(url) as somebody:
        await somebody.put(2)
    assert await other.get() == 1
    put = Put("things", "b", b"\x80", "application/msgpack", 1, columns=(5,))
    with pytest.raises(Conflict):
        await other.store.commit(Batch((put,), (Check("things", "a", 1),)), DEFAULT)
    assert await other.get() == 2


async def test_rows_expire_there(url: str, valkey: str) -> None:
    clock = ManualClock()
    async with (
        opened(url, shared=valkey, clock=clock) as bank,
        opened(url, shared=valkey, clock=clock) as other,
    ):
        await bank.store.collection(Fleeting).put(Fleeting("a"))
        await bank.store.collection(Fleeting).get("a")
        assert await other.store.collection(Fleeting).get("a") == Fleeting("a")
        assert other.cache.stats.shared_hits == 1
        other.cache._entries.clear()
        clock.advance(10)
        assert await other.store.collection(Fleeting).get("a") is None


# What it holds ------------------------------------------------------------------------------------


class Scramble:
    """Where encryption stands: values below it are not those above."""

    stage: ClassVar[Stage] = Stage.ENCRYPT

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        if isinstance(call, Commit):
            writes = tuple(
                msgspec.structs.replace(write, value=_scrambled(write.value), checksum=0)  # type: ignore[union-attr]
                for write in call.batch.writes
            )
            batch = msgspec.structs.replace(call.batch, writes=writes)
            return await proceed(Commit(batch, call.options))
        rows = await proceed(call)
        if isinstance(call, Get):
            return [
                row and msgspec.structs.replace(row, value=_scrambled(row.value)) for row in rows
            ]
        return rows


def _scrambled(value: bytes) -> bytes:
    return bytes(byte ^ 0xA5 for byte in value)


async def test_it_holds_rows_as_the_store_does(
    url: str, valkey: str, valkey_server: ValkeyServer
) -> None:
    async with (
        opened(url, shared=valkey, above=[Scramble()]) as bank,
        opened(url, shared=valkey, above=[Scramble()]) as other,
    ):
        await bank.put(1)
        assert await bank.get() == 1
        assert await other.get() == 1
        assert other.cache.stats.shared_hits == 1
        plain = msgspec.json.encode(Thing("a", 1))
        with valkey_server.client() as client:
            (held,) = [client.get(name) for name in slots(valkey_server, bank)]
        assert _scrambled(plain) in held
        assert plain not in held


async def test_banks_do_not_meet_there(url: str, valkey: str, bank: Cached, tmp_path: Path) -> None:
    await bank.put(1)
    assert await bank.get() == 1
    copy = tmp_path / "copy.db"
    async with bank.store.adapter.snapshot():
        shutil.copy(tmp_path / "bank.db", copy)
        shutil.copy(tmp_path / "bank.db-wal", tmp_path / "copy.db-wal")
    async with (
        opened(f"sqlite:///{copy}", shared=valkey) as twin,
        opened(f"sqlite:///{tmp_path / 'new.db'}", shared=valkey) as new,
    ):
        assert await twin.get() == 1
        assert await new.get() is None
        await twin.put(2)
        await new.put(3)
        assert [await each.get() for each in (bank, twin, new)] == [1, 2, 3]
        bank.cache._entries.clear()
        assert [await each.get() for each in (bank, twin, new)] == [1, 2, 3]
        assert twin.cache.stats.shared_hits == new.cache.stats.shared_hits == 0


@pytest.mark.parametrize("garbage", [b"", b"R", b"Rgarbage", b"R\x93\x01\x02\x03", b"?", "list"])
async def test_garbage_is_not_there(
    bank: Cached, other: Cached, valkey_server: ValkeyServer, garbage: bytes | str
) -> None:
    await bank.put(1)
    assert await bank.get() == 1
    (name,) = slots(valkey_server, bank)
    with valkey_server.client() as client:
        client.delete(name)
        client.set(name, garbage) if isinstance(garbage, bytes) else client.rpush(name, "x")
    for _ in range(2):
        assert await other.get() == 1
        assert await other.get(bounded(0)) == 1
    assert other.shared.is_ready


async def test_a_row_that_was_changed_there_is_not_believed(
    bank: Cached, other: Cached, valkey_server: ValkeyServer
) -> None:
    await bank.put(1)
    assert await bank.get() == 1
    (name,) = slots(valkey_server, bank)
    with valkey_server.client() as client:
        client.set(name, client.get(name).replace(b'"n":1', b'"n":9'))
    assert await other.get() == 1
    assert other.cache.stats.shared_hits == 0


async def test_garbage_on_the_channel_drops_what_is_kept(
    bank: Cached, valkey_server: ValkeyServer
) -> None:
    await bank.put(1)
    assert await bank.get() == 1
    with valkey_server.client() as client:
        client.publish(bank.shared._channel, b"garbage")
    await until(lambda: not len(bank.cache._entries))
    assert bank.shared.is_ready


# A server in trouble ------------------------------------------------------------------------------


async def test_without_the_server_everything_works(
    url: str, valkey: str, valkey_server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    valkey_server.kill()
    with caplog.at_level(logging.WARNING):
        async with opened(url, shared=valkey.replace("//", "//:secret@")) as bank:
            await bank.put(1)
            assert await bank.get() == 1
            assert await bank.get() == 1
            assert bank.hits == 1, "the memory of this process goes on"
            assert await bank.get() == 1
            assert bank.hits == 2
    assert len(caplog.records) == 1, "one warning is enough"
    assert "secret" not in caplog.text


async def test_the_server_dies_and_comes_back(
    bank: Cached, other: Cached, valkey_server: ValkeyServer
) -> None:
    await bank.put(1)
    for each in (bank, other):
        assert await each.get() == 1
    valkey_server.kill()
    await bank.put(2)
    assert await bank.get() == 2
    assert await other.get() == 1, "nobody could tell it, and a minute is not over"
    assert await other.get(bounded(0)) == 2
    assert await other.get(STRONG) == 2
    valkey_server.start()
    await until(lambda: bank.shared.is_ready and other.shared.is_ready)
    assert await other.get() == 2
    await bank.put(3)
    await until(lambda: not len(other.cache._entries))
    assert await other.get() == 3


async def test_a_write_that_could_not_be_told_is_told_before_anything_is_asked(
    bank: Cached, other: Cached, valkey_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server hangs, and holds an old row all the time."""
    monkeypatch.setattr(cache_server, "TIMEOUT", 0.05)
    monkeypatch.setattr(cache_server, "QUIET", 0.2)
    await bank.put(1)
    await bank.put(1, "b")
    assert [await each.get() for each in (bank, other)] == [1, 1]
    valkey_server.pause()
    async with asyncio.timeout(60):  # it does not answer before
        await bank.put(2)
        assert await bank.get() == 2
        assert await bank.things.query().where("n", "=", 1).delete() == 1
    asked, send = 0, AbstractConnection.send_packed_command

    async def send_and_count(*args: Any, **kwargs: Any) -> None:
        nonlocal asked
        asked += 1
        await send(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(AbstractConnection, "send_packed_command", send_and_count)
        for n in range(100):
            await bank.put(n, "c")
            assert await bank.get(key="c") == n
    assert asked < 100, "it is not asked any more, but for whether it is there again"
    valkey_server.resume()
    await until(lambda: bank.shared.is_ready)
    bank.cache._entries.clear()
    assert await bank.get() == 2
    assert await bank.get(key="b") is None
    await until(lambda: other.shared.is_ready)
    assert await other.get() == 2


async def test_a_busy_process_does_not_blame_the_server(
    bank: Cached, other: Cached, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own event loop sees no answer in time; the server is well."""
    monkeypatch.setattr(cache_server, "TIMEOUT", 0.2)
    await bank.put(1)
    assert await other.get() == 1
    joined, send = bank.shared._server, AbstractConnection.send_packed_command

    async def send_and_work(*args: Any, **kwargs: Any) -> None:
        await send(*args, **kwargs)
        time.sleep(0.6)  # noqa: ASYNC251  # others do that, while the answer is on its way

    with monkeypatch.context() as patch:
        patch.setattr(AbstractConnection, "send_packed_command", send_and_work)
        looks = [await bank.shared.look("things", ["a"]) for _ in range(3)]
        await bank.put(2)
    assert all(look.moment for look in looks), "the answers were there, unseen"
    assert bank.shared.is_ready
    assert bank.shared._server is joined
    await becomes(other, 2)


async def test_one_hiccup_is_a_miss_and_two_are_a_failure(
    bank: Cached, valkey_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_server, "TIMEOUT", 0.2)
    await bank.put(1)
    await bank.put(1, "b")
    joined = bank.shared._server
    valkey_server.pause()
    looks = await asyncio.gather(*(bank.shared.look("things", [key]) for key in "abc"))
    assert [look.leased for look in looks] == [frozenset()] * 3
    assert bank.shared.is_ready, "they all waited for the same thing"
    valkey_server.resume()
    await until_answered(bank)
    assert bank.shared._server is joined
    valkey_server.pause()
    # Where our own loop was late, it takes more.
    async with asyncio.timeout(60):
        while bank.shared.is_ready:  # each of them is a call
            await bank.shared.look("things", ["a"])
    valkey_server.resume()
    await until(lambda: bank.shared.is_ready)


async def until_answered(bank: Cached) -> None:
    """Wait until the server answers again."""
    async with asyncio.timeout(100):
        while not (await bank.shared.look("things", ["x"])).moment:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_what_could_not_be_told_empties_the_cache(
    bank: Cached, other: Cached, valkey_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_server, "TIMEOUT", 0.05)
    await bank.put(1)
    assert [await each.get() for each in (bank, other)] == [1, 1]
    valkey_server.pause()
    for n in range(10):
        await bank.put(n, f"{n}")
    await bank.put(2)
    valkey_server.resume()
    await until(lambda: bank.shared.is_ready)
    await until(lambda: not len(other.cache._entries))
    assert [await each.get() for each in (bank, other)] == [2, 2]


async def test_a_server_that_comes_back_with_what_it_once_held(url: str) -> None:
    """A copy on disk knows nothing of the writes that came after it."""
    lasting = ValkeyServer(appendfsync="always")
    try:
        address = f"valkey://127.0.0.1:{lasting.port}/0"
        async with opened(url, shared=address) as bank:
            await bank.put(1)
            assert await bank.get() == 1
            async with stranger(url) as somebody:
                await somebody.put(2)
            lasting.restart()
            assert slots(lasting, bank), "it still has the old row"
            await until(lambda: not bank.shared.is_ready)
            await until(lambda: bank.shared.is_ready)
            assert await bank.get() == 2
    finally:
        lasting.dispose()


async def test_a_cancelled_write_is_told_later(
    url: str, valkey: str, other: Cached, valkey_server: ValkeyServer
) -> None:
    async with opened(url, shared=valkey) as bank:
        await bank.put(1)
        assert [await each.get() for each in (bank, other)] == [1, 1]
        valkey_server.pause()
        writing = asyncio.create_task(bank.put(2))
        async with stranger(url) as somebody:
            while await somebody.get(STRONG) != 2:  # noqa: ASYNC110  # then it is about to be told
                await asyncio.sleep(0.001)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        valkey_server.resume()
        await until(lambda: bank.shared.is_ready and other.shared.is_ready)
        await becomes(bank, 2)
        await becomes(other, 2)


async def test_a_silent_channel_is_noticed(
    bank: Cached, valkey_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_server, "QUIET", 0.4)
    await bank.put(1)
    bank.shared._lose("so that it joins again with less patience")
    await until(lambda: bank.shared.is_ready)
    await asyncio.sleep(1.2)
    assert bank.shared.is_ready, "it answers when it is asked"
    valkey_server.pause()
    await until(lambda: not bank.shared.is_ready)
    valkey_server.resume()
    await until(lambda: bank.shared.is_ready)


# Opening ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["here", "http://x", "valkey://", "valkey://:hidden@h:port/0"])
async def test_bad_addresses(url: str, address: str) -> None:
    with pytest.raises(InvalidURL) as caught:
        async with opened(url, shared=address):
            pass
    assert "hidden" not in str(caught.value)


async def test_banks_of_one_process_cannot_share(valkey: str) -> None:
    with pytest.raises(Unsupported, match="no identity"):
        async with opened("memory://", shared=valkey):
            pass


async def test_the_package_may_be_missing(
    url: str, valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "valkey.asyncio", None)
    with pytest.raises(UnknownBackend, match="needs valkey") as caught:
        async with opened(url, shared=valkey):
            pass
    assert "pip install 'perdure[valkey]'" in caught.value.hint


async def test_on_postgresql(postgres_url: str, valkey: str) -> None:
    async with (
        opened(postgres_url, shared=valkey) as bank,
        opened(postgres_url, shared=valkey) as other,
    ):
        await bank.put(1)
        assert [await each.get(DEFAULT) for each in (bank, other)] == [1, 1]
        assert other.cache.stats.shared_hits == 1
        await bank.put(2)
        await becomes(other, 2)
