"""A token for one agent sees and changes nothing of another's, at any operation.

A walk over the whole table: what is added later is walked, too.
"""

from __future__ import annotations

import re
from typing import Any

import httpx2
import msgspec
import pytest

from perdure import Interaction
from perdure.agents.agent_records import AgentMessage, AgentQuestion, AgentSchedule
from perdure.bank.bank import Bank
from perdure.config import AuditConfig
from perdure.core.messages import ArtifactPointer, assistant, user
from perdure.gateway.outcomes import Outcome
from perdure.history.session_export import jsonl
from perdure.project.project_directory import ProjectRecord
from perdure.project.task_records import Task
from perdure.recall.memory_records import person
from perdure.reflection.inbox import InboxMessage
from perdure.reflection.reflection_records import AppliedOperation, ReflectionRun, RunChanges
from perdure.server.operations import Operation, TokenScope
from tests.server.conftest import RunningServer, StartServer

#: In everything that the other agent said, learnt or was told; and in its and its session's name.
SAID, NAMED = "zebra7731", "hidden4242"
OTHER = f"agent-{NAMED}"
THEIRS = f"{OTHER}/{NAMED}"
_PATHS = {
    "turn": "T-1",
    "level": "R",
    "key": "M-1",
    "tool": "history_get_turn",
    "layer": "rules",
    "run": "R-1",
    "message": "I-1",
    "number": "1",
    "collection": "perdure_sessions",
    "entry": "rules-of-theirs",
    "interaction": "one",
    "question": "call",
    "schedule": "later",
    "registered": OTHER,
    "project": "secret",
    "task": "1",
}
#: What bodies and queries name, all of it the other agent's.
_OTHERS: dict[str, Any] = {
    "agent": OTHER,
    "agents": [OTHER],
    "arguments": {"id": f"{THEIRS}#T-1", "level": "R", "session": THEIRS},
    "at": "T-1",
    "by": "user",
    "collection": "perdure_sessions",
    "continues": "T-1",
    "data": {"id": THEIRS},
    "dispute": "#1 priority",
    "description": {"name": "Note", "types": {"": {"fields": []}}},
    "from_version": 1,
    "job": f"episode/{OTHER}/1",
    "key": "once",
    "keys": [f"{OTHER}/M-1", f"{OTHER}/M-2"],
    "level": "R",
    "link": {"session": THEIRS},
    "memory": f"{OTHER}/M-1",
    "message": "Pay it.",
    "mode": "accept",
    "messages": "Go on.",
    "name": THEIRS,
    "person": True,
    "numbers": [1],
    "prompt": "What do you know of it?",
    "provenance": [f"{THEIRS}#T-1"],
    "public": f"ed25519:{'A' * 43}=",
    "query": "zebra",
    "role": "planner",
    "score": 0.5,
    "state": {"word": "zebra"},
    "session": THEIRS,
    "sessions": [THEIRS],
    "signature": "ed25519:none:none",
    "superseded_by": f"{OTHER}/M-1",
    "text": "# Rules\n\nBe kind.",
    "title": "Mine now",
    "turns": 1,
    "version": 1,
    "words": "zebra",
}


