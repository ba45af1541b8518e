"""The tables of search indexes, and the list of them.

An index has two tables of its own::

    NAME__words3    place, part, start, words, note    3: so many fields
    NAME__vectors   place, model, vector

A document is a row of the first, or several if it is too long. Vectors are apart: adding one to a
row would index each of its words again. `rows_of` makes the rows of words. Collections have no
two underscores in their names, so the tables are never taken for theirs.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence

import msgspec
import psycopg
from psycopg import sql

from perdure.core.errors import InvalidInput
from perdure.search.engine import SearchIndex
from perdure.storage.backends.postgres import catalog
from perdure.storage.backends.postgres.address import lock_space
from perdure.storage.backends.postgres.errors import is_lost
from perdure.storage.backends.postgres.indexes import building
from perdure.storage.backends.postgres.links import Connection

_BRIEFLY = 300

_LIST = (
    """
CREATE TABLE IF NOT EXISTS {schema}.perdure_search__indexes(
    name text COLLATE "C" PRIMARY KEY, fields text NOT NULL, vectors text NOT NULL,
    made bigint NOT NULL, fault text)
""",
    """
CREATE TABLE IF NOT EXISTS {schema}.perdure_search__models(
    index text COLLATE "C", model text COLLATE "C", number bigint NOT NULL,
    length integer NOT NULL, PRIMARY KEY(index, model))
""",
)
# Words are read whenever their row is, so they stand in it; vectors, too. What is filed waits in a
# list that every search reads through: a short one, and `SearchEngine.tend` empties it.
_TABLES = (
    """
CREATE TABLE {words}(
    place bigint, part integer, start integer NOT NULL, words tsvector NOT NULL, note bytea,
    PRIMARY KEY(place, part))
""",
    "ALTER TABLE {words} ALTER COLUMN words SET STORAGE MAIN",
    """
CREATE INDEX {filed} ON {words} USING gin (words)
    WITH (fastupdate = on, gin_pending_list_limit = 1024)
""",
    """
CREATE TABLE {vectors}(
    place bigint, model bigint NOT NULL, vector {kind} NOT NULL,
    PRIMARY KEY(place) INCLUDE (model))
