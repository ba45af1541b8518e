"""``perdure mcp`` as clients see it: the official SDK's client over a real process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

import perdure
from perdure.config.pauses import Pauses
from tests.integrations.conftest import PROJECT, Connect, Mode, Workplace

MODES: tuple[Mode, ...] = ("auto", "legacy")


def text_of(result: Any) -> str:
    return "".join(each.text for each in result.content)


async def data_of(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    assert result.structured_content is not None
    return result.structured_content


async def refusal_of(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return text_of(result)


@pytest.mark.parametrize("mode", MODES)
async def test_tools_say_what_they_do_and_models_are_told_to_use_them(
    place: Workplace, connect: Connect, mode: Mode
) -> None:
    place.init()
    async with connect(mode) as client:
        assert client.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
        assert "call recall" in (client.instructions or "")
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"recall", "remember", "get_turn", "history_search", "task_claim"} <= tools.keys()
        for tool in tools.values():
            assert tool.annotations is not None
            assert tool.annotations.destructive_hint is False
            assert tool.annotations.open_world_hint is False
            assert tool.output_schema is not None
            assert tool.meta == {"anthropic/alwaysLoad": True}
        writing = {name for name, tool in tools.items() if not tool.annotations.read_only_hint}  # type: ignore[union-attr]
        assert {"remember", "task_add", "task_claim", "task_done", "task_block"} <= writing
        assert not {"recall", "get_turn", "task_ready", "task_list", "task_show"} & writing


@pytest.mark.parametrize("mode", MODES)
async def test_what_claude_code_was_told_is_found_by_codex(
    place: Workplace, connect: Connect, mode: Mode
) -> None:
    place.init()
    session = await place.told("claude-code", place.folder, "The staging port is 8123, please.")
    await place.told("claude-code", place.home / "other", "The staging port is 9999 elsewhere.")
    async with connect(mode) as client:
        found = await data_of(client, "recall", query="staging port")
        names = [each["name"] for each in found["items"]]
        assert names == [f"{session}#T-1.1"]
        turn = await data_of(client, "get_turn", name=names[0])
        assert "8123" in turn["text"]
        listed = await data_of(client, "list_sessions")
        assert [each["name"] for each in listed["sessions"]] == [session]
        searched = await data_of(client, "history_search", query="which port is staging?")
        assert [each["name"] for each in searched["items"]] == names


async def test_work_trees_and_folders_below_are_one_project(
    place: Workplace, connect: Connect
) -> None:
    place.init()
    tree = place.home / "tree"
    place.git("worktree", "add", "-q", "-b", "feature", str(tree))
    (place.folder / "api").mkdir()
    await place.told("claude-code", tree, "The colour of the login page is teal.")
    await place.told("codex", place.folder / "api", "The colour of the api docs is violet.")
    async with connect(folder=place.folder) as client:
        found = await data_of(client, "recall", query="colour")
        assert {"teal", "violet"} == {
            word for each in found["items"] for word in ("teal", "violet") if word in each["text"]
        }


@pytest.mark.parametrize("mode", MODES)
async def test_a_memory_is_anchored_shared_and_kept_once(
    place: Workplace, connect: Connect, mode: Mode
) -> None:
    place.init()
    await place.told("codex", place.folder, "Hello.")
    async with connect(mode) as client:
        fact = "Deploys happen on Tuesdays."
        first = await data_of(client, "remember", text=fact, kind="decision")
        again = await data_of(client, "remember", text=fact, kind="decision")
        assert again["name"] == first["name"]
        assert first["commit"] == place.git("rev-parse", "HEAD")
        assert first["branch"] == "main"
    async with connect(mode) as client:
        found = await data_of(client, "recall", query="when do we deploy?", kind="memory")
        assert [each["text"] for each in found["items"]] == [fact]
    async with perdure.open(place.bank) as bank:
        (session,) = await bank.sessions()  # a conversation of Codex, as the proxy recalls for it
        hits = (await (await bank.existing_session(session.name)).recall("deploys")).hits
        assert fact in [hit.text for hit in hits]


@pytest.mark.parametrize("mode", MODES)
async def test_tasks_are_added_claimed_and_done(
    place: Workplace, connect: Connect, mode: Mode
) -> None:
    place.init()
    await place.told("codex", place.folder, "Hello.")
    async with connect(mode) as client, connect(mode) as other:
        first = await data_of(client, "task_add", title="Write the parser", priority=1)
        second = await data_of(client, "task_add", title="Write its tests", needs=["1"])
        assert second["task"]["state"] == "waiting"
        ready = await data_of(client, "task_ready")
        assert [each["number"] for each in ready["tasks"]] == [1]
        claimed = await data_of(client, "task_claim")
        assert claimed["task"]["id"] == first["task"]["id"]
        assert "#1" in await refusal_of(other, "task_claim", task="1")
        head = place.git("rev-parse", "HEAD")
        done = await data_of(client, "task_done", task="#1", token=claimed["token"], commits=[head])
        assert done["task"]["state"] == "done"
        assert done["commits"] == [head]
        blocked = await data_of(other, "task_block", task="2", reason="The fixture is missing.")
        assert blocked["task"]["state"] == "blocked"
        await data_of(other, "task_note", task="2", text="Asked Ada for it.")
        assert "nothing to note" in await refusal_of(other, "task_note", task="2")
        shown = await data_of(other, "task_show", task="2")
        assert shown["notes"] == ["Asked Ada for it."]
        assert any("fixture" in each for each in shown["why"])
        assert [each["number"] for each in (await data_of(other, "task_list"))["tasks"]] == [2]


@pytest.mark.parametrize("mode", MODES)
async def test_resources_and_prompts(place: Workplace, connect: Connect, mode: Mode) -> None:
    place.init()
    session = await place.told("codex", place.folder, "Hello.")
    async with connect(mode) as client:
        uris = {str(each.uri) for each in (await client.list_resources()).resources}
        assert {"perdure://sessions", "perdure://tasks/ready"} <= uris
        (content,) = (await client.read_resource("perdure://sessions")).contents
        assert session in content.text  # type: ignore[union-attr]
        with pytest.raises(MCPError, match="perdure://sessions"):
            await client.read_resource("perdure://nope")
        prompts = {each.name for each in (await client.list_prompts()).prompts}
        assert {"resume", "keep"} <= prompts
        (message,) = (await client.get_prompt("resume", {"topic": "the parser"})).messages
        assert "the parser" in message.content.text  # type: ignore[union-attr]
        with pytest.raises(MCPError, match="resume"):
            await client.get_prompt("nope")


@pytest.mark.parametrize("mode", MODES)
async def test_bad_input_is_told_to_the_model(
    place: Workplace, connect: Connect, mode: Mode
) -> None:
    place.init()
    await place.told("codex", place.folder, "Hello.")
    async with connect(mode) as client:
        assert "takes query, [limit]" in await refusal_of(client, "recall")
        assert "limit" in await refusal_of(client, "recall", query="x", limit=0)
        assert "nonsense" in await refusal_of(client, "recall", query="x", nonsense=1)
        assert "recall" in await refusal_of(client, "nope")
        assert "agent/session#T-12" in await refusal_of(client, "get_turn", name="T-1")
        assert "no session" in await refusal_of(client, "get_turn", name="planner/other#T-1")
        assert "7" in await refusal_of(client, "task_done", task="7")
        assert await data_of(client, "recall", query="hello")  # and it goes on


async def test_a_folder_without_a_project_has_its_own_memory(
    place: Workplace, connect: Connect
) -> None:
    await place.told("claude-code", place.folder, "The kettle is on the third floor.")
    async with connect() as client:
        assert "perdure project init" in (client.instructions or "")
        found = await data_of(client, "recall", query="kettle")
        assert len(found["items"]) == 1
        kept = await data_of(client, "remember", text="The kettle is broken.")
        assert kept["commit"] == ""
        assert "perdure project init" in await refusal_of(client, "task_ready")


async def test_a_bank_that_comes_later_is_found_later(place: Workplace, connect: Connect) -> None:
    place.init()
    async with connect() as client:
        assert "perdure bank init" in await refusal_of(client, "recall", query="hello")
        await place.told("codex", place.folder, "The kettle is on the third floor.")
        assert (await data_of(client, "recall", query="kettle"))["items"]


async def test_a_bank_that_is_no_bank_is_said(place: Workplace, connect: Connect) -> None:
    place.init()
    (place.home / "memory.db").write_bytes(b"This is a letter to my aunt.\n" * 400)
    async with connect() as client:
        assert (await client.list_tools()).tools
        words = await refusal_of(client, "recall", query="hello")
        assert "Perdure failed" not in words


async def test_a_killed_process_loses_nothing(place: Workplace, connect: Connect) -> None:
    place.init()
    await place.told("codex", place.folder, "Hello.")
    with subprocess.Popen(  # noqa: ASYNC220  # nothing else runs meanwhile
        place.command(),
        cwd=place.folder,
        env=place.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(20):
            params = {"name": "remember", "arguments": {"text": f"Fact {number} is kept."}}
            call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            process.stdin.write(json.dumps(call).encode() + b"\n")
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(5)]
        process.kill()
    told = {each["result"]["structuredContent"]["text"] for each in answers}
    async with perdure.open(place.bank) as bank:
        kept = [each.text for each in await bank.memories.list(f"project@{PROJECT}")]
        assert told <= set(kept)
        assert len(kept) == len(set(kept))
    async with connect() as client:
        assert (await data_of(client, "recall", query="fact kept", kind="memory"))["items"]


def test_lines_that_are_no_messages_are_answered(place: Workplace) -> None:
    lines: list[Any] = [
        "no json",
        [],
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "1.0", "id": 2, "method": "ping"},
        {"jsonrpc": "2.0", "id": 3, "method": "nope"},
        {"jsonrpc": "2.0", "id": 4, "method": "tools/list", "params": []},
        {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": [1]},
        {
            "jsonrpc": "2.0",
            "id": 6,
            "method": "ping",
            "params": {"_meta": {"io.modelcontextprotocol/protocolVersion": "2031-01-01"}},
        },
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 7, "method": "ping"},
    ]
    raw = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
    done = subprocess.run(
        place.command(),
        cwd=place.folder,
        env=place.environment,
        input=f"{raw}\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    codes = sorted(each["error"]["code"] for each in answers if "error" in each)
    assert codes == [-32700, -32602, -32602, -32601, -32600, -32600]
    assert {each["id"] for each in answers if "result" in each} == {4, 7}


def test_versions_of_the_handshake(place: Workplace) -> None:
    for asked, given in (("2025-06-18", "2025-06-18"), ("1999-01-01", "2025-11-25")):
        params = {"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "codex"}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        done = subprocess.run(
            place.command(),
            cwd=place.folder,
            env=place.environment,
            input=json.dumps(call) + "\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert json.loads(done.stdout)["result"]["protocolVersion"] == given


def test_the_list_of_tools_needs_no_heavy_module(place: Workplace, tmp_path: Path) -> None:
    """What takes long to import is imported by the tool that needs it."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    command = place.command()
    done = subprocess.run(
        [command[0], "-X", "importtime", *command[1:]],
        cwd=place.folder,
        env=place.environment,
        input=json.dumps(call) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["result"]["tools"]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"numpy", "pydantic", "apsw", "starlette", "httpx2", "perdure.bank.bank"}


