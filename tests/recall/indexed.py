"""A bank with an index of its own, and an embedder that counts letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from perdure.bank import Bank
from perdure.config import ArtifactsConfig, Config, RecallConfig
from perdure.core.errors import ProviderDown
from perdure.history.turn_reader import TurnReader
from perdure.recall.embedders import Embedder
from perdure.recall.indexing import index as indexing
from perdure.recall.indexing import passage_vectors
from perdure.recall.indexing.index import RecallIndex
from perdure.recall.indexing.index_forgetting import IndexPlace
from perdure.recall.places import INDEX, Spot, spot
from perdure.recall.values import Note
from perdure.recall.words import terms
from perdure.search.engine import TextSearch, engine_of
from perdure.storage.middleware import Middleware
from perdure.storage.options import DEFAULT


class Letters:
    """Embeds a text as the number of its letters a to z. Fails for as long as it is told to."""

    is_quick = True

    def __init__(self, name: str = "test/letters") -> None:
        self.name = name
        self.embedded: list[str] = []
        self.down = False

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        if self.down:
            raise ProviderDown("The server is away.", hint="Wait.")
        self.embedded += texts
        return [
            bytes([127, *(min(text.count(chr(97 + n)), 127) for n in range(26))]) for text in texts
        ]


@asynccontextmanager
async def indexed(
    url: str,
    folder: Path,
    *,
    embedder: Embedder | None = None,
    on: bool = True,
    encrypts: Callable[[str], bool] | None = None,
    middleware: tuple[Middleware, ...] = (),
) -> AsyncIterator[tuple[Bank, RecallIndex]]:
    """An open bank whose appends are indexed, and whose forgetting reaches the index.

    It is looked after when it is told to settle, and not by itself after half a second: what a test
    does to it stays done, however long that takes.
    """
    config = Config(
        artifacts=ArtifactsConfig(folder=str(folder / "artifacts")), recall=RecallConfig(on=False)
    )
    async with Bank(url, config=config, middleware=middleware) as bank:
        await bank.settle()  # its own index, which is off, says so half a second later otherwise
        index = RecallIndex(
            bank.store,
            TurnReader(bank.store),
            bank.services.jobs,
            RecallConfig(on=on),
            embedder or Letters(),
            encrypts=encrypts,
        )
        bank.services.log.join(index.hook)
        if index.pending is not None:
            bank.services.log.listen(index.pending.note, index.pending.missed)
        place = IndexPlace(index)
        bank.forgetting.join(place)
        bank.forgetting.rerooting.append(place.inherit)
        bank.forgetting.rerooted.append(place.rerooted)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(indexing, "_DELAY", indexing._CARE_EVERY)
            await index.start()
            try:
                yield bank, index
            finally:
                await index.stop()


def embed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is embedded before an index is told to settle, however slow the test is."""

    async def nothing(*_: object) -> bool:
        return False

    monkeypatch.setattr(passage_vectors.Embeddings, "_in_a_pause", nothing)


async def found(index: RecallIndex, words: str) -> list[tuple[str, Spot]]:
    """Where all terms of these words stand: the group's name, and the place taken apart."""
    if index.pending is not None:
        await index.pending.write()
    search = TextSearch(index=INDEX.name, terms=tuple(dict.fromkeys(terms(words))))
    answer = await engine_of(index.store.adapter).search_text(search, DEFAULT)
    places = [{int(row[0]) for row in posting.found} for posting in answer.terms]
    names = {number: name for name, number in (await index.groups()).items()}
    common = sorted(set.intersection(*places)) if places else []
    return [(names[spot(place).group], spot(place)) for place in common]


async def turns_found(index: RecallIndex, words: str) -> list[str]:
    """The same as ``session#T-2.1``."""
    return [f"{name}#T-{at.turn}.{at.round}" for name, at in await found(index, words)]


async def note_at(index: RecallIndex, session: str, turn: int, round: int = 1) -> Note:
    """What is noted beside a round."""
    if index.pending is not None:
        await index.pending.write()
    number = await index.group(session)
    assert number is not None
    place = Spot(number, turn, round).place
    (note,) = await engine_of(index.store.adapter).notes(INDEX.name, [place])
    assert note is not None
    return msgspec.msgpack.decode(note, type=Note)
