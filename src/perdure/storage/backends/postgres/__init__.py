"""PostgreSQL, through psycopg 3.

Any number of processes and machines. `address` reads the URL, `links` keeps connections, `catalog`
makes the tables, `writer` commits and `apply` turns batches into SQL, `reader` reads, `outbox`
keeps events in order, `damage` reads what is broken.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from typing import Any, ClassVar

from perdure.core.clock import Clock, now
from perdure.core.errors import Closed, InvalidInput, UnknownBackend
from perdure.storage.adapter import (
    Adapter,
    Batch,
    Capability,
    Consistency,
    Delivered,
    Fill,
    Layout,
    Options,
    Row,
    Size,
)
from perdure.storage.query import Figure, Query, Scalar, Summary
from perdure.storage.sql import Dialect, Emitter

try:
    import psycopg
except ImportError as exc:
    raise UnknownBackend(
        "PostgreSQL banks need psycopg, which is not installed or cannot be loaded.",
        hint="Run: pip install 'perdure[postgres]'",
    ) from exc

from perdure.storage.backends.postgres import address, catalog, damage
from perdure.storage.backends.postgres.apply import Applier
from perdure.storage.backends.postgres.damage import FACTS
from perdure.storage.backends.postgres.errors import is_starting, translated
from perdure.storage.backends.postgres.links import Connection, Link, Links
from perdure.storage.backends.postgres.outbox import Outbox
from perdure.storage.backends.postgres.reader import Reader
from perdure.storage.backends.postgres.writer import Writer
