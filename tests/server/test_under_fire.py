"""Many clients, slow clients, a server that is killed: nothing that was said is lost or doubled."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect

import perdure
from perdure.testing import ReceivedRequest, ScriptedAnswer, ScriptedFault, ScriptedModel
from tests.server.chat_client import ChatClient
from tests.server.conftest import RunningServer
from tests.server.serve_process import ServeProcess
from tests.waiting import until

#: So long that no test sees its end.
ENDLESS = ScriptedAnswer("word " * 5_000, chunk=20, chunk_delay=0.02)


@asynccontextmanager
async def served(
    folder: Path, model: ScriptedModel, **variables: str
) -> AsyncIterator[ServeProcess]:
    """``perdure serve`` in front of a model."""
    process = ServeProcess(folder, "--upstream", f"openai={model.url}", **variables)
    with await asyncio.to_thread(process.start):
        yield process


async def recorded(folder: Path, session: str) -> list[tuple[str, str]]:
    """What was said in a session, when nobody serves the bank."""
    async with perdure.open(f"sqlite:///{folder / 'bank.db'}") as bank:
        turns = await (await bank.existing_session(session)).turns(limit=1_000)
        return [
            (message.role, message.text)
            for turn in turns
            for round in turn.rounds
            for message in round.messages
        ]


# Many -----------------------------------------------------------------------------------------


async def test_clients_at_the_same_time(tmp_path: Path) -> None:
    await talk_at_once(tmp_path, clients=25, seconds=0, least=3)


@pytest.mark.slow
async def test_200_clients_for_a_minute(tmp_path: Path) -> None:
    await talk_at_once(tmp_path, clients=200, seconds=60, least=2)


async def talk_at_once(folder: Path, *, clients: int, seconds: float, least: int) -> None:
    """Each has a conversation of its own. Every word of it is in the bank, once and in order."""

    def answer(request: ReceivedRequest) -> ScriptedAnswer:
        return ScriptedAnswer(f"You said: {request.prompt} " * 5, chunk=12, chunk_delay=0.005)

    deadline = time.monotonic() + seconds
    limits = httpx2.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with (
        ScriptedModel(answer) as model,
        served(folder, model) as process,
        httpx2.AsyncClient(timeout=200, limits=limits) as http,
    ):

        async def talk(number: int) -> ChatClient:
            client = ChatClient(http, process.proxy, f"fire/{number}")
            said = 0
            while said < least or time.monotonic() < deadline:
                said += 1
                prompt = f"Say {number} for the {said}. time."
                assert await client.say(prompt) == f"You said: {prompt} " * 5
            return client

        talked = await asyncio.gather(*map(talk, range(clients)))
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.ended) == (0, "")
    for client in talked:
        assert await recorded(folder, client.session) == client.said


async def test_many_sockets(server: RunningServer) -> None:
    await open_sockets(server, 60)


@pytest.mark.slow
async def test_a_thousand_sockets(server: RunningServer) -> None:
    await open_sockets(server, 1_000)


async def open_sockets(server: RunningServer, count: int) -> None:
    """All of them hear of a turn, and the server answers others meanwhile."""
    session = await server.bank.session("ada/notes")
    url = f"ws{server.url.removeprefix('http')}/api/v1/live"
    headers = {"x-perdure-token": server.token()}
    sockets = list[ClientConnection]()
    try:
        for start in range(0, count, 50):
            sockets += await asyncio.gather(
                *(
                    connect(url, additional_headers=headers, proxy=None, open_timeout=100)
                    for _ in range(start, min(start + 50, count))
                )
            )
        for socket in sockets:
            await socket.send('{"type": "subscribe", "id": "1", "session": "ada/notes"}')
        for socket in sockets:
            while '"live"' not in await socket.recv():
                pass
        await session.append("Which port?")
        heard = [await _hear_of(socket, "Which port?") for socket in sockets]
        assert all(heard)
        assert (await (await server.client()).get("/readyz")).status_code == 200
    finally:
        await asyncio.gather(*(socket.close() for socket in sockets))


async def _hear_of(socket: ClientConnection, text: str) -> bool:
    async with asyncio.timeout(100):
        while text not in str(await socket.recv()):
            pass
    return True


# Slow -----------------------------------------------------------------------------------------


async def test_a_client_that_does_not_read_holds_up_nobody_and_fills_no_memory(
    tmp_path: Path,
) -> None:
    """Its provider waits, too: what it sends stays where it is."""
    huge = "0123456789abcdef" * 65_536  # a megabyte
    many = ScriptedAnswer(huge * 48, chunk=65_536)

    def answer(request: ReceivedRequest) -> ScriptedAnswer:
        return many if request.prompt == "Everything." else ScriptedAnswer("Yes.")

    async with (
        ScriptedModel(answer) as model,
        served(tmp_path, model, PERDURE_RECALL_ON="false") as process,  # it would load an embedder
        httpx2.AsyncClient(timeout=100) as http,
    ):
        other = ChatClient(http, process.proxy, "fire/other")
        assert await other.say("Are you there?") == "Yes."
        await _wait_for_tokens(http, process, other.session)  # the tokenizer takes 70 MB
        server = psutil.Process(process.process.pid)
        before = server.memory_info().rss
        slow = ChatClient(http, process.proxy, "fire/slow")
        pieces = slow.pieces("Everything.")
        first = len(await anext(pieces)) + len(await anext(pieces))
        for number in range(20):
            assert await other.say(f"And now, {number}?") == "Yes."
        assert server.memory_info().rss - before < 24 << 20
        # It gets all of it in the end, 48 MB.
        arrived = first + sum([len(piece) async for piece in pieces])
        assert arrived == len(huge) * 48


async def _wait_for_tokens(http: httpx2.AsyncClient, process: ServeProcess, session: str) -> None:
    headers = {"x-perdure-token": await asyncio.to_thread(process.log_in)}
    async with asyncio.timeout(100):
        while True:
            answer = await http.get(f"{process.url}/api/v1/sessions/{session}", headers=headers)
            if answer.json().get("tokens"):
                return
            await asyncio.sleep(0.02)


# Stopped and killed ---------------------------------------------------------------------------


async def test_a_server_that_is_killed_leaves_what_had_arrived(tmp_path: Path) -> None:
    async with (
        ScriptedModel(ENDLESS) as model,
        served(tmp_path, model, PERDURE_HISTORY_HEARTBEAT="0.05") as process,
        httpx2.AsyncClient(timeout=100) as http,
    ):
        clients = [ChatClient(http, process.proxy, f"fire/{number}") for number in range(5)]
        reading = [asyncio.create_task(client.say("Tell me.")) for client in clients]
        token = await asyncio.to_thread(process.log_in)
        for client in clients:
            await _wait_for_draft(http, process, token, client.session)
        process.signal(signal.SIGKILL)
        await asyncio.to_thread(process.ended)
        for broken in await asyncio.gather(*reading, return_exceptions=True):
            assert isinstance(broken, httpx2.HTTPError)
    for client in clients:
        await _check_partial(tmp_path, client.session)


async def test_a_server_that_is_stopped_cuts_streams_after_its_grace_and_keeps_them(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedModel(ENDLESS) as model,
        served(
            tmp_path, model, PERDURE_HISTORY_HEARTBEAT="0.05", PERDURE_SERVER_GRACE="1"
        ) as process,
        httpx2.AsyncClient(timeout=100) as http,
    ):
        client = ChatClient(http, process.proxy, "fire/1")
        reading = asyncio.create_task(client.say("Tell me."))
        token = await asyncio.to_thread(process.log_in)
        await _wait_for_draft(http, process, token, client.session)
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.ended) == (0, "")
        with pytest.raises(httpx2.HTTPError):
            await reading
    await _check_partial(tmp_path, client.session)


async def test_a_server_that_is_stopped_lets_a_short_answer_end(tmp_path: Path) -> None:
    async with (
        ScriptedModel(
            ScriptedAnswer("It goes on for a little while.", chunk=4, chunk_delay=0.1)
        ) as model,
        served(tmp_path, model, PERDURE_SERVER_GRACE="1000") as process,
        httpx2.AsyncClient(timeout=100) as http,
    ):
        client = ChatClient(http, process.proxy, "fire/1")
        reading = asyncio.create_task(client.say("Tell me."))
        await until(lambda: model.requests)
        process.signal(signal.SIGTERM)
        assert await reading == "It goes on for a little while."
        assert await asyncio.to_thread(process.ended) == (0, "")
    assert await recorded(tmp_path, "fire/1") == client.said


async def test_a_provider_that_hangs_keeps_no_server_from_stopping(tmp_path: Path) -> None:
    async with (
        ScriptedModel(ScriptedFault(how="hang")) as model,
        served(tmp_path, model, PERDURE_SERVER_GRACE="1") as process,
        httpx2.AsyncClient(timeout=100) as http,
    ):
        client = ChatClient(http, process.proxy, "fire/1")
        reading = asyncio.create_task(client.say("Are you there?"))
        await until(lambda: model.requests)
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.ended) == (0, "")
        with pytest.raises(httpx2.HTTPStatusError) as refused:
            await reading
        assert refused.value.response.status_code == 503
    assert await recorded(tmp_path, "fire/1") == [("user", "Are you there?")]


async def _wait_for_draft(
    http: httpx2.AsyncClient, process: ServeProcess, token: str, session: str
) -> None:
    url = f"{process.url}/api/v1/sessions/{session}/partials"
    async with asyncio.timeout(100):
        while True:
            answer = await http.get(url, headers={"x-perdure-token": token})
            if answer.status_code == 200 and "word word" in answer.text:
                return
            await asyncio.sleep(0.02)


async def _check_partial(folder: Path, session: str) -> None:
    async with perdure.open(f"sqlite:///{folder / 'bank.db'}") as bank:
        found = await bank.existing_session(session)
        (partial,) = await found.partials()
        assert partial.message.text.startswith("word word word")
        (turn,) = await found.turns()
        assert turn.prompt == "Tell me."


async def test_a_client_that_leaves_while_it_asks_is_no_fault_of_ours(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    await server.bank.session("ada/x")
    before = asyncio.all_tasks()
    _, writer = await asyncio.open_connection("127.0.0.1", server.http.port)
    head = (
        f"POST /api/v1/sessions/ada/x/turns HTTP/1.1\r\nhost: 127.0.0.1:{server.http.port}\r\n"
        f"authorization: Bearer {server.token()}\r\ncontent-type: application/json\r\n"
        'content-length: 100\r\n\r\n{"messages":'
    )
    writer.write(head.encode())
    await writer.drain()
    await until(lambda: asyncio.all_tasks() - before)  # it is being answered
    writer.close()
    await until(lambda: not asyncio.all_tasks() - before)
    assert [record for record in caplog.records if record.name.startswith("perdure")] == []
