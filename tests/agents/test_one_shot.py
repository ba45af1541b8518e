"""One-shot runs with a scripted agent: how they end, what survives, what agents are told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.agents.one_shot.process_group import end_left_over
from perdure.agents.one_shot.run_records import RunRecord
from perdure.agents.process_identity import ProcessIdentity, identity_of, is_dead
from perdure.config.settings import GatewayConfig, ModelsConfig, PriceConfig
from perdure.core.messages import ToolCall
from perdure.history.strategies.one_shot_strategy import OneShotBrief
from perdure.testing import ReceivedRequest, ScriptedAnswer, ScriptedFault, ScriptedModel
from tests.patience import VARIABLES
from tests.waiting import until

AGENT = Path(__file__).parent / "scripted_agent.py"
TASKS = "# Tasks\n- [ ] one\n- [ ] two\n\n```\n- [ ] an example, no task\n```\n"
CONTINUE = {"status": "continue", "summary": "a part"}
DONE = {"status": "done", "summary": "all of it"}


class Stage:
    """A folder to work in, an agent's plan beside it, and a bank."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.aside = folder / "work", folder / "aside"
        self.folder.mkdir()
        self.aside.mkdir()
        (self.folder / "SPEC.md").write_text("Build the attic.\n")
        (self.folder / "TASKS.md").write_text(TASKS)
        self.url = f"sqlite:///{folder / 'bank.db'}"

    def plan(self, *steps: dict[str, Any]) -> list[str]:
        (self.aside / "plan.json").write_text(json.dumps(steps))
        return [sys.executable, str(AGENT), str(self.aside / "plan.json")]

    def prompts(self) -> list[str]:
        found = self.aside / "prompts"
        return [each.read_text() for each in sorted(found.iterdir())] if found.exists() else []

    def log(self) -> str:
        return (self.folder / "LOG.md").read_text()

    async def run(self, bank: perdure.Bank, *steps: dict[str, Any], **options: Any) -> RunRecord:
        given: dict[str, Any] = {"command": self.plan(*steps), "pause": 0, "folder": self.folder}
        return await bank.one_shot.run("SPEC.md", **{**given, **options})


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture
async def bank(stage: Stage) -> AsyncIterator[perdure.Bank]:
    async with perdure.open(stage.url, config=perdure.Config()) as bank:
        yield bank


# How a run ends -------------------------------------------------------------------------------


async def test_it_goes_on_until_all_is_done(stage: Stage, bank: perdure.Bank) -> None:
    told = list[perdure.RunEvent]()
    record = await stage.run(
        bank,
        {"tick": 1, "record": CONTINUE},
        {"tick": 1, "record": DONE},
        checks=["grep -q x TASKS.md"],
        progress=told.append,
    )
    assert (record.status, record.iterations, record.unknown_costs) == ("done", 2, 2)
    phases = ["prompted", "running", "ended", "checked", "decided"]
    assert [each.phase for each in told] == phases * 2
    first, second = stage.prompts()
    assert "# The specification\nBuild the attic." in first
    assert "- [ ] one" in first
    assert "run 1 of at most 20" in first
    assert "- [x] one" in second
    assert "## Start 1\nDid a bit." in second
    assert "It said: a part" in second
    assert "TASKS.md" in second.partition("What it changed:")[2]
    assert "The check `grep -q x TASKS.md` passes." in second
    # The transcripts are turns of a session that history and recall see.
    session = await bank.existing_session(record.session)
    turns = await session.turns()
    assert [turn.status for turn in turns] == ["closed", "closed"]
    assert "I worked on it." in turns[0].messages[-1].text
    past = await session.past_context("T-2")
    assert "- [x] one" in past.messages[0].text
    assert [each.name for each in await bank.sessions()] == [record.session]
    with pytest.raises(perdure.InvalidInput, match="is done"):
        await bank.one_shot.resume(record.id)


async def test_a_person_is_asked_and_answers(stage: Stage, bank: perdure.Bank) -> None:
    ask = {"status": "Needs feedback", "question": "Which colour?"}
    record = await stage.run(bank, {"record": ask}, {"tick": 2, "record": DONE})
    assert (record.status, record.question, record.iterations) == (
        "needs_feedback",
        "Which colour?",
        1,
    )
    record = await bank.one_shot.resume(folder=stage.folder, feedback="Green, key sk-no-secret.")
    assert (record.status, record.question) == ("done", "")
    assert "A person answered: Green" in stage.prompts()[1]
    assert "It asked: Which colour?" in stage.prompts()[1]


