"""Hooks of coding clients, run by a real shell as clients run them."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest

import perdure
from perdure.bank import Bank
from perdure.config import load
from perdure.config.pauses import pauses_file
from perdure.core.messages import assistant, user
from perdure.history.hook_context import CLOSE, OPEN, hook_context, without_hook_context
from perdure.integrations.claude_code import PLUGIN
from perdure.integrations.client_hooks import session_start
from perdure.integrations.client_hooks.attended import is_attended
from perdure.integrations.client_hooks.hook_failures import note_failure, read_failures
from perdure.integrations.client_hooks.transcript_import import import_spooled, read_state
from perdure.integrations.client_setup.coding_clients import EVENTS
from perdure.integrations.client_setup.project_setup import ProjectSetup, SetupWishes
from perdure.project.hook_spool import HookSpool
from perdure.project.memory_scope import MemoryScope
from perdure.project.project_location import ProjectLocation
from tests.patience import VARIABLES as PATIENCE
from tests.project.repositories import VARIABLES, commit, git, new_repository

_LIMIT = 120.0


class Stage:
    """A repository with a project, whose clients have their hooks."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "attic"
        self.home = self.repository / ".git/perdure"
        self.script = self.home / "client-hook.sh"
        self.transcript = folder / "projects/attic/93860b31.jsonl"
        self.transcript.parent.mkdir(parents=True)
        self.bank = f"sqlite:///{folder / 'bank.db'}"

    async def set_up(self) -> None:
        setup = ProjectSetup(ProjectLocation.find(self.repository))
        wishes = SetupWishes(clients=("claude-code", "codex"))
        await setup.init(Bank(config=load(None)), wishes, lambda *_: True)

    def hook(self, event: str, client: str = "claude-code", **given: Any) -> str:
        """What the hook prints. It always ends well, and never complains to the client."""
        said = {
            "session_id": "93860b31",
            "transcript_path": str(self.transcript),
            "cwd": str(self.repository),
            "hook_event_name": event,
            **given,
        }
        done = subprocess.run(
            ["sh", str(self.script), client, event],
            input=json.dumps(said, ensure_ascii=False, separators=(",", ":")),
            cwd=self.repository if self.repository.is_dir() else "/",
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def context(self, event: str, **given: Any) -> str:
        """What it gives to the model."""
        printed = self.hook(event, **given)
        if not printed:
            return ""
        answer = json.loads(printed)["hookSpecificOutput"]
        assert answer["hookEventName"] == event
        text: str = answer["additionalContext"]
        assert text.startswith(OPEN)
        assert text.endswith(CLOSE)
        return text

    def settle(self) -> None:
        """Wait until no background import runs, and its line is read."""

        def is_done() -> bool:
            if not self.home.is_dir():
                return True
            with (self.home / "import.lock").open("w") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
            return HookSpool(self.home, "clients").is_empty()

        wait_for(is_done)

    def say(self, *said: dict[str, Any]) -> None:
        """Write to the transcript, as Claude Code does."""
        with self.transcript.open("a") as file:
            for each in said:
                line = {**_RECORD, "cwd": str(self.repository), **each}
                file.write(f"{json.dumps(line)}\n")

    async def remember(self, text: str) -> None:
        async with perdure.open(self.bank) as bank:
            location = ProjectLocation.find(self.repository)
            scope = await MemoryScope.of_location(bank.services, location)
            await bank.memories.add(scope.own, text, kind="fact")

    async def told(self) -> list[str]:
        """All that is in the bank, in order."""
        async with perdure.open(self.bank) as bank:
            found: list[str] = []
            for info in await bank.sessions():
                session = await bank.session(info.name)
                async for turn in session.read(1):
                    found += [message.text for message in turn.messages]
            return found


_RECORD = {"sessionId": "93860b31", "version": "2.1.325", "gitBranch": "main", "isSidechain": False}


def asked(text: str, second: int) -> dict[str, Any]:
    message = {"role": "user", "content": text}
    return {"type": "user", "uuid": f"u{second}", "timestamp": at(second), "message": message}


def answered(text: str, second: int) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    message = {"role": "assistant", "id": f"msg_{second}", "model": "m", "content": content}
    return {"type": "assistant", "uuid": f"a{second}", "timestamp": at(second), "message": message}


def at(second: int) -> str:
    return f"2026-11-18T10:00:{second:02}.000Z"


def wait_for(is_done: Callable[[], bool]) -> None:
    since = time.monotonic()
    while not is_done():
        assert time.monotonic() - since < _LIMIT
        time.sleep(0.05)


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(tmp_path)
    folders = {name: str(tmp_path / "home") for name in ("HOME", "XDG_DATA_HOME")}
    more = {"PERDURE_BANK": made.bank, "PERDURE_HOOK_SECONDS": "100"}
    for name, value in {**VARIABLES, **PATIENCE, **folders, **more}.items():
        monkeypatch.setenv(name, value)
    new_repository(made.repository)
    await made.set_up()
    return made


async def test_a_turn_is_recorded_in_the_background(stage: Stage) -> None:
    stage.say(asked("Where is the ladder?", 1), answered("In the shed.", 2))
    assert stage.hook("Stop", last_assistant_message="In the shed.") == ""
    stage.settle()
    assert await stage.told() == ["Where is the ladder?", "In the shed."]
    stage.say(asked("And the rope?", 3), answered("In the attic.", 4))
    assert stage.hook("SessionEnd", reason="other") == ""
    stage.settle()
    assert (await stage.told())[2:] == ["And the rope?", "In the attic."]
    state = read_state(stage.home)
    assert (state.messages, state.transcripts) == (2, 1)
    assert read_failures(stage.home) == []
    assert git(stage.repository, "status", "--porcelain") == ""


async def test_a_pause_stops_the_hooks_of_clients_and_of_git(stage: Stage) -> None:
    await stage.remember("The staging port is 8123.")
    now = time.time()

    def moment(seconds: float) -> dict[str, str]:
        return {"timestamp": datetime.fromtimestamp(now + seconds, UTC).isoformat()}

    spools = [HookSpool(stage.home, name) for name in ("clients", "git")]
    for spool in spools:
        spool.read({})  # what the set-up left
    since = int(now) - 60
    pauses_file().parent.mkdir(parents=True, exist_ok=True)
    pauses_file().write_text(f"{since} -\n")
    stage.say(asked("A secret.", 1) | moment(-30), answered("It is kept.", 2) | moment(-29))
    assert stage.hook("SessionStart") == ""
    assert stage.hook("UserPromptSubmit", prompt="Which port does staging have?") == ""
    for event in ("PostToolUse", "Stop", "SessionEnd"):
        assert stage.hook(event) == ""
    commit(stage.repository, "while paused")
    assert all(spool.is_empty() for spool in spools)
    assert await stage.told() == []

    pauses_file().write_text(f"{since} {int(now) - 20}\n")  # it has ended by itself
    assert "8123" in stage.context("UserPromptSubmit", prompt="Which port does staging have?")
    stage.say(asked("Where is the ladder?", 3) | moment(-10), answered("Here.", 4) | moment(-9))
    stage.hook("Stop")
    commit(stage.repository, "afterwards")
    stage.settle()
    assert await stage.told() == ["Where is the ladder?", "Here."]
    assert read_failures(stage.home) == []
    assert not spools[1].is_empty() or list(spools[1].folder.glob("git.*"))


@pytest.mark.slow
async def test_two_imports_at_once_add_nothing_twice(stage: Stage) -> None:
    for second in range(0, 40, 2):
        stage.say(asked(f"Question {second}", second), answered(f"Answer {second}", second + 1))
    command = [sys.executable, "-P", "-m", "perdure.integrations.client_hooks"]
    stage.hook("Stop")
    stage.hook("Stop", client="claude-code")
    command += ["import", str(stage.home)]
    more = [await asyncio.create_subprocess_exec(*command) for _ in range(2)]
    assert [await each.wait() for each in more] == [0, 0]
    stage.settle()
    told = await stage.told()
    assert len(told) == len(set(told)) == 40


def test_only_the_beginning_of_the_input_is_read(stage: Stage) -> None:
    shutil.rmtree(stage.home / "spool")
    (stage.home / "spool").mkdir()
    (stage.home / "spool/started").write_text(f"{int(time.time())}\n")  # it starts none now
    stage.hook("PostToolUse", tool_name="Bash", tool_response="x" * 3_000_000)
    stage.hook("PostToolUse", "codex", cwd='/tmp/ü "quoted"', tool_response='"session_id":"no"')
    found = HookSpool(stage.home, "clients").read({})
    assert found.damaged == 0
    assert [line.name for line in found.lines] == ["PostToolUse"] * 2
    transcript = str(stage.transcript)
    first, second = (line.fields for line in found.lines)
    assert first == ("claude-code", "93860b31", transcript, str(stage.repository))
    assert second[:3] == ("codex", "93860b31", transcript)


async def test_a_prompt_brings_something_to_mind_once(stage: Stage) -> None:
    await stage.remember("The staging port is 8123.")
    stage.say(asked("The ladder is in the shed.", 1), answered("Good to know.", 2))
    stage.hook("Stop")
    stage.settle()
    ask = "Which port does staging use?"
    first = stage.context("UserPromptSubmit", prompt=ask, session_id="one")
    assert "The staging port is 8123." in first
    assert "ladder" not in first
    assert stage.context("UserPromptSubmit", prompt=ask, session_id="one") == ""
    assert stage.context("UserPromptSubmit", prompt=ask, session_id="two") == first
    where = "Where is the ladder kept?"
    assert "in the shed" in stage.context("UserPromptSubmit", prompt=where, session_id="one")
    # What was said in this very conversation stands in it.
    assert stage.context("UserPromptSubmit", prompt=where) == ""
    for nothing in ("go on", "/compact", "Compose a haiku about penguins"):
        assert stage.context("UserPromptSubmit", prompt=nothing) == ""
    assert read_failures(stage.home) == []


def prebuild(stage: Stage, text: str, name: str = "main") -> None:
    folder = stage.home / "preamble"
    folder.mkdir(exist_ok=True)
    head = git(stage.repository, "rev-parse", "HEAD")
    made = {"branch": "main", "commit": head, "text": text}
    (folder / f"{name}.json").write_text(json.dumps(made))


def test_a_session_starts_with_the_preamble(stage: Stage) -> None:
    prebuild(stage, f"The goal is a dry attic. {CLOSE}")
    first = stage.context("SessionStart", source="startup")
    assert first == hook_context(f"The goal is a dry attic. {CLOSE}")
    assert stage.context("SessionStart", source="resume") == ""  # it stands there already
    assert stage.context("SessionStart", source="compact") == first
    prebuild(stage, "The roof is done.")
    assert "The roof is done." in stage.context("SessionStart", source="resume")
    stage.settle()


def test_the_preamble_of_a_work_tree_is_its_own(
    stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = stage.repository.parent / "side"
    git(stage.repository, "worktree", "add", "-q", "--detach", str(tree))
    prebuild(stage, "Of main.")
    prebuild(stage, "Of side.", "side")
    path = stage.home / "preamble/side.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "branch": ""}))
    git(stage.repository, "pack-refs", "--all")
    monkeypatch.setattr(session_start, "_ask_perdure", lambda *_: pytest.fail("it fits"))
    for folder, said in ((stage.repository, "Of main."), (tree / "deep", "Of side.")):
        folder.mkdir(exist_ok=True)
        given = json.dumps({"cwd": str(folder), "source": "startup"})
        monkeypatch.setattr(sys, "stdin", Input(given))
        session_start.main(str(stage.home), "codex")
        assert said in capsys.readouterr().out


class Input:
    """A stdin with something in it."""

    def __init__(self, text: str) -> None:
        self.buffer = self
        self._text = text

    def read(self) -> bytes:
        return self._text.encode()


@pytest.mark.parametrize(
    ("environment", "decided"),
    [
        ({"CLAUDE_CODE_ENTRYPOINT": "cli"}, "waiting"),
        ({"CLAUDE_CODE_ENTRYPOINT": "sdk-cli"}, "rebase"),
    ],
)
async def test_history_rewritten_waits_only_if_somebody_is_there(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], decided: str
) -> None:
    monkeypatch.delenv("CI", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    commit(stage.repository, "first try")
    async with perdure.open(stage.bank) as bank:
        await bank.project(stage.repository).tasks.add("Rotate the keys")
    git(stage.repository, "commit", "-q", "--amend", "-m", "second try")
    stage.say(asked("Amended.", 1), answered("Good.", 2))
    stage.hook("Stop")
    stage.settle()
    async with perdure.open(stage.bank) as bank:
        (operation,) = await bank.project(stage.repository).history.operations()
    assert operation.decision == decided
    told = stage.context("SessionStart", session_id="another")
    assert ("waits for a decision" in told) == (decided == "waiting")


def test_a_run_of_codex_exec_has_nobody_to_ask(tmp_path: Path) -> None:
    terminal, batch = tmp_path / "terminal.jsonl", tmp_path / "batch.jsonl"
    for path, name in ((terminal, "codex_cli_rs"), (batch, "codex_exec")):
        path.write_text(json.dumps({"type": "session_meta", "payload": {"originator": name}}))
    assert is_attended([terminal], {})
    assert is_attended([terminal, batch], {})
    assert not is_attended([batch], {})
    assert not is_attended([terminal], {"CI": "true"})
    assert is_attended([tmp_path / "gone.jsonl"], {})


def test_what_hooks_gave_is_not_stored() -> None:
    ours = hook_context("Old news.")
    said = f"UserPromptSubmit hook additional context: {ours}"
    reminder = f"<system-reminder>\n{said}\n</system-reminder>"
    assert without_hook_context(user(ours)) is None
    assert without_hook_context(user(reminder)) is None
    kept = without_hook_context(user(f"{reminder}\nWhere is it?"))
    assert kept is not None
    assert kept.text.strip() == "Where is it?"
    cut = without_hook_context(user(f"Before {ours[:-10]}"))
    assert cut is not None
    assert cut.text == "Before "
    for message in (user("I like <perdure-memory> tags"), assistant(ours)):
        assert without_hook_context(message) is message


async def test_an_import_leaves_out_what_hooks_gave(stage: Stage) -> None:
    rollout = stage.transcript.with_name(
        "rollout-2026-11-18T20-12-27-01a1f04a-0f64-74b1-bb33-78145a512412.jsonl"
    )
    given = {"role": "developer", "content": [{"type": "input_text", "text": hook_context("Old")}]}
    typed = {"role": "user", "content": [{"type": "input_text", "text": "Where is it?"}]}
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "Here."}]}
    items = (given, typed, said)
    lines: list[dict[str, Any]] = [
        {"type": "session_meta", "payload": {"id": "01a1f04a", "cwd": str(stage.repository)}},
        *({"type": "response_item", "payload": {"type": "message", **each}} for each in items),
    ]
    rollout.write_text("".join(json.dumps({"timestamp": at(1), **each}) + "\n" for each in lines))
    stage.hook("Stop", "codex", transcript_path=str(rollout))
    stage.settle()
    assert await stage.told() == ["Where is it?", "Here."]


