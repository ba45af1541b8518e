"""A store with compression, and the books on what is in it."""

from __future__ import annotations

from typing import Self

from perdure.storage.compression import Compression, Dictionary
from perdure.storage.options import DEFAULT
from perdure.storage.query import Query
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from perdure.storage.verify import verify_store
from tests.fire.records import Entry, entry


class Compressing:
    """What a process has: an async context manager."""

    def __init__(self, url: str) -> None:
        self.compression = Compression()
        self.store = Store(adapter_for(url), middleware=[self.compression])
        self.entries = self.store.collection(Entry)

    async def __aenter__(self) -> Self:
        await self.store.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.store.close()

    async def prepare(self) -> list[str]:
        """Write records with a trained dictionary; returns their keys."""
        keys = [f"early/{number:03d}" for number in range(300)]
        for _ in range(2):
            await self.entries.put_many([entry(key) for key in keys])
            await self.compression.train()
        assert await self.dictionaries() == 1
        return keys

    async def dictionaries(self) -> int:
        return await self.store.collection(Dictionary).query().count()

    async def assert_holds(self, keys: list[str]) -> None:
        """These records are there as they were written, and no others."""
        found = await self.entries.query().values()
        assert {each.id for each in found} == set(keys)
        assert found == [entry(each.id) for each in found]

    async def assert_renewed(self) -> None:
        """No record needs a dictionary but the newest, and there is no other; all is sound."""
        rows = await self.store.adapter.find(Query(self.entries.name), DEFAULT)
        kinds = {row.content_type.partition("=")[2] for row in rows} - {"", "0"}
        (left,) = await self.store.collection(Dictionary).query().values()
        assert kinds <= {str(int(left.id.rpartition("/")[2]))}
        assert [problem async for problem in verify_store(self.store)] == []
