"""``perdure proxy -- client``: what clients are told, and how they run."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import perdure
from perdure.core.client_agents import agent_of_client
from perdure.core.errors import InvalidInput
from perdure.server.proxy.client_launch import find_command, launch_for, own_upstreams
from perdure.testing import ScriptedFault, ScriptedModel
from tests.server.serve_process import PERDURE, environment

ADDRESS = "http://127.0.0.1:4711/t/pd_secret"

#: What every client of these tests begins with: `ask` sends a prompt as Claude Code does.
ASKS = """
import http.client, json, os, signal, sys, time
from urllib.parse import urlsplit

def ask(*said, **more):
    address = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
    lines = os.environ["ANTHROPIC_CUSTOM_HEADERS"].splitlines()
    headers = dict(line.split(": ", 1) for line in lines)
    headers |= {"x-claude-code-session-id": "8ffd", "content-type": "application/json"} | more
    roles = ["user", "assistant"] * len(said)
    messages = [{"role": role, "content": text} for role, text in zip(roles, said)]
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages, "tools": [{}]}
    connection = http.client.HTTPConnection(address.netloc)
    connection.request("POST", f"{address.path}/v1/messages", json.dumps(body), headers)
    return json.load(connection.getresponse())["content"][0]["text"]
"""


# What clients are told --------------------------------------------------------------------------


def launched(
    *command: str, folder: str = "/home/ada/demo", **given: str
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    found = launch_for(command, ADDRESS, given, folder)
    return found.command, found.variables


def test_claude_code() -> None:
    assert launched("/usr/bin/claude", "-p", "Hi") == (
        ("/usr/bin/claude", "-p", "Hi"),
        {
            "ANTHROPIC_BASE_URL": ADDRESS,
            "ANTHROPIC_CUSTOM_HEADERS": "x-perdure-project: /home/ada/demo",
            "CLAUDE_CODE_GATEWAY_HINT_HEADERS": "1",
        },
    )
    _, variables = launched("claude", ANTHROPIC_CUSTOM_HEADERS="x-team: blue")
    said = "x-team: blue\nx-perdure-project: /home/ada/demo"
    assert variables["ANTHROPIC_CUSTOM_HEADERS"] == said
    # No header can say this; the token of the run does.
    _, variables = launched("claude", folder="/home/ada/żółw")
    assert "ANTHROPIC_CUSTOM_HEADERS" not in variables


def test_codex_keeps_its_provider(tmp_path: Path) -> None:
    command, variables = launched("codex", "resume", "--last", CODEX_HOME=str(tmp_path))
    assert command == (
        *("codex", "-c", f'openai_base_url="{ADDRESS}/v1"'),
        *("-c", "features.enable_request_compression=false", "resume", "--last"),
    )
    assert variables == {}
    (tmp_path / "config.toml").write_text(
        'model_provider = "our models"\n[model_providers."our models"]\nbase_url = "https://o.ur/v1"'
    )
    command, _ = launched("codex", CODEX_HOME=str(tmp_path))
    assert command[2] == f'model_providers.our models.base_url="{ADDRESS}/v1"'
    assert own_upstreams(["codex"], {"CODEX_HOME": str(tmp_path)}) == {"openai": "https://o.ur/v1"}


@pytest.mark.parametrize("content", ["model_provider = 7", "no toml", "\x00", 'model_provider="x"'])
def test_codex_with_a_file_that_says_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(content)
    command, _ = launched("codex", CODEX_HOME=str(tmp_path))
    assert command[2].startswith("openai_base_url=")
    assert own_upstreams(["codex"], {"CODEX_HOME": str(tmp_path)}) == {}


def test_opencode() -> None:
    own = json.dumps({"theme": "dark", "provider": {"openai": {"options": {"timeout": 9}}}})
    _, variables = launched("opencode", OPENCODE_CONFIG_CONTENT=own)
    options = {
        "baseURL": f"{ADDRESS}/v1",
        "headers": {"x-perdure-project": "/home/ada/demo"},
    }
    assert json.loads(variables["OPENCODE_CONFIG_CONTENT"]) == {
        "theme": "dark",
        "provider": {
            "anthropic": {"options": options},
            "openai": {"options": {"timeout": 9} | options},
        },
    }


def test_any_other() -> None:
    command, variables = launched("./agent.py", "--fast")
    assert command == ("./agent.py", "--fast")
    assert variables["ANTHROPIC_BASE_URL"] == ADDRESS
    assert variables["OPENAI_BASE_URL"] == f"{ADDRESS}/v1"


def test_where_requests_went_before() -> None:
    given = {"ANTHROPIC_BASE_URL": "https://gate.way", "OPENAI_BASE_URL": ""}
    assert own_upstreams(["claude"], given) == {"anthropic": "https://gate.way"}


def test_no_such_command() -> None:
    with pytest.raises(InvalidInput, match="There is no command 'nosuch'"):
        find_command(["nosuch"])
    with pytest.raises(InvalidInput, match="No command is given"):
        find_command([])


def test_a_command_that_cannot_be_run(tmp_path: Path) -> None:
    """The exit codes of shells, in words of our own."""
    plain, broken = tmp_path / "plain.py", tmp_path / "broken.py"
    plain.write_text("print('never')")
    broken.write_text("#!/nowhere/python\n")
    broken.chmod(0o700)
    for command, code, says in (
        ("nosuch", 127, "There is no command 'nosuch'."),
        (str(tmp_path / "nosuch"), 127, "There is no command"),
        (str(plain), 126, "plain.py' is not executable."),
        (str(tmp_path), 126, "is a folder."),
        (str(broken), 126, "broken.py' cannot be run: No such file or directory."),
    ):
        done = subprocess.run(
            [*PERDURE, "proxy", "--", command],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (code, "")
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1


# How clients run --------------------------------------------------------------------------------


class Client:
    """A client of our own under ``perdure proxy``, in an empty home."""

    def __init__(self, folder: Path, code: str, name: str = "claude") -> None:
        self.project = folder / "project"
        self.project.mkdir()
        self.bank = folder / "bank.db"
        self.environment = environment(folder)
        self.program = folder / "bin" / name
        self.program.parent.mkdir()
        self.program.write_text(f"#!{sys.executable}\n{ASKS}\n{code}\n")
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)

    def command(self, *options: str) -> list[str]:
        return [*PERDURE, "proxy", *options, "--", str(self.program)]

    async def run(self, *options: str) -> tuple[int, str, str]:
        done = await asyncio.to_thread(
            subprocess.run,
            self.command(*options),
            cwd=self.project,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    async def prompts(self) -> dict[str, list[str]]:
        async with perdure.open(f"sqlite:///{self.bank}") as bank:
            sessions = [each.name for each in await bank.sessions()]
            return {
                name: [turn.prompt async for turn in (await bank.session(name)).read()]
                for name in sessions
            }


async def test_a_client_from_start_to_end(tmp_path: Path) -> None:
    client = Client(
        tmp_path,
        """
