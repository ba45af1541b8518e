"""What tests of the command are given: a home of their own, the command, banks to look at."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import pytest
import typer.testing
from typer.main import get_command
from typer.testing import CliRunner, Result

import perdure
from perdure.cli.app import app
from perdure.core.messages import Message, Reasoning, Text, ToolCall, ToolResult, assistant, user
from perdure.history.log_records import Link
from perdure.testing import Script, ScriptedModel
from tests.patience import VARIABLES

# A runner makes all commands anew from their functions, for each call: 0.1 s of the same.
typer.testing._get_command = functools.cache(get_command)  # type: ignore[attr-defined]

#: Runs the command in this process.
Run: TypeAlias = Callable[..., Result]
#: Runs it with --json, and returns the exit code and the object on stdout.
Ask: TypeAlias = Callable[..., tuple[int, dict[str, Any]]]


@perdure.record("notes")
class Note(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    text: str


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and working folder, also for processes that the test starts."""
    for name in [name for name in os.environ if name.startswith("PERDURE_")]:
        if name not in VARIABLES:
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run() -> Run:
    def call(*args: str, answer: str | None = None) -> Result:
        result = CliRunner().invoke(app, args, prog_name="perdure", input=answer)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def ask(run: Run) -> Ask:
    def call(*args: str) -> tuple[int, dict[str, Any]]:
        result = run(*args, "--json")
        answer = json.loads(result.stdout)
        assert isinstance(answer, dict)
        return result.exit_code, answer

    return call


@pytest.fixture
def notes(tmp_path: Path) -> str:
    """The address of a bank with 600 notes, a small and a large artifact."""
    url = f"sqlite:///{tmp_path / 'notes.db'}"
    with perdure.open_sync(url) as bank:
        texts = (f"note {number} of six hundred" for number in range(600))
        bank.collection(Note).put_many(Note(f"ada/{n:03}", text) for n, text in enumerate(texts))
        bank.artifacts.put(b"small")
        bank.artifacts.put(b"large" * 20_000)
    return url


#: 2026-02-12 16:02 UTC, in microseconds.
THEN = 1_770_912_120_000_000
MINUTE = 60_000_000


@pytest.fixture(scope="session")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bank that nobody changes; see `chat`."""
    folder = tmp_path_factory.mktemp("chat")
    asyncio.run(converse(f"sqlite:///{folder / 'chat.db'}"))
    return folder


@pytest.fixture
def chat(conversations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a bank with conversations, which is the default of the test.

    planner/auth has 25 turns, of which T-4 is forgotten and T-24 undone; coder/auth is a fork of it
    at T-10, planner/auth.helper a sub-agent, planner/old archived.
    """
    folder = tmp_path / "chat"
    shutil.copytree(conversations, folder)
    url = f"sqlite:///{folder / 'chat.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)
    return url


async def converse(url: str) -> None:
    async with perdure.open(url) as bank:
        session = await bank.session("planner/auth", state={"cwd": "/srv/app"})
        for number in range(1, 25):
            said = [at(user(f"prompt {number}"), number), at(assistant(f"reply {number}"), number)]
            if number == 3:
                said[1:] = tool_round(number)
            tags = {"topic": "tokens"} if number in {2, 12, 22} else {}
            await session.append(said, tags=tags, count=True)
            if number == 10:
                fork = await session.fork("coder/auth", at="T-10")
                await fork.append([at(user("elsewhere"), 11), at(assistant("yes"), 11)])
        await session.undo()
        await session.append([at(user("prompt 25"), 25), at(assistant("reply 25"), 25)])
        await bank.forget("planner/auth", turns=["T-4"])
        helper = await bank.session("planner/auth.helper", link=Link("planner/auth", "c1", 3))
        await helper.append([at(user("help"), 3), at(assistant("done"), 3)])
        old = await bank.session("planner/old")
        await old.append([at(user("long ago"), 0)])
        await old.archive()


def tool_round(number: int) -> list[Message]:
    call = ToolCall("c1", "Bash", '{"command": "ls /srv/app/src", "timeout": 9}')
    broken = ToolCall("c2", "Read", '{"file_path": "/srv/app/absent.py"}')
    files = "\n".join(f"file{n}.py" for n in range(80))
    results = (
        ToolResult("c1", (Text(files),)),
        ToolResult("c2", (Text("There is no such file."),), is_error=True),
    )
    thought = Reasoning("I should look.\nAnd then I should think.")
    return [
        at(Message("assistant", (thought, Text("Let me look."), call, broken)), number),
        at(Message("tool", results), number),
        at(
            assistant("Eighty files.\n" + "A long line of words. " * 20 + "\n" * 30 + "End."),
            number,
        ),
    ]


def at(message: Message, number: int) -> Message:
    """Said some minutes after the beginning."""
    return msgspec.structs.replace(message, time=THEN + number * MINUTE)


#: Starts a scripted model that `PERDURE_MODEL_CHAT` names.
Serve: TypeAlias = Callable[..., ScriptedModel]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts scripted models, beside the test: commands have an event loop of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    started: list[ScriptedModel] = []

    def start(script: Script = "Hello.", **settings: Any) -> ScriptedModel:
        model = ScriptedModel(script, **settings)
        asyncio.run_coroutine_threadsafe(model.__aenter__(), loop).result(10)
        started.append(model)
        monkeypatch.setenv("PERDURE_MODEL_CHAT", f"{model.url}#any")
        return model

    yield start
    for model in started:
        asyncio.run_coroutine_threadsafe(model.__aexit__(None, None, None), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


class Tty(io.StringIO):
    """A terminal, as far as a command can tell."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def tty(monkeypatch: pytest.MonkeyPatch) -> Tty:
    """A terminal of 60 columns that shows colours; `contextlib.redirect_stdout` prints there."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Tty()
