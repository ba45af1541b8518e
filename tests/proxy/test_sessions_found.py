"""Which session a request belongs to, and which upstream it goes to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import zstandard

from perdure.core.errors import InvalidInput
from perdure.gateway.providers import CallWire
from perdure.server.operations import Caller
from perdure.server.proxy.client_habits import parse
from perdure.server.proxy.upstream import Upstreams
from perdure.testing.model import ReceivedRequest, ScriptedAnswer, ScriptedModel
from tests.proxy.proxy_setup import RunningProxy, proxied, serve
from tests.proxy.test_recording import recorded, settled


def reply(request: ReceivedRequest) -> ScriptedAnswer:
    return ScriptedAnswer(f"Reply to {request.prompt}")


async def ask(running: RunningProxy, *said: str, **headers: str) -> None:
    """Prompts and replies in turn, in Chat Completions."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"model": "m", "messages": [{"role": "system", "content": "Hi."}, *messages]}
    await running.client.post("/v1/chat/completions", json=body, headers=named)
    await settled(running)


async def names(running: RunningProxy) -> set[str]:
    return {info.name for info in await running.bank.sessions()}


async def test_the_header_names_the_session() -> None:
    async with ScriptedModel(reply) as model, proxied(model.url) as running:
        await ask(running, "One.", x_perdure_session="planner/release")
        await ask(running, "Two.", x_perdure_session="planner/release")
        await ask(running, "Three.", x_perdure_session="notes", x_perdure_project="/w/demo")
        found = await names(running)
        assert "planner/release" in found
        (other,) = found - {"planner/release"}
        assert other.startswith("other@demo-")
        assert other.endswith("/notes")
        # A client that sends only what is new: its history is the bank's.
        assert await recorded(running.bank, "planner/release") == [
            "user: One.",
            "assistant: Reply to One.",
            "user: Two.",
            "assistant: Reply to Two.",
        ]


async def test_without_an_id_a_history_goes_on_where_its_reply_was() -> None:
    async with ScriptedModel(reply) as model, proxied(model.url) as running:
        await ask(running, "Hello.")
        await ask(running, "Hello.")  # somebody else, who begins alike
        assert len(await names(running)) == 2
        await ask(running, "Hello.", "Reply to Hello.", "Left?")
        assert len(await names(running)) == 2
        # Back to the first reply, and on: another conversation that shares its beginning.
        await ask(running, "Hello.", "Reply to Hello.", "Left?", "Reply to Left?", "More.")
        await ask(running, "Hello.", "Reply to Hello.", "Left?", "Reply to Left?", "Less.")
        found = await names(running)
        lines = [await recorded(running.bank, name) for name in found]
        begin = ["user: Hello.", "assistant: Reply to Hello."]
        begin_left = [*begin, "user: Left?", "assistant: Reply to Left?"]
        for last in ("More.", "Less."):
            assert [*begin_left, f"user: {last}", f"assistant: Reply to {last}"] in lines


@pytest.mark.parametrize("folder", ["", "/w/demo"])
async def test_many_conversations_may_begin_with_the_same_words(folder: str, tmp_path: Any) -> None:
    """Others of another project, and more of their own than are in a page; after a restart."""
    url, count = f"sqlite:///{tmp_path}/bank.db", 25
    where = {"x_perdure_project": folder} if folder else {}
    numbers = iter(range(1000))
    async with ScriptedModel(lambda _: ScriptedAnswer(f"Reply {next(numbers)}")) as model:
        async with proxied(model.url, url) as running:
            for _ in range(count):
                await ask(running, "Hello.", **where)
            for _ in range(count):
                await ask(running, "Hello.", x_perdure_project="/w/other")
        async with proxied(model.url, url) as running:
            for number in range(count):
                await ask(running, "Hello.", f"Reply {number}", "More.", **where)
            turns = [info.turns for info in await running.bank.sessions()]
            assert sorted(turns) == [1] * count + [2] * count


