"""Keyword, vector and ranking in one question, in banks of 1k, 10k and 100k turns on SQLite.

The process is warm: models are loaded, questions were asked before. A question is timed from its
words to its ranked candidates, with finding out what may be seen; texts of hits are not read, and
no model is asked. Four of five conversations are the asking agent's.

What shortcuts cost is told beside it, on the largest bank:

- `lost_words`: of the ten best that are found if every occurrence of every word is read, and 4,000
  turns and their neighbours are looked at, those that are not among the ten best that were found;
- `lost_vectors`: of the 60 documents nearest to a question, those that the approximate search did
  not find;
- `lost_answers`: of the questions whose answer is among the ten best without either shortcut, those
  for which it is not with them.

`found` is the share of questions whose answer is among the ten best. The questions have rare words
of their answers in them: it shows that search works, not how well (that is `locomo`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import msgspec

from benchmarks.harness import Block, Report, Tally, alternate, millis, percentile, work_folder
from benchmarks.small_talk import Asked, Line, SmallTalk
from perdure.config import RecallConfig
from perdure.core.clock import SECOND, now, to_datetime
from perdure.core.messages import user
from perdure.core.turns import ConversationState
from perdure.history.log_records import Head, SessionRecord, agent_of
from perdure.history.piece_packing import RoundWritten
from perdure.history.turn_reader import TurnReader
from perdure.jobs import Runner
from perdure.recall.embedders import Wordllama
from perdure.recall.indexing.index import RecallIndex
from perdure.recall.indexing.passages import document, passage
from perdure.recall.places import INDEX, Spot
from perdure.recall.scoping.scope import Scopes
from perdure.recall.searching import ranking
from perdure.recall.searching.searcher import Searcher, SearchResult
from perdure.recall.values import Question
from perdure.search.engine import Embedding, Near, TextFound, TextSearch, VectorSearch, engine_of
from perdure.storage.middleware import SearchCall
from perdure.storage.options import DEFAULT, Options
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store

if TYPE_CHECKING:
    from perdure.storage.adapter import Adapter

#: Turns that are written, and embedded, together.
_TOGETHER = 500
#: Hits that are looked at, and documents that the dense leg is asked for.
_BEST, _NEAREST = 10, 60
#: Turns that are looked at, and rounds whose notes are read, where nothing is cut off.
_WIDE_TURNS, _WIDE_ROUNDS = 4_000, 2_200
_ALL = 2**31


class _Place(NamedTuple):
    session: str
    turn: int


class _Shelf:
    """A bank with so many turns, and somebody who asks."""

    def __init__(self, store: Store, lines: Sequence[Line]) -> None:
        self.store, self.lines = store, lines
        self.embedder = Wordllama()
        self.index = RecallIndex(
            store, TurnReader(store), Runner(store), RecallConfig(), self.embedder
        )
        self.scopes = Scopes(store, self.index)
        self.searcher = Searcher(store, self.embedder)
        self.steps = dict[str, list[float]]()
        self._record = SessionRecord(id="ann/asking", type="session", agent="ann")

    async def fill(self) -> float:
        """Write and embed everything as an append and its background would; returns seconds."""
        start = perf_counter()
        adapter = self.store.adapter
        await engine_of(adapter).prepare(INDEX)
        for session, said in groupby(self.lines, attrgetter("session")):
            own = list(said)
            await self._session(session, len(own))
            number = await self.index.numbered(self.store, session)
            if number is None:
                raise AssertionError(session)
            for first in range(0, len(own), _TOGETHER):
                await self._write(number, own[first : first + _TOGETHER])
        while await engine_of(adapter).tend(INDEX.name):
            pass
        return perf_counter() - start

    async def ask(self, asked: Asked, searcher: Searcher | None = None) -> SearchResult:
        """What is found, by words and by meaning."""
        searcher, start = searcher or self.searcher, perf_counter()
        question = Question(
            text=asked.text,
            record=self._record,
            head=Head(self._record.id),
            limit=_BEST,
            moment=(self.lines[-1].time + 86_400) * SECOND,
        )
        scope = await self.scopes.of(question)
        scoped = perf_counter()
        found = await searcher.keyword(question, scope, patience=1.0)
        found = await searcher.vector(found)
        searched = perf_counter()
        _ = found.candidates
        for step, seconds in (
            ("scope", scoped - start),
            ("search", searched - scoped),
            ("reasons", perf_counter() - searched),
        ):
            self.steps.setdefault(step, []).append(seconds)
        return found

    async def _session(self, name: str, turns: int) -> None:
        moment = now()
        record = SessionRecord(
            id=name, type="session", agent=agent_of(name), last_active=to_datetime(moment)
        )
        await self.store.collection(SessionRecord).put(record)
        await self.store.collection(Head).put(Head(name, ConversationState(turns), time=moment))

    async def _write(self, number: int, lines: Sequence[Line]) -> None:
        made = [
            passage(RoundWritten(line.turn, 1, (user(line.text),), 0), {}, line.time * SECOND)
            for line in lines
        ]
        places = [Spot(number, line.turn).place for line in lines]
        async with self.store.transaction() as transaction:
            transaction.include(*map(document, places, made))
        vectors = await self.embedder.embed([each.plain for each in made])
        embeddings = [Embedding(*each) for each in zip(places, vectors, strict=True)]
        await engine_of(self.store.adapter).embed(INDEX.name, self.embedder.name, embeddings)


async def run(report: Report, *, quick: bool) -> None:
    sizes = (40, 200, 1_000) if quick else (1_000, 10_000, 100_000)
    rounds, count, compared = (1, 4, 5) if quick else (10, 20, 60)
    talk = SmallTalk()
    lines = list(talk.lines(sizes[-1]))
    figures = report.figures
    with work_folder() as folder:
        async with AsyncExitStack() as stack:
            shelves = dict[int, _Shelf]()
            for size in sizes:
                file = Path(folder) / f"{size}.db"
                shelf = await stack.enter_async_context(_opened(file, lines[:size]))
                shelves[size] = shelf
                figures[f"filled_s_{size}"] = round(await shelf.fill(), 1)
                report.say(f"  {size:,} turns are there after {figures[f'filled_s_{size}']} s")
            askers = {
                f"{size:,} turns": partial(
                    _block, shelf, talk.questions(lines[:size], 2_000), count
                )
                for size, shelf in shelves.items()
            }
            tallies = await alternate(askers, rounds, quick=quick)
            _tell(report, {size: tallies[f"{size:,} turns"] for size in sizes}, shelves)
            largest = shelves[sizes[-1]]
            questions = talk.questions(lines, compared)
            figures |= await _losses(largest, questions)
    for metric in (
        "found",
        "found_without_shortcuts",
        "lost_words",
        "lost_vectors",
        "lost_answers",
    ):
        report.say(f"  {metric}: {figures[metric]}")


async def _block(shelf: _Shelf, questions: Sequence[Asked], count: int, number: int) -> Block:
    """Some questions that were not asked before, one after the other."""
    if not number:  # does not count
        shelf.steps.clear()
    samples = list[float]()
    for step in range(count):
        asked = questions[(number * count + step) % len(questions)]
        start = perf_counter()
        await shelf.ask(asked)
        samples.append(perf_counter() - start)
    if not number:
        shelf.steps.clear()
    return Block(sum(samples), samples)


def _tell(report: Report, tallies: dict[int, Tally], shelves: dict[int, _Shelf]) -> None:
    figures = report.figures
    for size, tally in tallies.items():
        suffix = "" if size == max(tallies) else f"_{size}"
        for name, share in (("p50_ms", 0.5), ("p95_ms", 0.95)):
            figures[name + suffix] = millis(tally.percentile(share))
            each = [percentile(block.samples, share) for block in tally.blocks]
            spread = [millis(percentile(each, bound)) for bound in (0.1, 0.9)]
            report.spread[name + suffix] = spread
        steps = {
            step: millis(percentile(taken, 0.5)) for step, taken in shelves[size].steps.items()
        }
        figures[f"steps{suffix}"] = steps
        told = ", ".join(f"{step} {taken:.2f}" for step, taken in steps.items())
        report.say(
            f"  {size:,} turns: p50 {figures['p50_ms' + suffix]:.2f} ms,"
            f" p95 {figures['p95_ms' + suffix]:.2f} ms ({told})"
        )


# What shortcuts cost ------------------------------------------------------------------------------


async def _losses(shelf: _Shelf, questions: Sequence[Asked]) -> dict[str, float]:
    """What is lost, as the module's docstring says."""
    exact = _Exact(shelf.store.adapter)
    await exact.load(shelf.embedder.name)
    store: Any = _Store(_Everything(shelf.store.adapter, exact))
    every = Searcher(store, shelf.embedder)
    words = vectors = 0.0
    found = wide = lost = 0
    for asked in questions:
        ours = _best(await shelf.ask(asked))
        with _wider():
            theirs = _best(await shelf.ask(asked, every))
        words += len(set(theirs) - set(ours)) / max(1, len(theirs))
        vectors += await _missed(shelf, asked, exact)
        answer = _Place(asked.session, asked.turn)
        found += answer in ours
        wide += answer in theirs
        lost += answer in theirs and answer not in ours
    count = len(questions)
    return {
        "found": round(found / count, 4),
        "found_without_shortcuts": round(wide / count, 4),
        "lost_words": round(words / count, 4),
        "lost_vectors": round(vectors / count, 4),
        "lost_answers": round(lost / max(1, wide), 4),
    }


