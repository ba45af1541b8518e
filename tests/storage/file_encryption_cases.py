"""Cases of `test_file_encryption`, each run in a process of its own: it has another SQLite.

``python -m tests.storage.file_encryption_cases CASE FOLDER``
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import apsw
import msgspec

from perdure.core.clock import Clock, now
from perdure.core.errors import (
    Corrupted,
    InvalidInput,
    KeyRefused,
    NotAStore,
    PerdureError,
    Unavailable,
)
from perdure.search import attach, sqlite_vectors, vector_graphs
from perdure.search.engine import (
    Document,
    Embedding,
    SearchIndex,
    TextSearch,
    VectorSearch,
    engine_of,
)
from perdure.storage import registry
from perdure.storage.backends.sqlite import (
    SQLiteAdapter,
    connections,
    encryption,
)
from perdure.storage.backends.sqlite.deletion import delete_bank
from perdure.storage.backends.sqlite.encryption import decrypt_file, encrypt_file, rekey_file
from perdure.storage.options import DEFAULT
from perdure.storage.query import Query
from perdure.storage.records import Compressed, Indexed, Key, Tags, record
from perdure.storage.rows import Batch, Layout, Put, checksum
from perdure.storage.store import Store
from perdure.testing import run

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
SECRET = "the-password-of-the-vault-is-swordfish"
LAYOUT = Layout("notes")


@record("secrets")
class Secret(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    owner: Annotated[str, Indexed()]
    text: Annotated[str, Compressed()]
    labels: Annotated[dict[str, str], Tags()] = {}


class Encrypted(SQLiteAdapter):
    """What a bank does with a key, as an adapter that the kit and its workers can open."""

    def __init__(self, url: str, clock: Clock = now) -> None:
        super().__init__(url.replace("sqlite-encrypted:", "sqlite:"), clock)
        self.file_key = KEY


def adapter_of(file: Path, key: bytes | None = KEY) -> SQLiteAdapter:
    adapter = SQLiteAdapter(f"sqlite:///{quote(str(file))}")
    attach(adapter)
    adapter.file_key = key
    return adapter


async def opened(file: Path, key: bytes | None = KEY) -> SQLiteAdapter:
    adapter = adapter_of(file, key)
    await adapter.initialize()
    await adapter.prepare(LAYOUT)
    return adapter


def put(key: str, value: bytes) -> Put:
    return Put("notes", key, value, "text/plain", 1, checksum(key, "text/plain", 1, value))


async def written(file: Path, count: int, key: bytes | None = KEY) -> None:
    """A bank with so many rows, closed."""
    bank = await opened(file, key)
    for start in range(0, count, 500):
        rows = range(start, min(start + 500, count))
        await bank.commit(Batch(tuple(put(f"{n:06d}", _value(n)) for n in rows)), DEFAULT)
    await bank.close()


def _value(number: int) -> bytes:
    return f"{SECRET} {number} ".encode() * 8


async def deleted(folder: Path) -> None:
    """A bank goes only with its key, and while nobody has it open."""
    bank, text = folder / "bank.db", folder / "thesis.txt"
    await written(bank, 3)
    text.write_text("My thesis. " * 1_000)
    before = bank.read_bytes()
    for file, key in ((bank, None), (bank, OTHER), (text, None), (text, KEY)):
        try:
            delete_bank(file, key)
        except (KeyRefused, NotAStore) as exc:
            refused(type(exc), exc, str(file))
        else:
            raise AssertionError(f"{file} was deleted")
    user = await opened(bank)
    try:
        delete_bank(bank, KEY)
    except Unavailable as exc:
        refused(Unavailable, exc, "has the bank")
    else:
        raise AssertionError("it was deleted while it was open")
    await user.close()
    assert bank.read_bytes() == before
    delete_bank(bank, KEY)
    assert [each.name for each in folder.iterdir()] == ["thesis.txt"]


async def intact(file: Path, count: int, key: bytes | None) -> None:
    """Raises unless the bank opens with the key and holds what `written` wrote."""
    bank = await opened(file, key)
    try:
        rows = await bank.find(Query("notes"), DEFAULT)
        assert [(row.key, row.value, row.version) for row in rows] == [
            (f"{n:06d}", _value(n), 1) for n in range(count)
        ]
        assert await bank.inspect() == []
    finally:
        await bank.close()


def refused(error: type[PerdureError], exc: BaseException | None, words: str) -> None:
    assert isinstance(exc, error), repr(exc)
    assert words in str(exc), exc
    assert exc.hint
    for key in (KEY, OTHER):
        assert key.hex() not in repr(exc) + str(exc)


async def failure(file: Path, key: bytes | None) -> PerdureError | None:
    """How opening fails."""
    adapter = adapter_of(file, key)
    try:
        await adapter.initialize()
    except PerdureError as exc:
        return exc
    await adapter.close()
    return None


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fingerprint(folder: Path, but: str = "-shm") -> dict[str, str]:
    found = contents(folder)
    return {
        name: hashlib.sha256(data).hexdigest()
        for name, data in found.items()
        if not name.endswith(but)
    }


# The cases ----------------------------------------------------------------------------------------


async def round_trip(folder: Path) -> None:
    """A store works as ever, and nothing of it is in any file in clear."""
    file = folder / "bank.db"
    for turn in range(2):
        async with Store(adapter_of(file)) as store:
            secrets = store.collection(Secret)
            secret = Secret("a/1", "fox-mulder", SECRET * 3, {"case": "x-file-tag"})
            await secrets.put(secret)
            await secrets.put_many(
                [Secret(f"folder-name/{n}", "scully", SECRET) for n in range(500)]
            )
            assert await secrets.get("a/1") == secret
            found = await secrets.query().where("owner", "=", "fox-mulder").execute()
            assert [item.key for item in found] == ["a/1"]
            assert await secrets.query().tagged(case="x-file-tag").count() == 1
            assert [item.version for item in found] == [turn + 1]
            names = set(contents(folder))
            assert names == {"bank.db", "bank.db-wal", "bank.db-shm"}, names
            for words in (SECRET, "fox-mulder", "x-file-tag", "folder-name", "secrets", "SQLite"):
                for name, data in contents(folder).items():
                    assert words.encode() not in data, (words, name)
    assert file.stat().st_mode & 0o777 == 0o600


async def rollback_journal(folder: Path) -> None:
    """The journal of a bank that is being loaded is encrypted, too."""
    file = folder / "bank.db"
    await written(file, 2_000)
    db = connections.connect(file, KEY)
    db.pragma("journal_mode", "DELETE")
    db.pragma("cache_size", 10)
    db.execute("BEGIN EXCLUSIVE")
    db.execute('UPDATE "notes" SET _value = _value || _value')
    assert set(contents(folder)) == {"bank.db", "bank.db-journal"}
    for name, data in contents(folder).items():
        assert len(data) > 10_000
        assert SECRET.encode() not in data, name
    db.execute("ROLLBACK")
    db.close()
    await intact(file, 2_000, KEY)


async def wrong_keys(folder: Path) -> None:
    """Whoever has not the key is told so, and nothing is changed: not by closing, either."""
    file = folder / "bank.db"
    _killed_with_a_log(file)
    before = fingerprint(folder)
    assert "bank.db-wal" in before
    for key, words in ((None, "no key was given"), (OTHER, "another key")):
        refused(KeyRefused, await failure(file, key), words)
        assert fingerprint(folder) == before
    await intact(file, 300, KEY)
    for bad in (b"", b"short", b"x" * 33):
        try:
            adapter_of(file, bad)
        except InvalidInput as exc:
            refused(InvalidInput, exc, "32 bytes")
        else:
            raise AssertionError("it was taken")
    assert KEY.hex() not in repr(adapter_of(file)) + str(vars(encryption).keys())


def _killed_with_a_log(file: Path) -> None:
    """A process writes 300 rows and is killed: they are in the log only."""
    child = os.fork()
    if not child:
        try:
            asyncio.run(_write_and_die(file))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status


async def _write_and_die(file: Path) -> None:
    bank = await opened(file)
    await bank.commit(Batch(tuple(put(f"{n:06d}", _value(n)) for n in range(300))), DEFAULT)
    os.kill(os.getpid(), signal.SIGKILL)


async def late_refusal(folder: Path) -> None:
    """Even a connection with a wrong key, which `look` does not allow, spares the log."""
    file = folder / "bank.db"
    _killed_with_a_log(file)
    before = fingerprint(folder)
    for key in (None, OTHER):
        try:
            connections.connect(file, key)
        except apsw.NotADBError:
            pass
        else:
            raise AssertionError("it was opened")
        assert fingerprint(folder) == before
    await intact(file, 300, KEY)


async def in_clear(folder: Path) -> None:
    """A bank in clear is not opened with a key, and tells how to encrypt it."""
    file = folder / "bank.db"
    await written(file, 10, None)
    before = fingerprint(folder)
    refused(KeyRefused, await failure(file, KEY), "encrypt_file")
    assert fingerprint(folder) == before
    await intact(file, 10, None)


async def damage(folder: Path) -> None:
    """A changed byte is noticed, and named as damage rather than as a wrong key."""
    file = folder / "bank.db"
    await written(file, 2_000)
    whole = file.read_bytes()
    file.write_bytes(whole[: 4096 * 40] + b"damaged!" + whole[4096 * 40 + 8 :])
    bank = await opened(file)
    assert await bank.inspect()
    await bank.close()
    file.write_bytes(whole[:200] + b"damaged!" + whole[208:])
    refused(Corrupted, await failure(file, KEY), "first page")
    file.write_bytes(b"not a bank at all, " * 500)
    refused(PerdureError, await failure(file, KEY), "not a bank")


async def care(folder: Path) -> None:
    """Checkpoints, scrubbing and snapshots work on an encrypted file."""
    file = folder / "bank.db"
    bank = await opened(file)
    for n in range(40):
        rows = range(n * 100, n * 100 + 100)
        await bank.commit(Batch(tuple(put(f"{row:06d}", os.urandom(900)) for row in rows)), DEFAULT)
    async with asyncio.timeout(20):  # the checkpointer has moved the log into the file
        while file.stat().st_size < 1_000_000:  # noqa: ASYNC110 (a thread's work)
            await asyncio.sleep(0.02)
    await bank.scrub()
    assert (folder / "bank.db-wal").stat().st_size == 0
    async with bank.snapshot() as snapshot:
        entries = [entry async for page in snapshot.entries("notes") for entry in page]
    assert len(entries) == 4_000
    assert bank.file_key == KEY
    await bank.close()
    assert not (await failure(file, KEY))


async def two_processes(folder: Path) -> None:
    """Two processes write the same encrypted file."""
    file = folder / "bank.db"
    bank = await opened(file)
    command = [
        sys.executable,
        "-m",
        "tests.storage.file_encryption_cases",
        "_other_writer",
        str(folder),
    ]
    other = await asyncio.create_subprocess_exec(*command)
    for n in range(200):
        await bank.commit(Batch((put(f"mine/{n}", b"x"),)), DEFAULT)
    assert await other.wait() == 0
    assert len(await bank.find(Query("notes"), DEFAULT)) == 400
    await bank.close()


async def _other_writer(folder: Path) -> None:
    bank = await opened(folder / "bank.db")
    for n in range(200):
        await bank.commit(Batch((put(f"theirs/{n}", b"x"),)), DEFAULT)
    await bank.close()


async def kit(folder: Path) -> None:
    """The conformance kit on an encrypted file."""
    # Under its own name: the kit's other processes import it.
    module = importlib.import_module("tests.storage.file_encryption_cases")
    registry.register("sqlite-encrypted", module.Encrypted)
    report = await run(f"sqlite-encrypted:///{folder / 'bank.db'}")
    assert report.passed, [(each.id, each.detail) for each in report.failures]
    data = (folder / "bank.db").read_bytes()
    assert b"perdure_kit_rows" not in data
    assert data[:16] != b"SQLite format 3\0"


async def converting(folder: Path) -> None:
    """A bank is encrypted, gets another key, and is decrypted; nothing of it changes."""
    file = folder / "a bank?.db"
    await written(file, 3_000, None)
    file.chmod(0o640)
    assert SECRET.encode() in file.read_bytes()
    with file.open("rb") as old:
        encrypt_file(file, KEY)
        assert not old.read().strip(b"\0")  # whoever still has the old file finds nothing in it
    assert SECRET.encode() not in file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o640
    await intact(file, 3_000, KEY)
    refused(KeyRefused, await failure(file, None), "no key")
    rekey_file(file, KEY, OTHER)
    await intact(file, 3_000, OTHER)
    refused(KeyRefused, await failure(file, KEY), "another key")
    for key in (None, KEY):
        try:
            _convert(file, key, OTHER)
        except KeyRefused:
            pass
        else:
            raise AssertionError("it was converted")
    decrypt_file(file, OTHER)
    await intact(file, 3_000, None)
    assert list(contents(folder)) == [file.name]


async def search_indexes(folder: Path) -> None:
    """They are converted with the bank; beside an encrypted one there is nothing in clear."""
    file = folder / "bank.db"
    index = SearchIndex("perdure_recall", ("said",))
    sqlite_vectors.EXACT, vector_graphs.STEP = 100, 100

    async def found(key: bytes | None) -> tuple[list[int], list[int]]:
        bank = await opened(file, key)
        await engine_of(bank).prepare(index)
        while await engine_of(bank).tend(index.name):
            pass
        words = TextSearch(index=index.name, terms=("swordfish",))
        text = await engine_of(bank).search_text(words, DEFAULT)
        asked = VectorSearch(index=index.name, model="m", vector=b"\x07\x40", limit=1)
        near = await engine_of(bank).search_vectors(asked, DEFAULT)
        assert await bank.inspect() == []
        await bank.close()
        return text.terms[0].found[:, 0].tolist(), [each.place for each in near]

    bank = await opened(file, None)
    await engine_of(bank).prepare(index)
    documents = tuple(Document(index.name, place, ("all swordfish",)) for place in range(120))
    await bank.commit(Batch(changes=documents), DEFAULT)
    vectors = [Embedding(place, bytes((place, 64))) for place in range(120)]
    assert await engine_of(bank).embed(index.name, "m", vectors) == 120
    await bank.close()
    wanted = (list(range(120)), [7])
    assert await found(None) == wanted
    assert [part.name for part in folder.iterdir() if part.name.endswith(".vectors")]
    encrypt_file(file, KEY)
    for key in (KEY, KEY):
        assert await found(key) == wanted
        assert [part.name for part in folder.iterdir()] == ["bank.db"]
        assert b"swordfish" not in file.read_bytes()
    decrypt_file(file, KEY)
    assert await found(None) == wanted


async def converting_in_use(folder: Path) -> None:
    """A bank that somebody has open is not converted, and the somebody goes on."""
    file = folder / "bank.db"
    await written(file, 10, None)
    bank = await opened(file, None)
    try:
        await asyncio.to_thread(encrypt_file, file, KEY)
    except Unavailable as exc:
        refused(Unavailable, exc, "open")
    else:
        raise AssertionError("it was converted")
    await bank.commit(Batch((put("another", b"x"),)), DEFAULT)
    await bank.close()
    encrypt_file(file, KEY)
    bank = await opened(file)
    assert len(await bank.find(Query("notes"), DEFAULT)) == 11
    await bank.close()


async def opening_while_converting(folder: Path) -> None:
    """Who waits for a bank that is being encrypted does not write into the file that was."""
    file = folder / "bank.db"
    await written(file, 4_000, None)
    converted = asyncio.create_task(asyncio.to_thread(encrypt_file, file, KEY))
    outcomes: list[str] = []
    while not converted.done():
        try:
            bank = await opened(file, None)
        except PerdureError as exc:
            outcomes.append(type(exc).__name__)
        else:
            outcomes.append(f"late/{len(outcomes)}")
            await bank.commit(Batch((put(outcomes[-1], b"x"),)), DEFAULT)
            await bank.close()
        await asyncio.sleep(0.001)
    try:
        await converted
    except Unavailable:  # we were quicker
        bank = await opened(file, None)
    else:
        bank = await opened(file)
    there = {row.key for row in await bank.find(Query("notes", prefix="late/"), DEFAULT)}
    assert there == {outcome for outcome in outcomes if outcome.startswith("late/")}
    await bank.close()


#: Steps of a conversion that may be the last thing a process does, or almost.
STEPS = ("_copy", "_check", "_replace", "_sync_folder")


async def killed_converting(folder: Path) -> None:
    """kill -9 at any moment leaves a whole bank, with the old key or with the new one."""
    file, count = folder / "bank.db", 6_000
    key: bytes | None = None
    await written(file, count, key)
    started = time.monotonic()
    _convert(file, None, KEY)
    took = time.monotonic() - started
    decrypt_file(file, KEY)
    times = int(os.environ.get("PERDURE_KILLS", "8"))
    moments = [took * 1.2 * number / times for number in range(times)]
    ends: list[Callable[[], object]] = [
        partial(setattr, encryption, step, _deadly(step, after=after))
        for step in STEPS
        for after in (False, True)
    ]
    ends += [partial(_kill_after, seconds) for seconds in moments]
    became = set()
    for end in ends:
        wanted = OTHER if key == KEY else KEY
        _forked(partial(_convert, file, key, wanted), end)
        opens = [each for each in (key, wanted) if await failure(file, each) is None]
        assert len(opens) == 1, opens
        became.add(opens[0] == wanted)
        key = opens[0]
        await intact(file, count, key)
    assert became == {True, False}
    _convert(file, key, bytes(32))  # what is left over does not keep it from being done
    await intact(file, count, bytes(32))
    assert list(contents(folder)) == ["bank.db"]


def _forked(work: Callable[[], None], prepare: Callable[[], object]) -> None:
    """Do something in another process, after preparing its death."""
    child = os.fork()
    if not child:
        try:
            prepare()
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _deadly(step: str, *, after: bool) -> Callable[..., None]:
    """The step of a conversion, with death before or after it."""
    original: Callable[..., None] = getattr(encryption, step)

    def die(*args: object) -> None:
        if after:
            original(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    return die


def _kill_after(seconds: float) -> None:
    """Nothing catches this signal: it ends the process like kill -9, at the next moment."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.000_1))


def _convert(file: Path, key: bytes | None, wanted: bytes) -> None:
    if key is None:
        encrypt_file(file, wanted)
    else:
        rekey_file(file, key, wanted)


def main() -> None:
    name, folder = sys.argv[1:]
    assert hasattr(apsw, "mc_version"), "this is not apsw-sqlite3mc"
    asyncio.run(globals()[name](Path(folder)))


if __name__ == "__main__":
    main()
