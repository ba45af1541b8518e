"""Search indexes beside the rows of a store: documents by number, found by words and vectors.

`engine` is the interface; there is one engine for each backend that takes extensions
(`perdure.storage.extension`): in memory, FTS5 in SQLite, tsvector and pgvector in PostgreSQL.
`vector_matrix` compares vectors in this process.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.search.engine import SearchEngine
    from perdure.storage.adapter import Adapter

#: Makes the engine for an adapter.
EngineFactory = Callable[[Any], "SearchEngine"]

_OWN = {
    "memory": ("perdure.search.memory_search", "MemorySearch"),
    "sqlite": ("perdure.search.sqlite_search", "SQLiteSearch"),
    "postgresql": ("perdure.search.postgres_search", "PostgresSearch"),
}
_registered: dict[str, EngineFactory] = {}


def register(system: str, factory: EngineFactory) -> None:
    """Use this factory for stores with this `Adapter.system`, in this process."""
    _registered[system] = factory


def attach(adapter: Adapter) -> SearchEngine | None:
    """Give search to an adapter that is not yet initialized; None if there is none for it."""
    factory = _registered.get(adapter.system)
    if factory is None and adapter.system in _OWN:
        module, name = _OWN[adapter.system]
        factory = getattr(importlib.import_module(module), name)
    if factory is None:
        return None
    engine = factory(adapter)
    adapter.attach(engine)
    return engine
