"""What renditions keep of real transcripts, and how much room they take. Needs ../shared/data."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import perdure
from benchmarks.keeps import keeps, words_said
from perdure.core.messages import Message, ToolCall, ToolResult, words_of
from perdure.core.tokens import o200k
from perdure.history.renditions.algorithm import both, raw, tiny
from perdure.importers import import_files

DATA = Path(__file__).parents[3] / "shared" / "data"
counter = o200k()
count = counter.count

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="needs the transcripts in ../shared/data")


async def _turns() -> AsyncIterator[list[tuple[Message, ...]]]:
    async with perdure.open("memory://") as bank:
        await import_files(bank, "codex", [DATA / "codex"])
        for info in await bank.sessions(archived=True):
            session = await bank.existing_session(info.name)
            async for turn in session.read():
                yield [await session.resolve(round.messages) for round in turn.rounds]


def _tool_tokens(round: tuple[Message, ...]) -> int:
    parts = [part for message in round for part in message.parts]
    return sum(count(words_of(part)) for part in parts if isinstance(part, ToolCall | ToolResult))


async def test_levels_of_real_transcripts() -> None:
    words = tools = c_words = s_tools = 0
    kept_c: list[float] = []
    kept_t: list[float] = []
    async for turn in _turns():
        for number, round in enumerate(turn, 1):
            s, c = both(round, f"T-1.{number}")
            said = words_said(round)
            assert count(c) <= count(s) <= count(raw(round))
            words += count(said)
            tools += _tool_tokens(round)
            s_tools += count(s) - count(said)
            spoken = [line for line in c.split("\n") if line.startswith(("User", "Assistant"))]
            c_words += count("\n".join(spoken))
            if (kept := keeps(said, c)) is not None:
                kept_c.append(kept)
        t = tiny(turn, counter)
        said = "\n".join(map(words_said, turn))
        assert count(t) <= max(40, 0.05 * sum(count(raw(round)) for round in turn))
        if count(said) > 200 and (kept := keeps(said, t)) is not None:
            kept_t.append(kept)
    assert 0.30 <= c_words / words <= 0.40
    assert 0.30 <= s_tools / tools <= 0.40
    assert sum(kept_c) / len(kept_c) >= 0.70
    assert sum(kept_t) / len(kept_t) >= 0.25
