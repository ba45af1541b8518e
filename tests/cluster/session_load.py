"""Clients that append, read, undo and fork, over any server of a cluster, and note what they did.

A client goes on with one server until that fails it, then with the next. What it was told to be
safe it tries again: an append with a key, an undo, a fork. Of other appends it does not know.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

import perdure
from perdure.core.errors import error_code
from perdure.core.messages import assistant, user
from perdure.core.turns import Turn
from perdure.remote.api_client import ApiClient
from perdure.remote.api_results import AppendedTurns, TurnPage, UndoneNumbers
from perdure.sessions.session_info import SessionInfo
from tests.cluster.operation_history import (
    AUDITOR,
    History,
    Operation,
    Reading,
    words_of_turn,
)

AGENT = "loads"
#: Turns that a read asks for; the last read of a session asks for all.
_WINDOW = 20
_PAGE = 1_000
#: Of 100 calls, the others are reads.
_APPENDS, _UNDOS, _FORKS = 42, 6, 1
#: Appends that have no key, of 100; and one of so many says more than a row of the bank holds.
_KEYLESS = 15
_LARGE = 100
_LARGE_SIZE = 600 << 10
#: Seconds in which some call has to end ok, whatever is broken.
_STANDSTILL = 300.0


class Servers:
    """The servers of a cluster, as a proxy in front of them would know them."""

    def __init__(self, urls: list[str], token: str, timeout: float) -> None:
        self._apis = [ApiClient(url, token, timeout) for url in urls]
        self._urls, self._token = urls, token
        #: How often calls failed, by the code of the error.
        self.errors = Counter[str]()

    def __len__(self) -> int:
        return len(self._apis)

    def api(self, number: int) -> ApiClient:
        return self._apis[number % len(self._apis)]

    def address(self, number: int) -> tuple[str, str]:
        return self._urls[number % len(self._urls)], self._token

    async def close(self) -> None:
        for api in self._apis:
            await api.close()


class _LoadedSession(msgspec.Struct, eq=False):
    name: str
    #: Calls until it is left alone, and read as a whole at the end.
    left: int
    #: Turns that a client may undo: of its own.
    own: dict[str, list[int]] = {}


class SessionLoad:
    """`clients` tasks over `sessions` sessions at a time, until `calls` calls were made."""

    def __init__(
        self, servers: Servers, *, clients: int, sessions: int, length: int = 300, patience: float
    ) -> None:
        self.servers = servers
        self.history = History()
        #: Acknowledged turns whose answer lies in the artifact store: session, number, text.
        self.large: list[tuple[str, int, str]] = []
        #: Seconds for which one call is tried again.
        self._patience = patience
        self._length, self._wanted = length, sessions
        self._live: list[_LoadedSession] = []
        self._names = 0
        self._stopping = False
        self._clients = clients

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Clients call; at the end each goes on until its last call is over."""
        self._live = [await self._new() for _ in range(self._wanted)]
        tasks = [
            asyncio.create_task(self._drive(f"client-{number}", number), name=f"load-{number}")
            for number in range(self._clients)
        ]
        try:
            yield
            self._stopping = True
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, calls: int) -> None:
        """Wait until so many more calls have ended ok."""
        goal = self.history.count + calls
        while (count := self.history.count) < goal:
            async with asyncio.timeout(_STANDSTILL):
                while self.history.count == count:  # noqa: ASYNC110  # many count
                    await asyncio.sleep(0.01)

    async def read_all(self) -> None:
        """Read every session as a whole: when all is quiet, and no server is away."""
        for number, name in enumerate(list(self.history.sessions)):
            operation = self.history.begin("read", name, AUDITOR)
            try:
                operation.seen = await self._whole(self.servers.api(number), name)
            except perdure.NotFound:
                self.history.end(operation, "failed")
            else:
                self.history.end(operation, "ok")

    async def unreadable(self) -> list[str]:
        """Large answers that are not what was acknowledged."""
        found = list[str]()
        for number, (name, turn, text) in enumerate(self.large):
            api = self.servers.api(number)
            try:
                read = await api.get(f"{_path(name)}/turns/T-{turn}", Turn, resolve=True)
            except (perdure.NotFound, perdure.ArtifactMissing) as exc:
                found.append(f"{name}: the answer of T-{turn} is gone: {exc}")
                continue
            if read.messages[-1].text != _long_answer(text):
                found.append(f"{name}: the answer of T-{turn} is another")
        return found

    # ------------------------------------------------------------------------------------------

    async def _new(self) -> _LoadedSession:
        self._names += 1
        name = f"{AGENT}/s{self._names}"
        for tried in range(100):
            try:
                await self.servers.api(tried).call("POST", "/sessions", SessionInfo, {"name": name})
                break
            except perdure.PerdureError as exc:
                self._note(exc)
                await asyncio.sleep(0.5)
        self.history.sessions[name] = []
        return _LoadedSession(name, self._length)

    async def _drive(self, client: str, server: int) -> None:
        dice = random.Random(server)
        while not self._stopping:
            if not self._live:  # the next one is being made
                await asyncio.sleep(0.05)
                continue
            session = dice.choice(self._live)
            session.left -= 1
            if session.left == 0 and session in self._live:
                self._live.remove(session)
                if len(self._live) < self._wanted:
                    self._live.append(await self._new())
            rolled = dice.randrange(100)
            own = session.own.setdefault(client, [])
            if rolled < _APPENDS:
                server = await self._append(session, client, server, dice)
            elif rolled < _APPENDS + _UNDOS and own:
                server = await self._undo(session, client, server, own.pop())
            elif rolled < _APPENDS + _UNDOS + _FORKS and own:
                server = await self._fork(session, client, server, dice, own)
            else:
                server = await self._read(session, client, server)

    async def _append(
        self, session: _LoadedSession, client: str, server: int, dice: random.Random
    ) -> int:
        text = f"{client} says {self.history.began}"
        keyless = dice.randrange(100) < _KEYLESS
        is_large = not dice.randrange(_LARGE)
        answer = _long_answer(text) if is_large else f"Noted: {text}."
        words = words_of_turn([user(text), assistant(answer)])
        operation = self.history.begin("append", session.name, client, text=words)
        said = [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        body = {"messages": said, "fresh": True, "key": None if keyless else text}

        async def append(api: ApiClient) -> None:
            path = f"{_path(session.name)}/turns"
            found = await api.call("POST", path, AppendedTurns, body)
            operation.turn = found.turns[0].number

        server = await self._see_through(operation, append, server, again=not keyless)
        if operation.outcome == "ok":
            session.own[client].append(operation.turn)
            if is_large:
                self.large.append((session.name, operation.turn, text))
        return server

    async def _undo(self, session: _LoadedSession, client: str, server: int, turn: int) -> int:
        operation = self.history.begin("undo", session.name, client, turn=turn)

        async def undo(api: ApiClient) -> None:
            await api.call(
                "POST", f"{_path(session.name)}/undo", UndoneNumbers, {"numbers": [turn]}
            )

        return await self._see_through(operation, undo, server, again=True)

    async def _fork(
        self,
        session: _LoadedSession,
        client: str,
        server: int,
        dice: random.Random,
        own: list[int],
    ) -> int:
        self._names += 1
        name, at = f"{AGENT}/f{self._names}", None if dice.random() < 0.5 else dice.choice(own)
        operation = self.history.begin(
            "fork", session.name, client, fork=name, turn=at or 0, at_newest=at is None
        )

        tries = 0

        async def fork(api: ApiClient) -> None:
            nonlocal tries
            tries += 1
            body = {"name": name, "at": None if at is None else f"T-{at}"}
            try:
                await api.call("POST", f"{_path(session.name)}/forks", SessionInfo, body)
            except perdure.Conflict as exc:
                if tries == 1 or exc.key != name:
                    raise
                # The try before did it.
            if at is None:
                info = await api.get(_path(name), SessionInfo)
                operation.turn = info.forked_at or 0

        server = await self._see_through(operation, fork, server, again=True)
        if operation.outcome == "ok":
            self.history.sessions[name] = []
            self._live.append(_LoadedSession(name, self._length // 10))
        return server

    async def _read(self, session: _LoadedSession, client: str, server: int) -> int:
        operation = self.history.begin("read", session.name, client)

        async def read(api: ApiClient) -> None:
            path = f"{_path(session.name)}/turns"
            page = await api.get(path, TurnPage, limit=_WINDOW, undone=True)
            operation.seen = _reading(page.turns)

        return await self._see_through(operation, read, server, again=False)

    async def _see_through(
        self,
        operation: Operation,
        call: Callable[[ApiClient], Awaitable[None]],
        server: int,
        *,
        again: bool,
    ) -> int:
        """Make a call until its outcome is known. Returns the server to go on with."""
        until = time.monotonic() + self._patience
        while True:
            try:
                await call(self.servers.api(server))
            except perdure.PerdureError as exc:
                self._note(exc)
                server += 1
                if not again or time.monotonic() > until:
                    self.history.end(operation, "failed" if operation.kind == "read" else "unknown")
                    await asyncio.sleep(0.2)
                    return server
                await asyncio.sleep(0.2)
            else:
                self.history.end(operation, "ok")
                return server

    async def _whole(self, api: ApiClient, name: str) -> Reading:
        turns, before = list[Turn](), None
        while True:
            page = await api.get(
                f"{_path(name)}/turns", TurnPage, limit=_PAGE, undone=True, before=before
            )
            turns, before = [*page.turns, *turns], page.before
            if before is None:
                return _reading(turns)

    def _note(self, exc: perdure.PerdureError) -> None:
        self.servers.errors[error_code(type(exc))] += 1


def _long_answer(text: str) -> str:
    return f"{text}. " * (_LARGE_SIZE // len(text))


def _path(session: str) -> str:
    return f"/sessions/{session}"


def _reading(turns: list[Turn]) -> Reading:
    if not turns:
        return Reading(1, 0)
    return Reading(
        turns[0].number,
        turns[-1].number,
        {turn.number: words_of_turn(turn.messages) for turn in turns},
        frozenset(turn.number for turn in turns if turn.status == "undone"),
    )