first = ask("One.")
print(first, ask("One.", first, "Two."))
print("a client's own words", file=sys.stderr)
sys.exit(3)
""",
    )
    async with ScriptedModel(["1", "2"]) as model:
        code, out, err = await client.run("--upstream", f"anthropic={model.url}")
    assert (code, out) == (3, "1 2\n")
    first, said, price = err.splitlines()
    assert first == "a client's own words"
    assert said.startswith("perdure: kept 2 turns in 1 session; 2 requests, ")
    assert price.endswith(" at list prices.")
    agent = agent_of_client("claude-code", str(client.project), "8ffd")
    assert await client.prompts() == {f"{agent}/8ffd": ["One.", "Two."]}
    # Its own credentials go on; ours stay here.
    assert all("x-perdure" not in name for name in model.requests[0].headers)
    assert not list(client.project.iterdir())
    assert not list(tmp_path.rglob("*.log"))


async def test_requests_that_name_no_folder_belong_to_that_of_the_run(tmp_path: Path) -> None:
    """The SDK of OpenAI has no variable for headers."""
    client = Client(
        tmp_path,
        """
import openai
asked = openai.OpenAI(api_key="sk-fake-key", max_retries=0)
for text, more in (("One.", {}), ("Two.", {"x-perdure-project": "/home/ada/other"})):
    messages = [{"role": "user", "content": text}]
    asked.chat.completions.create(model="gpt-5", messages=messages, extra_headers=more)
messages = [{"role": "system", "content": "Working directory: /home/ada/told"}, *messages]
asked.chat.completions.create(model="gpt-5", messages=messages)
""",
        "agent.py",
    )
    client.environment |= {"PYTHONWARNINGS": "ignore"}
    async with ScriptedModel("1") as model:
        code, _, err = await client.run("--upstream", f"openai={model.url}")
    assert code == 0, err
    folders = (str(client.project), "/home/ada/other", "/home/ada/told")
    found = await client.prompts()
    assert {name.partition("/")[0]: said for name, said in found.items()} == {
        agent_of_client("other", folder, ""): [text]
        for folder, text in zip(folders, ("One.", "Two.", "Two."), strict=True)
    }


async def test_the_report_as_json(tmp_path: Path) -> None:
    client = Client(tmp_path, 'ask("One.")')
    async with ScriptedModel("1") as model:
        client.environment["ANTHROPIC_BASE_URL"] = model.url  # where it spoke to until now
        code, _, err = await client.run("--json")
    report = json.loads(err)
    assert (code, report["turns"], report["sessions"], report["requests"]) == (0, 1, 1, 1)
    assert report["figures"]["input"] > 0
    assert report["cost"] == report["alone"] > 0


async def test_the_report_tells_what_failed_and_what_is_not_known(tmp_path: Path) -> None:
    client = Client(
        tmp_path,
        """
