"""Services for agents behind a server: the canon, and who agents are.

The methods are those of `Canon` and `Identities`, which document them. Who writes, and for which
agent it reads, is what the token says.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Any

import msgspec

from perdure.agents.agent_identity import AgentIdentity
from perdure.agents.agent_records import AgentStatus
from perdure.agents.canon import CanonEntry, CanonText, CanonVersion
from perdure.core.input_types import require_text, require_texts
from perdure.remote.api_client import ApiClient, segment
from perdure.remote.api_results import ErasedContent

_CANON, _REGISTRY, _AGENTS = "/canon", "/registry", "/agents"


class RemoteCanon:
    """The canon of a bank on a server, as far as the token may read it."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def get(self, name: str, *, version: int | None = None) -> CanonText:
        return await self._api.get(_entry(name), CanonText, version=version)

    async def list(self) -> builtins.list[CanonEntry]:
        return await self._api.get(_CANON, builtins.list[CanonEntry])

    async def history(self, name: str) -> builtins.list[CanonVersion]:
        return await self._api.get(f"{_entry(name)}/history", builtins.list[CanonVersion])

    async def write(
        self,
        name: str,
        text: str,
        *,
        readers: Iterable[str] | None = None,
        reason: str = "",
        expected: int | None = None,
    ) -> CanonEntry:
        body = {
            "text": require_text(text, "text"),
            "readers": _readers(readers),
            "reason": require_text(reason, "reason"),
            "expected": expected,
        }
        return await self._api.call("PUT", _entry(name), CanonEntry, body)

    async def promote(
        self, memory: str, *, name: str, readers: Iterable[str] | None = None, reason: str = ""
    ) -> CanonEntry:
        body = {
            "memory": require_text(memory, "memory"),
            "readers": _readers(readers),
            "reason": require_text(reason, "reason"),
        }
        return await self._api.call("POST", f"{_entry(name)}/promote", CanonEntry, body)

    async def restore(self, name: str, version: int, *, reason: str = "") -> CanonEntry:
        body = {"version": version, "reason": require_text(reason, "reason")}
        return await self._api.call("POST", f"{_entry(name)}/restore", CanonEntry, body)

    async def remove(self, name: str) -> bool:
        return (await self._api.call("DELETE", _entry(name), ErasedContent)).erased


class RemoteIdentities:
    """Who the agents of a bank on a server are, and how they are found."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def get(self, name: str) -> AgentIdentity:
        return await self._api.get(_registered(name), AgentIdentity)

    async def find(
        self, *, skill: str = "", task: str = "", status: AgentStatus | None = None
    ) -> builtins.list[AgentIdentity]:
        """The registry: see `Agents.find`."""
        given = {"skill": require_text(skill, "skill"), "task": require_text(task, "task")}
        query: dict[str, Any] = {**given, "status": status}
        wanted = {key: value for key, value in query.items() if value}
        return await self._api.get(_REGISTRY, builtins.list[AgentIdentity], **wanted)

    async def add_key(self, name: str, public: str) -> AgentIdentity:
        body = {"public": require_text(public, "public")}
        return await self._api.call("POST", f"{_agent(name)}/keys", AgentIdentity, body)

    async def remove_key(self, name: str, key: str) -> AgentIdentity:
        path = f"{_agent(name)}/keys/{segment(require_text(key, 'key'))}"
        return await self._api.call("DELETE", path, AgentIdentity)

    async def verify(self, name: str, message: str, signature: str) -> bool:
        body = {
            "message": require_text(message, "message"),
            "signature": require_text(signature, "signature"),
        }
        return (
            await self._api.call("POST", f"{_registered(name)}/verify", _Verified, body)
        ).verified


class _Verified(msgspec.Struct, frozen=True):
    verified: bool


def _readers(readers: Iterable[str] | None) -> list[str] | None:
    return None if readers is None else require_texts(readers, "readers")


def _entry(name: str) -> str:
    return f"{_CANON}/{segment(require_text(name, 'name'))}"


def _registered(name: str) -> str:
    return f"{_REGISTRY}/{segment(require_text(name, 'name'))}"


def _agent(name: str) -> str:
    return f"{_AGENTS}/{segment(require_text(name, 'name'))}"
