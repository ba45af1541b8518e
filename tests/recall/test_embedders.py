"""Embedders: the one that comes with Perdure, models behind the gateway, those not there."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import numpy as np
import pytest

from perdure.config import Config, GatewayConfig, ModelsConfig, RecallConfig
from perdure.core.errors import BadAnswer, InvalidConfig, NoModel
from perdure.gateway import local
from perdure.gateway.gateway import Gateway
from perdure.recall.embedders import (
    GatewayEmbedder,
    SentenceTransformers,
    Wordllama,
    as_bytes,
    embedder,
)
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.store import Store
from perdure.testing import ScriptedModel


def _cosine(a: bytes, b: bytes) -> float:
    x, y = (np.frombuffer(each, dtype=np.int8).astype(np.float64) for each in (a, b))
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def test_bytes_keep_the_direction() -> None:
    rows = np.random.default_rng(1).normal(size=(40, 256)) * np.logspace(-3, 3, 40)[:, None]
    kept = as_bytes(rows)
    assert {len(row) for row in kept} == {256}
    for row, vector in zip(rows, kept, strict=True):
        as_kept = np.frombuffer(vector, dtype=np.int8).astype(float)
        cosine = row @ as_kept / np.linalg.norm(row) / np.linalg.norm(as_kept)
        assert cosine > 0.999
        assert max(abs(as_kept)) == 127


def test_what_has_no_direction_gets_one() -> None:
    for row in as_bytes(np.array([[0.0, 0.0], [float("nan"), 0.0]])):
        assert row == bytes([127, 0])


async def test_the_local_one_agrees_with_the_gateways() -> None:
    texts = ["The parser is broken.", "", "Une autre langue, 例えば。", "x" * 30_000]
    ours = await Wordllama().embed(texts)
    theirs, _ = await local.embed(texts)
    assert [len(each) for each in ours] == [128] * 4
    for mine, other in zip(ours, as_bytes(np.array(theirs)[:, :128]), strict=True):
        assert _cosine(mine, other) > 0.999
    near, far = await Wordllama().embed(["the parsing is wrong", "my cat likes fish"])
    assert _cosine(ours[0], near) > _cosine(ours[0], far) + 0.1


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel() as server:
        yield server


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with Store(MemoryAdapter()) as opened:
        yield opened


async def test_any_model_of_the_gateway_embeds(model: ScriptedModel, store: Store) -> None:
    gateway = Gateway(store, GatewayConfig())
    name = f"{model.url}#small"
    chosen = embedder(RecallConfig(embedder=name), lambda: gateway)
    assert chosen.name == name
    first, second = await chosen.embed(["one", "two"])
    assert len(first) == len(second) > 0
    assert (await chosen.embed(["one"])) == [first]
    await gateway.close()


def _never() -> Gateway:
    raise AssertionError


@pytest.mark.parametrize(
    ("configured", "chosen"),
    [
        (Config(), "local/wordllama-128"),
        (Config(recall=RecallConfig(embedder="local/wordllama")), "local/wordllama-128"),
        (
            Config(
                gateway=GatewayConfig(models=ModelsConfig(embed=("openai/e-3", "local/wordllama")))
            ),
            "openai/e-3",
        ),
        (
            Config(recall=RecallConfig(embedder="sentence-transformers/all-MiniLM-L6-v2")),
            "sentence-transformers/all-MiniLM-L6-v2",
        ),
    ],
    ids=["default", "named", "for embed", "sentence-transformers"],
)
def test_the_configuration_chooses_without_a_gateway(configured: Config, chosen: str) -> None:
    assert embedder(configured.recall, _never, configured.gateway).name == chosen


def test_a_model_that_cannot_be_is_refused_when_it_is_needed() -> None:
    wrong = embedder(RecallConfig(embedder="nobody"), _never, GatewayConfig())
    with pytest.raises(InvalidConfig):
        _ = wrong.name


async def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(NoModel, match="cannot be imported") as told:
        await SentenceTransformers("all-MiniLM-L6-v2").embed(["one"])
    assert "pip install" in (told.value.hint or "")


async def test_files_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Package:
        @staticmethod
        def SentenceTransformer(name: str, *, local_files_only: bool) -> object:  # noqa: N802
            assert local_files_only
            raise OSError(f"{name} is not in the cache")

    monkeypatch.setitem(sys.modules, "sentence_transformers", Package)
    with pytest.raises(NoModel, match="not on this machine"):
        await SentenceTransformers("all-MiniLM-L6-v2").embed(["one"])


async def test_a_server_that_sends_too_little_is_refused(store: Store) -> None:
    from perdure.gateway.calls import EmbedReply

    class Short(Gateway):
        async def embed(self, *_: object) -> EmbedReply:
            return EmbedReply(vectors=((0.5,),), provider="x", model="y")

    gateway = Short(store)
    with pytest.raises(BadAnswer):
        await GatewayEmbedder(lambda: gateway, "x/y").embed(["one", "two"])
    await gateway.close()
