"""What an agent's program keeps: a struct of the user's, durable and versioned.

    class Counts(msgspec.Struct, frozen=True):
        routed: int = 0

    agent = await bank.agent("router", state=Counts)
    counts = await agent.state.get()
    await agent.state.change(lambda found: Counts(found.routed + 1))

No change is lost: `change` reads, applies and writes, and again if somebody else wrote in between.
Inside a tool it is written under the agent's lease: a process that lost it changes nothing. Fields
that are added later need defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from perdure.agents.agent_records import AgentStateRecord
from perdure.agents.agent_tools import current_run
from perdure.core.errors import Conflict, InvalidInput, InvalidValue
from perdure.storage.options import STRONG
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

S = TypeVar("S")


class AgentState(Generic[S]):
    """The state of one agent. `kind` is the struct or dataclass that it is; plain data without."""

    def __init__(self, store: Store, agent: str, kind: type[S]) -> None:
        self._store = store
        self._agent = agent
        self._kind = kind

    async def get(self) -> S:
        """As it is now; as the type makes it without arguments, if nothing was kept yet."""
        return self._read(await self._store.collection(AgentStateRecord).get(self._agent, STRONG))

    async def version(self) -> int:
        """How often it was changed."""
        found = await self._store.collection(AgentStateRecord).get(self._agent, STRONG)
        return 0 if found is None else found.version

    async def put(self, value: S, *, expected: int | None = None) -> int:
        """Keep a value; returns its version. Raises `Conflict` if the version is not the expected
        one, and `LeaseLost` inside a tool whose agent works elsewhere by now.
        """
        return (await self._write(lambda _: value, expected))[1]

    async def change(self, change: Callable[[S], S]) -> S:
        """Apply a function, which may be called several times; returns what is kept now."""
        return (await self._write(change, None))[0]

    async def _write(self, change: Callable[[S], S], expected: int | None) -> tuple[S, int]:
        async def body(transaction: Transaction) -> tuple[S, int]:
            run = current_run()
            if run is not None and run.context.agent == self._agent:
                await run.lease.check(transaction)
            states = transaction.collection(AgentStateRecord)
            found = await states.get(self._agent)
            version = 0 if found is None else found.version
            if expected is not None and expected != version:
                raise Conflict(
                    states.name,
                    self._agent,
                    message=f"The state of {self._agent} is at version {version}, not {expected}.",
                )
            value = change(self._read(found))
            record = AgentStateRecord(
                agent=self._agent,
                type=getattr(self._kind, "__name__", "dict"),
                version=version + 1,
                content=self._plain(value),
                changed=transaction.now(),
            )
            await states.put(record)
            transaction.emit("agent.state", {"version": version + 1}, key=self._agent)
            return value, version + 1

        if expected is None:
            return await self._store.transact(body)
        async with self._store.transaction() as transaction:
            return await body(transaction)

    def _read(self, found: AgentStateRecord | None) -> S:
        try:
            if found is None:
                return self._kind()
            return msgspec.convert(found.content, self._kind)
        except (msgspec.ValidationError, TypeError) as exc:
            what = "cannot begin" if found is None else f"(version {found.version}) cannot be read"
            raise InvalidInput(
                f"The state of {self._agent} {what} as {self._kind.__name__}: {exc}.",
                hint="Give every field a default, and keep the types of those that exist.",
            ) from exc

    def _plain(self, value: S) -> dict[str, Any]:
        try:
            plain = msgspec.to_builtins(value)
            msgspec.convert(plain, self._kind)
        except (msgspec.ValidationError, TypeError) as exc:
            raise InvalidValue(
                f"This cannot be the state of {self._agent}: {exc}.",
                hint=f"Give a {self._kind.__name__}.",
            ) from exc
        if not isinstance(plain, dict):
            raise InvalidValue(
                f"A state has named fields; {type(value).__name__} has none.",
                hint="Use a struct, a dataclass or a dict.",
            )
        return plain
