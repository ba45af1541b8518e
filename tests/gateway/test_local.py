from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perdure.core.errors import NoModel
from perdure.gateway import local
from perdure.gateway.word_tokens import WordTokenizer

#: What the packages tokenizers and wordllama make of some texts.
OWN: dict[str, Any] = json.loads(Path(__file__).with_name("wordllama.json").read_text())


@cache
def vocabulary() -> list[str]:
    return json.loads(
        Path(local.__file__).with_name("wordllama").joinpath("vocabulary.json").read_text()
    )


@cache
def tokenizer() -> WordTokenizer:
    return WordTokenizer(vocabulary())


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


async def test_they_are_wordllama_s_own_vectors() -> None:
    for text, theirs in OWN["vectors"]:
        ((ours,), _) = await local.embed([text])
        assert likeness(ours, tuple(theirs)) > 0.9999


@pytest.mark.parametrize(("text", "tokens"), OWN["tokens"])
def test_tokens_are_those_of_the_package_tokenizers(text: str, tokens: list[int]) -> None:
    assert tokenizer().encode(text) == tokens


def test_what_may_be_looked_up_would_be_merged_to_the_same() -> None:
    """A token is found at once; here it is merged, in front of a letter that no token has."""
    merged = WordTokenizer(vocabulary())
    for number, token in enumerate(vocabulary()):
        if number >= 259:  # before them: bytes, and marks
            found = merged._merge(f"{token}ݐ")
            assert found[:-2] == (number,)


def test_half_a_character_is_bytes() -> None:
    assert len(tokenizer().encode("\ud800")) == 4


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
assert "perdure.gateway.word_tokens" not in sys.modules and "numpy" not in sys.modules
asyncio.run(local.embed(["x"]))
root = logging.getLogger()
assert (root.handlers, root.level) == ([], logging.WARNING), (root.handlers, root.level)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
