"""``perdure worker`` as people start and stop it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path

import pytest

import perdure
from perdure.agents.episodes import Episode
from perdure.jobs import Job
from perdure.testing import ScriptedModel
from tests.cluster.conftest import StartWorker
from tests.server.serve_process import PERDURE, environment


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_from_its_first_line_to_its_end(
    number: signal.Signals, start_worker: StartWorker, postgres_url: str
) -> None:
    worker = start_worker("--bank", postgres_url, "--queues", "renditions,agents")
    assert worker.said["queues"] == ["renditions", "agents"]
    assert worker.said["concurrency"] == 4
    code, ended, said = worker.ended(number)
    assert (code, ended["done"], said) == (0, 0, "")


async def test_it_does_messages_and_jobs_of_others(
    start_worker: StartWorker, postgres_url: str
) -> None:
    """A message that was sent elsewhere, and the job that packs its episode."""
    async with ScriptedModel("Four.") as model:
        await asyncio.to_thread(
            start_worker, "--bank", postgres_url, PERDURE_MODEL_CHAT=f"{model.url}#any"
        )
        async with perdure.open(postgres_url) as bank:
            agent = await bank.agent("adder", prompt="You add.", serve=False)
            sent = await agent.send("What is two and two?")
            done = await bank.agents.wait(sent.id, deadline=100)
            assert (done.state, done.reply) == ("done", "Four.")
            async with asyncio.timeout(100):
                while not await _is_packed(bank):  # noqa: ASYNC110  # it happens elsewhere
                    await asyncio.sleep(0.05)


async def _is_packed(bank: perdure.Bank) -> bool:
    episodes = await bank.collection(Episode).query().values()
    waiting = await bank.collection(Job).query().values()
    return bool(episodes) and all(each.artifact for each in episodes) and not waiting


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "A worker shares the work of a bank on PostgreSQL, and this bank is not."),
        (("--bank", "postgresql://nobody@127.0.0.1:1/x"), "cannot be reached"),
        (("--bank", "postgresql://x", "--queues", "rendition"), "Did you mean renditions?"),
        (("--bank", "postgresql://x", "--queues", ","), "--queues names none."),
    ],
)
def test_what_cannot_work_is_one_line(
    options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [*PERDURE, "worker", *options],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert message in line
