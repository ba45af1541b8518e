"""Perdure's integrations as contestants, each given what its framework's own store is given.

A bank is opened by its URL, as a user would, with all its background work.
"""

from __future__ import annotations

from typing import Any, Self

from google.adk.sessions.base_session_service import GetSessionConfig

from benchmarks.peers import adk_session, langgraph_saver, llama_index_memory, openai_session
from perdure.integrations.framework_bank import FrameworkBank
from perdure.integrations.google_adk import PerdureSessionService
from perdure.integrations.langgraph import PerdureSaver
from perdure.integrations.llama_index import PerdureMemoryBlock
from perdure.integrations.openai_agents import PerdureSession

_FILL = 400
_OWNER: Any = {"app_name": "bench", "user_id": "user"}


async def _settled(access: FrameworkBank) -> None:
    """Not on the clock, and before the disk is looked at: what is done in the background."""

    async def settle() -> None:
        await (await access.bank()).settle()

    await access.run(settle())


class OpenAI:
    packages = ("openai-agents",)
    native = staticmethod(openai_session.Session.native)

    def __init__(self, session: PerdureSession) -> None:
        self._session = session
        self.add = session.add_items
        self.newest = session.get_items
        self.clear = session.clear_session

    @classmethod
    async def open(cls, file: str, name: str) -> Self:
        return cls(PerdureSession(name, f"sqlite:///{file}"))

    async def fill(self, batches: list[list[Any]]) -> None:
        items = [item for batch in batches for item in batch]
        for start in range(0, len(items), _FILL):
            await self.add(items[start : start + _FILL])
        await _settled(self._session._access)  # noqa: SLF001 - nobody else waits for it

    async def close(self) -> None:
        await _settled(self._session._access)  # noqa: SLF001
        await self._session.close()


class LangGraph(langgraph_saver.Session):
    """The same graph; only its checkpointer is another."""

    def __init__(self, file: str, name: str) -> None:
        self._perdure = PerdureSaver.open(f"sqlite:///{file}")
        super().__init__(":memory:", name)
        self._graph.checkpointer = self._saver = self._perdure

    async def fill(self, batches: list[list[Any]]) -> None:
        await super().fill(batches)
        await _settled(self._perdure._access)  # noqa: SLF001

    async def close(self) -> None:
        await super().close()
        await _settled(self._perdure._access)  # noqa: SLF001
        await self._perdure.close()


class Adk:
    packages = ("google-adk",)
    native = staticmethod(adk_session.Session.native)

    def __init__(self, service: PerdureSessionService, session: Any) -> None:
        self._service, self._session = service, session

    @classmethod
    async def open(cls, file: str, name: str) -> Self:
        service = PerdureSessionService(f"sqlite:///{file}")
        session = await service.get_session(**_OWNER, session_id=name)
        if session is None:
            session = await service.create_session(**_OWNER, session_id=name)
        return cls(service, session)

    async def fill(self, batches: list[list[Any]]) -> None:
        await self.add([event for batch in batches for event in batch])
        await _settled(self._service._access)  # noqa: SLF001

    async def add(self, items: list[Any]) -> None:
        for event in items:
            await self._service.append_event(self._session, event)

    async def newest(self, count: int) -> list[Any]:
        found = await self._service.get_session(
            **_OWNER,
            session_id=self._session.id,
            config=GetSessionConfig(num_recent_events=count),
        )
        assert found is not None
        return found.events

    async def clear(self) -> None:
        await self._service.delete_session(**_OWNER, session_id=self._session.id)
        self._session = await self._service.create_session(**_OWNER, session_id=self._session.id)

    async def close(self) -> None:
        await _settled(self._service._access)  # noqa: SLF001
        await self._service.close()


class LlamaIndex:
    packages = ("llama-index-core",)
    native = staticmethod(llama_index_memory.Session.native)

    def __init__(self, block: PerdureMemoryBlock) -> None:
        self._block = block
        self.add = block.aput
        self.newest = block.newest
        self.clear = block.clear

    @classmethod
    async def open(cls, file: str, name: str) -> Self:
        return cls(PerdureMemoryBlock(bank=f"sqlite:///{file}", session_id=name))

    async def fill(self, batches: list[list[Any]]) -> None:
        messages = [message for batch in batches for message in batch]
        for start in range(0, len(messages), _FILL):
            await self.add(messages[start : start + _FILL])
        await _settled(self._block._access)  # noqa: SLF001

    async def close(self) -> None:
        await _settled(self._block._access)  # noqa: SLF001
        await self._block.close()
