"""Rows kept in memory, so that reading them again costs nothing.

`middleware` decides what may be answered from where, `entries` holds the rows of this process,
`shared` those that processes share in a Valkey, with `scripts`; `names` tells banks apart there.
"""

from perdure.storage.cache.entries import Stats
from perdure.storage.cache.middleware import Cache

__all__ = ["Cache", "Stats"]
