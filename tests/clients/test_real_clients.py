"""Claude Code, Codex and opencode through the proxy: run by ``make clients``."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.core.messages import ToolCall, Usage, user
from perdure.core.tokens import count_messages
from perdure.testing import ReceivedRequest, ScriptedAnswer, ScriptedFault, ScriptedModel
from perdure.wire import codec
from tests.clients.client_runs import CLAUDE, CODEX, OPENCODE, SUMMARY, Client, Replies, Stage
from tests.clients.own_network import NameServer, bring_up_loopback, is_inside

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_inside(), reason="`make clients` runs them, in their own network"),
]
ALL = [CLAUDE, CODEX, OPENCODE]
every_client = pytest.mark.parametrize("client", ALL, ids=lambda client: client.name)


@pytest.fixture(scope="module")
def names() -> Iterator[NameServer]:
    bring_up_loopback()
    server = NameServer()
    yield server
    server.close()


@pytest.fixture
def no_look_up(names: NameServer) -> Iterator[None]:
    """Nobody asks for any name: all that is needed is on loopback."""
    names.asked.clear()
    yield
    assert names.asked == []


@asynccontextmanager
async def staged(folder: Path, **plan: Sequence[ScriptedAnswer | str]) -> AsyncIterator[Stage]:
    replies = Replies({words.replace("_", " "): steps for words, steps in plan.items()})
    async with ScriptedModel(replies) as model:
        yield Stage(folder, model)


def calls(*made: ToolCall) -> ScriptedAnswer:
    return ScriptedAnswer("Let me see.", calls=made)


def mains(model: ScriptedModel) -> list[ReceivedRequest]:
    return [each for each in model.requests if each.kind == "responses" or each.body.get("tools")]


def check_body(request: ReceivedRequest) -> None:
    wire = codec(request.kind)
    items = request.body["input" if request.kind == "responses" else "messages"]
    # What clients put in themselves, such as roles that are new, is theirs.
    faults = [fault for fault in wire.violations(items) if "role" not in fault]
    assert faults == []


@every_client
async def test_turns_with_tools_and_going_on(
    client: Client, tmp_path: Path, no_look_up: None
) -> None:
    first: list[ScriptedAnswer | str] = [
        calls(client.run("echo one", 1)),
        calls(client.run("echo two", 2)),
        "There are two boxes.",
    ]
    second: list[ScriptedAnswer | str] = [
        calls(client.run("echo three", 3)),
        "Now there are three.",
    ]
    async with staged(tmp_path, Count_the_boxes=first, Count_once_more=second) as stage:
        out = await stage.run(client, client.fresh, "Count the boxes.")
        assert "There are two boxes." in out
        assert "perdure: kept 1 turn in 1 session;" in stage.said
        out = await stage.run(client, client.again, "Count once more.")
        assert "Now there are three." in out
        (session,) = await stage.sessions(client)
        assert session.agent.startswith(f"{client.agent}attic-")
        kept = await stage.kept()
        assert {words: kept[words] for words in kept if not words.startswith("#")} == {
            "Count the boxes.": 1,
            "Count once more.": 1,
            "Let me see.": 3,
            "There are two boxes.": 1,
            "Now there are three.": 1,
            **{f"call_{client.name}_{number}()": 1 for number in (1, 2, 3)},
            **{f"=call_{client.name}_{number}": 1 for number in (1, 2, 3)},
        }
        for request in mains(stage.model):
            check_body(request)
        if client is CLAUDE:
            assert await stage.importing("claude-code", stage.home / ".claude/projects") == 0
        elif client is CODEX:
            assert await stage.importing("codex", stage.codex / "sessions") == 0
        assert await stage.kept() == kept


@pytest.mark.parametrize("client", [CLAUDE, CODEX], ids=lambda client: client.name)
async def test_an_importer_that_watches_meanwhile(
    client: Client, tmp_path: Path, no_look_up: None
) -> None:
    """Two processes record the same conversation as it happens."""
    slow = ScriptedAnswer("It was slow.", chunk=2, chunk_delay=0.2)
    async with staged(tmp_path, go_on=[calls(client.run("sleep 2", 1)), slow]) as stage:
        kind = "claude-code" if client is CLAUDE else "codex"
        folder = stage.home / (".claude/projects" if client is CLAUDE else ".codex/sessions")
        async with stage.watching(kind, folder):
            await stage.run(client, client.fresh, "Please go on.")
            await stage.run(client, client.again, "And on.")
            await stage.run(client, client.again, "And on.")
        (session,) = await stage.sessions(client)
        assert session.state["source"].startswith(str(folder))
        kept = await stage.kept()
        assert {words: kept[words] for words in kept if not words.startswith("#")} == {
            "Please go on.": 1,
            "Let me see.": 1,
            f"call_{client.name}_1()": 1,
            f"=call_{client.name}_1": 1,
            "It was slow.": 1,
            "And on.": 2,
            "Answered: And on.": 2,
        }


@every_client
async def test_a_fork(client: Client, tmp_path: Path, no_look_up: None) -> None:
    async with staged(tmp_path, First_things=[calls(client.run("echo 1", 1)), "Done."]) as stage:
        await stage.run(client, client.fresh, "First things first.")
        await stage.run(client, client.fork, "Try another way.")
        await stage.run(client, client.fresh, "Something else.")
        parent, fork, other = await stage.sessions(client)
        assert (parent.parent, fork.parent, other.parent) == (None, parent.id, None)
        kept = await stage.kept()
        for words in ("First things first.", "Try another way.", "Something else."):
            assert kept[words] == 1
        assert kept[f"call_{client.name}_1()"] == 1


@pytest.mark.parametrize("client", [CLAUDE, OPENCODE], ids=lambda client: client.name)
async def test_a_sub_agent(client: Client, tmp_path: Path, no_look_up: None) -> None:
    given = {"description": "look", "prompt": "Search the cellar.", "subagent_type": "general"}
    if client is CLAUDE:
        given["subagent_type"] = "general-purpose"
    starts = ToolCall("call_start", "Agent" if client is CLAUDE else "task", json.dumps(given))
    async with staged(
        tmp_path,
        Look_around=[calls(starts), "Nothing there."],
        Search_the_cellar=[calls(client.run("echo dark", 7)), "It is dark."],
    ) as stage:
        await stage.run(client, client.fresh, "Look around.")
        main, helper = await stage.sessions(client)
        assert helper.started_by == main.id
        assert helper.agent == main.agent
        of_helper = await stage.kept(lambda record: record.id == helper.id)
        assert (of_helper["Search the cellar."], of_helper["It is dark."]) == (1, 1)
        assert of_helper[f"call_{client.name}_7()"] == 1
        of_main = await stage.kept(lambda record: record.id == main.id)
        assert (of_main["Look around."], of_main["call_start()"]) == (1, 1)
        assert "Search the cellar." not in of_main


async def test_an_agent_that_codex_starts(tmp_path: Path, no_look_up: None) -> None:
    given = {"message": "Search the cellar.", "task_name": "cellar", "fork_turns": "none"}
    within = {"responses": {"namespace": "collaboration"}}
    starts = ToolCall("call_start", "spawn_agent", json.dumps(given), native=within)
    waits = ToolCall("call_wait", "wait_agent", '{"timeout_ms": 10000}', native=within)
    async with staged(
        tmp_path,
        Look_around=[calls(starts), calls(waits), "Nothing there."],
        The_task=[calls(CODEX.run("echo dark", 7)), "It is dark."],
    ) as stage:
        await stage.run(CODEX, CODEX.fresh, "Look around.")
        main, helper = await stage.sessions(CODEX)
        assert (helper.started_by, helper.agent) == (main.id, main.agent)
        of_helper = await stage.kept(lambda record: record.id == helper.id)
        assert (of_helper["It is dark."], of_helper["call_codex_7()"]) == (1, 1)
        kept = await stage.kept()
        assert (kept["Look around."], kept["call_start()"], kept["=call_wait"]) == (1, 1, 1)
        assert await stage.importing("codex", stage.codex / "sessions") == 0


@every_client
async def test_a_compaction_loses_nothing(client: Client, tmp_path: Path, no_look_up: None) -> None:
    long = Usage(input=1_200_000, output=10)
    first = [calls(client.run("echo one", 1)), ScriptedAnswer("One box.", usage=long)]
    async with staged(tmp_path, Count_the_boxes=first) as stage:
        if client is CODEX:  # with OpenAI itself, only OpenAI can compact
            stage.configure_codex(
                'model_provider = "mine"',
                "model_auto_compact_token_limit = 100000",
                "[model_providers.mine]",
                'name = "Mine"',
                f'base_url = "{stage.model.url}"',
                'env_key = "OPENAI_API_KEY"',
            )
        await stage.run(client, client.fresh, "Count the boxes.")
        if client is CLAUDE:
            await stage.run(client, client.again, "/compact")
        await stage.run(client, client.again, "What was it?")
        assert any(SUMMARY in json.dumps(each.body) for each in mains(stage.model))
        (session,) = await stage.sessions(client)
        async with perdure.open(stage.bank) as bank:
            turns = [turn async for turn in (await bank.session(session.id)).read(undone=True)]
        assert {turn.status for turn in turns} == {"closed"}
        told = [each for turn in turns for each in turn.messages if SUMMARY in each.text]
        # In opencode the summary is an answer; in the others it stands in the user's name.
        kind = "" if client is OPENCODE else "compaction"
        assert [each.name for each in told] == [kind]
        kept = await stage.kept()
        for words in ("Count the boxes.", "One box.", "What was it?", f"call_{client.name}_1()"):
            assert kept[words] == 1


@every_client
async def test_a_long_history_behind_a_small_budget(
    client: Client, tmp_path: Path, no_look_up: None
) -> None:
    budget, noise = 60_000, random.Random(7)
    prompts = [
        f"List {number}: " + " ".join(f"{noise.getrandbits(40):x}" for _ in range(5_000))
        for number in range(10)
    ]
    async with staged(
        tmp_path, List_9=[calls(client.run("echo nine", 9)), "That is all."]
    ) as stage:
        out = ""
        for number, prompt in enumerate(prompts):
            arguments = client.again if number else client.fresh
            out = await stage.run(client, arguments, prompt, "--budget", str(budget))
        assert "That is all." in out
        assert "the client alone would have sent" in stage.said
        kept = await stage.kept()
        assert [kept[prompt] for prompt in prompts] == [1] * len(prompts)
        assert kept[f"call_{client.name}_9()"] == kept[f"=call_{client.name}_9"] == 1
        sessions = await stage.sessions(client)
        assert len(sessions) == 1
        async with perdure.open(stage.bank) as bank:
            count = bank.services.counter
        assert count_messages(count, [user(prompt) for prompt in prompts]) > 300_000
        for request in mains(stage.model):
            check_body(request)
            shown = [each for each in request.messages if each.role not in _SYSTEM]
            assert count_messages(count, shown) < budget * 1.1
            # What a client says before the conversation stays: its tools, where it works.
            said = json.dumps(request.body)
            assert all(words in said for words in _STANDING[client.name])


_SYSTEM = {"system", "developer"}
_STANDING = {
    "claude": ("Bash",),
    "codex": ("additional_tools", "You are Codex", "<environment_context>"),
    "opencode": ("bash",),
}


async def test_a_login_with_claude_passes(tmp_path: Path, names: NameServer) -> None:
    """With it, Claude Code asks for Anthropic's name itself, to look at the account."""
    async with staged(tmp_path) as stage:
        folder = stage.home / ".claude"
        folder.mkdir()
        token = "sk-ant-oat01-not-a-real-token"
        login = {
            "accessToken": token,
            "refreshToken": "sk-ant-ort01-not-a-real-token",
            "expiresAt": 4_102_444_800_000,
            "scopes": ["user:inference", "user:profile"],
            "subscriptionType": "max",
        }
        (folder / ".credentials.json").write_text(json.dumps({"claudeAiOauth": login}))
        await stage.run(CLAUDE, CLAUDE.fresh, "Hello.", ANTHROPIC_API_KEY="")
        (request, *_) = mains(stage.model)
        assert request.headers["authorization"] == f"Bearer {token}"
        stored = (tmp_path / "bank.db").read_bytes()
        assert token.encode() not in stored