async def furnish(bank: Bank, agent: str, name: str, word: str) -> dict[str, str]:
    """An agent that has one of everything; returns what a path can name of it."""
    session = await bank.session(f"{agent}/{name}", state={"title": word}, tags={"topic": word})
    await session.append([user(f"The {word} is {word * 4_000}."), assistant(f"{word} it is.")])
    await session.append([user("Again?"), assistant(f"{word}!")], tags={"topic": word})
    await session.run_tool("board_post", {"text": word})
    await session.context(f"What of the {word}?", budget=4_000)
    await session.append(user("Open."))
    for number in range(2):
        await bank.memories.add(agent, f"{word} {number} is the word.", by=person("ada"))
    outcome = Outcome(
        id=f"{agent:0>32}",
        started=bank.store.now(),
        purpose="chat",
        provider="p",
        model=f"{word}-model",
        success=True,
        agent=agent,
        session=session.name,
        cost=1,
    )
    await bank.collection(Outcome).put(outcome)
    id, now = f"{agent}/00000001", bank.store.now()
    run = ReflectionRun(id=id, agent=agent, state="done", started=now, why=word)
    await bank.collection(ReflectionRun).put(run)
    await bank.collection(RunChanges).put(
        RunChanges(id=id, operations=(AppliedOperation(op="add", text=word),))
    )
    await bank.collection(InboxMessage).put(
        InboxMessage(id=id, agent=agent, kind="note", title=word, text=word)
    )
    await bank.agent_memory(agent).store(
        Interaction(id="one", agent=agent, task=word, request=word, response=word)
    )
    made = await bank.agent(agent, prompt=word, serve=False)
    asking = AgentMessage(
        id=id, agent=agent, seq=1, body=word, session=session.name, turn=1, state="asking"
    )
    await bank.collection(AgentMessage).put(asking)
    question = AgentQuestion(id=f"{id}/call", agent=agent, message=id, kind="question", text=word)
    await bank.collection(AgentQuestion).put(question)
    schedule = AgentSchedule(id=f"{agent}/later", agent=agent, next=now * 2, body=word)
    await bank.collection(AgentSchedule).put(schedule)
    await made.state.put({"word": word})
    await bank.canon.write(
        f"rules-of-{'mine' if agent == 'mine' else 'theirs'}",
        f"# {word}",
        readers=[agent],
        by=person("ada"),
    )
    (pointer,) = (await session.turn(1)).messages[0].parts
    assert isinstance(pointer, ArtifactPointer)
    named = {"agent": agent, "name": name, "chat": "any"}
    return named | {"outcome": outcome.id, "artifact": pointer.artifact}


async def state_of(bank: Bank, session: str) -> list[Any]:
    """All that somebody could have changed of it."""
    found = await bank.existing_session(session)
    agent = found.agent
    return [
        b"".join([line async for line in jsonl(found)]),
        await found.shared_with(),
        await found.board(),
        found.record.archived,
        (await found.head()).undone,
        await bank.memories.list(agent, status=None),
        [info.name for info in await bank.sessions(agent=agent, archived=True)],
        await bank.collection(Outcome).query().where("agent", "=", agent).values(),
        await bank.references.list(),
        await bank.inbox.list(agent, status=None),
        await bank.reflection.list(agent),
        await bank.canon.list(),
        await bank.agent_memory(agent).stats(),
        await bank.collection(AgentMessage).query().where("agent", "=", agent).values(),
        await bank.agents.questions(agent),
        await bank.agents.schedules.list(agent),
        await (await bank.agents.get(agent)).state.get(),
        await bank.agent_memory(agent).episodes.list(agent),
    ]


def operations(server: RunningServer) -> list[Operation]:
    return [
        route
        for route in server.app.state.routes
        if isinstance(route, Operation)
        and route.path.startswith("/api/v1/")
        and not route.passes_through
        and route.scope is not TokenScope.OPEN
    ]


def filled(struct: Any, *, optional: bool) -> dict[str, Any]:
    """What a query or body needs, and with `optional` all else that can name something."""
    if struct is None:
        return {}
    fields = msgspec.structs.fields(struct)
    return {
        field.name: _OTHERS[field.name]
        for field in fields
        if field.required or (optional and field.name in _OTHERS)
    }


async def asked(
    client: httpx2.AsyncClient, operation: Operation, path: dict[str, str], *, optional: bool
) -> httpx2.Response:
    names = re.findall(r"{(\w+)}", operation.path)
    url = operation.path.format(**{name: path[name] for name in names})
    query = filled(operation.query, optional=optional)
    if "state" in query:  # of messages; in a body it is an agent's
        query["state"] = "asking"
    body = filled(operation.body, optional=optional)
    if operation.path.endswith("/references"):
        body |= {"name": "rules", "replace": True}
    elif "name" in body and optional:
        body["name"] += "-new"  # it could be made, as well as opened
    if "prompt" in body:
        body.pop("messages", None)  # a chat takes one of them
    if body.get("turns") == 1 and "forget" in operation.path:
        body["turns"] = ["T-1"]
    given: dict[str, Any] = {} if operation.body is None else {"json": body}
    return await client.request(operation.method, url, params=query, **given)


def _names_agents(operation: Operation) -> bool:
    """The registry does, and the one that may read it learns names, and nothing that was said."""
    return operation.path.startswith("/api/v1/registry")


def _failed(answer: httpx2.Response) -> bool:
    """Whether the server did; there is no model to chat with."""
    return answer.status_code >= 500 and answer.json()["error"]["code"] != "no_model"


