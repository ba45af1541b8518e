"""Backups of whole banks: made, checked, damaged, restored, copied."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import apsw
import msgspec
import pytest

import perdure
from perdure import StateRecord
from perdure.bank import bank_copy
from perdure.bank.backup import Backup, _BackupRun, backup, check_backups
from perdure.bank.backup_folder import BackupFolder
from perdure.bank.bank_copy import BankCopy, copy_bank, restore
from perdure.config import ArtifactsConfig, Config, EncryptionConfig
from perdure.core.errors import (
    BadBackup,
    Conflict,
    InvalidInput,
    KeyRefused,
    StorageFull,
    Unavailable,
)
from perdure.storage.adapter import Snapshot
from perdure.storage.backends.sqlite import snapshots
from perdure.storage.encryption import make_file
from perdure.storage.rows import Layout, Row, RowCopy
from tests.conftest import DURABLE, url_on

LARGE = b"a large artifact of many words " * 10_000
OTHER = b"another large artifact of words " * 10_000


@perdure.record("papers", ttl="30d")
class Paper(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    topic: Annotated[str, perdure.Indexed()]
    text: Annotated[str, perdure.Compressed()]
    labels: Annotated[dict[str, str], perdure.Tags()] = {}


@perdure.record("filed")
class Filed(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    file: perdure.Artifact


@asynccontextmanager
async def looking(url: str, config: Config | None = None) -> AsyncIterator[perdure.Bank]:
    """A bank without background work, as commands open it."""
    bank = perdure.open(url, config=config)
    await bank.store.open()
    try:
        yield bank
    finally:
        await bank.store.close()


async def live(url: str, config: Config | None = None) -> None:
    """Give a bank something of everything."""
    async with perdure.open(url, config=config) as bank:
        papers = bank.collection(Paper)
        await papers.put_many(
            Paper(f"ada/{n:03d}", f"t{n % 3}", f"text {n} " * 20, {"n": str(n)}) for n in range(60)
        )
        await papers.put(Paper("ada/000", "t0", "written twice", {"n": "0"}))
        session = await bank.session("planner/auth", strategy="gradient", budget=2_000)
        for n in range(12):
            reply = f"Answer {n}: " + "the token expires after an hour. " * 30
            await session.append(
                [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": reply}]
            )
        fork = await session.fork("coder/auth", at="T-5")
        said = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "ok"}]
        await fork.append(said)
        await bank.contexts.save(StateRecord(id="ada/chat", type="chat", state={"step": 3}))
        await bank.artifacts.put(LARGE)
        await bank.artifacts.put(b"a small one")
        await bank.settle()
        await bank.subscribe("reader", _not_now, ["note.*"])
        async with bank.transaction() as transaction:
            transaction.emit("note.added", {"n": 1}, key="k")
        await bank.jobs.enqueue(None, "tidy", {"what": "the attic"})


def _not_now(event: perdure.EventReceived) -> None:
    raise RuntimeError("The event waits for another time.")


async def rows_of(bank: perdure.Bank) -> dict[str, list[Row]]:
    async with bank.store.adapter.snapshot() as snapshot:
        return {
            layout.name: sorted(
                [e.row async for page in snapshot.entries(layout.name) for e in page],
                key=lambda row: row.key,
            )
            for layout in await snapshot.layouts()
        }


async def the_same(url: str, other: str, config: Config | None = None) -> None:
    async with looking(url, config) as one, looking(other, config) as two:
        assert await rows_of(one) == await rows_of(two)


async def kept(url: str, folder: Path, config: Config | None = None, **options: object) -> Backup:
    async with looking(url, config) as bank:
        return await backup(bank.services, folder, **options)  # type: ignore[arg-type]


async def restored(folder: Path, url: str, **options: object) -> BankCopy:
    return await restore(folder, url, **options)  # type: ignore[arg-type]


def files_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Artifacts of servers lie in the user's folder, if nobody says otherwise."""
    return Config(artifacts=ArtifactsConfig(folder=str(tmp_path / "objects")))