@pytest.mark.parametrize("mode", MODES)
async def test_goals_notes_and_the_preamble(place: Workplace, connect: Connect, mode: Mode) -> None:
    place.init()
    await place.told("codex", place.folder, "Hello.")  # makes the bank
    async with connect(mode) as client:
        goal = (await data_of(client, "goal_add", title="Deploy every day"))["entry"]
        step = await data_of(client, "milestone_add", title="CI runs", goal="deploy", needs=[])
        assert step["entry"]["of"] == goal["id"]
        await data_of(client, "project_note", text="I stopped at the second test.")
        done = await data_of(client, "milestone_finish", milestone="CI runs")
        assert done["checkpoint"]["commit"] == place.git("rev-parse", "HEAD")
        state = await data_of(client, "project_state", closed=True)
        assert {each["title"] for each in state["entries"]} == {"Deploy every day", "CI runs"}
        told = (await data_of(client, "project_preamble", budget=200))["text"]
        assert "Deploy every day" in told
        refused = await refusal_of(client, "milestone_finish", milestone="nothing")
        assert "has no entry 'nothing'" in refused
        journal = (await client.read_resource("perdure://project/journal")).contents[0]
        assert "second test" in journal.text  # type: ignore[union-attr]
        file = (await client.read_resource("perdure://project/state")).contents[0]
        assert goal["id"] in json.loads(file.text)["goals"]  # type: ignore[union-attr]


