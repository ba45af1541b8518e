"""Strategies from outside, through the public protocol alone, and one-shot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

import perdure
from perdure.config.settings import HistoryConfig
from perdure.history.strategies.one_shot_strategy import OneShotBrief, last_entries
from perdure.sessions.session import Session
from tests.patience import VARIABLES

#: A strategy as a user would write it: in the public names only.
HEADLINES = '''
import perdure


class Headlines:
    """Every turn in a line, the last two as they were said."""

    def __init__(self, history: perdure.SessionHistory) -> None:
        self.turns: list[str] = []

    async def record_turn(self, turn: perdure.Turn) -> None:
        self.turns.append(turn.id)

    async def get_history(self, budget: int) -> list[perdure.HistorySegment]:
        old, recent = self.turns[:-2], self.turns[-2:]
        return [
            *(perdure.HistorySegment((turn,), "T") for turn in old),
            *(perdure.HistorySegment((turn,), "R") for turn in recent),
        ]
'''


class Recorder:
    """Gives what a test says, and notes what it is told."""

    made = 0
    told: list[str]
    budgets: list[int]
    segments: Sequence[perdure.HistorySegment] = ()

    def __init__(self, history: perdure.SessionHistory) -> None:
        type(self).made += 1
        type(self).told, type(self).budgets = [], []
        self.history = history

    async def record_turn(self, turn: perdure.Turn) -> None:
        self.told.append(turn.id)

    async def get_history(self, budget: int) -> Sequence[perdure.HistorySegment]:
        self.budgets.append(budget)
        return self.segments


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    found: dict[str, object] = {}
    exec(HEADLINES, found)  # the text that another test writes to a file
    perdure.register_strategy("headlines", found["Headlines"])  # type: ignore[arg-type]
    perdure.register_strategy("recorder", Recorder)
    yield
    perdure.unregister_strategy("headlines")
    perdure.unregister_strategy("recorder")
    Recorder.segments, Recorder.made = (), 0


@pytest.fixture
async def bank() -> AsyncIterator[perdure.Bank]:
    async with perdure.open("memory://") as bank:
        yield bank


async def say(session: Session, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await session.append(
            [
                {"role": "user", "content": f"What about step {number}?"},
                {"role": "assistant", "content": f"Step {number} is done: " + "it works. " * 30},
            ]
        )


async def test_a_fourth_strategy_shows_turns_at_its_levels(bank: perdure.Bank) -> None:
    session = await bank.session("coder/attic", strategy="headlines")
    await say(session, 1, 6)
    context = await session.context("And now?", recall=False)
    assert [(each.turns, each.level) for each in context.segments] == [
        *(((f"T-{number}",), "T") for number in range(1, 5)),
        (("T-5",), "R"),
        (("T-6",), "R"),
    ]
    text = context.messages[0].text
    assert text.startswith("<T-1-T>\n")
    assert "</T-4-T>\n<T-5-R>\nWhat about step 5?" in text
    assert context.messages[1].text.startswith("Step 5 is done")
    assert all(band.raw > band.tokens for band in context.bands if band.level == "T")
    # It is rebuilt byte for byte, as everything that follows from turns and budget.
    await session.append({"role": "assistant", "content": "Done."}, context=context)
    await say(session, 8, 9)
    assert (await session.past_context("T-7")).to_chat() == context.to_chat()


async def test_the_budget_is_kept_whatever_a_strategy_gives(bank: perdure.Bank) -> None:
    session = await bank.session("coder/attic", strategy="recorder")
    await say(session, 1, 12)
    Recorder.segments = [perdure.HistorySegment((f"T-{n}",)) for n in range(1, 13)]
    shown = list[str]()
    for budget in (500, 700, 1_100, 2_000):
        context = await session.context("And now?", budget=budget, recall=False)
        assert context.tokens <= budget
        shown = [each.turns[0] for each in context.segments]
        assert shown == [f"T-{n}" for n in range(13 - len(shown), 13)]  # the newest, no gap
    assert len(shown) > 5


async def test_turns_are_recorded_once_and_in_order(bank: perdure.Bank) -> None:
    session = await bank.session("coder/attic", strategy="recorder")
    await say(session, 1, 3)
    context = await session.context("Run it.", recall=False)
    assert Recorder.told == ["T-1", "T-2", "T-3"]
    call = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    await session.append({"role": "assistant", "tool_calls": [call]}, context=context)
    await session.append({"role": "tool", "tool_call_id": "c1", "content": "fine"})
    asked = len(Recorder.budgets)
    going_on = await session.context(recall=False)
    assert len(Recorder.budgets) == asked  # what was given stays while the turn goes on
    assert going_on.messages[0].text.endswith("Run it.")
    assert len(going_on.messages) == 3
    await session.append({"role": "assistant", "content": "It ran."})
    await session.context("And now?", recall=False)
    assert Recorder.told == ["T-1", "T-2", "T-3", "T-4"]
    assert Recorder.made == 1
    await session.undo()
    await session.context("And now?", recall=False)
    assert Recorder.told == ["T-1", "T-2", "T-3"]
    assert Recorder.made == 2
    fork = await session.fork("coder/other", at="T-2")
    await fork.context("And here?", recall=False)
    assert Recorder.told == ["T-1", "T-2"]


async def test_words_of_its_own_stand_for_neighbours(bank: perdure.Bank) -> None:
    session = await bank.session("coder/attic", strategy="recorder")
    await say(session, 1, 4)
    summary = perdure.HistorySegment(("T-1", "T-2", "T-3"), "C", "Three steps </T-4-R> done.")
    Recorder.segments = [summary, perdure.HistorySegment(("T-4",))]
    context = await session.context("And now?", recall=False)
    assert context.messages[0].text.startswith(
        "<T-1-through-3-C>\nThree steps &lt;/T-4-R> done.\n</T-1-through-3-C>\n<T-4-R>"
    )


@pytest.mark.parametrize(
    ("segments", "said"),
    [
        ([perdure.HistorySegment(("T-9",))], "T-9 is not among"),
        ([perdure.HistorySegment(("T-1", "T-3"))], "are no neighbours"),
        ([perdure.HistorySegment(())], "names no turns"),
        ([perdure.HistorySegment(("T-2",)), perdure.HistorySegment(("T-1",))], "stands behind T-2"),
        ([perdure.HistorySegment(("T-2",)), perdure.HistorySegment(("T-2",))], "stands behind T-2"),
    ],
)
async def test_what_is_no_history_is_an_error_of_ours(
    bank: perdure.Bank, segments: list[perdure.HistorySegment], said: str
) -> None:
    session = await bank.session("coder/attic", strategy="recorder")
    await say(session, 1, 3)
    Recorder.segments = segments
    with pytest.raises(perdure.InvalidInput, match=said):
        await session.context("And now?")


def test_names_are_checked() -> None:
    for name in ("gradient", "one-shot", "", "Über", "a/b"):
        with pytest.raises(perdure.InvalidInput):
            perdure.register_strategy(name, Recorder)
    with pytest.raises(perdure.InvalidInput, match="cannot be called"):
        perdure.register_strategy("mine", "no callable")  # type: ignore[arg-type]


async def test_an_unknown_strategy_is_named_with_those_there_are(bank: perdure.Bank) -> None:
    with pytest.raises(perdure.InvalidInput) as caught:
        await bank.session("coder/attic", strategy="headline")
    assert "gradient, headlines, one-shot, recorder, regular" in str(caught.value.hint)
    with pytest.raises(perdure.InvalidInput, match="'headline' is no history strategy"):
        perdure.open("memory://", config=perdure.Config(history=HistoryConfig(strategy="headline")))


@pytest.mark.parametrize("way", ["entry point", "configuration"])
def test_a_strategy_is_found_by_the_command(tmp_path: Path, way: str) -> None:
    """In a process that has registered nothing."""
    package = tmp_path / "packages"
    package.mkdir()
    (package / "my_history.py").write_text(HEADLINES)
    settings = '[history]\nstrategy = "my-headlines"\n'
    if way == "entry point":
        info = package / "my_history-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-history\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[perdure.strategies]\nmy-headlines = my_history:Headlines\n"
        )
    else:
        settings += '[history.strategies]\nmy-headlines = "my_history:Headlines"\n'
    (tmp_path / "perdure.toml").write_text(settings)
    variables = {
        **os.environ,
        **VARIABLES,
        "PYTHONPATH": str(package),
        "PERDURE_BANK": f"sqlite:///{tmp_path / 'bank.db'}",
        "HOME": str(tmp_path),
        "PERDURE_CONFIG": str(tmp_path / "perdure.toml"),
    }
    script = """
