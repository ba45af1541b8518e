from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perdure
from examples.made_up_project import project_turn
from perdure.cli.app import app
from perdure.context.context import Context
from perdure.context.history_tools import HISTORY_TOOLS
from perdure.context.injection_records import Frame, Injection
from perdure.core.messages import Message
from perdure.history.epochs import Epoch, Prefix, PrefixText
from tests.cli.conftest import Ask, Run, Tty

BUDGET, TURNS, FIRST_SENT = 3_000, 24, 6
WIRES = ("chat", "responses", "messages")
#: The bodies of a request, by the round that it was made for: one line of JSON for each API.
Sent = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sent]:
    """A bank that nobody changes, and what was sent while it was filled; see `project`."""
    folder = tmp_path_factory.mktemp("project")
    return folder, asyncio.run(work(f"sqlite:///{folder / 'project.db'}"))


@pytest.fixture
def project(
    worked: tuple[Path, Sent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Sent]:
    """The address of a bank, which is the default of the test, and what was sent.

    planner/project has 24 turns in a window of 3,000 tokens, sent from T-6 on. planner/plain has
    one open turn, planner/empty none.
    """
    shutil.copytree(worked[0], tmp_path / "project")
    url = f"sqlite:///{tmp_path / 'project' / 'project.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)
    return url, worked[1]


async def work(url: str) -> Sent:
    sent: Sent = {}
    async with perdure.open(url) as bank:
        session = await bank.session("planner/project", strategy="gradient", budget=BUDGET)
        for number in range(1, TURNS + 1):
            told = project_turn(number, tokens_per_turn=400)
            prompt, *answers = [msgspec.structs.replace(each, time=None) for each in told]
            if number < FIRST_SENT:
                await session.append([prompt, *answers])
                continue
            system = "Be brief." if number < 15 else "Be thorough."
            asked: Message | None = prompt
            for at, answer in enumerate(rounds(answers), start=1):
                context = await session.context(asked, system=system, tools=HISTORY_TOOLS)
                sent[f"T-{number}.{at}"] = bodies(context)
                await session.append(answer, context=context)
                asked = None
        plain = await bank.session("planner/plain")
        await plain.append("Where is the login?")
        await bank.session("planner/empty")
        await bank.settle()
    return sent


def rounds(messages: list[Message]) -> Iterator[list[Message]]:
    """What a model said, each time with the results that came of it."""
    starts = [at for at, message in enumerate(messages) if message.role == "assistant"]
    for start, end in zip(starts, [*starts[1:], len(messages)], strict=True):
        yield messages[start:end]


def bodies(context: Context) -> dict[str, str]:
    made = (context.to_chat(), context.to_responses(), context.to_messages())
    return dict(zip(WIRES, map(json.dumps, made), strict=True))


def stored(url: str) -> dict[str, list[Any]]:
    """Whatever a prompt that is sent leaves behind."""
    with perdure.open_sync(url) as bank:
        kinds: tuple[type, ...] = (Epoch, Prefix, PrefixText, Injection, Frame)
        return {kind.__name__: bank.collection(kind).query().values() for kind in kinds}


# What would be sent -----------------------------------------------------------------------------


def test_what_would_be_sent_next(project: tuple[str, Sent], ask: Ask) -> None:
    code, found = ask("context", "planner/project", "--prompt", "What did we decide?")
    assert code == 0
    assert (found["session"], found["turn"]) == ("planner/project", "T-25")
    assert found["budget"] == BUDGET
    assert found["epoch"] >= 1
    assert 500 < found["tokens"] <= BUDGET < found["raw"]
    levels = [band["level"] for band in found["bands"]]
    assert levels == sorted(levels, key="TCSR".index)
    assert levels[0] == "T"
    assert found["bands"][0]["first"] == "T-1.1"
    assert set(found["bands"][0]) == {"level", "first", "last", "tokens", "raw"}
    assert set(found["blocks"][0]) == {"kind", "name", "level", "tokens", "raw", "why"}
    newest = found["blocks"][-1]
    assert (newest["kind"], newest["name"], newest["level"]) == ("prompt", "T-25", "R")


def test_the_blocks_are_all_of_it(project: tuple[str, Sent], ask: Ask) -> None:
    for args in ([], ["--budget", "700"], ["--at", "T-12"], ["--at", "T-24.4"]):
        _, found = ask("context", "project", *args)
        assert sum(block["tokens"] for block in found["blocks"]) == found["tokens"], args


def test_the_body_of_each_api(project: tuple[str, Sent], run: Run, ask: Ask) -> None:
    said = "What did we decide?"
    for wire, key in (("chat", "messages"), ("responses", "input"), ("messages", "messages")):
        result = run("context", "project", "-p", said, "--wire", wire)
        body = json.loads(result.stdout)
        assert said in json.dumps(body[key][-1])
        _, found = ask("context", "project", "-p", said, "--wire", wire)
        assert (found["wire"], found["body"]) == (wire, body)


def test_it_is_what_the_library_sends(project: tuple[str, Sent], run: Run) -> None:
    url, _ = project
    options = ["--system", "Be thorough.", "--tools", "--wire", "messages"]
    shown = run("context", "project", "--prompt", "And now?", *options).stdout
    with perdure.open_sync(url) as bank:
        session = bank.session("planner/project")
        context = session.context("And now?", system="Be thorough.", tools=HISTORY_TOOLS)
    assert shown == bodies(context)["messages"] + "\n"


def test_looking_changes_nothing(project: tuple[str, Sent], run: Run) -> None:
    url, _ = project
    before = stored(url)
    for args in (["--prompt", "x"], ["--budget", "600"], ["--at", "T-20"], ["--epochs"], []):
        assert run("context", "project", *args).exit_code == 0
    assert stored(url) == before


def test_a_smaller_budget(project: tuple[str, Sent], ask: Ask) -> None:
    _, found = ask("context", "project", "--prompt", "And now?", "--budget", "700")
    assert found["budget"] == 700
    assert found["tokens"] <= 700
    assert found["bands"][0]["first"] == "T-1.1"


def test_without_a_prompt_an_open_turn_goes_on(project: tuple[str, Sent], ask: Ask) -> None:
    _, found = ask("context", "planner/plain", "--wire", "chat")
    assert found["turn"] == "T-1"
    assert "Where is the login?" in json.dumps(found["body"]["messages"][-1])


@pytest.mark.parametrize(("name", "turn"), [("planner/project", "T-25"), ("planner/empty", "T-1")])
def test_without_a_prompt_a_sign_stands_for_it(
    name: str, turn: str, project: tuple[str, Sent], ask: Ask
) -> None:
    _, found = ask("context", name, "--wire", "messages")
    assert found["turn"] == turn
    assert found["body"]["messages"][-1]["content"][-1]["text"] == f"<{turn}-R>\n…"


def test_a_secret_in_the_prompt_is_masked(project: tuple[str, Sent], run: Run) -> None:
    token = "ghp_" + "k3Jd8sLq0ZxWv7Tn2BcY6mRf4HgPa9Ue1XiO"
    shown = run("context", "project", "--prompt", f"My token is {token}").stdout
    assert token not in shown
    assert "My token is [secret:github-pat" in shown


def test_a_session_that_drops_the_oldest(project: tuple[str, Sent], ask: Ask) -> None:
    url, _ = project
    with perdure.open_sync(url) as bank:
        bank.session("planner/project", strategy="regular")
    _, found = ask("context", "project")
    assert [band["level"] for band in found["bands"]] == ["R"]
    assert (found["epoch"], found["tokens"] <= BUDGET) == (0, True)


# What was sent ----------------------------------------------------------------------------------


def test_every_past_request_comes_back(project: tuple[str, Sent], run: Run) -> None:
    _, sent = project
    assert len(sent) > 30
    for at, expected in list(sent.items())[::6]:
        for wire in WIRES:
            assert run("context", "project", "--at", at, "--wire", wire).stdout == (
                expected[wire] + "\n"
            ), (at, wire)


@pytest.mark.parametrize("wire", WIRES)
def test_in_a_new_process_byte_for_byte(wire: str, project: tuple[str, Sent]) -> None:
    _, sent = project
    done = subprocess.run(
        [sys.executable, "-m", "perdure", "context", "project", "--at", "T-17", "--wire", wire],
        capture_output=True,
        check=True,
    )
    assert done.stdout == sent["T-17.1"][wire].encode() + b"\n"


def test_people_write_turns_in_other_ways(project: tuple[str, Sent], ask: Ask) -> None:
    code, found = ask("context", "project", "--at", "17", "--wire", "chat")
    assert (code, found["turn"]) == (0, "T-17")
    assert ask("context", "project", "--at", "t-17", "--wire", "chat") == (code, found)


def test_what_was_forgotten_is_not_in_it(project: tuple[str, Sent], run: Run) -> None:
    url, sent = project
    with perdure.open_sync(url) as bank:
        words = bank.session("planner/project").turn("T-16").prompt
        bank.forget("planner/project", turns=["T-16"])
    assert json.dumps(words)[1:-1] in sent["T-17.1"]["chat"]
    result = run("context", "project", "--at", "T-17", "--wire", "chat")
    assert result.exit_code == 0
    assert json.dumps(words)[1:-1] not in result.stdout


def test_epochs(project: tuple[str, Sent], ask: Ask, run: Run) -> None:
    code, found = ask("context", "project", "--epochs")
    assert (code, found["session"]) == (0, "planner/project")
    count = len(found["epochs"])
    assert [each["number"] for each in found["epochs"]] == [*range(1, count + 1)]
    assert set(found["epochs"][0]) == {
        *("number", "at", "reason", "forced", "time", "model", "budget", "before", "after"),
    }
    for each in found["epochs"]:
        assert each["after"] <= each["budget"] == BUDGET
        assert each["forced"] == (not each["at"].endswith(".1"))
    table = run("context", "project", "--epochs").stdout.splitlines()
    assert table[0].split() == ["Epoch", "For", "Reason", "When", "Budget", "Before", "After"]
    assert len(table) == count + 1
    assert "no epochs yet" in run("context", "planner/empty", "--epochs").stdout


# For people -------------------------------------------------------------------------------------


def test_off_a_terminal_the_words_follow(project: tuple[str, Sent], run: Run) -> None:
    lines = run("context", "project", "--prompt", "And now?", "--system", "Be kind.").stdout
    rows = lines.splitlines()
    assert rows[0].startswith("planner/project T-25: ")
    assert rows[2].startswith("shown   T")
    assert rows[3].startswith("behind  T")
    (prompt,) = [row for row in rows if "never shortened" in row]
    assert prompt.split()[:2] == ["T-25-R", "prompt"]
    words = rows[rows.index("── system") :]
    assert words[1] == "Be kind."
    assert words[-2:] == ["<T-25-R>", "And now?"]
    assert all(row == row.rstrip() for row in rows[:12])


def test_on_a_terminal(project: tuple[str, Sent], tty: Tty) -> None:
    def shown(*args: str) -> str:
        tty.seek(0)
        tty.truncate()
        with contextlib.redirect_stdout(tty):
            app(["context", "project", *args], standalone_mode=False)
        return tty.getvalue()

    picture = shown("--prompt", "And now?")
    assert "█" in picture
    assert "never shortened" in picture.replace("\n", " ")
    assert "<T-25-R>" not in picture
    assert "<T-25-R>" in shown("--prompt", "And now?", "--text")


def test_the_text_as_json(project: tuple[str, Sent], ask: Ask) -> None:
    _, found = ask("context", "project", "--prompt", "And now?", "--text")
    assert found["text"].endswith("<T-25-R>\nAnd now?")
    assert "── assistant" in found["text"]


def test_words_do_not_steer_the_terminal(project: tuple[str, Sent], run: Run) -> None:
    shown = run("context", "project", "--prompt", "red \x1b[31m alert").stdout
    assert "\x1b" not in shown
    assert "red \\x1b[31m alert" in shown


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nobody"], "There is no session 'nobody'."),
        (["project", "--budget", "499"], "A budget of 499 tokens is too small: 500 are needed."),
        (["project", "--prompt", "long " * 4_000], "A budget of 3000 tokens is too small:"),
        (["project", "--prompt", " "], "The prompt is empty."),
        (["project", "--at", "T-99"], "planner/project has no turn T-99."),
        (["project", "--at", "yesterday"], "'yesterday' does not name a turn."),
        (["project", "--at", "T-2"], "Nothing is known of what was sent for T-2."),
        (["project", "--at", "T-17", "--budget", "900"], "--at shows a prompt as it was sent."),
        (["project", "--epochs", "--prompt", "x"], "--epochs lists all of them."),
    ],
)
def test_one_clear_error(
    args: list[str], message: str, project: tuple[str, Sent], run: Run, ask: Ask
) -> None:
    result = run("context", *args)
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.replace(",", "").startswith(f"perdure: {message.replace(',', '')}")
    code, found = ask("context", *args)
    assert code == 1
    assert found["error"]["hint"]


def test_an_unknown_api_is_a_usage_error(project: tuple[str, Sent], run: Run) -> None:
    result = run("context", "project", "--wire", "telegraph")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "telegraph" in result.stderr
