"""Clients that send messages to agents, over any server, until each has its answer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import perdure
from perdure.bank.bank import Bank
from perdure.core.errors import error_code
from perdure.remote.api_results import TurnPage
from perdure.server.agent_views import MessageView
from perdure.testing.model import ReceivedRequest
from tests.cluster.session_load import Servers

#: Seconds that a request waits for its answer, and pauses between two.
_WAIT, _PAUSE = 2.0, 0.1


def answer_of(message: str) -> str:
    """What a scripted model says to it."""
    return f"Heard: {message}"


def script(request: ReceivedRequest) -> str:
    return answer_of(request.prompt.splitlines()[-1])


async def make_agents(bank: Bank, count: int) -> list[str]:
    names = [f"talker-{number}" for number in range(count)]
    for name in names:
        await bank.agent(name, prompt="You listen.", serve=False)
    return names


class AgentTalk:
    """One client for each agent. A message is sent with a key until it is known to be done."""

    def __init__(self, servers: Servers, agents: list[str]) -> None:
        self._servers = servers
        self._agents = agents
        #: Messages that were answered, by agent, in the order in which they were sent.
        self.answered: dict[str, list[str]] = {agent: [] for agent in agents}
        #: What was answered wrongly.
        self.wrong: list[str] = []
        #: Seconds from the first try to the answer.
        self.took: list[float] = []
        self._stopping = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """At the end each client waits for its last answer."""
        tasks = [
            asyncio.create_task(self._drive(agent, number), name=f"talk-{agent}")
            for number, agent in enumerate(self._agents)
        ]
        try:
            yield
            self._stopping = True
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def count(self) -> int:
        return sum(map(len, self.answered.values()))

    async def _drive(self, agent: str, server: int) -> None:
        number = 0
        while not self._stopping:
            number += 1
            text, began = f"message {number} to {agent}", time.monotonic()
            body = {"message": text, "key": text, "mode": "wait", "deadline": _WAIT}
            while True:
                try:
                    api = self._servers.api(server)
                    found = await api.call("POST", f"/agents/{agent}/messages", MessageView, body)
                except perdure.PerdureError as exc:
                    self._servers.errors[error_code(type(exc))] += 1
                    server += 1
                    await asyncio.sleep(0.2)
                    continue
                if found.state == "done":
                    break
                if found.state not in {"accepted", "working"}:
                    self.wrong.append(f"{agent}: {text!r} is {found.state}: {found.error}")
                    break
            if found.state == "done" and found.reply != answer_of(text):
                self.wrong.append(f"{agent}: {text!r} was answered {found.reply!r}")
            self.answered[agent].append(text)
            self.took.append(time.monotonic() - began)
            await asyncio.sleep(_PAUSE)

    async def audit(self) -> list[str]:
        """What is wrong in mailboxes and sessions, when all is quiet: each message is there once,
        is done, and stands once in the agent's session, with one answer, in order.
        """
        wrong = list(self.wrong)
        for agent, sent in self.answered.items():
            api = self._servers.api(0)
            page = await api.get(f"/agents/{agent}/messages", list[MessageView], limit=1_000)
            times = Counter(each.message for each in page)
            wrong += [f"{agent}: {m!r} is there {n} times" for m, n in times.items() if n > 1]
            wrong += [f"{agent}: {m!r} is lost" for m in sent[-1_000:] if m not in times]
            session = next((each.session for each in page), "")
            turns, before = list[tuple[str, list[str]]](), None
            while session:
                read = await api.get(
                    f"/sessions/{agent}/{session.partition('/')[2] or session}/turns",
                    TurnPage,
                    limit=1_000,
                    before=before,
                )
                turns = [
                    *(
                        (t.prompt, [m.text for m in t.messages if m.role == "assistant"])
                        for t in read.turns
                    ),
                    *turns,
                ]
                before = read.before
                if before is None:
                    break
            if [prompt for prompt, _ in turns] != sent:
                said = [prompt for prompt, _ in turns]
                odd = [p for p in {*said, *sent} if said.count(p) != sent.count(p)]
                wrong.append(f"{agent}: {len(sent)} sent, {len(said)} said; differ: {odd[:3]}")
            wrong += [
                f"{agent}: {prompt!r} has the answers {answers}"
                for prompt, answers in turns
                if answers != [answer_of(prompt)]
            ]
        return wrong
