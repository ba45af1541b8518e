"""Rows kept in memory, so that reading them again costs nothing.

`cache_middleware` decides what may be answered from where, `cache_entries` holds the rows of this
process, `shared_cache` those that processes share in a Valkey (`cache_server`).
"""

from perdure.storage.cache.cache_entries import CacheStats
from perdure.storage.cache.cache_middleware import RowCache

__all__ = ["CacheStats", "RowCache"]
