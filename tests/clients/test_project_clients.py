"""Claude Code and Codex in a repository that `perdure project init` has set up: run by
``make clients``.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.core.messages import ToolCall
from perdure.history.hook_context import OPEN
from perdure.integrations.claude_code import MARKETPLACE, PLUGIN
from perdure.project.hook_spool import HookSpool
from perdure.project.project import Project
from perdure.project.project_location import ProjectLocation
from perdure.testing import ReceivedRequest, ScriptedAnswer, ScriptedModel
from tests.clients.client_runs import CLAUDE, CODEX, Client, Replies, Stage
from tests.clients.installed_clients import program
from tests.clients.own_network import bring_up_loopback, is_inside
from tests.project.repositories import VARIABLES, commit, git, new_repository
from tests.server.serve_process import PERDURE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_inside(), reason="`make clients` runs them, in their own network"),
]
_PATIENCE = 240
_TOOLS = ("remember", "recall", "task_add", "task_claim", "task_done", "task_ready")
both = pytest.mark.parametrize("client", [CLAUDE, CODEX], ids=lambda client: client.name)


class ProjectStage(Stage):
    """The same in a repository with a project, and with clients that speak to their model
    directly: what is recorded comes from hooks.
    """

    def __init__(self, folder: Path, model: ScriptedModel) -> None:
        super().__init__(folder, model)
        new_repository(self.project)
        self.own = self.project / ".git/perdure"

    def configure_codex(self, *lines: str) -> None:
        provider = [
            'model_provider = "scripted"',
            "[model_providers.scripted]",
            'name = "scripted"',
            f'base_url = "{self.model.url}"',
            'env_key = "OPENAI_API_KEY"',
            'wire_api = "responses"',
        ]
        super().configure_codex(*provider, *lines)

    def _variables(self) -> dict[str, str]:
        return {**super()._variables(), **VARIABLES, "PERDURE_HOOK_SECONDS": "100"}

    async def perdure(self, *words: str) -> dict[str, Any]:
        return json.loads(await self.call([*PERDURE, *words, "--json"], self._variables()))

    async def init(self, client: Client) -> None:
        name = "claude-code" if client is CLAUDE else "codex"
        await self.perdure("--bank", self.bank, "project", "init", "--yes", "--clients", name)

    async def start(self, client: Client, prompt: str, *more: str, **variables: str) -> str:
        """What the client printed. Afterwards its hooks' background work is done."""
        words = [*more, *client.fresh]
        if client is CLAUDE:
            allowed = ["Bash", *(f"mcp__perdure__{name}" for name in _TOOLS)]
            allowed += [f"mcp__plugin_perdure_perdure__{name}" for name in _TOOLS]
            words = [*more, "--allowedTools", ",".join(allowed), "-p"]
        else:
            words = [*client.fresh, "--dangerously-bypass-hook-trust", *more]
        environment = {
            **self._variables(),
            "ANTHROPIC_BASE_URL": self.model.url,
            **variables,
        }
        printed = await self.call([str(program(client.name)), *words, prompt], environment)
        await asyncio.to_thread(self.settle)
        return printed

    async def call(self, command: Sequence[str], environment: dict[str, str]) -> str:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_PATIENCE):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            raise
        assert process.returncode == 0, (out[-2000:], err[-4000:])
        return out.decode()

    async def aim(self) -> None:
        """Give the project something that its preamble tells."""
        await self.perdure("project", "goal", "add", "A dry attic")

    def settle(self) -> None:
        since = time.monotonic()
        while time.monotonic() - since < _PATIENCE:
            with (self.own / "import.lock").open("w") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    pass
                else:
                    if HookSpool(self.own, "clients").is_empty():
                        return
            time.sleep(0.1)
        raise TimeoutError

    def failures(self) -> str:
        path = self.own / "client-failures"
        return path.read_text() if path.exists() else ""


@asynccontextmanager
async def staged(
    folder: Path, plan: dict[str, list[ScriptedAnswer | str]]
) -> AsyncIterator[ProjectStage]:
    bring_up_loopback()
    async with ScriptedModel(Replies(plan)) as model:
        yield ProjectStage(folder, model)