async def _missed(shelf: _Shelf, asked: Asked, exact: _Exact) -> float:
    """The share of the nearest documents that the approximate search does not find."""
    [vector] = await shelf.embedder.embed([asked.text])
    search = VectorSearch(
        index=INDEX.name, model=shelf.embedder.name, vector=vector, limit=_NEAREST
    )
    near = await engine_of(shelf.store.adapter).search_vectors(search)
    truth = {each.place for each in exact.nearest(search)}
    return 1 - len(truth & {each.place for each in near}) / len(truth)


def _best(found: SearchResult) -> list[_Place]:
    return [_Place(each.session, each.turn) for each in found.candidates[:_BEST]]


class _Exact:
    """All vectors in memory, compared one by one."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    async def load(self, model: str) -> None:
        import numpy as np

        places, after = list[int](), -1
        while page := await engine_of(self._adapter).places(INDEX.name, after, 10_000):
            places += page
            after = page[-1]
        found = await engine_of(self._adapter).vectors(INDEX.name, model, places)
        self._places = np.array(places, np.int64)[found.at]
        vectors = found.rows.astype(np.float32)
        self._vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def nearest(self, search: VectorSearch) -> list[Near]:
        import numpy as np

        asked = np.frombuffer(search.vector, np.int8).astype(np.float32)
        scores = self._vectors @ (asked / np.linalg.norm(asked))
        if search.within is not None:
            bounds = np.array(search.within, np.int64).reshape(-1, 2)
            at = np.searchsorted(bounds[:, 0], self._places, side="right") - 1
            inside = (at >= 0) & (self._places <= bounds[np.maximum(at, 0), 1])
            scores = np.where(inside, scores, -2.0)
        order = np.argsort(-scores, kind="stable")[: search.limit]
        return [Near(int(self._places[row]), float(scores[row])) for row in order]


class _Everything:
    """An engine that reads every occurrence, and compares every vector; and its backend."""

    def __init__(self, adapter: Adapter, exact: _Exact) -> None:
        self._engine, self._exact = engine_of(adapter), exact

    def extension(self, _: str) -> _Everything:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def search_text(self, search: TextSearch, options: Options = DEFAULT) -> TextFound:
        whole = msgspec.structs.replace(search, most=_ALL)
        return await self._engine.search_text(whole, options)

    async def search_vectors(self, search: VectorSearch, _: Options = DEFAULT) -> list[Near]:
        return self._exact.nearest(search)


class _Store:
    """A store as a searcher sees it: nothing but its adapter, without middleware."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter

    async def search(self, search: SearchCall) -> Any:
        return await search.ask()


@contextmanager
def _wider() -> Iterator[None]:
    """Let searchers weigh many more turns than they do."""
    with (
        patch.object(ranking, "TURNS", _WIDE_TURNS),
        patch.object(ranking, "CHUNK", _WIDE_ROUNDS),
    ):
        yield


@asynccontextmanager
async def _opened(file: Path, lines: Sequence[Line]) -> AsyncIterator[_Shelf]:
    async with Store(adapter_for(f"sqlite:///{file}", now), clock=now) as store:
        yield _Shelf(store, lines)
