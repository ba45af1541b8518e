"""Memories behind a server. The methods are those of `Memories`, which documents them.

Who acts is the token's name; with ``by=person(…)`` it says that a person does.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perdure.core.errors import NotFound
from perdure.core.input_types import require_text, require_texts
from perdure.history.log_records import checked_agent
from perdure.recall.memory_records import (
    Anchor,
    Author,
    FormerMemory,
    Memory,
    acting,
    checked_anchor,
    checked_kind,
    checked_tags,
    parse_key,
    shown,
)
from perdure.remote.api_client import ApiClient, segment
from perdure.remote.api_results import ErasedContent, KeyedMemory, MemoryList

_PAGE = 1_000


class RemoteMemories:
    """The memories of a bank on a server."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def get(self, key: str, /, *, agent: str = "") -> Memory | None:
        try:
            return (await self._api.get(_path(key, agent), KeyedMemory)).memory
        except NotFound:
            return None

    async def list(
        self,
        agent: str | None = None,
        *,
        kind: str | None = None,
        tag: str | None = None,
        status: str | None = "active",
        weight: float = 0.0,
        words: str = "",
        limit: int | None = None,
    ) -> builtins.list[Memory]:
        found = builtins.list[Memory]()
        while True:
            left = _PAGE if limit is None else min(_PAGE, limit - len(found))
            if left < 1:
                return found
            page = await self._api.get(
                "/memories",
                MemoryList,
                agent=None if agent is None else checked_agent(agent),
                kind=None if kind is None else checked_kind(kind),
                tag=checked_tags((tag,))[0] if tag else None,
                status="any" if status is None else status,
                weight=weight,
                words=require_text(words, "words"),
                limit=left,
                offset=len(found),
            )
            found += [each.memory for each in page.memories]
            if len(found) >= page.count or not page.memories:
                return found

    async def history(self, key: str, *, agent: str = "") -> builtins.list[FormerMemory]:
        return await self._api.get(f"{_path(key, agent)}/history", builtins.list[FormerMemory])

    async def add(
        self,
        agent: str,
        text: str,
        *,
        kind: str = "fact",
        weight: float | None = None,
        tags: Iterable[str] = (),
        provenance: Iterable[str] = (),
        anchor: Anchor | Mapping[str, str] | None = None,
        shared: Iterable[str] = (),
        pinned: bool = False,
        time: int | None = None,
        by: Author | None = None,
    ) -> Memory:
        body = {
            "text": require_text(text, "text"),
            "kind": checked_kind(kind),
            "weight": weight,
            "tags": require_texts(tags, "tags"),
            "provenance": require_texts(provenance, "provenance"),
            "anchor": checked_anchor(anchor),
            "shared": require_texts(shared, "shared"),
            "pinned": pinned,
            "time": time,
        }
        return await self._change("POST", f"/memories/{segment(checked_agent(agent))}", body, by)

    async def edit(
        self,
        key: str,
        *,
        text: str | None = None,
        kind: str | None = None,
        weight: float | None = None,
        tags: Iterable[str] | None = None,
        shared: Iterable[str] | None = None,
        anchor: Anchor | Mapping[str, str] | None = None,
        provenance: Iterable[str] = (),
        expected: int | None = None,
        agent: str = "",
        by: Author | None = None,
    ) -> Memory:
        body = {
            "text": text,
            "kind": None if kind is None else checked_kind(kind),
            "weight": weight,
            "tags": None if tags is None else require_texts(tags, "tags"),
            "shared": None if shared is None else require_texts(shared, "shared"),
            "anchor": checked_anchor(anchor),
            "provenance": require_texts(provenance, "provenance"),
            "expected": expected,
        }
        return await self._change("PATCH", _path(key, agent), body, by)

    async def merge(
        self,
        keys: Sequence[str],
        *,
        text: str | None = None,
        agent: str = "",
        by: Author | None = None,
    ) -> Memory:
        named = [shown(parse_key(key, agent)) for key in require_texts(keys, "keys")]
        owner = named[0].rpartition("/")[0] if named else agent
        body = {"keys": named, "text": text}
        return await self._change("POST", f"/memories/{segment(owner)}/merge", body, by)

    async def pin(self, key: str, *, agent: str = "", by: Author | None = None) -> Memory:
        return await self._change("PATCH", _path(key, agent), {"pinned": True}, by)

    async def unpin(self, key: str, *, agent: str = "", by: Author | None = None) -> Memory:
        return await self._change("PATCH", _path(key, agent), {"pinned": False}, by)

    async def retire(
        self,
        key: str,
        *,
        superseded_by: str | None = None,
        agent: str = "",
        by: Author | None = None,
    ) -> Memory:
        body = {"superseded_by": superseded_by}
        return await self._change("POST", f"{_path(key, agent)}/retire", body, by)

    async def restore(self, key: str, *, agent: str = "", by: Author | None = None) -> Memory:
        return await self._change("POST", f"{_path(key, agent)}/restore", {}, by)

    async def delete(self, key: str, *, agent: str = "", by: Author | None = None) -> bool:
        query = {"person": (by or acting()).person}
        path = _path(key, agent)
        return (await self._api.call("DELETE", path, ErasedContent, query=query)).erased

    async def _change(
        self, method: str, path: str, body: Mapping[str, Any], by: Author | None
    ) -> Memory:
        given = {**body, "person": (by or acting()).person}
        return (await self._api.call(method, path, KeyedMemory, given)).memory


def _path(key: str, agent: str) -> str:
    """Raises `InvalidInput` if it does not name a memory."""
    owner, _, name = shown(parse_key(key, agent)).rpartition("/")
    return f"/memories/{segment(owner)}/{name}"
