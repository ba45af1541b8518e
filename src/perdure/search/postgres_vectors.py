"""Search by meaning: the vectors of documents.

With pgvector they are half-precision numbers, which hold signed bytes exactly, compared on the
server. Below some ten thousand it compares with all; a larger model gets an HNSW index
(`SearchEngine.tend` builds it), which may miss a few. Where few documents lie within the ranges,
those are compared one by one: an index would find others first.

Without pgvector they are bytes, compared in this process: right, but not fast.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.search.engine import Embedding, Near, VectorRows, VectorSearch
from perdure.search.postgres_search_tables import Tables
from perdure.search.postgres_terms import RangeCondition
from perdure.search.vector_matrix import Vectors, check_lengths, vector_rows
from perdure.storage.backends.postgres.links import Connection
from perdure.storage.tables import Built

#: A model with so many vectors gets an index.
MANY = 20_000
#: So many are compared one by one, though there is an index.
FEW = 5_000
#: pgvector indexes no longer ones.
_LONGEST = 4_000
#: Candidates that a walk through the index keeps, and the most that pgvector allows.
_CANDIDATES = 200
_MOST_CANDIDATES = 1_000
_PERSIST = "SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true)"
_INDEXED = (
    "EXISTS (SELECT FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid"
    " JOIN pg_namespace AS n ON n.oid = c.relnamespace"
    " WHERE n.nspname = %s AND c.relname = %s AND i.indisvalid)"
)


class _Model(msgspec.Struct, frozen=True):
    number: int
    length: int
    indexed: bool = False
    #: pgvector goes on in that index when what it found is excluded by a condition.
    persistent: bool = False


class VectorReader:
    """The vectors of one index."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._list = f"{tables.schema}.perdure_search__models"

    async def embed(self, conn: Connection, model: str, embeddings: Sequence[Embedding]) -> int:
        """Store vectors, in a transaction. Locks out concurrent replacement or withdrawal of the
        documents: no vector stays behind.
        """
        last = {each.place: each.vector for each in embeddings}
        length = check_lengths(last.values())
        if length is None:
            return 0
        known, new = await self._declare(conn, model, length)
        check_lengths(last.values(), known)
        places = sorted(last)
        row = await conn.row(
            f"WITH standing AS MATERIALIZED (SELECT place FROM {self._tables.words}"
            " WHERE place = ANY(%s::bigint[]) AND part = 0 ORDER BY place FOR SHARE),"
            f" kept AS (INSERT INTO {self._tables.vectors}(place, model, vector)"
            f" SELECT e.place, %s, e.vector::{self._tables.kind}"
            f" FROM unnest(%s::bigint[], %s::{self._given}[]) AS e(place, vector)"
            " JOIN standing USING (place) ORDER BY e.place"
            " ON CONFLICT (place) DO UPDATE SET model = excluded.model, vector = excluded.vector"
            " RETURNING 1) SELECT count(*) FROM kept",
            (places, _number(model), places, [self._sent(last[place]) for place in places]),
            prepare=False,
        )
        kept = row[0] if row else 0
        if new and not kept:
            await self._withdraw(conn, model)
        return kept

    async def _declare(self, conn: Connection, model: str, length: int) -> tuple[int, bool]:
        """The length of the model's vectors, and whether it was set now."""
        row = await conn.row(
            f"INSERT INTO {self._list} AS m (index, model, number, length) VALUES(%s, %s, %s, %s)"
            " ON CONFLICT (index, model) DO UPDATE SET length = m.length RETURNING length,"
            " m.xmax::text = '0'",
            (self._tables.index.name, model, _number(model), length),
        )
        return (row[0], row[1]) if row else (length, False)

    async def _withdraw(self, conn: Connection, model: str) -> None:
        await conn.row(
            f"DELETE FROM {self._list} WHERE index = %s AND model = %s RETURNING 1",
            (self._tables.index.name, model),
        )

    async def nearest(self, conn: Connection, search: VectorSearch) -> list[Near]:
        scope = RangeCondition(search.within)
        model = await self._known(conn, search.model)
        if model is None or scope.empty or search.limit <= 0:
            return []
        check_lengths([search.vector], model.length)
        if not self._tables.pgvector:
            return await self._compared_here(conn, model, search, scope)
        if model.indexed and any(search.vector) and not await self._are_few(conn, model, scope):
            found = await self._walked(conn, model, search, scope)
            if len(found) >= search.limit:
                return found
        return await self._compared(conn, model, search, scope)

    async def vectors(self, conn: Connection, model: str, places: Sequence[int]) -> VectorRows:
        sent = f"{self._tables.pgvector}halfvec_send(vector)" if self._tables.pgvector else "vector"
        rows = await conn.rows(
            f"SELECT place, {sent} FROM {self._tables.vectors}"
            " WHERE place = ANY(%s::bigint[]) AND model = %s",
            (list(places), _number(model)),
            binary=True,
            prepare=False,
        )
        found = {place: self._received(data) for place, data in rows}
        return vector_rows(found, places)

    async def unembedded(self, conn: Connection, model: str, after: int, limit: int) -> list[int]:
        rows = await conn.rows(
            f"SELECT w.place FROM {self._tables.words} AS w WHERE w.place > %s AND w.part = 0"
            f" AND NOT EXISTS (SELECT FROM {self._tables.vectors} AS v"
            " WHERE v.place = w.place AND v.model = %s) ORDER BY w.place LIMIT %s",
            (after, _number(model), limit),
            binary=True,
            prepare=False,
        )
        return [place for (place,) in rows]

    async def count(self, conn: Connection) -> dict[str, int]:
        return dict(
            await conn.rows(
                f"SELECT m.model, v.vectors FROM (SELECT model, count(*) AS vectors"
                f" FROM {self._tables.vectors} GROUP BY model) AS v JOIN {self._list} AS m"
                " ON m.number = v.model WHERE m.index = %s ORDER BY m.model",
                (self._tables.index.name,),
            )
        )

    async def _known(self, conn: Connection, model: str) -> _Model | None:
        """The model, if it ever had a vector. Read each time: others change it."""
        row = await conn.row(
            f"SELECT m.number, m.length, {_INDEXED}, coalesce((SELECT"
            " string_to_array(extversion, '.')::int[] >= '{0,8}' FROM pg_extension"
            f" WHERE extname = 'vector'), false) FROM {self._list} AS m"
            " WHERE m.index = %s AND m.model = %s",
            (self._tables.schema, self._label(_number(model)), self._tables.index.name, model),
        )
        return None if row is None else _Model(*row)

    async def _compared(
        self, conn: Connection, model: _Model, search: VectorSearch, scope: RangeCondition
    ) -> list[Near]:
        """Compare with all. A vector of zeros scores 0."""
        place = self._tables.pgvector
        distance = f"v.vector OPERATOR({place}<=>) %s::{self._tables.kind}"
        rows = await conn.rows(
            "WITH d AS MATERIALIZED (SELECT v.place,"
            f" coalesce(nullif({distance}, 'NaN'), 1) AS distance FROM {self._tables.vectors} AS v"
            f" WHERE v.model = %s{scope.on('v.place')})"
            " SELECT place, 1 - distance FROM d ORDER BY distance, place LIMIT %s",
            (_literal(search.vector), model.number, *scope.params, search.limit),
            binary=True,
            prepare=False,
        )
        return [Near(*row) for row in rows]

    async def _walked(
        self, conn: Connection, model: _Model, search: VectorSearch, scope: RangeCondition
    ) -> list[Near]:
        """Search the HNSW index, continuing past what the ranges exclude, up to a limit."""
        place, kind = self._tables.pgvector, f"{self._tables.kind}({model.length})"
        candidates = min(max(_CANDIDATES, 2 * search.limit), _MOST_CANDIDATES)
        distance = f"v.vector::{kind} OPERATOR({place}<=>) %s::{kind}"
        async with conn.transaction(), conn.pipeline():
            # The planner thinks that ranges exclude nearly all, and would compare one by one.
            await conn.execute(
                "SELECT set_config('hnsw.ef_search', %s, true),"
                " set_config('enable_sort', 'off', true)",
                (str(candidates),),
            )
            if model.persistent:
                await conn.execute(_PERSIST)
            rows = await conn.rows(
                f"SELECT v.place, 1 - ({distance}) FROM {self._tables.vectors} AS v"
                f" WHERE v.model = {model.number}{scope.on('v.place')}"
                f" ORDER BY {distance} LIMIT %s",
                (_literal(search.vector), *scope.params, _literal(search.vector), search.limit),
                binary=True,
                prepare=False,
            )
        return sorted([Near(*row) for row in rows], key=lambda near: (-near.score, near.place))

    async def _compared_here(
        self, conn: Connection, model: _Model, search: VectorSearch, scope: RangeCondition
    ) -> list[Near]:
        rows = await conn.rows(
            f"SELECT v.place, v.vector FROM {self._tables.vectors} AS v"
            f" WHERE v.model = %s{scope.on('v.place')}",
            (model.number, *scope.params),
            binary=True,
            prepare=False,
        )
        places = [place for place, _ in rows]
        vectors = Vectors(model.length)
        vectors.add(places, places, [vector for _, vector in rows])
        return vectors.nearest(search.vector, search.limit)

    async def _are_few(self, conn: Connection, model: _Model, scope: RangeCondition) -> bool:
        if not scope.params:
            return False
        row = await conn.row(
            f"SELECT count(*) FROM (SELECT FROM {self._tables.vectors} AS v"
            f" WHERE v.model = %s{scope.on('v.place')} LIMIT {FEW + 1}) AS part",
            (model.number, *scope.params),
            prepare=False,
        )
        return row is not None and row[0] <= FEW

    async def wanted(self, conn: Connection) -> dict[str, Built]:
        """HNSW indexes that should be there and are not, by name."""
        if not self._tables.pgvector:
            return {}
        rows = await conn.rows(
            f"SELECT number, length FROM {self._list} WHERE index = %s AND length <= {_LONGEST}",
            (self._tables.index.name,),
        )
        return {
            self._label(number): self._definition(number, length)
            for number, length in rows
            if await self._needs_index(conn, number)
        }

    async def _needs_index(self, conn: Connection, number: int) -> bool:
        found = await conn.value(
            f"SELECT NOT {_INDEXED} AND (SELECT count(*) FROM (SELECT FROM {self._tables.vectors}"
            f" WHERE model = {number} LIMIT {MANY}) AS part) = {MANY}",
            (self._tables.schema, self._label(number)),
        )
        return found is True

    def _label(self, number: int) -> str:
        return f"{self._tables.index.name}__hnsw_{number:x}"

    def _definition(self, number: int, length: int) -> Built:
        return Built(
            f"USING hnsw ((vector::{self._tables.kind}({length}))"
            f" {self._tables.pgvector}halfvec_cosine_ops) WHERE model = {number}"
        )

    @property
    def _given(self) -> str:
        return "text" if self._tables.pgvector else "bytea"

    def _sent(self, vector: bytes) -> Any:
        return _literal(vector) if self._tables.pgvector else vector

    def _received(self, data: bytes) -> bytes:
        """From pgvector's binary form: the length, an unused field, and the numbers."""
        if not self._tables.pgvector:
            return data
        numbers = struct.unpack_from(f">{len(data) // 2 - 2}e", data, 4)
        return struct.pack(f"{len(numbers)}b", *map(int, numbers))


def _number(model: str) -> int:
    """Stable everywhere and for ever, so that no two models are confused."""
    return int.from_bytes(hashlib.blake2b(model.encode(), digest_size=8).digest()) >> 1


def _literal(vector: bytes) -> str:
    return str(list(memoryview(vector).cast("b")))
