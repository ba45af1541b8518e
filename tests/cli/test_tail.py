"""Following a conversation, which another process goes on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

import perdure
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from tests.cli.conftest import Run

PERDURE = [sys.executable, "-m", "perdure"]


class Tail:
    """A process that follows a session; its lines arrive here."""

    def __init__(self, *args: str) -> None:
        self.process = subprocess.Popen(
            [*PERDURE, "tail", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._lines = Queue[str]()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def line(self) -> str:
        return self._lines.get(timeout=100)

    def until(self, words: str) -> list[str]:
        lines = [self.line()]
        while words not in lines[-1]:
            lines.append(self.line())
        return lines

    def stop(self) -> str:
        """Interrupt it; returns what it printed on stderr."""
        self.process.send_signal(signal.SIGINT)
        with self.process as ended:
            assert ended.stderr is not None
            told = ended.stderr.read()
            self._thread.join(20)
        assert self.process.returncode in {0, 130}
        return told


def test_as_json_lines(chat: str) -> None:
    tail = Tail("planner/auth", "--from", "T-23", "--json")
    first = json.loads(tail.line())
    assert (first["id"], first["turn"], first["round"]) == ("T-23.1", 23, 1)
    assert first["message"]["parts"] == [{"kind": "text", "text": "prompt 23"}]
    assert [json.loads(tail.line())["turn"] for _ in range(3)] == [23, 25, 25]
    with perdure.open_sync(chat) as bank:
        bank.session("planner/auth").append([user("one more"), assistant("sure")])
    said: list[dict[str, Any]] = [json.loads(tail.line()) for _ in range(2)]
    assert [each["id"] for each in said] == ["T-26.1", "T-26.1"]
    assert [each["message"]["role"] for each in said] == ["user", "assistant"]
    assert [each["leaked"] for each in said] == [0, 0]
    with perdure.open_sync(chat) as bank:
        bank.session("planner/auth").append([user("and?"), assistant("<T-27-R>No.")])
    leaky = [json.loads(tail.line()) for _ in range(2)][1]
    assert (leaky["leaked"], leaky["message"]["parts"][0]["text"]) == (1, "<T-27-R>No.")
    assert not tail.stop()


def test_for_people(chat: str) -> None:
    tail = Tail("planner/auth", "--from", "25")
    tail.until("reply 25")
    call = ToolCall("c1", "Bash", '{"command": "ls"}')
    with perdure.open_sync(chat) as bank:
        session = bank.session("planner/auth")
        session.append([user("look"), Message("assistant", (call,))])
        session.append(Message("tool", (ToolResult("c1", (Text("a\nb"),)),)))
        session.append(assistant("<T-26-R>\nTwo files. \x1b[2J"))
    lines = tail.until("leaked")
    assert lines[0] == ""
    assert lines[1].startswith("T-26  ")
    assert lines[2:] == [
        "  » look",
        "  ▸ Bash  ls",
        "    → 2 lines, 3 B",
        r"  • Two files. \x1b[2J",
        "    (1 leaked tag hidden)",
    ]
    told = tail.stop()
    assert told == "Following planner/auth; its newest turn is T-25. Ctrl-C ends.\n"


def test_only_what_is_new(chat: str) -> None:
    tail = Tail("planner/auth", "--json")
    deadline = time.monotonic() + 100
    with perdure.open_sync(chat) as bank:
        session, number = bank.session("planner/auth"), 0
        while tail._lines.empty() and time.monotonic() < deadline:
            number += 1
            session.append([user(f"new {number}"), assistant("yes")])
            time.sleep(0.1)
    assert json.loads(tail.line())["message"]["parts"][0]["text"].startswith("new ")
    assert not tail.stop()


def test_nobody_reads_on(chat: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for args in (
        ["tail", "planner/auth", "--from", "T-1"],
        ["tail", "planner/auth", "--from", "T-1", "--json"],
        ["show", "planner/auth"],
        ["export", "planner/auth"],
    ):
        done = subprocess.run(
            [*PERDURE, *args], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=100
        )
        told = [line for line in done.stderr.splitlines() if not line.startswith(b"Following ")]
        assert not told, args
    os.close(writer)


@pytest.mark.parametrize("args", [["nobody"], ["planner/auth", "--from", "now"]])
def test_what_cannot_be_followed(args: list[str], run: Run, chat: str) -> None:
    result = run("tail", *args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1


def test_streams_that_are_ascii(chat: str, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for args in (["show", "planner/auth"], ["sessions", "--tree"]):
        done = subprocess.run([*PERDURE, *args], capture_output=True, env=env, check=True)
        assert done.stdout.isascii()
        assert not done.stderr