async def test_what_was_true_at_a_commit(place: Workplace, connect: Connect) -> None:
    place.init()
    async with perdure.open(place.bank):
        pass
    for port in (7011, 8261):
        (place.folder / "gateway.md").write_text(f"The gateway listens on port {port}.\n")
        place.git("add", "gateway.md")
        place.git("commit", "-q", "-m", f"port {port}")
    async with connect() as client:
        ask = {"query": "which port does the gateway listen on"}
        found = await data_of(client, "recall", **ask)
        assert not [item for item in found["items"] if item["kind"] == "file"]
        found = await data_of(client, "recall", **ask, kind="file")
        assert found["items"][0]["text"] == "The gateway listens on port 8261."
        found = await data_of(client, "recall", **ask, at="HEAD~1")
        (item,) = found["items"]
        assert item["text"] == "The gateway listens on port 7011."
        assert item["name"] == "gateway.md:1-1"
        assert item["commit"] == found["commit"] == place.git("rev-parse", "HEAD~1")
        assert "no commit" in await refusal_of(client, "recall", **ask, at="nope")


async def test_a_pause_refuses_what_writes(
    place: Workplace, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(place.home))
    place.init()
    await place.told("claude-code", place.folder, "The staging port is 8123.")
    async with connect() as client:
        Pauses().begin()
        for tool, given in (
            ("remember", {"text": "A secret."}),
            ("task_add", {"title": "A secret."}),
            ("project_note", {"text": "A secret."}),
        ):
            said = await refusal_of(client, tool, **given)
            assert "Perdure is paused: nothing is recorded." in said
        found = await data_of(client, "recall", query="staging port")
        assert "8123" in found["items"][0]["text"]
        Pauses().end()
        await data_of(client, "remember", text="The harbour opens at six.")
    async with perdure.open(place.bank) as bank:
        kept = [each.text for each in await bank.memories.list()]
    assert kept == ["The harbour opens at six."]