async def test_a_fork_of_a_client_is_a_fork_in_the_bank() -> None:
    async with ScriptedModel(reply) as model, proxied(model.url) as running:
        one, two = {"x_claude_code_session_id": "c1"}, {"x_claude_code_session_id": "c2"}
        project = {"x_perdure_project": "/w/demo"}
        await ask(running, "Hello.", **one, **project)
        await ask(running, "Hello.", "Reply to Hello.", "Here?", **one, **project)
        await ask(running, "Hello.", "Reply to Hello.", "There?", **two, **project)
        found = {info.name.partition("/")[2]: info for info in await running.bank.sessions()}
        assert found.keys() == {"c1", "c2"}
        assert found["c2"].parent == found["c1"].name
        assert found["c2"].forked_at == 1
        assert (await recorded(running.bank, found["c2"].name))[2:] == [
            "user: There?",
            "assistant: Reply to There?",
        ]
        assert "user: There?" not in await recorded(running.bank, found["c1"].name)


async def test_another_folder_does_not_split_a_conversation() -> None:
    async with ScriptedModel(reply) as model, proxied(model.url) as running:
        await ask(running, "Hello.", thread_id="t1", x_perdure_project="/w/demo")
        running.proxy.recorder.conversations._known.clear()  # as after a restart
        await ask(
            running, "Hello.", "Reply to Hello.", "On.", thread_id="t1", x_perdure_project="/w/sub"
        )
        assert len(await names(running)) == 1


async def test_a_token_for_one_agent_writes_to_that_agent() -> None:
    async with ScriptedModel(reply) as model, proxied(model.url) as running:

        async def as_caller(connection: Any, receive: Any, send: Any) -> None:
            caller = Caller("laptop", "planner")
            connection.setdefault("state", {})["perdure_caller"] = caller
            await running.proxy(connection, receive, send)

        async with serve(as_caller) as url:
            body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
            for headers in ({}, {"thread-id": "t1"}, {"x-perdure-session": "notes"}):
                answer = await running.client.post(
                    f"{url}/v1/chat/completions", json=body, headers=headers
                )
                assert answer.status_code == 200
            await settled(running)
            assert {name.partition("/")[0] for name in await names(running)} == {"planner"}
            assert {"planner/t1", "planner/notes"} <= await names(running)
            # Another agent's session is not its own to write to.
            before = running.proxy.report.figures.failures
            await running.client.post(
                f"{url}/v1/chat/completions", json=body, headers={"x-perdure-session": "boss/x"}
            )
            await settled(running)
            assert running.proxy.report.figures.failures == before + 1
            assert "boss/x" not in await names(running)


async def test_a_body_in_zstd_is_recorded() -> None:
    async with ScriptedModel(reply) as model, proxied(model.url) as running:
        plain = msgspec.json.encode({"model": "m", "input": "Hi.", "store": False})
        headers = {"content-encoding": "zstd", "thread-id": "t1"}
        await running.client.post(
            "/v1/responses", content=zstandard.compress(plain), headers=headers
        )
        await settled(running)
        assert await recorded(running.bank) == ["user: Hi."]  # the scripted model reads no zstd


@pytest.mark.parametrize(
    ("given", "path", "headers", "address"),
    [
        ({}, "/v1/messages", {}, "https://api.anthropic.com/v1/messages"),
        ({}, "/v1/models", {"anthropic-version": "1"}, "https://api.anthropic.com/v1/models"),
        ({}, "/v1/models", {}, "https://api.openai.com/v1/models"),
        ({}, "/v1/responses", {}, "https://api.openai.com/v1/responses"),
        (
            {},
            "/v1/responses",
            {"chatgpt-account-id": "a"},
            "https://chatgpt.com/backend-api/codex/responses",
        ),
        ({"anthropic": "http://h/x"}, "/v1/messages", {}, "http://h/x/v1/messages"),
        ({"anthropic": "http://h/v1/"}, "/v1/messages", {}, "http://h/v1/messages"),
        (
            {"openai": "http://h"},
            "/v1/responses",
            {"chatgpt-account-id": "a"},
            "http://h/v1/responses",
        ),
        (
            {"openai": "http://h/api/v1"},
            "/v1/chat/completions",
            {},
            "http://h/api/v1/chat/completions",
        ),
    ],
)
def test_where_a_request_goes(
    given: dict[str, str], path: str, headers: dict[str, str], address: str
) -> None:
    assert Upstreams(given).address(path, b"", headers) == address
    assert Upstreams(given).address(path, b"a=1", headers) == f"{address}?a=1"