def tool(
    client: Client, number: int, name: str, given: dict[str, Any], server: str = "perdure"
) -> ScriptedAnswer:
    """The model calls a tool of ours."""
    call, text = f"call_{client.name}_{number}", json.dumps(given)
    if client is CLAUDE:
        return ScriptedAnswer(
            "One moment.", calls=(ToolCall(call, f"mcp__{server}__{name}", text),)
        )
    native = {"responses": {"namespace": f"mcp__{server}"}}
    return ScriptedAnswer("One moment.", calls=(ToolCall(call, name, text, native=native),))


def shell(client: Client, number: int, command: str) -> ScriptedAnswer:
    return ScriptedAnswer("I run it.", calls=(client.run(command, number),))


def result(requests: Sequence[ReceivedRequest], call: str) -> str:
    """What a tool answered, as the model was told."""
    for request in reversed(requests):
        for message in request.messages:
            for part in message.results:
                if part.call == call:
                    return json.dumps([getattr(each, "text", "") for each in part.content])
    raise AssertionError(call)


@both
async def test_a_day_of_work(client: Client, tmp_path: Path) -> None:
    """A preamble, a fact that is remembered and recalled, a task that is claimed, committed for,
    finished, and still found behind a rebase.
    """
    numbered = iter(range(1, 100))

    def call(name: str, **given: Any) -> ScriptedAnswer:
        return tool(client, next(numbered), name, given)

    def wait() -> ScriptedAnswer:
        """Codex takes tools of a server that starts slowly from the next round on."""
        return shell(client, next(numbered), "sleep 5" if client is CODEX else "true")

    recall = call("recall", query="staging port")
    plan: dict[str, list[ScriptedAnswer | str]] = {
        "Keep the port": [wait(), call("remember", text="The staging port is 8123."), "I keep it."],
        "Which port does staging use": [wait(), recall, "It is 8123."],
        "Sweep the attic": [
            wait(),
            call("task_add", title="Sweep the attic"),
            call("task_claim", task="1"),
            shell(
                client,
                next(numbered),
                "echo swept > attic.txt && git add -A . && git commit -qm swept",
            ),
            call("task_done", task="1", token=1, commits=["HEAD"], reason="It is clean."),
            "It is swept.",
        ],
    }
    async with staged(tmp_path, plan) as stage:
        await stage.init(client)
        git(stage.project, "checkout", "-q", "-b", "side")
        await stage.start(client, "Keep the port of staging, please.")
        # The state of the project goes into the preamble of the next session.
        await stage.aim()
        await stage.start(client, "Which port does staging use now?")
        first = next(each for each in stage.model.requests if "Which port" in str(each.body))
        assert "A dry attic" in str(first.body)
        assert "8123" in result(stage.model.requests, recall.calls[0].id)
        # The hook had brought it to mind already.
        assert "The staging port is 8123." in str(first.body)

        await stage.start(client, "Sweep the attic now.")
        made = git(stage.project, "rev-parse", "HEAD")
        shown = await stage.perdure("task", "show", "1")
        assert (shown["state"], stage.failures()) == ("done", "")
        assert made in json.dumps(shown)
        git(stage.project, "checkout", "-q", "main")
        commit(stage.project, "meanwhile")
        git(stage.project, "checkout", "-q", "side")
        git(stage.project, "rebase", "-q", "main")
        rebased = git(stage.project, "rev-parse", "HEAD")
        assert rebased != made
        async with perdure.open(stage.bank) as bank:
            project = Project(bank.services, ProjectLocation.find(stage.project))
            await project.anchors.refresh()
            assert await project.anchors.where([made]) == {made: rebased}

        kept = await stage.kept()
        for said in ("Keep the port of staging, please.", "Which port does staging use now?"):
            assert kept[said] == 1
        assert not any(OPEN in words for words in kept)
        assert git(stage.project, "status", "--porcelain") == ""