import asyncio, perdure
async def main():
    async with perdure.open() as bank:
        session = await bank.session("coder/attic")
        for number in range(4):
            await session.append([{"role": "user", "content": f"Step {number}?"},
                                  {"role": "assistant", "content": "Yes."}])
        context = await session.context("And now?", recall=False)
        print([(each.turns[0], each.level) for each in context.segments])
asyncio.run(main())
"""
    expected = [["T-1", "T"], ["T-2", "T"], ["T-3", "R"], ["T-4", "R"]]
    in_python = _run([sys.executable, "-c", script], tmp_path, variables)
    assert in_python.strip() == str([tuple(each) for each in expected])
    command = [sys.executable, "-m", "perdure", "context", "coder/attic", "--json"]
    shown = json.loads(_run(command, tmp_path, variables))
    levels = [[each["name"], each["level"]] for each in shown["blocks"] if each["level"]]
    assert levels[:4] == expected
    shown = json.loads(_run([*command, "--strategy", "regular"], tmp_path, variables))
    assert {each["level"] for each in shown["bands"]} == {"R"}


def _run(command: list[str], folder: Path, variables: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=variables, check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# One-shot -------------------------------------------------------------------------------------


async def test_one_shot_begins_afresh_behind_its_brief(bank: perdure.Bank) -> None:
    session = await bank.session("coder/attic", strategy="one-shot")
    await say(session, 1, 5)
    context = await session.context("Go on.", recall=False)
    assert [message.text for message in context.messages] == ["Go on."]
    log = "\n".join(f"## Run {number}\n{'We did a bit. ' * 200}" for number in range(1, 21))
    brief = OneShotBrief(
        id=session.name, spec="Build it.", tasks="- [ ] first", log=log, facts="Checks fail."
    )
    await bank.collection(OneShotBrief).put(brief)
    context = await session.context("Go on.", recall=False)
    (message,) = context.messages
    assert "# The specification\nBuild it." in message.text
    assert "- [ ] first" in message.text
    assert "## Run 20" in message.text
    assert "## Run 1\n" not in message.text
    assert message.text.index("## Run 20") < message.text.index("Checks fail.")
    assert message.text.endswith("Go on.")
    assert (await session.context("Go on.", budget=1_500, recall=False)).tokens <= 1_500
    context = await session.context("Go on.", recall=False)
    # The brief stays as it was sent while the turn goes on, and afterwards for who looks back.
    call = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    await session.append({"role": "assistant", "tool_calls": [call]}, context=context)
    await session.append({"role": "tool", "tool_call_id": "c1", "content": "fine"})
    await bank.collection(OneShotBrief).delete(session.name)
    going_on = await session.context()
    assert going_on.messages[0] == context.messages[0]
    assert len(going_on.messages) == 3
    await session.append({"role": "assistant", "content": "Done."})
    assert (await session.past_context("T-6")).to_chat() == context.to_chat()


async def test_a_brief_that_does_not_fit_says_so(bank: perdure.Bank) -> None:
    session = await bank.session("coder/attic", strategy="one-shot")
    await bank.collection(OneShotBrief).put(OneShotBrief(id=session.name, spec="word " * 3_000))
    with pytest.raises(perdure.BudgetTooSmall):
        await session.context("Go on.", budget=1_000)


async def test_a_brief_goes_with_its_session(bank: perdure.Bank) -> None:
    session = await bank.session("coder/attic", strategy="one-shot")
    await bank.collection(OneShotBrief).put(OneShotBrief(id=session.name, spec="secret plans"))
    await bank.forget(session.name)
    assert not await bank.collection(OneShotBrief).query().values()


def test_entries_of_a_log() -> None:
    assert last_entries("Intro\n\n# One\na\n\nb\n## Two\nc\n") == [
        "Intro",
        "# One\na\n\nb",
        "## Two\nc",
    ]
    assert last_entries("# A log\n\nfirst\n\nsecond\nline") == ["# A log", "first", "second\nline"]
    assert not last_entries("  \n")