def test_the_plugin_finds_the_project_of_a_session(stage: Stage, tmp_path: Path) -> None:
    tree, bare = tmp_path / "side", tmp_path / "bare"
    git(stage.repository, "worktree", "add", "-q", str(tree))
    for folder in (tree / "deep", bare, bare / ".perdure/local", stage.repository / "deep"):
        folder.mkdir(parents=True, exist_ok=True)
    stage.script.write_text('printf "%s %s" "${0%/*}" "$*"\n')
    (bare / ".perdure/local/client-hook.sh").write_text(stage.script.read_text())
    script = PLUGIN / "hooks/perdure.sh"

    def runs(folder: Path, event: str = "Stop") -> str:
        done = subprocess.run(
            ["sh", str(script), event],
            env={**os.environ, "CLAUDE_PROJECT_DIR": str(folder)},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    own = stage.repository / ".claude/settings.local.json"
    assert runs(stage.repository) == runs(tree) == ""  # its own hooks are there
    own.unlink()
    for folder in (stage.repository, stage.repository / "deep", tree, tree / "deep"):
        assert runs(folder) == f"{stage.home} claude-code Stop"
    assert runs(bare, "mcp") == f"{bare}/.perdure/local claude-code mcp"
    assert runs(tmp_path) == ""
    hooks = json.loads((PLUGIN / "hooks/hooks.json").read_text())["hooks"]
    assert {event: groups[0]["hooks"][0]["timeout"] for event, groups in hooks.items()} == EVENTS[
        "claude-code"
    ]


# Under fire -----------------------------------------------------------------------------------


def test_a_missing_python_is_noticed_by_nobody_but_doctor(stage: Stage) -> None:
    text = stage.script.read_text()
    stage.script.write_text(text.replace(sys.executable, "/nowhere/python"))
    for event in ("SessionStart", "UserPromptSubmit", "PostToolUse", "Stop"):
        assert stage.hook(event, prompt="Which port does staging use?") == ""
    failures = read_failures(stage.home)
    assert len(failures) == 4
    assert failures[-1].what == "There is no /nowhere/python."
    assert len(HookSpool(stage.home, "clients").read({}).lines) == 2  # it waits for a better day


def test_what_is_wrong_with_an_event_is_noted(stage: Stage) -> None:
    for event in ("SessionStart", "UserPromptSubmit"):
        command = ["sh", str(stage.script), "claude-code", event]
        done = subprocess.run(
            command, input="no JSON", capture_output=True, text=True, check=False, timeout=_LIMIT
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [(each.event, each.what.split(":")[0]) for each in read_failures(stage.home)] == [
        ("SessionStart", "JSONDecodeError"),
        ("UserPromptSubmit", "JSONDecodeError"),
    ]


@pytest.mark.slow
async def test_a_locked_bank_keeps_nobody_waiting(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.remember("The staging port is 8123.")
    monkeypatch.setenv("PERDURE_HOOK_SECONDS", "3")
    other = apsw.Connection(stage.bank.removeprefix("sqlite:///"))
    other.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
    other.execute("BEGIN EXCLUSIVE")
    stage.hook("UserPromptSubmit", prompt="Which port does staging use?")  # it ends; that is all
    stage.say(asked("Where is the ladder?", 1), answered("In the shed.", 2))
    stage.hook("Stop")
    other.execute("ROLLBACK")
    other.close()
    stage.settle()
    stage.hook("Stop")
    stage.settle()
    assert await stage.told() == ["Where is the ladder?", "In the shed."]


@pytest.mark.slow
def test_no_room_on_the_disk_is_no_fault_of_the_client(stage: Stage) -> None:
    event = json.dumps({"session_id": "s", "transcript_path": "/t", "cwd": str(stage.repository)})
    for name in ("PostToolUse", "Stop", "SessionEnd", "SessionStart", "UserPromptSubmit"):
        done = subprocess.run(
            ["sh", "-c", f'ulimit -f 0; exec sh "{stage.script}" claude-code {name}'],
            input=event,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT,
        )
        assert (done.returncode, done.stderr) == (0, "")
        # The preamble that was made when there was room is told.
        assert ("Project memory of attic" in done.stdout) == (name == "SessionStart")
    commit(stage.repository, "meanwhile")


@pytest.mark.slow
def test_a_deleted_repository_is_silent(stage: Stage) -> None:
    command = json.loads((stage.repository / ".claude/settings.local.json").read_text())["hooks"]
    line = command["Stop"][0]["hooks"][0]["command"]
    shutil.rmtree(stage.repository)
    for shell in filter(shutil.which, ("sh", "bash", "zsh", "fish")):
        done = subprocess.run(
            [shell, "-c", line], input="{}", capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    command = [sys.executable, "-P", "-m", "perdure.integrations.client_hooks"]
    for what in ("import", "prompt"):
        done = subprocess.run(
            [*command, what, str(stage.home), "codex"],
            input="{}",
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not stage.repository.exists()


def test_the_import_has_nothing_of_the_client(stage: Stage, tmp_path: Path) -> None:
    """A client that waits for the end of its pipes does not wait for the import."""
    slow, go, ended = tmp_path / "slow", tmp_path / "go", tmp_path / "ended"
    slow.write_text(f"#!/bin/sh\nwhile [ ! -e {go} ]; do sleep 0.1; done\npwd >{ended}\n")
    slow.chmod(0o755)
    text = stage.script.read_text()
    stage.script.write_text(text.replace(sys.executable, str(slow)))
    stage.hook("Stop")  # it reads to the end of stdout and stderr
    assert not ended.exists()
    go.touch()
    wait_for(lambda: ended.exists() and ended.read_text() == "/\n")


def test_old_failures_make_room_for_new_ones(stage: Stage) -> None:
    for number in range(400):
        note_failure(stage.home, "Stop", "codex", f"{number} {'x' * 300}")
    found = read_failures(stage.home)
    assert found[-1].what.startswith("399 ")
    assert (stage.home / "client-failures").stat().st_size < 100_000


def test_a_damaged_spool_and_state_are_read_past(stage: Stage) -> None:
    (stage.home / "import.json").write_text("{")
    (stage.home / "conversations").mkdir()
    (stage.home / "conversations/93860b31.json").write_text("[")
    with (stage.home / "spool/clients").open("a") as file:
        file.write("torn\n1\t2\n1\t1795032748\tStop\tcodex\ts\t/gone.jsonl\t/gone\n")
    import_spooled(stage.home)
    assert read_state(stage.home).time > 0
    assert os.environ["HOME"]