@both
async def test_behind_the_proxy_nothing_is_kept_twice(client: Client, tmp_path: Path) -> None:
    plan: dict[str, list[ScriptedAnswer | str]] = {
        "Count the boxes": [shell(client, 1, "echo two"), "There are two boxes."],
        "Count once more": [shell(client, 2, "echo three"), "Now there are three."],
    }
    async with staged(tmp_path, plan) as stage:
        await stage.init(client)
        await stage.aim()
        trust = ["--dangerously-bypass-hook-trust"] if client is CODEX else []
        again = client.again
        if client is CODEX:  # through the proxy it has a provider of the proxy's
            Stage.configure_codex(stage)
            again = (*CODEX.fresh, *trust, "resume", "--last")
        await stage.run(
            client,
            (*client.fresh[:1], *trust, *client.fresh[1:]) if trust else client.fresh,
            "Count the boxes.",
        )
        await asyncio.to_thread(stage.settle)
        await stage.run(client, again, "Count once more.")
        await asyncio.to_thread(stage.settle)
        assert any("A dry attic" in str(each.body) for each in stage.model.requests)
        kept = await stage.kept()
        assert {words: kept[words] for words in kept if not words.startswith("#")} == Counter(
            {
                "Count the boxes.": 1,
                "Count once more.": 1,
                "I run it.": 2,
                "There are two boxes.": 1,
                "Now there are three.": 1,
                **{f"call_{client.name}_{number}()": 1 for number in (1, 2)},
                **{f"=call_{client.name}_{number}": 1 for number in (1, 2)},
            }
        )
        assert stage.failures() == ""


async def test_the_plugin_does_the_same(tmp_path: Path) -> None:
    """Installed for the user, as its guide says; it works in projects, and nowhere else."""
    given = {"text": "The staging port is 8123."}
    plan: dict[str, list[ScriptedAnswer | str]] = {
        "Keep the port": [
            tool(CLAUDE, 1, "remember", given, "plugin_perdure_perdure"),
            "I keep it.",
        ],
        "Which port": ["It is 8123."],
    }
    async with staged(tmp_path, plan) as stage:
        claude, variables = str(program("claude")), stage._variables()
        printed = await stage.call([claude, "plugin", "validate", str(PLUGIN)], variables)
        assert "Validation passed" in printed
        await stage.call([claude, "plugin", "marketplace", "add", str(MARKETPLACE)], variables)
        await stage.call([claude, "plugin", "install", "perdure@perdure"], variables)
        # No client was agreed to: the project's own files of Claude Code stay away.
        await stage.perdure("--bank", stage.bank, "project", "init", "--clients", "claude-code")
        assert not (stage.project / ".claude").exists()
        await stage.aim()
        await stage.start(CLAUDE, "Keep the port of staging, please.")
        await stage.start(CLAUDE, "Which port does staging use now?")
        last = str(stage.model.requests[-1].body)
        assert "A dry attic" in last
        assert "The staging port is 8123." in last
        assert (await stage.kept())["Keep the port of staging, please."] == 1
        # With the project's own hooks beside it, each still runs once.
        await stage.perdure("project", "init", "--yes", "--clients", "claude-code")
        await stage.start(CLAUDE, "Which port was it again?")
        assert str(stage.model.requests[-1].body).count("A dry attic") == 1
        # Elsewhere nothing happens.
        (tmp_path / "elsewhere").mkdir()
        stage.project = tmp_path / "elsewhere"
        before = len(stage.model.requests)
        await stage.start(CLAUDE, "Which port, elsewhere?")
        assert OPEN not in str([each.body for each in stage.model.requests[before:]])
        assert [*stage.project.iterdir()] == []
        # And out of the machine again, as it came.
        variables["PATH"] = f"{Path(claude).parent}{os.pathsep}{variables['PATH']}"
        printed = await stage.call([*PERDURE, "uninstall", "--yes", "--json"], variables)
        gone = str(json.loads(printed)["gone"])
        assert "the plugin of Claude Code" in gone
        assert str(tmp_path / "elsewhere") not in gone
        assert "perdure" not in await stage.call([claude, "plugin", "list"], variables)


async def test_two_clients_at_once(tmp_path: Path) -> None:
    plan: dict[str, list[ScriptedAnswer | str]] = {
        "Count the boxes": [shell(CLAUDE, 1, "sleep 1"), "There are two boxes."],
        "Weigh the boxes": [shell(CODEX, 1, "sleep 1"), "They weigh a ton."],
    }
    async with staged(tmp_path, plan) as stage:
        for client in (CLAUDE, CODEX):
            await stage.init(client)
        for day in ("Monday", "Tuesday"):
            await asyncio.gather(
                stage.start(CLAUDE, f"Count the boxes on {day}."),
                stage.start(CODEX, f"Weigh the boxes on {day}."),
            )
        kept = await stage.kept()
        for said in ("Count the boxes on {}.", "Weigh the boxes on {}."):
            assert kept[said.format("Monday")] == kept[said.format("Tuesday")] == 1
        assert kept["There are two boxes."] == kept["They weigh a ton."] == 2
        assert stage.failures() == ""