@pytest.mark.parametrize(
    ("tick", "check", "said"),
    [(1, "true", "1 task is open"), (2, "test -e built", "`test -e built` fails")],
)
async def test_done_is_believed_only_if_it_is_true(
    stage: Stage, bank: perdure.Bank, tick: int, check: str, said: str
) -> None:
    record = await stage.run(
        bank,
        {"tick": tick, "record": DONE},
        {"tick": 2 - tick, "files": {"built": "yes"}, "record": DONE},
        checks=check,
    )
    assert (record.status, record.iterations) == ("done", 2)
    assert f"It said that all is done, but {said}." in stage.prompts()[1]


async def test_tasks_that_vanish_are_doubted(stage: Stage, bank: perdure.Bank) -> None:
    record = await stage.run(bank, {"tasks": "- [x] one\n", "record": DONE})
    assert record.status == "needs_feedback"
    assert "1 of 2 tasks are gone" in record.reason


async def test_stuck_after_three_runs_without_a_change(stage: Stage, bank: perdure.Bank) -> None:
    """What the agent writes to its log is no change, nor what the bank and git write."""
    _in_git(stage.folder)
    index = (stage.folder / ".git/index").read_bytes()
    record = await stage.run(bank, {"record": CONTINUE})
    assert (record.status, record.iterations) == ("stuck", 3)
    assert record.reason == "3 runs changed nothing."
    assert "It changed nothing." in stage.prompts()[2]
    assert (stage.folder / ".git/index").read_bytes() == index
    # A person may want it to be tried again: it is, from then on.
    record = await bank.one_shot.resume(record.id)
    assert (record.status, record.iterations) == ("stuck", 6)


async def test_the_bank_in_the_folder_is_no_work(stage: Stage) -> None:
    async with perdure.open(
        f"sqlite:///{stage.folder / 'memory.db'}", config=perdure.Config()
    ) as bank:
        record = await stage.run(bank, {"record": CONTINUE})
    assert (record.status, record.iterations) == ("stuck", 3)


def _in_git(folder: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=folder, check=True)


async def test_an_agent_that_never_says_how_it_ends_is_stopped(
    stage: Stage, bank: perdure.Bank
) -> None:
    told = list[perdure.RunEvent]()
    mute = {"files": {"n": "{number}"}, "out": "I am done."}
    record = await stage.run(bank, mute, progress=told.append)
    assert (record.status, record.iterations) == ("stuck", 2)
    assert 'must be JSON: {"status": "continue"' in record.reason
    assert '"needs_feedback"' in told[-1].text
    assert "counted only if the agent tells its costs" in told[0].text
    assert told[2].text == "it ended; it did not say how; what it cost is not known"
    assert told[3].text == "2 tasks open, 0 done; something changed"  # there are no checks


async def test_the_log_of_the_harness_says_things_once(stage: Stage, bank: perdure.Bank) -> None:
    step = {"tick": 1, "record": CONTINUE, "log": False}
    await stage.run(bank, step, {**step, "record": DONE}, checks="echo so; test -e b", max_runs=2)
    assert stage.log().count("a part") == 1
    assert stage.log().count("(The agent wrote nothing.)\n") == 2
    assert "What went wrong" not in stage.log()  # the check says it


async def test_stuck_by_one_error_five_times(stage: Stage, bank: perdure.Bank) -> None:
    step = {"files": {"n": "{number}"}, "err": "boom at 0x7f{number}", "code": 2}
    record = await stage.run(bank, step, silence=60)
    assert (record.status, record.iterations) == ("stuck", 5)
    assert "The same error came 5 times: Exit code 2: boom at 0x7f4" in record.reason
    found = await bank.one_shot.iterations(record.id)
    assert {(each.ending, each.code) for each in found} == {("failed", 2)}


async def test_the_same_failing_check_while_tasks_get_done_is_no_error_of_the_agent(
    stage: Stage, bank: perdure.Bank
) -> None:
    boxes = "\n".join(f"- [ ] task {number}" for number in range(8))
    (stage.folder / "TASKS.md").write_text(boxes)
    record = await stage.run(
        bank, {"tick": 1, "record": CONTINUE}, checks="test -e built", max_runs=7
    )
    assert (record.status, record.iterations) == ("capped", 7)


