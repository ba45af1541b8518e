"""What worker processes do with agents; see `zygote`.

A job is a message whose text is its name. The scripted model answers each with two tool calls, then
with words: `bump`, which must not be run twice, and `note`, which may. Tools write what they do to
a journal that nothing can take back.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec

import perdure
import perdure.agents.agent_opening
import perdure.sessions.model_conversation  # imported before the first fork
from perdure.agents.agent import Agent
from perdure.bank import Bank
from perdure.config import (
    AgentsConfig,
    Config,
    GatewayConfig,
    MetricsConfig,
    ModelsConfig,
    ProviderConfig,
    RecallConfig,
)
from perdure.core.errors import LeaseLost
from perdure.core.messages import ToolCall
from perdure.testing.model import ReceivedRequest, ScriptedAnswer, ScriptedModel

Tell: TypeAlias = Callable[[str], None]
NAME = "worker"
_JOB = re.compile(r"job ([a-z]+\d*\.\d+)").findall


class Sum(msgspec.Struct, frozen=True):
    total: int = 0


def answers(request: ReceivedRequest) -> ScriptedAnswer:
    """By what stands last in the request: a job, or the results of its tools."""
    last = request.messages[-1]
    said = "\n".join(each.text for each in request.messages if each.role == "user")
    job = _JOB(said)[-1]
    if not last.results:
        given = msgspec.json.encode({"job": job}).decode()
        made = (ToolCall("c1", "bump", given), ToolCall("c2", "note", given))
        return ScriptedAnswer("", made, delay=random.uniform(0, 0.01))
    return ScriptedAnswer(f"did {job}", delay=random.uniform(0, 0.01))


class ModelThread:
    """A scripted model that answers while the test waits for processes."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._model = ScriptedModel(answers)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return self._model.url

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._model.__aenter__(), self._loop).result(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(
            self._model.__aexit__(None, None, None), self._loop
        ).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


def bank_at(url: str, server: str, lease: float = 30.0) -> Bank:
    config = Config(
        gateway=GatewayConfig(
            providers={"p": ProviderConfig(base_url=server)},
            models=ModelsConfig(chat="p/m"),
        ),
        agents=AgentsConfig(lease=lease, poll=0.05),
        recall=RecallConfig(on=False),
        metrics=MetricsConfig(publish_every=0),
    )
    return Bank(url, config=config)


class Journal:
    """What tools did, in a file to which whole lines are added."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def write(self, *words: object) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, (" ".join(map(str, words)) + "\n").encode())
        os.close(file)

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []


async def opened(bank: Bank, journal: Journal, pause: float) -> Agent:
    agent: Agent | None = None

    async def bump(job: str) -> str:
        journal.write("begin", job)
        await asyncio.sleep(random.uniform(0, pause))
        assert agent is not None
        try:
            await agent.state.change(lambda found: Sum(found.total + 1))
        except LeaseLost:
            journal.write("refused", job)
            raise
        journal.write("changed", job)
        await asyncio.sleep(random.uniform(0, pause))
        journal.write("end", job)
        return f"bumped {job}"

    @perdure.tool(idempotent=True)
    async def note(job: str) -> str:
        await asyncio.sleep(random.uniform(0, pause))
        journal.write("noted", job)
        return f"noted {job}"

    agent = await bank.agent(NAME, prompt="You work.", tools=[bump, note], state=Sum)
    return agent


async def work(
    tell: Tell,
    url: str,
    *,
    server: str,
    journal: str,
    name: str,
    jobs: int,
    lease: float = 30.0,
    pause: float = 0.01,
) -> None:
    """Send jobs in two conversations; tell each that was accepted. Then wait for all there are."""
    async with bank_at(url, server, lease) as bank:
        agent = await opened(bank, Journal(journal), pause)
        tell("ready")
        for number in range(jobs):
            job = f"{name}.{number}"
            session = f"s{number % 2}"
            await agent.send(f"job {job}", key=job, session=session)
            tell(job)
            await asyncio.sleep(random.uniform(0, 0.02))
        for each in await agent.messages(limit=100_000):
            found = await bank.agents.wait(each.id)
            if found.state == "parked":  # on a slow machine many are killed before any progress
                assert "processes ended" in found.error, found.error
                await agent.retry(found.id)
                await bank.agents.wait(found.id)
        tell("over")


TASKS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"agent": work}