@perdure.record("paged")
class Paged(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    file: perdure.Artifact
    page: Annotated[int, perdure.Indexed()]


# There and back ---------------------------------------------------------------------------------


@pytest.mark.parametrize("target", DURABLE)
@pytest.mark.parametrize("source", DURABLE)
async def test_a_bank_comes_back_as_it_was(
    source: str, target: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    (tmp_path / "target").mkdir()
    config = Config(artifacts=ArtifactsConfig(folder=str(tmp_path / "objects")))
    url, folder = url_on(source, request, tmp_path), tmp_path / "backup"
    await live(url, config)
    async with looking(url, config) as bank:
        before = await rows_of(bank)
    made = await kept(url, folder, config)
    assert made.snapshot.rows == sum(len(rows) for rows in before.values())
    assert (len(made.snapshot.artifacts), made.copied) == (1, 1)
    assert not made.snapshot.damaged
    assert not made.snapshot.missing
    shutil.rmtree(tmp_path / "objects")
    other = url_on(target, request, tmp_path / "target")
    elsewhere = Config(artifacts=ArtifactsConfig(folder=str(tmp_path / "new objects")))
    moved = await restored(folder, other, config=elsewhere, overwrite=url == other)
    assert moved.problems == ()
    assert (moved.rows, moved.artifacts, moved.copied) == (made.snapshot.rows, 1, 1)
    async with looking(other, elsewhere) as bank:
        assert await rows_of(bank) == before
    await _goes_on(other, elsewhere)


async def _goes_on(url: str, config: Config) -> None:
    """The bank is of use: everything in it lives on."""
    seen: list[object] = []
    done: list[object] = []

    async def tidy(job: perdure.Job) -> None:
        done.append(job.payload)

    async with perdure.open(url, config=config) as bank:
        await bank.subscribe("reader", lambda event: seen.append(event.payload), ["note.*"])
        bank.jobs.register("tidy", tidy)
        papers = bank.collection(Paper)
        stored = await papers.fetch("ada/000")
        assert stored is not None
        assert (stored.version, stored.value.text) == (2, "written twice")
        assert await papers.query().tagged(n="17").count() == 1
        assert await papers.query().where("topic", "=", "t1").count() == 20
        session = await bank.existing_session("planner/auth")
        context = await session.context("And then?")
        assert context.tokens <= 2_000
        assert "expires" in json.dumps(context.to_chat())
        fork = await bank.existing_session("coder/auth")
        assert len(await fork.turns()) == 6
        turn = await session.append(
            [{"role": "user", "content": "new"}, {"role": "assistant", "content": "yes"}]
        )
        assert isinstance(turn, perdure.Turn)
        assert turn.number == 13
        saved = await bank.contexts.get("ada/chat")
        assert saved is not None
        assert saved.state == {"step": 3}
        found = [each async for each in bank.artifacts.located()]
        assert LARGE in [await bank.artifacts.read(each.artifact) for each in found]
        await bank.settle()
        for _ in range(100):
            if seen and done:
                break
            await asyncio.sleep(0.05)
        assert {"n": 1} in seen
        assert done == [{"what": "the attic"}]
        assert [problem async for problem in bank.verify()] == []


async def test_another_snapshot_than_the_newest_can_be_restored(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    await live(url)
    first = await kept(url, folder)
    async with perdure.open(url) as bank:
        await bank.collection(Paper).delete("ada/001")
        await bank.artifacts.put(OTHER)
    second = await kept(url, folder)
    assert (second.copied, second.copied_bytes) == (1, len(OTHER))
    assert len(second.snapshot.artifacts) == 2
    listed = await check_backups(folder)
    assert [each.id for each in listed] == [first.snapshot.id, second.snapshot.id]
    assert all(each.sound for each in listed)
    for made, there in ((first, True), (second, False)):
        other = f"sqlite:///{tmp_path / made.snapshot.id}.db"
        moved = await restored(folder, other, snapshot=made.snapshot.id)
        assert moved.problems == ()
        async with looking(other) as bank:
            assert (await bank.collection(Paper).get("ada/001") is not None) == there


async def test_only_so_many_are_kept_with_what_they_need(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    async with perdure.open(url) as bank:
        artifact = await bank.artifacts.put(LARGE)
    made = [await kept(url, folder, keep_last=2) for _ in range(3)]
    assert [each.removed for each in made] == [(), (), (made[0].snapshot.id,)]
    async with perdure.open(url) as bank:
        await bank.artifacts.delete(artifact)
        await bank.artifacts.put(OTHER)
    assert len(files_in(folder / "artifacts")) == 1
    await kept(url, folder, keep_last=2)  # one of them needs the old artifact
    assert len(files_in(folder / "artifacts")) == 2
    last = await kept(url, folder, keep_last=1)
    assert len(last.removed) == 2
    assert len(files_in(folder / "artifacts")) == 1
    (only,) = await check_backups(folder)
    assert (only.id, only.sound) == (last.snapshot.id, True)
    with pytest.raises(InvalidInput):
        await kept(url, folder, keep_last=0)


async def test_a_backup_is_for_its_owner_alone(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "new" / "backup"
    await live(url)
    before = os.umask(0)
    try:
        await kept(url, folder)
    finally:
        os.umask(before)
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


async def test_what_is_damaged_in_the_bank_is_kept_and_named(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    async with perdure.open(url) as bank:
        await bank.collection(Paper).put(Paper("ada/1", "t", "text"))
        artifact = await bank.artifacts.put(LARGE)
    (file,) = [each for each in files_in(tmp_path / "a.db.artifacts") if each.name == artifact.hex]
    file.write_bytes(LARGE[:-1] + b"!")
    db = apsw.Connection(str(tmp_path / "a.db"))
    db.execute("UPDATE papers SET _checksum = _checksum + 1")
    db.close()
    made = await kept(url, folder)
    assert made.snapshot.damaged == ("papers/ada/1", artifact.hash)
    assert len(made.snapshot.artifacts) == 0


async def test_what_the_bank_lacks_is_named(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    async with perdure.open(url) as bank:
        files = [await bank.artifacts.put(content) for content in (LARGE, OTHER, b"small")]
        await bank.collection(Filed).put_many(Filed(str(n), file) for n, file in enumerate(files))
    (tmp_path / "a.db.artifacts" / "sha256" / files[0].hex[:2] / files[0].hex).unlink()
    made = await kept(url, folder)
    assert made.snapshot.missing == (files[0].hash,)
    moved = await restored(folder, f"sqlite:///{tmp_path / 'b.db'}")
    assert moved.problems
    assert all(files[0].hash in f"{each.subject} {each.what}" for each in moved.problems)


async def test_what_turns_and_records_refer_to_is_missed_and_nothing_else(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    async with perdure.open(url) as bank:
        session = await bank.session("ada/one")
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        await session.append(
            [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "a long result " * 20_000},
                {"role": "assistant", "content": "ok"},
            ]
        )
        (used,) = [each.artifact async for each in bank.artifacts.located()]
        (file,) = files_in(tmp_path / "a.db.artifacts" / "sha256")
        file.unlink()
        released = await bank.artifacts.put(LARGE)
        await bank.collection(Paged).put(Paged("x", released, 1))
        await bank.collection(Paged).query().where("page", "=", 1).delete()
        assert await bank.artifacts.release(released)
    made = await kept(url, folder)
    assert made.snapshot.missing == (used,)


# Doubtful ---------------------------------------------------------------------------------------


async def test_nothing_is_removed_in_favour_of_a_doubtful_snapshot(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    async with perdure.open(url) as bank:
        files = [await bank.artifacts.put(content) for content in (LARGE, OTHER)]
        await bank.collection(Filed).put_many(Filed(str(n), file) for n, file in enumerate(files))
    await kept(url, folder)
    unverified = await kept(url, folder, keep_last=1, verify=False)
    assert (unverified.removed, "verified" in unverified.not_removed) == ((), True)
    cut, gone = [tmp_path / "a.db.artifacts/sha256" / file.hex[:2] / file.hex for file in files]
    os.truncate(cut, 1_000)
    gone.unlink()
    made = await kept(url, folder, keep_last=1)
    assert (made.removed, "damaged" in made.not_removed) == ((), True)
    assert (made.snapshot.damaged, made.snapshot.missing) == ((files[0].hash,), (files[1].hash,))
    # The folder had both: so the new snapshot has them, too.
    assert made.snapshot.rescued == (files[0].hash, files[1].hash)
    moved = await restored(folder, f"sqlite:///{tmp_path / 'b.db'}")
    assert (moved.problems, moved.copied) == ((), 2)
    async with perdure.open(url) as bank:
        for content in (LARGE, OTHER):
            await bank.artifacts.put(content)
    assert len((await kept(url, folder, keep_last=1)).removed) == 3


async def test_a_damaged_artifact_in_the_folder_is_copied_again(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    await live(url)
    await kept(url, folder)
    (file,) = files_in(folder / "artifacts")
    file.write_bytes(LARGE[:-1] + b"!")
    assert not (await check_backups(folder))[0].sound
    assert (await kept(url, folder, verify=False)).copied == 0
    assert (await kept(url, folder)).copied == 1
    assert [each.sound for each in await check_backups(folder)] == [True, True, True]


@pytest.mark.parametrize("what", ["artifacts", "bank.db"])
async def test_a_bad_backup_does_not_become_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    await live(url)
    before = (await kept(url, folder)).snapshot.id
    async with looking(url) as bank:
        await bank.artifacts.put(OTHER)
    read_back = _BackupRun._read_back

    async def damaged(run: _BackupRun, written: Snapshot, rows: int) -> None:
        await read_back(run, written, rows)
        newest = max(
            files_in(folder / ("artifacts" if what == "artifacts" else "incoming")),
            key=lambda file: file.stat().st_mtime_ns,
        )
        newest.write_bytes(newest.read_bytes()[:-1] + b"!")

    with monkeypatch.context() as patched:
        patched.setattr(_BackupRun, "_read_back", damaged)
        with pytest.raises(BadBackup):
            await kept(url, folder)
    assert [(each.id, each.sound) for each in await check_backups(folder)] == [(before, True)]
    made = await kept(url, folder)
    assert [each.id for each in await check_backups(folder)] == [before, made.snapshot.id]


async def test_artifacts_that_are_damaged_can_be_left_out(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    async with perdure.open(url) as bank:
        files = [await bank.artifacts.put(content) for content in (LARGE, OTHER)]
    await kept(url, folder)
    (folder / "artifacts/sha256" / files[0].hex[:2] / files[0].hex).write_bytes(b"!")
    with pytest.raises(BadBackup, match="skip-damaged"):
        await restored(folder, f"sqlite:///{tmp_path / 'b.db'}")
    for verify in (True, False):
        other = f"sqlite:///{tmp_path / f'{verify}.db'}"
        moved = await restored(folder, other, skip_damaged=True, verify=verify)
        assert moved.problems is not None
        assert [each.subject for each in moved.problems] == [files[0].hash]
        assert moved.copied == 1
        async with looking(other) as bank:
            assert await bank.artifacts.read(files[1]) == OTHER


async def test_the_newest_is_the_last_one_made_whatever_the_clock_says(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    async with looking(url) as bank:
        first = await backup(bank.services, folder)
        bank.store.now = lambda: first.snapshot.taken - 60_000_000  # type: ignore[method-assign]
        later = [await backup(bank.services, folder) for _ in range(3)]
    assert [each.id for each in await check_backups(folder)] == [
        each.snapshot.id for each in (first, *later)
    ]
    assert BackupFolder(folder).choose() == later[-1].snapshot


async def test_a_full_disk_is_told_and_nothing_is_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    async with looking(url) as bank:
        texts = (os.urandom(1_000).hex() for _ in range(4_000))
        papers = (Paper(f"{n:04d}", "t", text) for n, text in enumerate(texts))
        await bank.collection(Paper).put_many(papers)
        await backup(bank.services, folder)
        open_before, add, calls = _open_files(tmp_path), snapshots._Loader.add, 0

        def full(
            loader: snapshots._Loader, layout: Layout, page: Sequence[RowCopy], first: int
        ) -> None:
            nonlocal calls
            calls += 1
            if calls % 3 == 0:
                raise apsw.FullError("database or disk is full")
            add(loader, layout, page, first)

        monkeypatch.setattr(snapshots._Loader, "add", full)
        for _ in range(5):
            with pytest.raises(StorageFull, match=r"no room left for the bank .*bank\.db"):
                await backup(bank.services, folder)
            assert _open_files(tmp_path) == open_before
        monkeypatch.undo()
        await backup(bank.services, folder)
    assert len(await check_backups(folder)) == 2


def _open_files(folder: Path) -> list[str]:
    found = (str(each.resolve()) for each in Path("/proc/self/fd").iterdir())
    return sorted(path for path in found if path.startswith(str(folder)))


# Refused ----------------------------------------------------------------------------------------


async def test_backups_and_artifacts_do_not_lie_in_one_another(tmp_path: Path) -> None:
    url, data = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "data"
    config = Config(artifacts=ArtifactsConfig(folder=str(data / "artifacts")))
    await live(url, config)
    before = files_in(data)
    (tmp_path / "link").symlink_to(data)
    for folder in (data, tmp_path / "link", data / "artifacts", data / "artifacts" / "backup"):
        with pytest.raises(InvalidInput, match="lie in one another"):
            await kept(url, folder, config)
    # Those of another bank, too.
    other = f"sqlite:///{tmp_path / 'b.db'}"
    with pytest.raises(BadBackup, match="other files"):
        await kept(other, data)
    assert files_in(data) == before


async def test_a_bank_that_holds_records_is_not_overwritten_unasked(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    await live(url)
    await kept(url, folder)
    other = f"sqlite:///{tmp_path / 'b.db'}"
    async with perdure.open(other) as bank:
        await bank.collection(Paper).put(Paper("mine", "t", "mine"))
    with pytest.raises(Conflict, match="overwrite"):
        await restored(folder, other)
    async with looking(url) as bank:
        with pytest.raises(Conflict, match="overwrite"):
            await copy_bank(bank.services, other)
    async with looking(other) as bank:
        assert await bank.collection(Paper).get("mine") is not None
        with pytest.raises(Unavailable, match="open"):
            await restored(folder, other, overwrite=True)
    moved = await restored(folder, other, overwrite=True)
    assert moved.problems == ()
    await the_same(url, other)


async def test_a_bank_that_does_not_last_is_not_filled(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    await live(url)
    await kept(url, folder)
    with pytest.raises(InvalidInput, match="memory"):
        await restored(folder, "memory://")


async def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    await live(url)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("mine")
    for work in (kept(url, foreign), restored(foreign, f"sqlite:///{tmp_path / 'b.db'}")):
        with pytest.raises(BadBackup, match="other files"):
            await work
    assert [each.name for each in foreign.iterdir()] == ["letter.txt"]
    with pytest.raises(BadBackup, match="no backups"):
        await check_backups(tmp_path / "nowhere")
    assert not (tmp_path / "b.db").exists()


async def test_two_do_not_write_to_one_folder(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    await live(url)
    await kept(url, folder)
    place = BackupFolder(folder)
    async with place.writing(place.check()):
        with pytest.raises(Unavailable, match="Another"):
            await kept(url, folder)
    await kept(url, folder)


async def test_leftovers_are_removed_by_the_next_run(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    await live(url)
    first = await kept(url, folder)
    left = folder / "incoming" / "20200101T000000.000Z-12345678"
    left.mkdir(parents=True)
    (left / "bank.db").write_bytes(b"half")
    assert len(await check_backups(folder)) == 1
    await kept(url, folder)
    assert list((folder / "incoming").iterdir()) == []
    assert first.snapshot.id in [each.id for each in await check_backups(folder)]


# Damage -----------------------------------------------------------------------------------------

Harm: TypeAlias = Callable[[Path], Path]


def _of(folder: Path, name: str) -> Path:
    (file,) = [each for each in files_in(folder) if each.name == name]
    return file


def _flip(name: str) -> Harm:
    def harm(folder: Path) -> Path:
        file = _of(folder, name)
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 4
        file.write_bytes(content)
        return file

    return harm


def _cut(name: str) -> Harm:
    def harm(folder: Path) -> Path:
        file = _of(folder, name)
        file.write_bytes(file.read_bytes()[:-1])
        return file

    return harm


def _remove(name: str) -> Harm:
    def harm(folder: Path) -> Path:
        file = _of(folder, name)
        file.unlink()
        return file

    return harm


def _replace(name: str, old: bytes, new: bytes) -> Harm:
    def harm(folder: Path) -> Path:
        file = _of(folder, name)
        content = file.read_bytes()
        assert old in content
        file.write_bytes(content.replace(old, new, 1))
        return file

    return harm


_ARTIFACT = perdure.Artifact.of(LARGE).hex
HARMS: dict[str, Harm] = {
    "a flipped byte": _flip("bank.db"),
    "a flipped byte of an artifact": _flip(_ARTIFACT),
    "a flipped byte of the manifest": _flip("manifest.json"),
    "a truncated file": _cut("bank.db"),
    "a truncated artifact": _cut(_ARTIFACT),
    "a missing file": _remove("bank.db"),
    "a missing artifact": _remove(_ARTIFACT),
    "a missing manifest": _remove("manifest.json"),
    "a newer manifest": _replace("manifest.json", b'{"format":2', b'{"format":3'),
    "a newer folder": _replace("perdure-backup.json", b'"format":2', b'"format":9'),
    "a mark that is none": _replace("perdure-backup.json", b"{", b"["),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup that is whole, in a folder that nobody changes."""
    folder = tmp_path_factory.mktemp("sound")
    url = f"sqlite:///{folder / 'a.db'}"

    async def make() -> None:
        await live(url)
        await kept(url, folder / "backup")

    asyncio.run(make())
    return folder / "backup"


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
async def test_damage_is_found_before_anything_is_changed(
    harm: Harm, sound: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "backup"
    shutil.copytree(sound, folder, symlinks=True)
    file = harm(folder)
    url = f"sqlite:///{tmp_path / 'b.db'}"
    async with perdure.open(url) as bank:
        await bank.collection(Paper).put(Paper("mine", "t", "mine"))
    before = (tmp_path / "b.db").read_bytes()
    with pytest.raises(BadBackup) as caught:
        await restored(folder, url, overwrite=True)
    assert file.name in str(caught.value)
    assert caught.value.hint
    assert (tmp_path / "b.db").read_bytes() == before
    assert not (tmp_path / "b.db.artifacts").exists()
    if file.name != "perdure-backup.json":
        (only,) = await check_backups(folder)
        assert not only.sound
        assert file.name in only.error


async def test_a_backup_cannot_bring_sql_along(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    shutil.copytree(sound, folder, symlinks=True)
    place = BackupFolder(folder)
    good = place.choose()
    file = folder / "snapshots" / good.id / "bank.db"
    db = apsw.Connection(str(file))
    good_layout = db.execute("SELECT layout FROM perdure_collections WHERE name = 'papers'").get
    db.close()
    assert '"papers"' in good_layout
    for evil in ("../x", 'x"; DROP TABLE y; --'):
        db = apsw.Connection(str(file))
        text = good_layout.replace('"papers"', json.dumps(evil))
        db.execute("UPDATE perdure_collections SET layout = ? WHERE name = 'papers'", (text,))
        db.close()
        changed = hashlib.sha256(file.read_bytes()).hexdigest()
        made = msgspec.structs.replace(good, digest=changed, bytes=file.stat().st_size)
        (file.parent / "manifest.json").unlink()
        (file.parent / "bank.db.artifacts").unlink()
        place.finish(file.parent, made)
        with pytest.raises(BadBackup, match="collection"):
            await restored(folder, f"sqlite:///{tmp_path / 'b.db'}")


async def test_a_backup_is_a_bank(sound: Path) -> None:
    place = BackupFolder(sound)
    file = sound / "snapshots" / place.choose().id / "bank.db"
    before = file.read_bytes()
    async with looking(f"sqlite:///{file}") as bank:
        assert [problem async for problem in bank.verify()] == []
        assert await bank.collection(Paper).query().where("topic", "=", "t1").count() == 20
        assert await bank.artifacts.read(perdure.Artifact.of(LARGE)) == LARGE
    assert file.read_bytes() == before
    assert [each.sound for each in await check_backups(sound)] == [True]


async def test_a_backup_is_read_where_nothing_may_be_written(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    shutil.copytree(sound, folder, symlinks=True)
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    assert (await restored(folder, f"sqlite:///{tmp_path / 'b.db'}")).problems == ()
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


# Encryption -------------------------------------------------------------------------------------


async def test_with_a_master_key_a_backup_is_encrypted(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    make_file(tmp_path / "key")
    secret = Config(encryption=EncryptionConfig(key=f"file:{tmp_path / 'key'}"))
    await live(url)
    made = await kept(url, folder, secret)
    assert made.encrypted
    again = await kept(url, folder, secret)
    assert again.copied == 0
    for file in files_in(folder):
        assert b"artifact of many words" not in file.read_bytes()
    assert all(each.sound for each in await check_backups(folder, config=secret))
    with pytest.raises(KeyRefused):
        await check_backups(folder, config=Config())
    with pytest.raises(KeyRefused):
        await restored(folder, f"sqlite:///{tmp_path / 'b.db'}", config=Config())
    make_file(tmp_path / "other key")
    wrong = Config(encryption=EncryptionConfig(key=f"file:{tmp_path / 'other key'}"))
    with pytest.raises(KeyRefused):
        await restored(folder, f"sqlite:///{tmp_path / 'b.db'}", config=wrong)
    rotated = Config(
        encryption=EncryptionConfig(
            key=f"file:{tmp_path / 'other key'}", former_keys=(f"file:{tmp_path / 'key'}",)
        )
    )
    moved = await restored(folder, f"sqlite:///{tmp_path / 'b.db'}", config=rotated)
    assert moved.problems == ()
    _flip(_ARTIFACT)(folder)
    checked = await check_backups(folder, config=secret)
    assert [_ARTIFACT in each.error for each in checked] == [True, True]


async def test_a_bank_with_everything_encrypted_comes_back(
    postgres_url: str, tmp_path: Path
) -> None:
    make_file(tmp_path / "key")
    encryption = EncryptionConfig(key=f"file:{tmp_path / 'key'}", everything=True)

    def secret(place: str) -> Config:
        return Config(
            encryption=encryption, artifacts=ArtifactsConfig(folder=str(tmp_path / place))
        )

    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    await live(url, secret("a"))
    assert LARGE not in b"".join(file.read_bytes() for file in files_in(tmp_path / "a"))
    async with looking(url, secret("a")) as bank:
        await backup(bank.services, folder)
        moved = await copy_bank(bank.services, postgres_url, config=secret("c"))
        assert (moved.problems, moved.copied) == ((), 1)
    moved = await restored(folder, f"sqlite:///{tmp_path / 'b.db'}", config=secret("b"))
    assert (moved.problems, moved.copied) == ((), 1)
    # Over a bank whose artifact of the same content is encrypted with keys of its own.
    await live(f"sqlite:///{tmp_path / 'd.db'}", secret("d"))
    moved = await restored(
        folder, f"sqlite:///{tmp_path / 'd.db'}", config=secret("d"), overwrite=True
    )
    assert (moved.problems, moved.copied) == ((), 1)
    for name, target in (("b", f"sqlite:///{tmp_path / 'b.db'}"), ("c", postgres_url)):
        assert LARGE not in b"".join(file.read_bytes() for file in files_in(tmp_path / name))
        await _goes_on(target, secret(name))
    await _goes_on(f"sqlite:///{tmp_path / 'd.db'}", secret("d"))


async def test_a_restore_over_a_bank_with_other_keys_can_be_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_file(tmp_path / "key")
    encryption = EncryptionConfig(key=f"file:{tmp_path / 'key'}", everything=True)
    secret, folder = Config(encryption=encryption), tmp_path / "backup"
    url, other = (f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db"))
    for each in (url, other):
        await live(each, secret)
    await kept(url, folder, secret)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(bank_copy._CopyTarget, "_opened", interrupted)
        with pytest.raises(KeyboardInterrupt):
            await restored(folder, other, config=secret, overwrite=True)
    moved = await restored(folder, other, config=secret, overwrite=True)
    assert (moved.problems, moved.copied) == ((), 1)
    await _goes_on(other, secret)


async def test_plain_backups_of_a_bank_with_a_key_are_asked_for(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    make_file(tmp_path / "key")
    secret = Config(encryption=EncryptionConfig(key=f"file:{tmp_path / 'key'}"))
    await live(url)
    made = await kept(url, folder, secret, plain=True)
    assert not made.encrypted
    with pytest.raises(InvalidInput, match="--plain"):
        await kept(url, folder, secret)
    assert not (await kept(url, folder, secret, plain=True)).encrypted


# Copies -----------------------------------------------------------------------------------------


async def test_a_bank_travels_from_file_to_server_and_back(
    postgres_url: str, tmp_path: Path
) -> None:
    first, last = (f"sqlite:///{tmp_path / name}.db" for name in ("a", "b"))
    on_server = Config(artifacts=ArtifactsConfig(folder=str(tmp_path / "objects")))
    await live(first)
    shown: list[str] = []
    async with looking(first) as bank:
        moved = await copy_bank(
            bank.services,
            postgres_url,
            config=on_server,
            progress=lambda what, *_: shown.append(what),
        )
        assert moved.problems == ()
        assert (moved.artifacts, moved.copied, moved.shared_artifacts) == (1, 1, False)
        with pytest.raises(Conflict):
            await copy_bank(bank.services, postgres_url, config=on_server)
        again = await copy_bank(bank.services, postgres_url, config=on_server, overwrite=True)
        assert (again.artifacts, again.copied) == (1, 0)
    assert {"copying artifacts", "copying papers", "copying events"} <= set(shown)
    async with looking(postgres_url, on_server) as bank:
        back = await copy_bank(bank.services, last, config=Config())
    assert back.problems == ()
    await the_same(first, last)
    await _goes_on(last, Config())


async def test_one_place_for_the_artifacts_of_both(tmp_path: Path, config: Config) -> None:
    one, other = (f"sqlite:///{tmp_path / name}.db" for name in ("a", "b"))
    await live(one, config)
    async with looking(one, config) as bank:
        moved = await copy_bank(bank.services, other)
        assert moved.shared_artifacts
        assert (moved.artifacts, moved.copied, moved.problems) == (0, 0, ())
        with pytest.raises(InvalidInput, match="itself"):
            await copy_bank(bank.services, one, overwrite=True)


async def test_a_damaged_artifact_is_not_copied_and_named(tmp_path: Path) -> None:
    one, other = (f"sqlite:///{tmp_path / name}.db" for name in ("a", "b"))
    async with perdure.open(one) as bank:
        artifact = await bank.artifacts.put(LARGE)
        await bank.artifacts.put(OTHER)
    _flip(artifact.hex)(tmp_path / "a.db.artifacts")
    async with looking(one) as bank:
        moved = await copy_bank(bank.services, other)
    assert moved.problems is not None
    assert [problem.subject for problem in moved.problems] == [artifact.hash]
    assert moved.copied == 1


async def test_copies_and_backups_while_others_write(tmp_path: Path) -> None:
    """Two records whose sum never changes, and artifacts that are put before they are named."""
    url, folder = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "backup"
    ended = False

    async def write() -> None:
        async with perdure.open(url) as bank:
            number = 0
            while not ended:
                number += 1
                content = await bank.artifacts.put(os.urandom(70_000))
                async with bank.transaction() as transaction:
                    papers = transaction.collection(Paper)
                    await papers.put(Paper("left", "t", str(1_000 - number)))
                    await papers.put(Paper("right", "t", str(number)))
                    await papers.put(Paper(f"n/{number}", "named", content.hash))
                await asyncio.sleep(0.01)

    async with perdure.open(url) as bank:
        both = [Paper("left", "t", "1000"), Paper("right", "t", "0")]
        await bank.collection(Paper).put_many(both)
    writing = asyncio.create_task(write())
    try:
        for number in range(3):
            await asyncio.sleep(0.1)
            await kept(url, folder)
            async with looking(url) as bank:
                moved = await copy_bank(bank.services, f"sqlite:///{tmp_path / f'copy{number}'}.db")
                assert moved.problems == ()
    finally:
        ended = True
        await writing
    targets = [f"sqlite:///{tmp_path / f'copy{number}'}.db" for number in range(3)]
    for listed in await check_backups(folder):
        assert listed.sound
        targets.append(f"sqlite:///{tmp_path / listed.id}.db")
        moved = await restored(folder, targets[-1], snapshot=listed.id)
        assert moved.problems == ()
    numbers = []
    for target in targets:
        async with looking(target) as bank:
            papers = bank.collection(Paper)
            left, right = await papers.get("left"), await papers.get("right")
            assert left is not None
            assert right is not None
            assert int(left.text) + int(right.text) == 1_000
            named = await papers.query().where("topic", "=", "named").values()
            assert len(named) == int(right.text)
            for paper in named:
                assert len(await bank.artifacts.read(paper.text)) == 70_000
            numbers.append(len(named))
    assert max(numbers) > min(numbers) > 0