@pytest.mark.parametrize("way", ["permission", "words"])
async def test_stuck_by_two_refusals(stage: Stage, bank: perdure.Bank, way: str) -> None:
    denied = {
        "type": "result",
        "result": "I may not. " + json.dumps(CONTINUE),
        "total_cost_usd": 0.25,
        "permission_denials": [{"tool_name": "Bash"}],
    }
    out = json.dumps(denied) if way == "permission" else "I'm sorry, but I can't help with that."
    record = await stage.run(
        bank, {"files": {"n": "{number}"}, "out": out, "log": way == "permission"}
    )
    assert (record.status, record.iterations) == ("stuck", 2)
    assert "2 runs were refused something" in record.reason
    if way == "permission":
        assert (record.cost, record.unknown_costs) == (5 * 10**11, 0)
        assert "It was refused: Bash." in stage.prompts()[1]
        turn = await (await bank.existing_session(record.session)).turn("T-1")
        assert turn.messages[-1].parts[0].text.startswith("I may not.")  # type: ignore[union-attr]
    else:
        assert "(The agent wrote nothing.)" in stage.log()


async def test_a_silent_agent_is_ended_with_all_that_it_started(
    stage: Stage, bank: perdure.Bank
) -> None:
    silent = {"child": True, "out": "", "files": {"n": "1"}, "wait_for": "never"}
    record = await stage.run(bank, silent, {"tick": 2, "record": DONE}, silence=1.5, max_runs=2)
    assert record.status == "done"
    first, _ = await bank.one_shot.iterations(record.id)
    assert first.ending == "silent"
    assert "it gave no sign of life" in stage.prompts()[1]
    child = int((stage.aside / "child").read_text())
    await until(lambda: is_dead(identity_of(child)))


async def test_an_agent_that_writes_its_log_is_not_silent(stage: Stage, bank: perdure.Bank) -> None:
    record = await stage.run(bank, {"beat": 10, "tick": 2, "record": DONE}, silence=2.0)
    assert (record.status, record.iterations) == ("done", 1)


async def test_an_agent_that_is_killed_is_woken_again(stage: Stage, bank: perdure.Bank) -> None:
    record = await stage.run(bank, {"kill": True, "record": DONE}, {"tick": 2, "record": DONE})
    assert (record.status, record.iterations) == ("done", 2)
    assert "Exit code -9" in stage.prompts()[1]


async def test_a_record_in_a_file_and_a_prompt_as_argument(
    stage: Stage, bank: perdure.Bank
) -> None:
    step = {"tick": 2, "record": DONE, "to_file": True}
    record = await stage.run(bank, step, prompt_to="argument")
    assert record.status == "done"
    assert stage.prompts()[0].startswith("<perdure-note>\n# The specification")


# Caps -----------------------------------------------------------------------------------------


async def test_runs_and_money_are_capped(stage: Stage, bank: perdure.Bank) -> None:
    paid = {"type": "result", "result": json.dumps(CONTINUE), "total_cost_usd": 0.75}
    step = {"files": {"n": "{number}"}, "out": json.dumps(paid)}
    record = await stage.run(bank, step, max_cost=1.5)
    assert (record.status, record.iterations, record.cost) == ("capped", 2, 15 * 10**11)
    assert record.reason == "It spent $1.50 of $1.50."
    record = await bank.one_shot.resume(record.id, max_cost=100, max_runs=4)
    assert (record.status, record.iterations) == ("capped", 4)
    assert record.reason == "It had all of its 4 runs."
    record = await bank.one_shot.resume(record.id)
    assert (record.status, record.iterations) == ("capped", 4)


async def test_hours_are_capped_also_in_the_middle_of_a_run(
    stage: Stage, bank: perdure.Bank
) -> None:
    record = await stage.run(bank, {"wait_for": "never"}, max_hours=2 / 3600)
    assert (record.status, record.iterations) == ("capped", 1)
    (only,) = await bank.one_shot.iterations(record.id)
    assert only.ending == "overtime"


