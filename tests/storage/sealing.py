"""What the tests of encryption use: types with secrets, and processes that share a store."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec

from perdure.core.clock import Clock
from perdure.storage.adapter import Adapter
from perdure.storage.compression import Compression
from perdure.storage.encryption import Encryption, MasterKeys
from perdure.storage.middleware import Middleware
from perdure.storage.options import DEFAULT
from perdure.storage.query import Query
from perdure.storage.records import Compressed, Encrypted, Indexed, Key, Tags, record
from perdure.storage.registry import adapter_for
from perdure.storage.rows import Index, Row
from perdure.storage.store import Store
from perdure.testing.manual_clock import ManualClock

#: Master keys; any 32 bytes that look random will do.
OLD = bytes(range(100, 132))
NEW = bytes(range(150, 182))


@record("diaries", indexes=[Index(("author", "stars"))])
class Diary(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    text: Annotated[str, Compressed(), Encrypted()]
    author: Annotated[str, Indexed()] = "ada"
    stars: Annotated[int, Indexed()] = 0
    labels: Annotated[dict[str, str], Tags()] = {}


@record("pins")
class Pin(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    number: Annotated[str, Encrypted()]
    diary: Annotated[str, Indexed()] = ""


@record("codes", ttl="1h")
class Code(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    code: Annotated[str, Encrypted()]


@record("postcards")
class Postcard(msgspec.Struct, frozen=True):
    """Everybody may read it, unless everything is encrypted."""

    id: Annotated[str, Key()]
    text: str


class Process:
    """What a process has of its own: a store, with compression and encryption."""

    def __init__(self, store: Store, encryption: Encryption, compression: Compression) -> None:
        self.store = store
        self.encryption = encryption
        self.compression = compression
        self.diaries = store.collection(Diary)
        self.pins = store.collection(Pin)

    async def rows(self, collection: str) -> list[Row]:
        """The rows as they are stored."""
        return await self.store.adapter.find(Query(collection), DEFAULT)

    async def marks(self, collection: str) -> set[str]:
        """How the values of a collection are encrypted."""
        rows = await self.rows(collection)
        return {row.content_type.partition(";aesgcm=")[2] for row in rows}


class Processes:
    """Starts "processes" on one store: in memory they share the adapter, else each has its own."""

    def __init__(self, url: str, clock: ManualClock | None = None) -> None:
        self.url = url
        self.clock = clock or ManualClock()
        self._adapters: list[Adapter] = []

    def tick(self) -> int:
        return self.clock.tick()

    async def __call__(
        self,
        current: Any = OLD,
        former: Sequence[Any] = (),
        *,
        scope: Literal["collection", "agent"] = "collection",
        everything: bool = False,
        inner: Sequence[Middleware] = (),
        clock: Clock | None = None,
    ) -> Process:
        time = clock or self.tick
        if not self._adapters or self.url != "memory://":
            self._adapters.append(adapter_for(self.url, time))
            await self._adapters[-1].initialize()
        masters = None
        if current is not None:
            masters = MasterKeys(source(current), [source(each) for each in former])
        encryption = Encryption(masters, scope=scope, everything=everything)
        compression = Compression()
        chain: list[Middleware] = [compression, encryption, *inner]
        store = Store(self._adapters[-1], middleware=chain, clock=time)
        return Process(store, encryption, compression)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for adapter in self._adapters:
            await adapter.close()


def source(given: Any) -> Any:
    """Keys are handed over by a function; anything else is a source already."""
    return (lambda: given) if isinstance(given, bytes) else given


def write_key(path: Path, key: bytes) -> str:
    """A file with a master key; returns its source."""
    path.write_bytes(base64.b64encode(key) + b"\n")
    return f"file:{path}"