async def test_a_login_with_chatgpt_passes(tmp_path: Path, names: NameServer) -> None:
    """With it, Codex asks for names of its own, whatever its provider is."""
    async with staged(tmp_path) as stage:
        token = _jwt({"email": "ada@example.org", "exp": 4_102_444_800, **_CHATGPT})
        login = {
            "auth_mode": "chatgpt",
            "OPENAI_API_KEY": None,
            "tokens": {
                **dict.fromkeys(("id_token", "access_token"), token),
                "refresh_token": "not-a-real-token",
                "account_id": "account-1",
            },
            "last_refresh": "2999-01-01T00:00:00Z",
        }
        (stage.codex / "auth.json").write_text(json.dumps(login))
        await stage.run(CODEX, CODEX.fresh, "Hello.", CODEX_API_KEY="")
        (request, *_) = mains(stage.model)
        assert request.headers["authorization"] == f"Bearer {token}"
        assert request.headers["chatgpt-account-id"] == "account-1"


_CHATGPT = {
    "https://api.openai.com/auth": {
        "chatgpt_plan_type": "plus",
        "chatgpt_user_id": "user-1",
        "chatgpt_account_id": "account-1",
    }
}


def _jwt(claims: dict[str, object]) -> str:
    import base64

    parts = [json.dumps({"alg": "none", "typ": "JWT"}), json.dumps(claims), "signature"]
    return ".".join(base64.urlsafe_b64encode(each.encode()).decode().rstrip("=") for each in parts)