async def test_no_cap_is_endless(stage: Stage, bank: perdure.Bank) -> None:
    for cap in ("max_runs", "max_cost", "max_hours", "silence"):
        for value in (0, -1, math.inf, math.nan, 10**12, True, "5"):
            with pytest.raises(perdure.InvalidInput, match=cap):
                await stage.run(bank, {"record": DONE}, **{cap: value})
    assert not await bank.one_shot.all()


async def test_what_cannot_work_is_said_before_anything_begins(
    stage: Stage, bank: perdure.Bank
) -> None:
    for options in (
        {"tasks": "none.md"},
        {"tasks": "SPEC.md"},
        {"log": "TASKS.md"},
        {"log": "nowhere/LOG.md"},
        {"command": ["no-such-agent"]},
        {"folder": stage.folder / "nowhere"},
    ):
        with pytest.raises(perdure.InvalidInput):
            await stage.run(bank, {"record": DONE}, **options)
    with pytest.raises(perdure.NoModel):
        await stage.run(bank, command=())
    with pytest.raises(perdure.NotFound):
        await bank.one_shot.resume(folder=stage.folder)
    assert not await bank.sessions()
    assert sorted(each.name for each in stage.folder.iterdir()) == ["SPEC.md", "TASKS.md"]


async def test_a_brief_that_does_not_fit_asks_a_person(stage: Stage, bank: perdure.Bank) -> None:
    await bank.session("coder/long", budget=1_000)
    (stage.folder / "SPEC.md").write_text("word " * 3_000)
    record = await stage.run(bank, {"record": DONE}, session="coder/long")
    assert record.status == "needs_feedback"
    assert "do not fit" in record.question
    (stage.folder / "SPEC.md").write_text("word")
    (stage.folder / "TASKS.md").write_text("- [x] all")
    assert (await bank.one_shot.resume(record.id)).status == "done"


# The investigator -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "status", "iterations"),
    [("continue", "stuck", 6), ("stop", "stuck", 3), ("needs_feedback", "needs_feedback", 3)],
)
async def test_an_investigator_is_sent_once(
    stage: Stage, bank: perdure.Bank, verdict: str, status: str, iterations: int
) -> None:
    said = {"verdict": verdict, "advice": "Try the other door.", "question": "Which door?"}
    (stage.aside / "verdict").write_text(f"I looked.\n{json.dumps(said)}\n")
    investigator = (
        f"cat > {stage.aside}/asked; echo x >> {stage.aside}/times; cat {stage.aside}/verdict"
    )
    record = await stage.run(bank, {"record": CONTINUE}, investigator=investigator)
    assert (record.status, record.iterations) == (status, iterations)
    assert (stage.aside / "times").read_text() == "x\n"
    assert "3 runs changed nothing." in (stage.aside / "asked").read_text()
    if verdict == "continue":
        assert "advises: Try the other door." in stage.prompts()[3]
        assert "advises" not in stage.prompts()[4]
    session = await bank.existing_session(record.session)
    assert "I looked." in (await session.turn("T-4")).messages[-1].text


async def test_its_done_holds_only_if_it_is_true(stage: Stage, bank: perdure.Bank) -> None:
    record = await stage.run(
        bank, {"record": CONTINUE}, investigator="""echo '{"verdict": "done"}'"""
    )
    assert (record.status, record.iterations) == ("stuck", 6)
    (stage.folder / "TASKS.md").write_text("- [x] one\n")
    record = await stage.run(
        bank, {"record": CONTINUE}, investigator="""echo '{"verdict": "done"}'"""
    )
    assert (record.status, record.iterations) == ("done", 3)


# A model instead of a command -----------------------------------------------------------------


