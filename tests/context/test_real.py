"""Real transcripts, request by request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.core.errors import BudgetTooSmall
from perdure.core.turns import TurnSplitter
from perdure.simulation import read_history
from tests.context.windows import WIRES, Story, items_of, unmarked, violations

DATA = Path(__file__).parents[3] / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="there are no transcripts beside us")


@pytest.mark.slow
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("folder", ["claude_code", "codex"])
async def test_each_request_is_valid_and_extends_the_one_before(folder: str, wire: Any) -> None:
    largest = max((DATA / folder).glob("*.jsonl"), key=lambda path: path.stat().st_size)
    history = await read_history([largest])
    messages = [message for call in history.calls[:90] for message in call.messages]
    story, requests, before, epochs = Story(30_000), 0, list[Any](), 0
    watch = TurnSplitter()
    for at, message in enumerate(messages):
        if message.role == "assistant" and at and not watch.mark.waiting and not watch.mark.closed:
            try:
                context = story.context()
            except BudgetTooSmall:  # a round of a real transcript may be larger than the window
                story.budget *= 2
                context = story.context()
            assert violations(context, wire) == []
            items = unmarked(items_of(context, wire))
            if story.epochs == epochs:
                assert items[: len(before)] == before
            before, epochs, requests = items, story.epochs, requests + 1
        story.say([message])
        watch.feed(message)
    assert requests > 50
    assert epochs > 0