import openai
asked = openai.OpenAI(api_key="sk-fake-key", max_retries=0)
messages = [{"role": "user", "content": "How many boxes are in the attic?"}]
for _ in range(3):
    try:
        with asked.chat.completions.create(model="gpt-5", messages=messages, stream=True) as pieces:
            list(pieces)
    except openai.APIStatusError as exc:
        print(exc.status_code)
""",
        "agent.py",
    )
    faults = [ScriptedFault(status=503), ScriptedFault(status=429)]
    async with ScriptedModel([*faults, "Two."]) as model:
        code, out, err = await client.run("--upstream", f"openai={model.url}")
    assert (code, out) == (0, "503\n429\n")
    kept, failed, told = err.splitlines()
    assert "3 requests, 0 tokens in" in kept
    assert failed == "perdure: 2 requests failed upstream."
    assert told.startswith("perdure: 1 answer told no usage and is not in these figures: about ")
    assert " 0 tokens" not in told


async def test_a_run_of_failures_has_no_price(tmp_path: Path) -> None:
    client = Client(tmp_path, "try: ask('One.')\nexcept KeyError: pass")
    code, _, err = await client.run("--upstream", "anthropic=http://127.0.0.1:1")
    assert code == 0
    assert err.splitlines()[1:] == ["perdure: 1 request failed upstream."]


async def test_a_client_that_never_asks(tmp_path: Path) -> None:
    code, _, err = await Client(tmp_path, "pass").run()
    assert code == 0
    assert err.startswith("perdure: no request came.")


async def test_what_fails_is_in_a_file(tmp_path: Path) -> None:
    client = Client(
        tmp_path,
        """
import sqlite3
ask("One.")
bank = sqlite3.connect(os.environ["PERDURE_BANK"].removeprefix("sqlite:///"), isolation_level=None)
while not bank.execute("SELECT 1 FROM sqlite_master WHERE name = 'perdure_heads'").fetchall():
    time.sleep(0.01)  # it is recorded beside the answer
bank.execute("DROP TABLE perdure_heads")
bank.close()
print(ask("One.", "1", "Two."))
""",
    )
    async with ScriptedModel("1") as model:
        code, out, err = await client.run("--upstream", f"anthropic={model.url}")
    assert (code, out) == (0, "1\n")
    *_, failed, where = err.splitlines()
    assert "could not be recorded (" in failed
    (log,) = tmp_path.rglob("*.log")
    assert where == f"perdure: what went wrong is in {log}"
    assert "not recorded" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


async def test_no_such_command_is_one_error(tmp_path: Path) -> None:
    client = Client(tmp_path, "")
    client.program.unlink()
    code, out, err = await client.run()
    assert (code, out) == (127, "")
    assert err.count("\n") == 1
    assert not client.bank.exists()


async def test_signals_are_the_clients(tmp_path: Path) -> None:
    client = Client(
        tmp_path,
        """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
time.sleep(60)
""",
    )
    process = await asyncio.create_subprocess_exec(
        *client.command(),
        cwd=client.project,
        env=client.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 7


async def test_a_client_that_a_signal_ends(tmp_path: Path) -> None:
    code, _, _ = await Client(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)").run()
    assert code == 128 + signal.SIGKILL


TAKES_THE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


async def test_the_terminal_is_the_clients(tmp_path: Path) -> None:
    """Ctrl-C reaches it, once, and ends neither the proxy nor its report."""
    client = Client(
        tmp_path,
        """
told = []
signal.signal(signal.SIGINT, lambda *_: told.append(1))
assert os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
print("ready", flush=True)
while not told:
    time.sleep(0.01)
time.sleep(0.2)  # a second one would come now
print("told", len(told), ask("Still there?"))
""",
    )
    async with ScriptedModel("Yes.") as model:
        terminal, other = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", TAKES_THE_TERMINAL),
            *client.command("--upstream", f"anthropic={model.url}"),
            cwd=client.project,
            env=client.environment,
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
        )
        os.close(other)

        def read_until(words: bytes) -> bytes:
            found = b""
            while words not in found:
                try:
                    piece = os.read(terminal, 4096)
                except OSError:  # the other side is closed
                    break
                if not piece:
                    break
                found += piece
            return found

        try:
            assert b"ready" in await asyncio.to_thread(read_until, b"ready")
            os.write(terminal, b"\x03")
            said = (await asyncio.to_thread(read_until, b"\0 never")).decode()
            assert await process.wait() == 0
        finally:
            os.close(terminal)  # which hangs up on whoever is still there
    assert "told 1 Yes." in said
    assert "perdure: kept 1 turn in 1 session" in said