async def test_a_model_works_with_the_files_of_the_folder(stage: Stage) -> None:
    """And with no other; the specification, the repository and the bank are not its."""
    (stage.folder / "link").symlink_to(stage.aside)
    url = f"sqlite:///{stage.folder / 'bank.db'}"

    def call(name: str, **given: str) -> ScriptedAnswer:
        return ScriptedAnswer(calls=(ToolCall(f"c-{name}", name, json.dumps(given)),))

    script: list[ScriptedAnswer | ScriptedFault | str] = [
        call("read_file", path="TASKS.md"),
        call("write_file", path="TASKS.md", text="- [x] one\n- [x] two\n"),
        call("write_file", path="LOG.md", text="## Run 1\nAll.\n"),
        call("run_checks"),
        call("write_file", path="src/attic.txt", text="a roof"),
        call("list_files"),
        call("write_file", path="../elsewhere", text="no"),
        call("write_file", path="link/elsewhere", text="no"),
        call("read_file", path="/etc/hostname"),
        call("write_file", path="SPEC.md", text="Build nothing."),
        call("write_file", path=".git/hooks/pre-commit", text="no"),
        call("read_file", path="bank.db"),
        f"Ready.\n```json\n{json.dumps(DONE)}\n```",
    ]
    async with ScriptedModel(script) as model:
        gateway = GatewayConfig(
            providers={"scripted": model.provider_config()},
            models=ModelsConfig(chat="scripted/any"),
            prices={"scripted/any": PriceConfig(input=1.0, output=2.0)},
        )
        config = perdure.Config(gateway=gateway)
        async with perdure.open(url, config=config) as bank:
            record = await stage.run(bank, command=(), checks="grep -q x TASKS.md")
            session = await bank.existing_session(record.session)
            turn = await session.turn("T-1")
    assert (record.status, record.iterations, record.unknown_costs) == ("done", 1, 0)
    assert record.cost > 0
    assert (stage.folder / "TASKS.md").read_text() == "- [x] one\n- [x] two\n"
    results = [result for message in turn.messages for result in message.results]
    assert "- [ ] one" in results[0].content[0].text  # type: ignore[union-attr]
    assert '"code":0' in results[3].content[0].text  # type: ignore[union-attr]
    assert (stage.folder / "src/attic.txt").read_text() == "a roof"
    assert results[5].content[0].text.split() == ["SPEC.md", "TASKS.md", "src/attic.txt"]  # type: ignore[union-attr]
    assert [result.is_error for result in results] == [False] * 6 + [True] * 6
    assert (stage.folder / "SPEC.md").read_text() == "Build the attic.\n"
    assert not (stage.folder / ".git").exists()
    assert not (stage.aside / "elsewhere").exists()
    assert "Build the attic." in model.requests[0].messages[-1].text


async def test_a_model_without_a_price_is_counted_in_tokens(stage: Stage) -> None:
    told = list[perdure.RunEvent]()
    async with ScriptedModel([json.dumps(CONTINUE)] * 2) as model:
        gateway = GatewayConfig(
            providers={"scripted": model.provider_config()},
            models=ModelsConfig(chat="scripted/any"),
        )
        async with perdure.open(stage.url, config=perdure.Config(gateway=gateway)) as bank:
            record = await stage.run(bank, command=(), max_runs=2, progress=told.append)
    assert (record.status, record.cost, record.unknown_costs) == ("capped", 0, 2)
    assert record.unpriced_tokens > 0
    assert "the price of scripted/any is not known" in told[0].text
    assert told[2].text.endswith(" tokens)")


async def test_a_model_that_was_interrupted_begins_afresh(stage: Stage) -> None:
    call = ToolCall("c-1", "read_file", '{"path": "SPEC.md"}')
    asked = asyncio.Event()

    async def answer(request: ReceivedRequest) -> ScriptedAnswer | str:
        if "This is run 2" in request.messages[1].text:
            (stage.folder / "TASKS.md").write_text("- [x] one\n- [x] two\n")
            return json.dumps(DONE)
        if len(request.messages) > 2:  # after its first tool
            asked.set()
            await asyncio.sleep(600)
        return ScriptedAnswer(calls=(call,))

    async with ScriptedModel(answer) as model:
        gateway = GatewayConfig(
            providers={"scripted": model.provider_config()},
            models=ModelsConfig(chat="scripted/any"),
        )
        async with perdure.open(stage.url, config=perdure.Config(gateway=gateway)) as bank:
            running = asyncio.create_task(stage.run(bank, command=()))
            await asyncio.wait_for(asked.wait(), 60)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            record = await bank.one_shot.resume(folder=stage.folder)
            turns = await (await bank.existing_session(record.session)).turns()
    assert (record.status, record.iterations) == ("done", 2)
    assert [len(turn.messages) for turn in turns] == [3, 2]


# What survives --------------------------------------------------------------------------------

