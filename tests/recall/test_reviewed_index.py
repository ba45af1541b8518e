"""The index under fire: harmed, restored, made encrypted; and nothing of it left behind."""

from __future__ import annotations

import asyncio
import shutil
from hashlib import sha256
from pathlib import Path

import apsw
import pytest

from perdure.bank import Bank
from perdure.bank.bank_copy import restore
from perdure.config import ArtifactsConfig, Config
from perdure.core.errors import Unavailable
from perdure.core.messages import assistant, user
from perdure.recall.indexing import index as index_module
from perdure.recall.indexing.index import RecallIndex
from perdure.recall.indexing.index_filler import Filler
from perdure.recall.places import INDEX, Spot
from perdure.search import attach, sqlite_documents, sqlite_vectors
from perdure.search.engine import Document, Embedding, VectorSearch, Withdrawal, engine_of
from perdure.sessions.session import Session
from perdure.storage.backends.sqlite import SQLiteAdapter, connections
from perdure.storage.options import DEFAULT
from perdure.storage.rows import Batch
from tests.conftest import DURABLE
from tests.patience import patient
from tests.recall.indexed import indexed, note_at, turns_found

_X = INDEX.name
#: What may happen to the tables of an index, and is found out only by looking closely.
_HARM = {
    "vectors dropped": f'DROP TABLE "{_X}__vectors"',
    "vectors deleted": f'DELETE FROM "{_X}__vectors"',
    "vectors of another length": f'UPDATE "{_X}__vectors" SET vector = randomblob(7)',
    "models deleted": f'DELETE FROM "{_X}__models"',
    "sizes dropped": f'DROP TABLE "{_X}__words_docsize"',
    "notes overwritten": f'UPDATE "{_X}__documents" SET note = randomblob(5)',
    "another list": "DROP TABLE perdure_searches; CREATE TABLE perdure_searches(x)",
}


def _config(folder: Path) -> Config:
    return Config(
        artifacts=ArtifactsConfig(folder=str(folder / "artifacts")),
        recall=patient(references=str(folder / "references")),
    )


def _harm(file: Path, statement: str) -> None:
    db = apsw.Connection(str(file))
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    db.execute(statement)
    db.close()


def _files_with(file: Path, word: str) -> list[str]:
    """The names of the bank's files that have a word in them."""
    files = [each for each in file.parent.glob(f"{file.name}*") if each.is_file()]
    return [each.name for each in files if word.encode() in each.read_bytes()]


async def _talk(session: Session, turns: int) -> None:
    for number in range(turns):
        await session.append([user(f"Zebra {number} likes apples{number}."), assistant("I see.")])


