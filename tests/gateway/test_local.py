from __future__ import annotations

import asyncio
import math
import subprocess
import sys

import pytest

from perdure.core.errors import NoModel
from perdure.gateway import local


def likeness(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


async def test_like_texts_have_like_vectors() -> None:
    texts = ["The cat sat on the mat.", "A kitten lay on the rug.", "Quarterly tax returns"]
    (cat, kitten, taxes), usage = await local.embed(texts)
    assert len(cat) == local.DIMENSION
    assert math.isclose(likeness(cat, cat), 1, rel_tol=1e-5)
    assert likeness(cat, kitten) > likeness(cat, taxes) + 0.2
    assert usage.input is not None
    assert 10 < usage.input < 30


async def test_a_vector_does_not_depend_on_its_company() -> None:
    long = "word " * 30_000  # several blocks
    texts = ["short", long, "", *(f"text number {n}" for n in range(600)), "short"]
    together, _ = await local.embed(texts)
    assert len(together) == len(texts)
    assert together[0] == together[-1]
    assert together[0] == (await local.embed(["short"]))[0][0]
    assert not any(together[2])
    # A text of one word many times points where the word does.
    assert likeness(together[1], (await local.embed(["word " * 3]))[0][0]) > 0.95


async def test_it_is_wordllama_s_own_vector() -> None:
    import numpy as np

    for text in ("Perdure keeps every turn.", "alpha beta " * 6_000 + "zebra " * 6_000):
        ((ours,), _) = await local.embed([text])
        theirs = local._load().embed([text], norm=True)[0]
        assert np.allclose(ours, theirs, atol=1e-4)


async def test_nothing_to_embed() -> None:
    vectors, usage = await local.embed([])
    assert vectors == ()
    assert usage.input == 0


async def test_the_event_loop_goes_on_meanwhile() -> None:
    await local.embed(["load it first"])
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await local.embed(["a sentence of a few words, again and again"] * 5_000)
    ticking.cancel()
    assert ticks >= 5


async def test_another_model_is_not_there() -> None:
    with pytest.raises(NoModel, match="local/wordllama"):
        await local.embed(["x"], "minilm")


def test_it_says_that_it_does_not_chat() -> None:
    error = local.cannot_chat("chat")
    assert isinstance(error, NoModel)
    assert "does not answer" in error.message
    assert "PERDURE_MODEL_CHAT" in error.hint


def test_a_program_s_logging_stays_as_it_was_and_nothing_is_imported_early() -> None:
    code = """
import asyncio, logging, sys
from perdure.gateway import local
assert "wordllama" not in sys.modules and "numpy" not in sys.modules
asyncio.run(local.embed(["x"]))
root = logging.getLogger()
assert (root.handlers, root.level) == ([], logging.WARNING), (root.handlers, root.level)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