HARNESS = """
import asyncio, os, signal, sys
import perdure

url, folder, at, crash, *command = sys.argv[1:]

async def main():
    seen = 0
    def progress(event):
        nonlocal seen
        seen += 1
        print(event.iteration, event.phase, flush=True)
        if crash != "never" and seen == int(crash):
            os.kill(os.getpid(), signal.SIGKILL)
    async with perdure.open(url, config=perdure.Config()) as bank:
        if at == "run":
            record = await bank.one_shot.run("SPEC.md", folder=folder, command=command, pause=0,
                                             checks="test -e TASKS.md", progress=progress)
        else:
            record = await bank.one_shot.resume(folder=folder, progress=progress)
        print(record.status, record.iterations)

asyncio.run(main())
"""


def _killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=60)


def _harness(stage: Stage, at: str, crash: str, command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HARNESS, stage.url, str(stage.folder), at, crash, *command],
        env={**os.environ, **VARIABLES},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


#: Each takes two processes of Perdure and two of the agent: the quick lane has two of them.
_STEPS = [
    pytest.param(step, marks=() if step in {2, 7} else pytest.mark.slow) for step in range(1, 11)
]


@pytest.mark.parametrize("step", _STEPS)
async def test_a_harness_killed_at_any_step_is_resumed(stage: Stage, step: int) -> None:
    command = stage.plan(
        {"tick": 1, "record": CONTINUE}, {"tick": 1, "record": DONE}, {"record": DONE}
    )
    first = _harness(stage, "run", str(step), command)
    out, err = first.communicate(timeout=120)
    assert first.returncode == -signal.SIGKILL, err
    assert len(out.splitlines()) == step
    if step == 10:  # it was done, and that is written down
        async with perdure.open(stage.url, config=perdure.Config()) as bank:
            (record,) = await bank.one_shot.all()
        assert record.status == "done"
        return
    second = _harness(stage, "resume", "never", command)
    out, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    status, iterations = out.splitlines()[-1].split()
    # Who was at work when the harness died may have been interrupted: then there is one more.
    assert (status, int(iterations)) in {("done", 2), ("done", 3)}
    async with perdure.open(stage.url, config=perdure.Config()) as bank:
        (record,) = await bank.one_shot.all()
        found = await bank.one_shot.iterations(record.id)
        turns = await (await bank.existing_session(record.session)).turns()
        assert not [each async for each in bank.verify()]
    assert [each.phase for each in found] == ["decided"] * len(found)
    assert [each.turn for each in found] == [turn.number for turn in turns]
    assert all(turn.status != "open" for turn in turns)
    assert len(stage.prompts()) <= len(found)


@pytest.mark.slow
async def test_killed_again_and_again_it_gets_there(stage: Stage) -> None:
    """Some time after a step, by a fixed seed: so each harness gets on, however slow it is. The
    agent ticks one task each time that it is started, since it may be killed before it does.
    """
    (stage.folder / "TASKS.md").write_text("- [ ] a task\n" * 8)
    command = stage.plan({"tick": 1, "record": DONE})
    moments = random.Random(18)
    for number in range(10):
        harness = _harness(stage, "resume" if number else "run", "never", command)
        assert harness.stdout is not None
        for _ in range(moments.randint(1, 6)):
            await asyncio.to_thread(harness.stdout.readline)  # empty at its end
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(harness.wait, moments.uniform(0.0, 0.5))
        _killed(harness)
    async with perdure.open(stage.url, config=perdure.Config()) as bank:
        (record,) = await bank.one_shot.all()
        if record.status != "done":
            record = await bank.one_shot.resume(record.id, max_runs=100)
        found = await bank.one_shot.iterations(record.id)
        turns = await (await bank.existing_session(record.session)).turns()
        assert not [each async for each in bank.verify()]
    assert record.status == "done"
    assert {each.phase for each in found} == {"decided"}
    assert [each.turn for each in found] == [turn.number for turn in turns]
    assert len(stage.prompts()) <= len(found)


GATE = """
import asyncio, os, signal, sys
from pathlib import Path
from perdure.agents.one_shot.process_group import GroupLimits, run_group

async def started(process):
    print(process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

spool = Path(sys.argv[1])
asyncio.run(run_group(["touch", str(spool / "begun")], spool, folder=str(spool),
                      limits=GroupLimits(silence=60, seconds=60), started=started))
"""