def test_an_upstream_that_is_none_is_refused() -> None:
    for given in ({"mistral": "http://h"}, {"openai": "h"}, {"openai": "ftp://h"}):
        with pytest.raises(InvalidInput):
            Upstreams(given)


@pytest.mark.parametrize(
    ("wire", "headers", "fields", "client", "kind", "talk", "folder"),
    [
        (
            "messages",
            {"user-agent": "claude-cli/2.1"},
            {
                "metadata": {"user_id": '{"session_id":"s1"}'},
                "system": [{"type": "text", "text": "Working directory: /w/a b\nmore"}],
                "tools": [{}],
            },
            "claude-code",
            "main",
            "s1",
            "/w/a b",
        ),
        (
            "messages",
            {"x-claude-code-session-id": "s1", "x-claude-code-agent-id": "a"},
            {"tools": [{}]},
            "claude-code",
            "subagent",
            "s1",
            "",
        ),
        (
            "messages",
            {"x-claude-code-session-id": "s1"},
            {"output_config": {"format": {"type": "json_schema"}}},
            "claude-code",
            "title",
            "s1",
            "",
        ),
        (
            "responses",
            {"originator": "codex_exec", "session-id": "root", "thread-id": "t2"},
            {},
            "codex",
            "subagent",
            "t2",
            "",
        ),
        (
            "responses",
            {"thread-id": "t1", "x-codex-turn-metadata": '{"request_kind":"compaction"}'},
            {},
            "codex",
            "compaction",
            "t1",
            "",
        ),
        (
            "chat",
            {"user-agent": "opencode/1.18", "x-session-id": "ses_1"},
            {},
            "opencode",
            "title",
            "ses_1",
            "",
        ),
        ("chat", {"user-agent": "OpenAI/Python"}, {}, "other", "main", "", ""),
    ],
)
def test_clients_are_recognised(  # noqa: PLR0917 (one row of the table)
    wire: CallWire,
    headers: dict[str, str],
    fields: dict[str, Any],
    client: str,
    kind: str,
    talk: str,
    folder: str,
) -> None:
    field = "input" if wire == "responses" else "messages"
    body = {"model": "m", field: [{"role": "user", "content": "Hi."}], **fields}
    request = parse(wire, headers, "/v1/x", msgspec.json.encode(body))
    found = (request.id.client, request.kind, request.id.conversation, request.id.folder)
    assert found == (client, kind, talk, folder)


def test_what_begins_like_a_compaction_is_one() -> None:
    for words in (
        "CRITICAL: Respond with TEXT ONLY.",
        "You are performing a CONTEXT CHECKPOINT COMPACTION.",
    ):
        body = {"model": "m", "messages": [{"role": "user", "content": words}], "tools": [{}]}
        request = parse("messages", {}, "/v1/messages", msgspec.json.encode(body))
        assert request.kind == "compaction"


def test_all_other_fields_stay_verbatim() -> None:
    raw = b'{"model" : "m", "messages":[{"role":"user","content":"a"}], "x": 1.50, "y":{ "z":[] }}'
    request = parse("messages", {}, "/v1/messages", raw)
    items = [msgspec.Raw(b'{"role":"user","content":"b"}')]
    assert request.with_items(items, stream=True, y=None) == (
        b'{"model":"m","messages":[{"role":"user","content":"b"}],"x":1.50,"stream":true}'
    )
