"""A client of ``/api/v1/live`` that keeps what it heard, as a front end would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.server.conftest import RunningServer

Event = dict[str, Any]


class LiveClient:
    """One socket, and everything it heard."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.heard: list[Event] = []
        self._read = 0

    async def say(self, type: str, id: str = "a", **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": type, "id": id, **fields}))

    async def next(self) -> Event:
        """The next event that no `until` has passed."""
        while self._read >= len(self.heard):
            async with asyncio.timeout(30):
                self.heard.append(json.loads(await self.socket.recv()))
        self._read += 1
        return self.heard[self._read - 1]

    async def until(self, type: str, matches: Callable[[Event], object] = lambda _: True) -> Event:
        while True:
            event = await self.next()
            if event["type"] == type and matches(event):
                return event

    async def subscribe(self, id: str = "a", **fields: Any) -> Any:
        """Returns the cursor from which it is live."""
        await self.say("subscribe", id, **fields)
        return (await self.until("live", lambda event: event["id"] == id))["cursor"]

    def turns(self) -> list[tuple[str, int, int]]:
        """What it heard of turns: session, cursor, turn."""
        return [(e["session"], e["cursor"], e["turn"]) for e in self.heard if e["type"] == "turn"]

    def kinds(self) -> set[tuple[str, str | None]]:
        return {(event["type"], event.get("state")) for event in self.heard}

    def answer(self, turn: int) -> str:
        """The text of an answer, put together from what it heard as documented."""
        parts: dict[int, str] = {}
        for event in self.heard:
            if event.get("turn") != turn:
                continue
            if event["type"] == "answer" and event["state"] == "arriving":
                there = event.get("message", {}).get("parts", [])
                parts = {n: part.get("text", "") for n, part in enumerate(there)}
            elif event["type"] == "delta":
                part = event.get("part", 0)
                assert event.get("at", 0) == len(parts.get(part, ""))
                parts[part] = parts.get(part, "") + event.get("text", "")
        return "".join(parts.values())


@asynccontextmanager
async def listening(
    server: RunningServer, token: str | None = None, **settings: Any
) -> AsyncIterator[LiveClient]:
    headers = {"authorization": f"Bearer {token or server.token()}"}
    url = f"{server.url.replace('http', 'ws', 1)}/api/v1/live"
    async with connect(url, additional_headers=headers, max_size=None, **settings) as socket:
        yield LiveClient(socket)