@pytest.mark.parametrize("harm", _HARM.values(), ids=_HARM)
async def test_harm_is_told_of_and_mended(
    harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(_: RecallIndex) -> None:
        """In the background nobody mends it before we have looked."""

    monkeypatch.setattr(RecallIndex, "_care", nothing)
    file = tmp_path / "bank.db"
    async with Bank(f"sqlite:///{file}", config=_config(tmp_path)) as bank:
        session = await bank.session("planner/auth")
        await _talk(session, 20)
        await bank.settle()
        await bank.index.stop()  # else it may be mended before it is looked at
        _harm(file, harm)
        await session.append([user("And a giraffe."), assistant("I see.")])
        assert (await session.recall("zebra apples7", deadline=30.0)).hits
        assert (await bank.index.check()).problems
        await bank.index.rebuild()
        report = await bank.index.check()
        assert (report.problems, report.documents, report.unembedded) == ((), 21, 0)
        hits = (await session.recall("giraffe", deadline=30.0)).hits
        assert "giraffe" in hits[0].text


@pytest.mark.parametrize("block", ["randomblob(length(block))", "zeroblob(length(block))", "x''"])
async def test_overwritten_words_are_told_of_and_mended_by_one_rebuild(
    block: str, tmp_path: Path
) -> None:
    file = tmp_path / "bank.db"
    words = f'"{_X}__words_data"'
    async with Bank(f"sqlite:///{file}", config=_config(tmp_path)) as bank:
        session = await bank.session("planner/auth")
        names = [f"w{sha256(str(number).encode()).hexdigest()[:9]}" for number in range(6_000)]
        said = [user(" ".join(names[start : start + 500])) for start in range(0, 6_000, 500)]
        await session.append([each for turn in said for each in (turn, assistant("I see."))])
        await bank.settle()
        assert not (await bank.index.check()).problems
        await bank.index.stop()
        half = f"(SELECT count(*) / 2 FROM {words})"  # a short look does not come upon it
        which = f"(SELECT id FROM {words} ORDER BY id LIMIT 1 OFFSET {half})"
        _harm(file, f"UPDATE {words} SET block = {block} WHERE id = {which}")
        assert not await bank.index.faults()
        (problem,) = (await bank.index.check()).problems
        assert "words are damaged" in problem
        await bank.index.rebuild()
        assert not (await bank.index.check()).problems
        assert (await session.recall(names[7], deadline=30.0)).hits


async def test_damage_that_a_search_comes_upon_is_mended_in_the_background(tmp_path: Path) -> None:
    file = tmp_path / "bank.db"
    async with Bank(f"sqlite:///{file}", config=_config(tmp_path)) as bank:
        session = await bank.session("planner/auth")
        await _talk(session, 20)
        await bank.settle()
        _harm(file, f'DROP TABLE "{_X}__documents"')
        found = await session.recall("zebra apples7", deadline=30.0)
        assert found.hits
        (note,) = found.notes
        assert note.startswith("The index is damaged")
        assert note.endswith("It is being made anew.")
        while await bank.index.faults():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        await bank.index.settle()
        found = await session.recall("zebra apples7", deadline=30.0)
        assert (found.stage, found.notes) == ("vector", ())


async def test_appends_go_on_when_nothing_can_be_filed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_documents, "MOST_UNFILED", 8)
    monkeypatch.setattr(sqlite_documents, "_LOOK", 4)
    file = tmp_path / "bank.db"
    async with indexed(f"sqlite:///{file}", tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await _talk(session, 20)
        await index.settle()
        _harm(file, _HARM["sizes dropped"])
        async with index.embeddings.paused():  # so that commits have to file
            await _talk(session, 40)
        await index.rebuild()
        assert (await index.check()).problems == ()
        assert len(await turns_found(index, "zebra")) == 60


@pytest.mark.parametrize(
    "harm",
    ["DROP TABLE perdure_searches", _HARM["another list"], _HARM["sizes dropped"]],
    ids=["no list", "another list", "no sizes"],
)
async def test_nothing_forgotten_is_left_in_a_harmed_index(harm: str, tmp_path: Path) -> None:
    file = tmp_path / "bank.db"
    async with indexed(f"sqlite:///{file}", tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await _talk(session, 20)
        await session.append([user("It is QQZANZIBAR."), assistant("I see.")])
        await index.settle()
        assert _files_with(file, "qqzanzibar")
        _harm(file, harm)
        assert (await bank.forget("planner/auth", turns=[21])).erased
        assert _files_with(file, "qqzanzibar") == []
        await index.settle()
        assert await turns_found(index, "qqzanzibar") == []
        assert len(await turns_found(index, "zebra")) == 20


async def test_an_index_is_blotted_out_when_turns_become_encrypted(tmp_path: Path) -> None:
    file = tmp_path / "bank.db"
    url = f"sqlite:///{file}"
    async with indexed(url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await session.append([user("It is QQZANZIBAR."), assistant("I see.")])
        await index.settle()
        assert _files_with(file, "qqzanzibar")
    async with indexed(url, tmp_path, encrypts=lambda _: True) as (bank, index):
        await index.settle()
        assert _files_with(file, "qqzanzibar") == []
        assert not await index.exists()


async def test_what_could_not_be_blotted_out_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(_: SQLiteAdapter) -> None:
        raise Unavailable("Others read.", hint="Wait.")

    file = tmp_path / "bank.db"
    url = f"sqlite:///{file}"
    async with indexed(url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await session.append([user("It is QQZANZIBAR."), assistant("I see.")])
    with monkeypatch.context() as patched:
        patched.setattr(SQLiteAdapter, "scrub", refuses)
        async with indexed(url, tmp_path, encrypts=lambda _: True) as (bank, index):
            await index.settle()
            assert await index.exists()
    async with indexed(url, tmp_path, encrypts=lambda _: True) as (bank, index):
        await index.settle()
        assert _files_with(file, "qqzanzibar") == []


async def test_a_restored_bank_is_looked_through_until_it_is_indexed(tmp_path: Path) -> None:
    config = _config(tmp_path)
    async with Bank(f"sqlite:///{tmp_path / 'bank.db'}", config=config) as bank:
        session = await bank.session("planner/auth")
        await session.append([user("Where is the zebra?"), assistant("In the cellar.")])
        await bank.settle()
        await bank.backup(tmp_path / "backup")
    url = f"sqlite:///{tmp_path / 'restored.db'}"
    await restore(tmp_path / "backup", url, config=config)
    looked_at = Bank(url, config=config)
    await looked_at.store.open()  # as short commands do it: nothing is filled
    try:
        session = await looked_at.session("planner/auth")
        found = await session.recall("zebra", deadline=30.0)
        assert [hit.turn for hit in found.hits] == ["T-1.1"]
    finally:
        await looked_at.store.close()
    async with Bank(url, config=config) as bank:
        await bank.settle()
        assert bank.index.is_complete
        assert len(await turns_found(bank.index, "zebra")) == 1


async def test_recall_that_could_not_begin_begins_with_the_next_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(_: RecallIndex) -> None:
        raise Unavailable("It is locked.", hint="Wait.")

    async with Bank(f"sqlite:///{tmp_path / 'bank.db'}", config=_config(tmp_path)) as bank:
        session = await bank.session("planner/auth")
        with monkeypatch.context() as patched:
            patched.setattr(RecallIndex, "start", refuses)
            await session.append([user("A zebra."), assistant("I see.")])
        await session.append([user("A lion."), assistant("I see.")])
        for _ in range(200):
            if not (await bank.index.check()).unembedded:
                break
            await asyncio.sleep(0.05)
        assert (await bank.index.check()).unembedded == 0


async def test_an_empty_bank_lacks_nothing(tmp_path: Path) -> None:
    bank = Bank(f"sqlite:///{tmp_path / 'bank.db'}", config=_config(tmp_path))
    await bank.store.open()
    try:
        assert (await bank.index.check()).problems == ()
        assert await Filler(bank.store, bank.index.numbers).state() is None
    finally:
        await bank.store.close()


# Vectors ----------------------------------------------------------------------------------------


def _vector(number: int) -> bytes:
    return bytes([1 + number % 100, 1 + number // 100 % 100, 100, 1 + number * 7 % 90])


async def _embedded(adapter: SQLiteAdapter, places: range, shift: int = 0) -> None:
    documents = [Document(_X, place, ("word",) * len(INDEX.fields)) for place in places]
    await adapter.commit(Batch(changes=tuple(documents)), DEFAULT)
    vectors = [Embedding(place, _vector(place + shift)) for place in places]
    await engine_of(adapter).embed(_X, "m", vectors)


async def _opened(file: Path) -> SQLiteAdapter:
    adapter = SQLiteAdapter(f"sqlite:///{file}")
    attach(adapter)
    await adapter.initialize()
    await engine_of(adapter).prepare(INDEX)
    return adapter


async def _nearest(adapter: SQLiteAdapter, number: int, limit: int = 1) -> list[int]:
    search = VectorSearch(index=_X, model="m", vector=_vector(number), limit=limit)
    return [near.place for near in await engine_of(adapter).search_vectors(search)]


async def test_a_graph_of_a_later_copy_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_vectors, "EXACT", 100)
    file, early = tmp_path / "bank.db", tmp_path / "early.db"
    adapter = await _opened(file)
    await _embedded(adapter, range(150))
    await adapter.close()
    shutil.copy(file, early)
    adapter = await _opened(file)
    await _embedded(adapter, range(150, 400))
    while await engine_of(adapter).tend(_X):
        pass
    await adapter.close()
    assert list(tmp_path.glob("*.vectors"))
    # The early one takes its place, and gets others under the same ids.
    shutil.copy(early, file)
    adapter = await _opened(file)
    await _embedded(adapter, range(150, 400), shift=1_000)
    assert await _nearest(adapter, 1_300) == [300]
    await adapter.close()


async def test_who_sees_less_does_not_lose_what_others_saw(tmp_path: Path) -> None:
    file = tmp_path / "bank.db"
    adapter = await _opened(file)
    await _embedded(adapter, range(200))
    await adapter.commit(Batch(changes=(Withdrawal(_X, 0, 149),)), DEFAULT)
    near = sqlite_vectors.SQLiteVectors(_X, 1, None)
    search = VectorSearch(index=_X, model="m", vector=_vector(250), limit=1)
    late, early = (connections.connect(file, None) for _ in range(2))
    early.execute("BEGIN")
    early.execute(f'SELECT count(*) FROM "{_X}__vectors"').fetchall()  # from here on it sees this
    await _embedded(adapter, range(200, 300))
    assert [each.place for each in near.search(late, search)] == [250]
    near._models[1].vectors.add(range(9_000, 9_400), range(400), [_vector(1)] * 400)  # long gone
    near.search(early, search)
    assert [each.place for each in near.search(late, search)] == [250]
    early.execute("ROLLBACK")
    for db in (early, late):
        db.close()
    await adapter.close()


# Between processes ------------------------------------------------------------------------------


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_an_index_that_another_process_erases(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_DELAY", 600.0)  # else it may be mended before it is seen
    async with indexed(store_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await _talk(session, 5)
        await index.settle()
        other = Bank(store_url, config=_config(tmp_path))
        await other.store.open()
        await engine_of(other.store.adapter).erase(INDEX.name)
        await _talk(session, 5)
        assert (await index.check()).problems
        await engine_of(other.store.adapter).prepare(INDEX)  # it has made an empty one
        await other.store.close()
        await _talk(session, 5)
        assert (await index.check()).problems
        await index.rebuild()
        assert (await index.check()).problems == ()
        assert len(await turns_found(index, "zebra")) == 15


async def test_who_fills_what_another_erased_does_not_call_it_complete(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    async with indexed(url, tmp_path) as (bank, index):
        await _talk(await bank.session("planner/auth"), 5)
        async with indexed(url, tmp_path) as (_, other):

            async def erase() -> None:
                await other.erase()  # and its process ends

            index.sources.append(erase)  # asked when all turns have been filled in
            await index.rebuild()
        assert not index.is_complete
        index.sources.clear()
        await index.settle()
        assert index.is_complete
        assert len(await turns_found(index, "zebra")) == 5


async def test_a_rebuild_that_is_cut_short_is_begun_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    async with indexed(url, tmp_path) as (bank, index):
        await _talk(await bank.session("planner/auth"), 5)
        await index.settle()
        number = await index.group("planner/auth")
        assert number is not None
        wrong = Document(_X, Spot(number, 2).place, ("lion",) * len(INDEX.fields))
        async with bank.transaction() as transaction:
            transaction.include(wrong)
        await index.filler.begin(anew=True)  # and then nothing more
    async with indexed(url, tmp_path) as (bank, index):
        await index.settle()
        assert await turns_found(index, "lion") == []
        assert len(await turns_found(index, "zebra")) == 5


def _calling(tool: str) -> list[dict[str, object]]:
    call = {"id": "c1", "type": "function", "function": {"name": tool, "arguments": "{}"}}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}]


_FETCHED = [{"role": "tool", "tool_call_id": "c1", "content": "The zebra lives in the annex."}]


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_what_a_tool_fetched_is_not_indexed_if_another_process_called_it(
    store_url: str, tmp_path: Path
) -> None:
    async with indexed(store_url, tmp_path) as (bank, index), indexed(store_url, tmp_path) as two:
        session = await bank.session("planner/auth")
        await session.append([user("Where does it live?")], tags={"topic": "animals"})
        other = await two[0].session("planner/auth")
        await other.append(_calling("recall"))
        await session.append(_FETCHED)
        await session.append([assistant("In the annex: the giraffe says so.")])
        assert await turns_found(index, "zebra") == []
        assert await turns_found(index, "giraffe") == ["planner/auth#T-1.2"]
        assert (await note_at(index, "planner/auth", 1, 2)).tags == {"topic": "animals"}
        assert (await index.check()).problems == ()


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_nothing_is_remembered_of_a_session_that_another_process_made_anew(
    store_url: str, tmp_path: Path
) -> None:
    async with indexed(store_url, tmp_path) as (bank, index), indexed(store_url, tmp_path) as two:
        session = await bank.session("planner/auth")
        await session.append([user("Where?"), *_calling("recall")], tags={"topic": "animals"})
        await two[0].forget("planner/auth")
        other = await two[0].session("planner/auth")
        two[0].jobs._idle._last = float("inf")  # it indexes nothing before it is asked
        await other.append([user("Where?"), *_calling("ask_the_keeper")], tags={"topic": "zoo"})
        anew = await bank.session("planner/auth")
        await anew.append(_FETCHED)
        await index.catch_up(anew.record)  # as every recall does
        assert await turns_found(index, "zebra") == ["planner/auth#T-1.1"]
        assert (await note_at(index, "planner/auth", 1)).tags == {"topic": "zoo"}


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_turns_that_a_fork_was_given_are_indexed_by_whoever_opens_the_bank_next(
    store_url: str, tmp_path: Path
) -> None:
    async def die(session: str) -> None:
        raise ConnectionAbortedError(session)

    async with indexed(store_url, tmp_path) as (bank, index):
        parent = await bank.session("planner/auth")
        await _talk(parent, 3)
        await parent.fork("planner/fork")
        await (await bank.session("planner/other")).append([user("Hello."), assistant("Hi.")])
        await index.settle()
        bank.forgetting.rerooted.insert(0, die)  # before they are indexed as the fork's
        with pytest.raises(ConnectionAbortedError):
            await bank.forget("planner/auth", reroot=True)
    async with indexed(store_url, tmp_path) as (bank, index):
        assert (await bank.forget("planner/auth", reroot=True)).turns == 3
        await index.settle()
        assert await turns_found(index, "zebra") == [f"planner/fork#T-{n}.1" for n in (1, 2, 3)]
        assert (await index.check()).problems == ()
        # Nobody dies: it is complete at once.
        await (await bank.session("planner/fork")).fork("planner/last")
        await bank.forget("planner/fork", reroot=True)
        state = await index.filler.state()
        assert state is not None
        assert state.complete
        assert len(await turns_found(index, "zebra")) == 3