""",
    "ALTER TABLE {vectors} ALTER COLUMN vector SET STORAGE MAIN",
)
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}").fullmatch


class Tables(msgspec.Struct, frozen=True):
    """An index that exists, and its schema."""

    index: SearchIndex
    schema: str
    made: int
    #: The type of a vector: ``bytea``, or pgvector's with the schema that it lies in.
    kind: str

    @property
    def words(self) -> str:
        return f"{self.schema}.{_words(self.index)}"

    @property
    def filed(self) -> str:
        return f"{self.schema}.{_filed(self.index)}"

    @property
    def vectors(self) -> str:
        return f"{self.schema}.{_vectors(self.index.name)}"

    @property
    def stride(self) -> int:
        """Positions that each field has in a row."""
        return MAX_POSITION // len(self.index.fields)

    @property
    def pgvector(self) -> str:
        """The schema of pgvector with a full stop, or nothing if it is not used."""
        return self.kind.removesuffix("halfvec") if self.kind != "bytea" else ""


def _words(index: SearchIndex) -> str:
    return f"{index.name}__words{len(index.fields)}"


def _filed(index: SearchIndex) -> str:
    return f"{_words(index)}__filed"


def _vectors(name: str) -> str:
    return f"{name}__vectors"


def check(index: SearchIndex) -> None:
    """Raises `InvalidInput` if there can be no such index."""
    if not _NAME(index.name):
        raise InvalidInput(
            f"{index.name!r} cannot be the name of a search index.",
            hint="Use up to 40 lower-case letters, digits and underscores.",
        )
    if not 1 <= len(index.fields) <= MAX_POSITION // 256:
        raise InvalidInput(
            f"A search index cannot have {len(index.fields)} fields.", hint="Declare 1 to 63."
        )


async def known(conn: Connection, schema: str, name: str) -> Tables | None:
    if not await _is_listed(conn, schema):
        return None
    row = await conn.row(
        f"SELECT fields, made, vectors FROM {schema}.perdure_search__indexes WHERE name = %s",
        (name,),
    )
    if row is None:
        return None
    fields = msgspec.json.decode(row[0], type=tuple[str, ...])
    tables = Tables(SearchIndex(name, fields), schema, *row[1:])
    parts = [_words(tables.index), _filed(tables.index), _vectors(name)]
    return tables if await _count(conn, schema, parts) == len(parts) else None


async def make(conn: Connection, schema: str, index: SearchIndex, kind: str) -> tuple[Tables, bool]:
    """The index as declared; whether it was made now. In a transaction."""
    await catalog.lock(conn, schema)
    for text in _LIST:
        await conn.execute(text.format(schema=schema))
    found = await known(conn, schema, index.name)
    if found is not None and found.index == index:
        return found, False
    await _remove(conn, schema, [index.name])
    tables = Tables(index, schema, secrets.randbits(62), kind)
    for text in _TABLES:
        await conn.execute(
            text.format(
                words=tables.words,
                filed=_filed(index),
                vectors=tables.vectors,
                kind=kind,
            )
        )
    await conn.execute(
        f"INSERT INTO {schema}.perdure_search__indexes VALUES(%s, %s, %s, %s)",
        (index.name, msgspec.json.encode(index.fields).decode(), kind, tables.made),
    )
    return tables, True


async def erase(conn: Connection, schema: str, name: str) -> None:
    """Remove an index, or whatever is left of it. In a transaction."""
    await catalog.lock(conn, schema)
    await _remove(conn, schema, [name])


async def clear(conn: Connection, schema: str) -> None:
    if await _is_listed(conn, schema):
        await _remove(conn, schema, await names(conn, schema))


async def names(conn: Connection, schema: str) -> list[str]:
    if not await _is_listed(conn, schema):
        return []
    rows = await conn.rows(f"SELECT name FROM {schema}.perdure_search__indexes ORDER BY name")
    return [name for (name,) in rows]


async def fault(conn: Connection, tables: Tables) -> str | None:
    """The noted fault of an index, or that it is missing."""
    row = await conn.row(
        f"SELECT fault FROM {tables.schema}.perdure_search__indexes WHERE name = %s",
        (tables.index.name,),
    )
    return f"There is no search index {tables.index.name!r} any more." if row is None else row[0]


async def finds_its_last(conn: Connection, tables: Tables) -> bool:
    """Whether a document is found by one of its words: a short check of the index."""
    async with conn.transaction():
        # Both statements see the same documents, whatever is withdrawn meanwhile.
        await conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        word = await conn.value(
            f"SELECT (tsvector_to_array(words))[1] FROM {tables.words}"
            " WHERE words <> '' ORDER BY place DESC LIMIT 1"
        )
        if word is None:
            return True
        await conn.execute("SET LOCAL enable_seqscan = off")
        found = await conn.value(
            f"SELECT EXISTS (SELECT FROM {tables.words} WHERE words @@ %s::tsquery)",
            (quoted(word),),
        )
        return bool(found)


async def tidy(conn: Connection, tables: Tables) -> None:
    """Flush GIN's pending list and update the planner's statistics."""
    await conn.execute("SELECT gin_clean_pending_list(%s::text::regclass)", (tables.filed,))
    for table in (tables.words, tables.vectors):
        if (
            await conn.value(
                "SELECT pg_stat_get_mod_since_analyze(oid) > greatest(1000, reltuples / 2)"
                " FROM pg_class WHERE oid = %s::text::regclass",
                (table,),
            )
            is True
        ):
            await conn.execute(f"ANALYZE {table}")


async def scrub(conn: Connection, schema: str) -> None:
    """Make withdrawn words unreadable, as far as `PostgresAdapter.scrub` does. GIN keeps words
    for ever, so the index is rebuilt, concurrently, and the planner's statistics, which hold
    words too.
    """
    for name in await names(conn, schema):
        tables = await known(conn, schema, name)
        if tables is not None:
            await conn.execute(f"VACUUM (ANALYZE) {tables.words}, {tables.vectors}")
            async with building(conn, schema):
                await _drop_halves(conn, schema, _filed(tables.index))
                await conn.execute(f"REINDEX INDEX CONCURRENTLY {tables.filed}")


async def _drop_halves(conn: Connection, schema: str, label: str) -> None:
    rows = await conn.rows(
        "SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname ~ %s",
        (schema, f"^{label}_cc(new|old)[0-9]*$"),
    )
    for (half,) in rows:
        await conn.execute(
            sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(sql.Identifier(schema, half))
        )


async def blame(conn: Connection, tables: Tables, reason: str) -> bool:
    """Note that an index lacks documents; False if it was replaced by one with the same fields.
    In a transaction, until whose end no index is made. A missing index needs no note: whoever
    makes it fills it.
    """
    schema, index = tables.schema, tables.index
    await conn.execute(f"SELECT pg_advisory_xact_lock_shared({lock_space(schema)}, 0)")
    if not await _is_listed(conn, schema):
        return True
    row = await conn.row(
        f"SELECT made, fields, fault FROM {schema}.perdure_search__indexes WHERE name = %s",
        (index.name,),
    )
    if row is None:
        return True
    made, fields, fault = row
    if made != tables.made and fields == msgspec.json.encode(index.fields).decode():
        return False
    if fault is None:
        await conn.row(
            f"UPDATE {schema}.perdure_search__indexes SET fault = %s WHERE name = %s RETURNING 1",
            (reason, index.name),
        )
    return True


async def _remove(conn: Connection, schema: str, chosen: Sequence[str]) -> None:
    await conn.execute(f"SET LOCAL lock_timeout = {_BRIEFLY}")
    for name in chosen:
        rows = await conn.rows(
            "SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relkind = 'r' AND c.relname ~ %s",
            (schema, f"^{name}__(words[0-9]+|vectors)$"),
        )
        for (table,) in rows:
            await conn.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(schema, table)))
    if await _is_listed(conn, schema):
        for table, column in (("indexes", "name"), ("models", "index")):
            await conn.execute(
                f"DELETE FROM {schema}.perdure_search__{table} WHERE {column} = ANY(%s::text[])",
                (list(chosen),),
            )


async def _is_listed(conn: Connection, schema: str) -> bool:
    """Whether there is a list of indexes: older banks, and those without recall, have none."""
    return await _count(conn, schema, ["perdure_search__indexes", "perdure_search__models"]) == 2


async def _count(conn: Connection, schema: str, parts: Sequence[str]) -> int:
    # Not with to_regclass: see `catalog`.
    count: int = await conn.value(
        "SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = ANY(%s::text[])",
        (schema, list(parts)),
    )
    return count


async def vector_type(conn: Connection) -> str:
    """The type of vector columns: pgvector's, if it is or may be installed. Not in a
    transaction: it may fail, or race with others.
    """
    found = await _halfvec(conn)
    if not found:
        try:
            await conn.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except psycopg.Error as exc:  # not available, not allowed; or another bank was faster
            if is_lost(exc):
                raise
        found = await _halfvec(conn)
    return found or "bytea"


async def _halfvec(conn: Connection) -> str | None:
    found: str | None = await conn.value(
        "SELECT quote_ident(n.nspname) || '.halfvec' FROM pg_extension AS e"
        " JOIN pg_namespace AS n ON n.oid = e.extnamespace"
        " JOIN pg_type AS t ON t.typnamespace = n.oid AND t.typname = 'halfvec'"
        " WHERE e.extname = 'vector' AND has_schema_privilege(n.oid, 'USAGE')"
    )
    return found


#: Positions of a tsvector go from 1 to this; a greater one is silently taken for this one.
MAX_POSITION = 16_383
#: PostgreSQL keeps so many positions of a lexeme, and drops further ones without a word.
_POSITIONS = 255
#: Bytes of a lexeme: with so many, a tsvector of all positions stays below its limit of 1 MB.
_LEXEME = 56


def rows_of(texts: Sequence[str], stride: int) -> Iterator[tuple[int, str]]:
    fields = [text.split() for text in texts]
    longest = max(map(len, fields))
    for start in range(0, longest or 1, stride):
        standing: dict[str, list[int]] = {}
        for number, terms in enumerate(fields):
            for position, term in enumerate(terms[start : start + stride], number * stride + 1):
                standing.setdefault(term, []).append(position)
        yield start, _tsvector(standing)
        while standing := {
            term: positions[_POSITIONS:]
            for term, positions in standing.items()
            if len(positions) > _POSITIONS
        }:
            yield start, _tsvector(standing)


def _tsvector(standing: dict[str, list[int]]) -> str:
    return " ".join(
        f"{quoted(lexeme(term))}:{','.join(map(str, positions[:_POSITIONS]))}"
        for term, positions in standing.items()
    )


def lexeme(term: str) -> str:
    """A term as it is indexed: itself, or a hash if PostgreSQL could not take it."""
    if len(term) <= _LEXEME and term.isascii() and "\0" not in term:
        return term
    data = term.encode("utf-8", "surrogatepass")
    if len(data) <= _LEXEME and "\0" not in term and not _has_surrogate(term):
        return term
    return "#" + hashlib.blake2b(data, digest_size=16).hexdigest()


def quoted(word: str) -> str:
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


def _has_surrogate(term: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in term)
