"""Readers of live events that go on elsewhere when their server leaves them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from perdure.server.live_events import RoundSaid
from tests.cluster.operation_history import Reading, words_of_turn
from tests.cluster.session_load import AGENT, Servers

#: Seconds in which a server answers a ping; who is silent for longer is left.
_PING = 3.0
#: Seconds in which a server has to accept a connection, however busy it is.
_OPEN = 10.0
_BREAKS = (OSError, WebSocketException, TimeoutError, EOFError)


class Follower:
    """Hears all sessions of the load, on one server after the other, from where it was."""

    def __init__(self, servers: Servers, number: int) -> None:
        self._servers = servers
        self._server = number
        self._cursor: dict[str, Any] = {"time": 0, "sessions": {}}
        #: Texts of turns by session and number, and the cursors at which they were told.
        self.heard: dict[str, dict[int, str]] = {}
        self.undone: dict[str, set[int]] = {}
        #: What a stream must not do.
        self.wrong: list[str] = []
        #: How often it was told of a break, or that events were skipped.
        self.breaks = self.skips = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._follow(), name=f"follower-{self._server}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until_complete(self, sessions: dict[str, Reading], shared: dict[str, int]) -> None:
        """Wait until it has heard all that is there."""
        while self.missing(sessions, shared):  # noqa: ASYNC110  # there is no event
            await asyncio.sleep(0.1)

    def missing(self, sessions: dict[str, Reading], shared: dict[str, int]) -> list[str]:
        """What it has not heard, or otherwise than it is. The turns of a fork begin behind those
        that it shares.
        """
        found = list[str]()
        for name, reading in sessions.items():
            first = shared.get(name, 0) + 1
            own = {n: text for n, text in reading.texts.items() if n >= first}
            if (heard := self.heard.get(name, {})) != own:
                differ = {n for n in {*own, *heard} if own.get(n) != heard.get(n)}
                found.append(f"{name}: turns {sorted(differ)[:5]} of {len(own)}")
        return found

    async def _follow(self) -> None:
        while True:
            url, token = self._servers.address(self._server)
            try:
                async with connect(
                    f"{url.replace('http', 'ws', 1)}/api/v1/live",
                    additional_headers={"authorization": f"Bearer {token}"},
                    max_size=None,
                    open_timeout=_OPEN,
                    ping_interval=_PING,
                    ping_timeout=_PING,
                    close_timeout=1,
                ) as socket:
                    await self._listen(socket)
            except _BREAKS:
                self.breaks += 1
            self._server += 1
            await asyncio.sleep(0.2)

    async def _listen(self, socket: Any) -> None:
        asked = {"type": "subscribe", "id": "f", "agent": AGENT, "topics": ["turns"]}
        await socket.send(json.dumps(asked | {"after": self._cursor}))
        async for text in socket:
            event = json.loads(text)
            match event["type"]:
                case "live":
                    self._cursor = event["cursor"]
                case "turn":
                    self._hear(event)
                case "skipped":
                    self.skips += 1
                    for name, skip in event.get("turns", {}).items():
                        self._cursor["sessions"][name] = skip["after"]
                    return  # connect anew, from before what was skipped
                case "error":
                    self.breaks += 1
                    return  # the store is away, say

    def _hear(self, event: dict[str, Any]) -> None:
        name, cursor = event["session"], event["cursor"]
        before = self._cursor["sessions"].get(name, 0)
        if cursor <= before:
            self.wrong.append(f"{name}: cursor {cursor} came behind {before}")
        self._cursor["sessions"][name] = cursor
        rounds = msgspec.convert(event["rounds"], list[RoundSaid])
        text = words_of_turn(message for round in rounds for message in round.messages)
        known = self.heard.setdefault(name, {}).setdefault(event["turn"], text)
        if known != text:
            self.wrong.append(f"{name}: T-{event['turn']} was {known!r}, and then {text!r}")