@pytest.fixture
async def walked(
    start_server: StartServer,
) -> tuple[RunningServer, dict[str, str], dict[str, str]]:
    server = await start_server(audit=AuditConfig(collections=("*",)))
    mine = await furnish(server.bank, "mine", "talk", "apple")
    theirs = await furnish(server.bank, OTHER, NAMED, SAID)
    # A project is for those who may see all agents.
    secret = "pr_0123456789abcdef"
    await server.bank.collection(ProjectRecord).put(ProjectRecord(id=secret, name="secret"))
    task = Task(key=f"{secret}/tk_012345678901", project=secret, number=1, title=SAID)
    await server.bank.collection(Task).put(task)
    await server.bank.references.add("# Rules\n\nAlways run the tests.", name="rules")
    await server.bank.settle()
    return server, _PATHS | mine | {"entry": "rules-of-mine"}, _PATHS | theirs


async def test_with_paths_of_another_agent(
    walked: tuple[RunningServer, dict[str, str], dict[str, str]],
) -> None:
    server, _, theirs = walked
    client = await server.client(server.token(agent="mine"))
    before = await state_of(server.bank, THEIRS)
    wrong = list[str]()
    for operation in operations(server):
        for optional in (False, True):
            answer = await asked(client, operation, theirs, optional=optional)
            what = f"{operation.method} {operation.path}: {answer.status_code} {answer.text[:200]}"
            if "{agent}" in operation.path and answer.status_code != 403:
                wrong.append(what)
            if _failed(answer) or SAID in answer.text:
                wrong.append(what)
            named = NAMED in answer.text and not _names_agents(operation)
            if answer.status_code < 300 and named:
                wrong.append(what)
    assert not wrong, "\n".join(wrong)
    assert await state_of(server.bank, THEIRS) == before


async def test_with_paths_of_its_own_and_bodies_that_name_the_others(
    walked: tuple[RunningServer, dict[str, str], dict[str, str]],
) -> None:
    server, mine, _ = walked
    client = await server.client(server.token(agent="mine"))
    before = await state_of(server.bank, THEIRS)
    wrong, done = list[str](), 0
    for operation in operations(server):
        for optional in (False, True):
            answer = await asked(client, operation, mine, optional=optional)
            what = f"{operation.method} {operation.path}: {answer.status_code} {answer.text[:200]}"
            done += answer.status_code < 300
            if _failed(answer) or SAID in answer.text:
                wrong.append(what)
            # A name that was sent may come back: what it stands for must not.
            sent = f"{answer.request.url} {answer.request.content.decode()}"
            named = NAMED in answer.text and NAMED not in sent and not _names_agents(operation)
            if answer.status_code < 300 and named:
                wrong.append(what)
    assert not wrong, "\n".join(wrong)
    assert done > 40  # its own things it may have
    assert await state_of(server.bank, THEIRS) == before


async def test_what_is_kept_names_nothing_of_another_agent(
    walked: tuple[RunningServer, dict[str, str], dict[str, str]],
) -> None:
    """It would tell whether that exists, and go when that is forgotten."""
    server, _, _ = walked
    client = await server.client(server.token(agent="mine"))
    for place in (f"{THEIRS}#T-1", f"{THEIRS}#T-99"):
        body = {"text": "A new fact.", "provenance": [place]}
        assert (await client.post("/api/v1/memories/mine", json=body)).status_code == 403
        assert (await client.patch("/api/v1/memories/mine/M-1", json=body)).status_code == 403
    linked = {"name": "mine/child", "link": {"session": THEIRS}}
    assert (await client.post("/api/v1/sessions", json=linked)).status_code == 403


async def test_a_fork_shares_turns_and_not_what_their_owner_was_sent(
    walked: tuple[RunningServer, dict[str, str], dict[str, str]],
) -> None:
    server, _, _ = walked
    session = await server.bank.existing_session(THEIRS)
    context = await session.context("Once more?", budget=4_000)
    await session.append("Yes.", context=context)
    await session.fork("mine/fork")
    client = await server.client(server.token(agent="mine"))
    turn = f"/api/v1/sessions/mine/fork/turns/T-{context.turn}"
    assert (await client.get(turn)).status_code == 200
    assert (await client.get(f"{turn}/context")).status_code == 403
    everybody = await server.client(server.token())
    assert (await everybody.get(f"{turn}/context")).json()["session"] == THEIRS