async def test_no_agent_begins_before_it_is_written_down(tmp_path: Path) -> None:
    code = [sys.executable, "-c", GATE, str(tmp_path)]
    harness = await asyncio.create_subprocess_exec(*code, stdout=subprocess.PIPE)
    out, _ = await asyncio.wait_for(harness.communicate(), 60)
    assert harness.returncode == -signal.SIGKILL
    await until(lambda: is_dead(identity_of(int(out))))
    assert not (tmp_path / "begun").exists()


async def test_an_agent_at_work_is_ended_when_its_run_is_resumed(stage: Stage) -> None:
    command = stage.plan({"wait_for": "never", "child": True}, {"tick": 2, "record": DONE})
    first = _harness(stage, "run", "never", command)
    await until((stage.aside / "waiting").exists)
    agent = int((stage.aside / "waiting").read_text())
    identity = identity_of(agent)
    async with perdure.open(stage.url, config=perdure.Config()) as bank:
        with pytest.raises(perdure.Conflict, match="Another process works on"):
            await bank.one_shot.resume(folder=stage.folder)
        _killed(first)
        assert not is_dead(identity)
        record = await bank.one_shot.resume(folder=stage.folder)
        assert (record.status, record.iterations) == ("done", 2)
        assert is_dead(identity)
        interrupted, _ = await bank.one_shot.iterations(record.id)
        assert interrupted.ending == "interrupted"
        turn = await (await bank.existing_session(record.session)).turn("T-1")
        assert "I worked on it." in turn.messages[-1].text
        assert turn.messages[-1].partial
    assert "was interrupted" in stage.prompts()[1]


async def test_what_an_agent_ends_alone_is_not_lost(stage: Stage) -> None:
    command = stage.plan({"wait_for": "go", "tick": 2, "record": DONE})
    first = _harness(stage, "run", "never", command)
    await until((stage.aside / "waiting").exists)
    identity = identity_of(int((stage.aside / "waiting").read_text()))
    _killed(first)
    (stage.aside / "go").touch()
    await until(lambda: is_dead(identity))
    async with perdure.open(stage.url, config=perdure.Config()) as bank:
        record = await bank.one_shot.resume(folder=stage.folder)
    assert (record.status, record.iterations) == ("done", 1)


@pytest.mark.parametrize("differs", ["host", "boot", "started", "untold"])
async def test_a_strangers_process_is_not_ended(differs: str) -> None:
    """What is not surely the agent of this run here has its pid by chance."""
    stranger = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    try:
        own = identity_of(stranger.pid)
        boot = f"{own.boot.partition('/')[0]}/1"  # another container
        other = {
            "host": ProcessIdentity("elsewhere/1", own.boot, own.pid, own.started),
            "boot": ProcessIdentity(own.host, boot, own.pid, own.started),
            "started": ProcessIdentity(own.host, own.boot, own.pid, "1"),
            "untold": ProcessIdentity(own.host, own.boot, own.pid, ""),
        }[differs]
        assert await end_left_over(other) == (differs != "started")  # that one is surely dead
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stranger.wait(), 0.3)
        assert await end_left_over(own)
        await asyncio.wait_for(stranger.wait(), 60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            stranger.kill()


async def test_cancelled_it_ends_the_agent_and_can_be_resumed(
    stage: Stage, bank: perdure.Bank
) -> None:
    running = asyncio.create_task(
        stage.run(bank, {"wait_for": "never"}, {"tick": 2, "record": DONE})
    )
    await until((stage.aside / "waiting").exists)
    identity = identity_of(int((stage.aside / "waiting").read_text()))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert is_dead(identity)
    (record,) = await bank.one_shot.all()
    assert record.status == "stopped"
    assert (await bank.one_shot.resume(record.id)).status == "done"


async def test_forgetting_a_session_forgets_its_run(stage: Stage, bank: perdure.Bank) -> None:
    record = await stage.run(bank, {"tick": 2, "record": DONE})
    await bank.forget(record.session, turns=1)
    (only,) = await bank.one_shot.iterations(record.id)
    assert (only.exit, only.changes) == (None, "")
    await bank.forget(record.session)
    assert not await bank.one_shot.all()
    assert not await bank.collection(OneShotBrief).query().values()