async def test_a_refusal_is_the_clients(tmp_path: Path, no_look_up: None) -> None:
    """Upstream's error arrives, and the exit code is the client's."""
    async with ScriptedModel(ScriptedFault(status=400, message="Not today.")) as model:
        stage = Stage(tmp_path, model)
        assert "Not today." in await stage.run(CLAUDE, CLAUDE.fresh, "Hello.", code=1)


@every_client
async def test_history_tools_stay_unseen(client: Client, tmp_path: Path, no_look_up: None) -> None:
    look_up = ToolCall("look_1", "history_get_turn", '{"id":"T-1","level":"R"}')
    again = ToolCall("look_2", "history_get_turn", '{"id":"T-1","level":"C"}')
    steps: list[ScriptedAnswer | str] = [
        calls(look_up),  # alone: answered within the same answer
        calls(again, client.run("echo one", 1)),  # beside a call of the client's own
        "The port is 8123, as you said.",
    ]
    on: Any = {"PERDURE_PROXY_TOOLS": "true"}
    async with staged(tmp_path, Which_port=steps) as stage:
        await stage.run(client, client.fresh, "The port is 8123.", **on)
        out = await stage.run(client, client.again, "Which port is it?", **on)
        assert "The port is 8123, as you said." in out
        asked = [each for each in mains(stage.model) if "look_1" in json.dumps(each.body)]
        assert len(asked) == 2
        for request in asked:
            check_body(request)
            assert json.dumps(request.body).count('"look_1"') == 2  # the call and its result
        assert json.dumps(asked[-1].body).count('"look_2"') == 2
        kept = await stage.kept()
        assert kept[f"call_{client.name}_1()"] == kept[f"=call_{client.name}_1"] == 1
        assert kept["look_1()"] == 0


# Codex' own tools are in forms that only OpenAI's models know.
@pytest.mark.parametrize("client", [CLAUDE, OPENCODE], ids=lambda client: client.name)
async def test_a_model_of_another_format_answers(
    client: Client, tmp_path: Path, no_look_up: None
) -> None:
    steps: list[ScriptedAnswer | str] = [calls(client.run("echo one", 1)), "One box."]
    async with staged(tmp_path, Count_the_boxes=steps) as stage:
        config = tmp_path / "perdure.toml"
        config.write_text(f'[gateway.models]\nchat = "{stage.model.url}#scripted"\n')
        on: Any = {"PERDURE_PROXY_VIA_GATEWAY": "true", "PERDURE_CONFIG": str(config)}
        out = await stage.run(client, client.fresh, "Count the boxes.", **on)
        assert "One box." in out
        assert {(each.kind, each.model) for each in stage.model.requests} == {("chat", "scripted")}
        kept = await stage.kept()
        assert kept[f"call_{client.name}_1()"] == kept[f"=call_{client.name}_1"] == 1
        async with perdure.open(stage.bank) as bank:
            costs = await bank.gateway.costs("agent")
        assert any(row.of.startswith(client.agent) for row in costs)
