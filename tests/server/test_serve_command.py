"""``perdure serve`` as people start and stop it."""

from __future__ import annotations

import asyncio
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

import perdure
from perdure.cli.serve_commands import _announce
from perdure.server.http_server import HttpServer
from perdure.testing import ScriptedFault, ScriptedModel
from tests.server.conftest import RunningServer
from tests.server.serve_process import PERDURE, ServeProcess, environment
from tests.waiting import until

BODY = {"model": "any", "messages": [{"role": "user", "content": "Hi!"}]}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_from_its_first_line_to_its_end(number: signal.Signals, tmp_path: Path) -> None:
    with ServeProcess(tmp_path).start() as served:
        assert httpx2.get(f"{served.url}/readyz").json() == {"status": "ready"}
        token = served.log_in()
        headers = {"authorization": f"Bearer {token}"}
        answer = httpx2.get(f"{served.url}/openapi.json", headers=headers)
        assert answer.json()["info"]["title"] == "Perdure"
        # The proxy's own token opens nothing else.
        proxy_token = served.proxy.rpartition("/")[2]
        headers = {"x-perdure-token": proxy_token}
        assert httpx2.get(f"{served.url}/openapi.json", headers=headers).status_code == 403
        served.signal(number)
        assert served.ended() == (0, "")


def test_what_it_prints_can_be_done(tmp_path: Path) -> None:
    """The line for curl, as a shell would take it."""
    with subprocess.Popen(
        [*PERDURE, "serve", "--port", "0"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline().rstrip() for _ in range(8)]
            url = lines[0].removeprefix("Serving on ")
            assert lines[2].startswith(f"  {url}/#code=")
            curl, address, _, header, _, body = shlex.split(lines[4])
            assert (curl, address) == ("curl", f"{url}/api/v1/login")
            name, _, value = header.partition(": ")
            answer = httpx2.post(address, content=body, headers={name: value})
            headers = {"authorization": f"Bearer {answer.json()['token']}"}
            assert httpx2.get(f"{url}/api/v1/sessions", headers=headers).status_code == 200
            assert lines[6].startswith(f"  {url}/t/pd_")
            assert lines[7].startswith("Tokens that last: perdure token make")
            process.terminate()
            assert process.communicate()[1].startswith("Stopping. What is under way has 10 seconds")
        finally:
            process.kill()


async def test_a_client_of_the_proxy(tmp_path: Path) -> None:
    async with ScriptedModel("Hello.") as model:
        served = ServeProcess(tmp_path, "--upstream", f"openai={model.url}")
        with await asyncio.to_thread(served.start):
            async with httpx2.AsyncClient(timeout=100) as client:
                answer = await client.post(f"{served.proxy}/v1/chat/completions", json=BODY)
            assert answer.json()["choices"][0]["message"]["content"] == "Hello."


def test_what_was_acknowledged_is_there_after_a_stop(tmp_path: Path) -> None:
    with ServeProcess(tmp_path).start() as served:
        headers = {"x-perdure-token": served.log_in()}
        with httpx2.Client(base_url=served.url, headers=headers) as client:
            client.post("/api/v1/sessions", json={"name": "ada/notes"}).raise_for_status()
            for number in range(20):
                said = {"messages": [{"role": "user", "content": f"Say {number}."}]}
                answer = client.post("/api/v1/sessions/ada/notes/turns", json=said)
                assert answer.status_code in {200, 201}, answer.text
            served.signal(signal.SIGTERM)
        assert served.ended() == (0, "")

    async def kept() -> int:
        async with perdure.open(f"sqlite:///{tmp_path / 'bank.db'}") as bank:
            session = await bank.existing_session("ada/notes")
            return len(await session.turns(limit=100))

    assert asyncio.run(kept()) == 20


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """The first one waits for a request that its provider never answers."""
    async with ScriptedModel(ScriptedFault(how="hang")) as model:
        served = ServeProcess(
            tmp_path, "--upstream", f"openai={model.url}", PERDURE_SERVER_GRACE="1000"
        )
        with await asyncio.to_thread(served.start):
            async with httpx2.AsyncClient(timeout=100) as client:
                asking = asyncio.create_task(
                    client.post(f"{served.proxy}/v1/chat/completions", json=BODY)
                )
                await until(lambda: model.requests)
                served.signal(signal.SIGTERM)
                await asyncio.to_thread(_wait_until_refused, served.port)
                assert served.process.poll() is None
                served.signal(signal.SIGTERM)
                code, _ = await asyncio.to_thread(served.ended)
                assert code == -signal.SIGTERM
                with pytest.raises(httpx2.HTTPError):
                    await asking


def _wait_until_refused(port: int) -> None:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            return
        time.sleep(0.01)
    raise TimeoutError


async def test_all_addresses(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    """It tells where others reach it, and that they could read along."""
    with socket.socket() as bound, socket.socket() as other:
        bound.bind(("0.0.0.0", 0))  # which listens to nobody
        opened = HttpServer(server.app, bound)
        _announce(opened, as_json=False)
        out, err = capsys.readouterr()
        assert "traffic is not encrypted" in err
        assert out.startswith(f"Serving on http://127.0.0.1:{opened.port}\n")
        if opened.outer_url:  # there is a way to others
            other.bind((urlsplit(opened.outer_url).hostname, 0))  # an address of this machine
        assert (f"For other machines: {opened.outer_url}\n" in out) is bool(opened.outer_url)
    _announce(server.http, as_json=False)
    out, err = capsys.readouterr()
    assert not err
    assert "other machines" not in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--host", "0.0.0.0", "--port", "0"], "perdure: Others can reach 0.0.0.0, and this bank"),
        (["--host", "192.0.2.1"], "perdure: 192.0.2.1 is no address of this machine."),
        (["--port", "TAKEN"], "cannot be listened on"),
        (["--port", "0", "--upstream", "openai=ftp://x"], "is not anthropic=URL or openai=URL"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_cannot_be_served(options: list[str], says: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = [port if option == "TAKEN" else option for option in options]
        done = subprocess.run(
            [*PERDURE, "serve", *given],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode in {1, 2}
    assert not done.stdout
    assert says in done.stderr
    assert "Traceback" not in done.stderr
