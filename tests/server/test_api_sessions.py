"""Agents, sessions, turns, contexts and recall over HTTP."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec
import pytest

from perdure.core.messages import ArtifactPointer, assistant, user
from perdure.core.turns import Turn
from perdure.remote.api_results import ContextParts, TurnPage
from tests.server.conftest import RunningServer

SESSION = "/api/v1/sessions/planner/auth"


def talk(day: int) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": f"Day {day}: which build do we ship?"},
        {"role": "assistant", "content": f"Build {day * 7}. All its tests passed."},
    ]


async def told(client: httpx2.AsyncClient, days: int = 5) -> None:
    answer = await client.post("/api/v1/sessions", json={"name": "planner/auth"})
    assert answer.status_code == 200, answer.text
    for day in range(1, days + 1):
        answer = await client.post(f"{SESSION}/turns", json={"messages": talk(day)})
        assert answer.status_code == 201, answer.text


def numbers(answer: httpx2.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    return [turn["number"] for turn in answer.json()["turns"]]


async def test_a_session_is_made_listed_described_and_archived(client: httpx2.AsyncClient) -> None:
    made = await client.post(
        "/api/v1/sessions",
        json={"name": "planner/auth", "state": {"title": "Login"}, "budget": 9_000},
    )
    assert made.json()["state"] == {"title": "Login"}
    changed = await client.patch(SESSION, json={"state": {"cwd": "/x"}, "strategy": "regular"})
    assert changed.json()["state"] == {"title": "Login", "cwd": "/x"}
    (agent,) = (await client.get("/api/v1/agents")).json()
    assert (agent["name"], agent["sessions"], agent["archived"]) == ("planner", 1, 0)
    assert (await client.post(f"{SESSION}/archive")).json()["archived"] is not None
    assert (await client.get("/api/v1/sessions")).json()["sessions"] == []
    kept = (await client.get("/api/v1/sessions?archived=true")).json()["sessions"]
    assert [each["name"] for each in kept] == ["planner/auth"]
    (agent,) = (await client.get("/api/v1/agents")).json()
    assert (agent["sessions"], agent["archived"]) == (0, 1)
    assert (await client.get("/api/v1/agents/nobody")).status_code == 404
    assert (await client.get("/api/v1/sessions/planner/other")).status_code == 404


async def test_sessions_by_name_are_walked_page_by_page_while_some_are_used(
    client: httpx2.AsyncClient, server: RunningServer
) -> None:
    for number in range(7):
        await server.bank.session(f"planner/s{number}")
    found, after = list[str](), None
    while True:
        query = {"order": "name", "limit": "3", **({"after": after} if after else {})}
        page = (await client.get("/api/v1/sessions", params=query)).json()
        found += [each["name"] for each in page["sessions"]]
        await (await server.bank.session("planner/s0")).append("Used meanwhile.")
        after = page["next"]
        if after is None:
            break
    assert found == [f"planner/s{number}" for number in range(7)]


async def test_names_of_any_characters(client: httpx2.AsyncClient) -> None:
    from perdure.remote.api_client import segment

    for name in ("a b%2F?&=é", "..", "T-1;x"):
        made = await client.post("/api/v1/sessions", json={"name": f"ägent+1/{name}"})
        assert made.status_code == 200, made.text
        path = f"/api/v1/sessions/{segment('ägent+1')}/{segment(name)}"
        assert (await client.get(path)).json()["name"] == f"ägent+1/{name}"


async def test_pages_of_turns_stay_put_while_turns_are_appended(
    client: httpx2.AsyncClient,
) -> None:
    await told(client, 10)
    page = await client.get(f"{SESSION}/turns", params={"limit": 4})
    assert numbers(page) == [7, 8, 9, 10]
    seen = numbers(page)
    while (before := page.json()["before"]) is not None:
        await client.post(f"{SESSION}/turns", json={"messages": talk(99)})
        page = await client.get(f"{SESSION}/turns", params={"limit": 4, "before": before})
        seen = numbers(page) + seen
    assert seen == list(range(1, 11))
    newer = await client.get(f"{SESSION}/turns", params={"after": "T-10", "limit": 1})
    assert numbers(newer) == [11]
    assert newer.json()["after"] == "T-11"
    last = await client.get(f"{SESSION}/turns", params={"after": "T-12"})
    assert (numbers(last), last.json()["after"], last.json()["newest"]) == ([], "T-12", 12)
    assert numbers(await client.get(f"{SESSION}/turns?after=0&limit=2")) == [1, 2]


async def test_turns_come_whole_and_at_every_level(client: httpx2.AsyncClient) -> None:
    await told(client, 3)
    for level in "RSCT":
        page = (await client.get(f"{SESSION}/turns", params={"level": level})).json()
        assert page["turns"] == []
        assert [text["id"] for text in page["texts"]] == ["T-1", "T-2", "T-3"]
        assert all(text["level"] == level and "Build" in text["text"] for text in page["texts"])
        one = (await client.get(f"{SESSION}/turns/T-2/levels/{level}")).json()
        assert one == page["texts"][1]
    turn = msgspec.json.decode((await client.get(f"{SESSION}/turns/2")).content, type=Turn)
    assert turn.prompt == "Day 2: which build do we ship?"
    round_ = (await client.get(f"{SESSION}/turns/T-2.1")).json()
    assert [each["number"] for each in round_["rounds"]] == [1]
    for wrong, status in (("T-9", 404), ("T-2.7", 404), ("x", 400)):
        assert (await client.get(f"{SESSION}/turns/{wrong}")).status_code == status


async def test_undone_turns_are_there_on_request(client: httpx2.AsyncClient) -> None:
    await told(client, 4)
    for body, undone in (({"turns": 2}, [3, 4]), ({"numbers": [1]}, [1]), ({"numbers": [1]}, [])):
        answer = await client.post(f"{SESSION}/undo", json=body)
        assert answer.json() == {"turns": undone, "newest": True}
    assert numbers(await client.get(f"{SESSION}/turns")) == [2]
    assert numbers(await client.get(f"{SESSION}/turns?undone=true")) == [1, 2, 3, 4]
    assert numbers(await client.get(f"{SESSION}/turns?after=0")) == [2]
    assert numbers(await client.get(f"{SESSION}/turns?after=0&undone=true")) == [1, 2, 3, 4]


async def test_an_append_with_a_key_is_written_once(client: httpx2.AsyncClient) -> None:
    await told(client, 1)
    body = {"messages": talk(2), "key": "k", "tags": {"topic": "ship"}}
    first = await client.post(f"{SESSION}/turns", json=body)
    again = await client.post(f"{SESSION}/turns", json=body)
    assert numbers_of(first) == numbers_of(again) == [2]
    tagged = await client.get(f"{SESSION}/turns", params={"tag": "topic=ship"})
    assert numbers(tagged) == [2]
    late = await client.post(f"{SESSION}/turns", json={"messages": talk(3), "expected": "T-1"})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "conflict")
    fits = await client.post(f"{SESSION}/turns", json={"messages": talk(3), "expected": 2})
    assert numbers_of(fits) == [3]


def numbers_of(answer: httpx2.Response) -> list[int]:
    assert answer.status_code == 201, answer.text
    return [turn["number"] for turn in answer.json()["turns"]]


async def test_an_open_turn_goes_on_request_by_request(client: httpx2.AsyncClient) -> None:
    await told(client, 1)
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    asked = [
        {"role": "user", "content": "List the files."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    assert numbers_of(await client.post(f"{SESSION}/turns", json={"messages": asked})) == [2]
    other = await client.post(f"{SESSION}/turns", json={"messages": talk(9)})  # somebody else
    assert numbers_of(other) == [3]
    result = {"role": "tool", "tool_call_id": "c1", "content": "a.py"}
    body = {"messages": [result], "continues": "T-2"}
    assert numbers_of(await client.post(f"{SESSION}/turns", json=body)) == [2]
    words = (await client.get(f"{SESSION}/turns/T-2")).text
    assert "a.py" in words


async def test_what_is_no_message_is_refused(client: httpx2.AsyncClient) -> None:
    await told(client, 1)
    bodies: tuple[dict[str, Any], ...] = (
        {},
        {"messages": []},
        {"messages": 7},
        {"messages": "x", "canonical": [{"role": "user"}]},
        {"messages": "x", "misspelled": 1},
        {"messages": "x", "expected": "T-x"},
    )
    for body in bodies:
        answer = await client.post(f"{SESSION}/turns", json=body)
        assert answer.status_code == 400, (body, answer.text)
        assert answer.json()["error"]["hint"]
    assert numbers(await client.get(f"{SESSION}/turns")) == [1]


async def test_forks_are_made_and_listed(client: httpx2.AsyncClient) -> None:
    await told(client, 4)
    made = await client.post(f"{SESSION}/forks", json={"name": "planner/other", "at": "T-2"})
    assert (made.status_code, made.json()["forked_at"]) == (201, 2)
    (fork,) = (await client.get(f"{SESSION}/forks")).json()
    assert (fork["name"], fork["parent"]) == ("planner/other", "planner/auth")
    assert numbers(await client.get("/api/v1/sessions/planner/other/turns")) == [1, 2]
    again = await client.post(f"{SESSION}/forks", json={"name": "planner/other"})
    assert again.status_code == 409


async def test_partial_answers_are_listed_closed_and_dropped(
    client: httpx2.AsyncClient, server: RunningServer
) -> None:
    session = await server.bank.session("planner/auth")
    for prompt, said in (("First?", "Because"), ("Second?", "Since")):
        await session.append(user(prompt))
        answer = session.answer(model="m")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 (the block is what dies)
            async with answer:
                await answer.text(said)
                raise ZeroDivisionError
        (partial,) = (await client.get(f"{SESSION}/partials")).json()
        assert partial["message"]["parts"][0]["text"] == said
        if prompt == "First?":
            closed = await client.post(f"{SESSION}/partials/T-1/close")
            assert closed.json()["number"] == 1
            assert '"Because"' in (await client.get(f"{SESSION}/turns/T-1")).text
        else:
            assert (await client.delete(f"{SESSION}/partials/T-2")).status_code == 204
        assert (await client.get(f"{SESSION}/partials")).json() == []
    assert (await client.delete(f"{SESSION}/partials/T-2")).status_code == 404


async def test_a_turn_is_closed_by_hand(client: httpx2.AsyncClient) -> None:
    await told(client, 1)
    await client.post(f"{SESSION}/turns", json={"messages": "A question."})
    assert (await client.post(f"{SESSION}/close")).json()["closed"] is True
    written = await client.post(
        f"{SESSION}/turns", json={"messages": [{"role": "assistant", "content": "Late."}]}
    )
    assert numbers_of(written) == [3]


async def test_a_context_is_explained_and_can_be_put_together_elsewhere(
    client: httpx2.AsyncClient, server: RunningServer
) -> None:
    await told(client, 60)
    body = {"prompt": "Which build did we ship on day 3?", "budget": 1_500, "system": "Be brief."}
    asked = {**body, "wire": "messages", "parts": True, "history_tools": True}
    preview = (await client.post(f"{SESSION}/context/preview", json=asked)).json()
    assert (await client.get(f"{SESSION}/turns/T-61/context")).status_code == 404
    kept = await client.post(f"{SESSION}/context", json=asked)
    found = kept.json()
    assert (found["turn"], found["budget"]) == ("T-61", 1_500)
    assert found["tokens"] <= 1_500
    assert found["fill"] == found["tokens"] / 1_500
    assert {band["level"] for band in found["bands"]} > {"R"}
    assert all(block["why"] for block in found["blocks"])
    assert found["blocks"][-1]["kind"] == "prompt"
    assert found["body"]["messages"][-1]["role"] == "user"
    assert found["bands"] == preview["bands"]
    parts = msgspec.convert(found["parts"], ContextParts)
    assert parts.context().to_messages() == found["body"]
    await server.bank.settle()
    again = {"prompt": body["prompt"], "reply": "Build 21."}
    written = await client.post(
        f"{SESSION}/turns",
        json={
            "messages": [{"role": "assistant", "content": again["reply"]}],
            "context": {"turn": 61, "prompt": found["parts"]["prompt"], "model": "m"},
        },
    )
    assert numbers_of(written) == [61]
    past = await client.get(f"{SESSION}/turns/T-61/context?wire=messages")
    assert past.json()["body"] == found["body"]
    epochs = (await client.get(f"{SESSION}/epochs")).json()
    assert [each["number"] for each in epochs] == [1]
    whole = (await client.get(f"{SESSION}/epochs/1")).json()
    assert whole["id"].startswith("planner/auth/")
    wish = await client.post(f"{SESSION}/turns/T-5/fidelity", json={"level": "R", "now": True})
    assert "T-5 stands at R" in wish.json()["text"]
    small = await client.post(f"{SESSION}/context", json={**body, "budget": 10})
    assert (small.status_code, small.json()["error"]["code"]) == (422, "budget_too_small")


async def test_recall_says_how_and_why(client: httpx2.AsyncClient) -> None:
    await told(client, 5)
    asked = {"query": "build of day 3", "limit": 3, "roles": "user", "kinds": ["turn"]}
    found = (await client.post(f"{SESSION}/recall", json=asked)).json()
    assert found["stage"] != "none"
    assert found["took_ms"] > 0
    assert found["hits"][0]["turn"] == "T-3.1"
    assert found["hits"][0]["why"]
    assert found["hits"][0]["score"] > 0
    wrong = await client.post(f"{SESSION}/recall", json={"query": "x", "kinds": ["nonsense"]})
    assert wrong.status_code == 400
    (first, *_) = (await client.get(f"{SESSION}/search?query=day+3")).json()
    assert first["id"] == "T-3.1"


async def test_tools_change_the_board(client: httpx2.AsyncClient) -> None:
    await told(client, 2)
    names = {tool["name"] for tool in (await client.get("/api/v1/tools")).json()}
    assert {"history_get_turn", "board_post", "memory_add"} <= names
    post = {"arguments": {"text": "The port is 8123."}}
    assert (await client.post(f"{SESSION}/tools/board_post", json=post)).status_code == 200
    (entry,) = (await client.get(f"{SESSION}/board")).json()
    assert entry["text"] == "The port is 8123."
    asked = {"arguments": '{"id": "T-1", "level": "R"}'}  # as a model wrote it
    text = await client.post(f"{SESSION}/tools/history_get_turn", json=asked)
    assert "Day 1" in text.json()["text"]
    none = await client.post(f"{SESSION}/tools/nothing", json={})
    assert none.json()["text"].startswith("There is no tool")


async def test_sharing(client: httpx2.AsyncClient) -> None:
    await told(client, 1)
    shared = await client.post(f"{SESSION}/readers", json={"agents": ["coder", "tester"]})
    assert shared.json()["shared_with"] == ["coder", "tester"]
    less = await client.post(f"{SESSION}/readers/remove", json={"agents": ["coder"]})
    assert less.json()["shared_with"] == ["tester"]
    assert (await client.delete(f"{SESSION}/readers")).json()["shared_with"] == []
    assert (await client.get(f"{SESSION}/readers")).json()["shared_with"] == []
    assert (await client.post(f"{SESSION}/readers", json={"agents": []})).status_code == 400


async def test_an_export_is_what_the_command_writes(
    client: httpx2.AsyncClient, server: RunningServer
) -> None:
    from perdure.history.session_export import jsonl
    from perdure.history.session_markdown import markdown

    await told(client, 3)
    await server.bank.settle()
    session = await server.bank.existing_session("planner/auth")
    file = await client.get(f"{SESSION}/export")
    assert file.content == b"".join([line async for line in jsonl(session)])
    assert file.headers["content-type"] == "application/x-ndjson"
    assert file.headers["content-disposition"].startswith("attachment")
    text = await client.get(f"{SESSION}/export?format=markdown")
    assert text.text == "".join([section async for section in markdown(session)])


async def test_forgetting(client: httpx2.AsyncClient) -> None:
    await told(client, 3)
    gone = await client.post(f"{SESSION}/forget", json={"turns": ["T-2"]})
    assert gone.json()["turns"] == 1
    assert (await client.get(f"{SESSION}/turns/T-2")).json()["status"] == "forgotten"
    await client.post(f"{SESSION}/forks", json={"name": "coder/fork"})
    assert (await client.delete(SESSION)).status_code == 409
    assert (await client.delete(f"{SESSION}?reroot=true")).json()["sessions"] == ["planner/auth"]
    assert (await client.get(SESSION)).status_code == 404
    assert (await client.delete("/api/v1/agents/coder")).json()["sessions"] == ["coder/fork"]
    assert (await client.get("/api/v1/agents")).json() == []


async def test_renditions_are_told_and_made(client: httpx2.AsyncClient) -> None:
    await told(client, 3)
    made = (await client.post(f"{SESSION}/renditions")).json()
    assert (made["turns"], made["missing"]) == (3, 0)
    assert (await client.get(f"{SESSION}/renditions")).json() == made
    assert [each["session"] for each in (await client.get("/api/v1/renditions")).json()] == [
        "planner/auth"
    ]


async def test_content_that_moved_out_comes_back_on_request(
    client: httpx2.AsyncClient, server: RunningServer
) -> None:
    session = await server.bank.session("planner/auth")
    await session.append([user("Big: " + "0123456789" * 2_000), assistant("I see.")])
    page = msgspec.json.decode((await client.get(f"{SESSION}/turns")).content, type=TurnPage)
    (pointer,) = page.turns[0].messages[0].parts
    assert isinstance(pointer, ArtifactPointer)
    whole = await client.get(f"{SESSION}/turns?resolve=true")
    assert "0123456789" * 2_000 in whole.text
    bytes_ = await client.get(f"/api/v1/artifacts/{pointer.artifact}")
    assert bytes_.text == "Big: " + "0123456789" * 2_000
    assert bytes_.headers["content-type"].startswith("text/plain")
    assert bytes_.headers["content-disposition"].startswith("attachment")
    assert bytes_.headers["x-content-type-options"] == "nosniff"
    assert (await client.get(f"/api/v1/artifacts/sha256:{'0' * 64}")).status_code == 404
    assert (await client.get("/api/v1/artifacts/nonsense")).status_code == 400
