"""All clients of a cluster at once, and the verdict on what they were told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from tests.cluster.agent_talk import AgentTalk
from tests.cluster.linearizability import Verdict, check_history, final_reading
from tests.cluster.operation_history import Reading
from tests.cluster.session_load import Servers, SessionLoad
from tests.cluster.stream_followers import Follower

#: What a client may be told while something is broken; all else is a fault.
EXPECTED_ERRORS = frozenset({"unavailable", "deadline_exceeded"})
#: Of the operations of clients, the share that has to end ok, whatever is broken.
LEAST_OK = 0.8


class LoadReport(msgspec.Struct, kw_only=True):
    #: How the operations of clients ended: ok, failed (a read), or unknown.
    outcomes: dict[str, int]
    verdict: Verdict
    messages: int
    #: Seconds that the slowest answer of an agent took.
    slowest_answer: float
    agents_wrong: list[str]
    #: Large answers, and which of them are not what they were.
    artifacts: int
    artifacts_wrong: list[str]
    streams_wrong: list[str]
    stream_breaks: int
    errors: dict[str, int]

    @property
    def problems(self) -> list[str]:
        ok, began = self.outcomes["ok"], sum(self.outcomes.values())
        few = [f"{ok} of {began} operations ended ok"] if ok < max(1, LEAST_OK * began) else []
        odd = {code: n for code, n in self.errors.items() if code not in EXPECTED_ERRORS}
        return [
            *few,
            *self.verdict.problems,
            *(f"agent: {what}" for what in self.agents_wrong),
            *(f"artifact: {what}" for what in self.artifacts_wrong),
            *(f"stream: {what}" for what in self.streams_wrong),
            *(f"error: {code}, {n} times" for code, n in odd.items()),
        ]


class ClusterLoad:
    """Clients of sessions, of agents, and followers of streams."""

    def __init__(
        self,
        servers: Servers,
        agents: list[str],
        *,
        clients: int,
        sessions: int,
        length: int,
        patience: float,
        followers: int,
    ) -> None:
        self.servers = servers
        self.sessions = SessionLoad(
            servers, clients=clients, sessions=sessions, length=length, patience=patience
        )
        self.talk = AgentTalk(servers, agents)
        self.followers = [Follower(servers, number) for number in range(followers)]
        self._following = AsyncExitStack()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """At the end all calls are over; followers go on until `finish`."""
        for follower in self.followers:
            await self._following.enter_async_context(follower.running())
        try:
            async with self.sessions.running(), self.talk.running():
                yield
        except BaseException:
            await self._following.aclose()
            raise

    async def finish(self, seconds: float) -> LoadReport:
        """Read and compare everything, when no fault is left. Followers get so long to catch up."""
        history = self.sessions.history
        outcomes = history.outcomes()
        await self.sessions.read_all()
        whole = {
            name: final_reading(calls) or Reading(1, 0) for name, calls in history.sessions.items()
        }
        shared = {
            each.fork: each.turn
            for calls in history.sessions.values()
            for each in calls
            if each.kind == "fork"
        }
        streams = list[str]()
        for number, follower in enumerate(self.followers):
            try:
                async with asyncio.timeout(seconds):
                    await follower.until_complete(whole, shared)
            except TimeoutError:
                missing = follower.missing(whole, shared)
                streams.append(f"follower {number} misses, {len(missing)} times, {missing[:3]}")
            streams += follower.wrong
        await self._following.aclose()
        return LoadReport(
            outcomes=outcomes,
            verdict=await asyncio.to_thread(check_history, history.sessions),
            messages=self.talk.count,
            slowest_answer=max(self.talk.took, default=0.0),
            agents_wrong=await self.talk.audit(),
            artifacts=len(self.sessions.large),
            artifacts_wrong=await self.sessions.unreadable(),
            streams_wrong=streams,
            stream_breaks=sum(each.breaks + each.skips for each in self.followers),
            errors=dict(self.servers.errors),
        )
