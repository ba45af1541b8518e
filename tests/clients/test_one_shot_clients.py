"""``perdure run`` with real Claude Code and Codex: run by ``make clients``."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.run_commands import CODES
from perdure.testing import ScriptedAnswer, ScriptedModel
from tests.clients.client_runs import CLAUDE, CODEX, Client, Replies, Stage
from tests.clients.installed_clients import program
from tests.clients.own_network import bring_up_loopback, is_inside
from tests.server.serve_process import PERDURE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_inside(), reason="`make clients` runs them, in their own network"),
]
_PATIENCE = 240
_TICK = "sed -i '0,/\\[ \\]/s//[x]/' TASKS.md && echo '## A task is done' >> LOG.md"


def steps(client: Client, number: int, status: str) -> list[ScriptedAnswer | str]:
    record = json.dumps({"status": status, "summary": f"task {number}"})
    ticked = ScriptedAnswer("I tick it.", calls=(client.run(_TICK, number),))
    return [ticked, f"A task is done.\n{record}"]


async def run(stage: Stage, *words: str) -> tuple[int, dict[str, Any], str]:
    process = await asyncio.create_subprocess_exec(
        *(*PERDURE, "--bank", stage.bank, *words),
        cwd=stage.project,
        env={**stage._variables(), "ANTHROPIC_BASE_URL": stage.model.url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_PATIENCE):
            out, err = await process.communicate()
    except TimeoutError:
        process.terminate()
        raise
    assert process.returncode is not None
    return process.returncode, json.loads(out or b"{}"), err.decode(errors="replace")


@pytest.mark.parametrize("way", ["claude", "claude behind the proxy", "codex behind the proxy"])
async def test_a_real_agent_works_until_all_is_done(way: str, tmp_path: Path) -> None:
    bring_up_loopback()
    client = CODEX if way.startswith("codex") else CLAUDE
    plan = {
        "This is run 1 of": steps(client, 1, "continue"),
        "This is run 2 of": steps(client, 2, "done"),
    }
    async with ScriptedModel(Replies(plan)) as model:
        stage = Stage(tmp_path, model)
        (stage.project / "SPEC.md").write_text("Build the attic.\n")
        (stage.project / "TASKS.md").write_text("- [ ] one\n- [ ] two\n")
        agent = [str(program(client.name))]
        if client is CLAUDE:
            agent += ["-p", "--allowedTools", "Bash", "--model", "claude-sonnet-4-5"]
        else:
            agent += client.fresh
        if way == "claude":
            agent += ["--output-format", "json"]
        else:
            upstreams = [f"anthropic={model.url}", f"openai={model.url}"]
            options = [word for each in upstreams for word in ("--upstream", each)]
            agent = [*PERDURE, "--bank", stage.bank, "proxy", *options, "--", *agent]
        check = "grep -q x TASKS.md"
        options = ["--check", check, "--max-runs", "4", "--json", "--"]
        code, found, err = await run(stage, "run", "SPEC.md", *options, *agent)
        assert code == 0, (found, err)
        _, listed, _ = await run(stage, "runs", found["run"]["id"], "--json")
    record = listed["run"]
    assert (record["status"], record["iterations"]) == ("done", 2), err
    assert (stage.project / "TASKS.md").read_text() == "- [x] one\n- [x] two\n"
    first, second = listed["iterations"]
    assert first["exit"] == {"status": "continue", "summary": "task 1", "question": ""}
    assert second["exit"]["status"] == "done"
    if client is CLAUDE:  # it tells, or the proxy does: its model has a price
        assert record["cost"] == first["cost"] + second["cost"] > 0
    else:  # nobody knows, and that is said
        assert (record.get("cost", 0), record["unknown_costs"]) == (0, 2)
    prompts = [
        message.text
        for request in model.requests
        for message in request.messages
        if "This is run 2 of" in message.text
    ]
    assert prompts
    assert "- [x] one" in prompts[0]
    assert "## A task is done" in prompts[0]


async def test_what_claude_code_may_not_do_is_noticed(tmp_path: Path) -> None:
    bring_up_loopback()
    plan = {"This is run": steps(CLAUDE, 1, "continue")}
    async with ScriptedModel(Replies(plan)) as model:
        stage = Stage(tmp_path, model)
        (stage.project / "SPEC.md").write_text("Build the attic.\n")
        (stage.project / "TASKS.md").write_text("- [ ] one\n- [ ] two\n")
        agent = ["--", str(program("claude")), "-p", "--output-format", "json"]
        code, found, err = await run(stage, "run", "SPEC.md", "--json", *agent)
    assert (code, found["run"]["status"]) == (CODES["stuck"], "stuck"), err
    assert found["run"]["reason"] == "2 runs were refused something: Bash."
    assert "(The agent wrote nothing.)" in (stage.project / "LOG.md").read_text()
