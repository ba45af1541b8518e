"""`Capability.TRANSACTIONS`, too: the content of rows is kept in other bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from perdure.core.errors import Conflict
from perdure.storage.adapter import Capability
from perdure.storage.query import All, Compare, Op, Tagged
from perdure.storage.rows import Recode, Row
from perdure.testing.conformance.bench import Bench, KitTable
from perdure.testing.conformance.trials import check, check_each, refused, same


async def _recode(table: KitTable, *names: str) -> list[Recode]:
    rows = [await table.get(name) for name in names]
    return [
        Recode(row, b"other bytes", "kit/other", 2**32 - 1 - n)
        for n, row in enumerate(rows)
        if row is not None
    ]


@check(Capability.TRANSACTIONS)
async def recoding_changes_bytes_only(bench: Bench) -> None:
    """Recoded rows have other bytes, content type and checksum; all else is as it was."""
    table = await bench.table()
    expires = bench.clock() + 10**9 if Capability.TTL in bench.capabilities else None
    tags = [("kit", "recoded")] if Capability.TAGS in bench.capabilities else []
    await table.add(
        *[table.put("a/one", kind="x", size=3, schema=4, tags=tags, expires=expires)] * 2,
        table.put("two", kind="x"),
        table.put("three", b"untouched"),
    )
    before = [await table.get(name) for name in ("a/one", "two")]
    bench.clock.tick(1_000)
    recodes = await _recode(table, "a/one", "two")
    same(await table.adapter.recode(table.layout.name, recodes, []), 2, "the number of rows")
    wanted = [
        row
        and msgspec.structs.replace(
            row, value=b"other bytes", content_type="kit/other", checksum=2**32 - 1 - n
        )
        for n, row in enumerate(before)
    ]
    same([await table.get(name) for name in ("a/one", "two")], wanted, "the rows")
    same(await table.value("three"), b"untouched", "the row that was not meant")
    if Capability.QUERY in bench.capabilities:
        found = await table.find(table.query(Compare("kind", Op.EQ, "x")))
        same(found, ["a/one", "two"], "the rows with the column")
    if Capability.TAGS in bench.capabilities:
        same(await table.find(table.query(Tagged("kit", "recoded"))), ["a/one"], "the tagged row")
    same(await table.commit(table.put("two", expected=1)), [2], "the version that follows")


@check(Capability.TRANSACTIONS)
async def recoding_changes_schema_and_columns(bench: Bench) -> None:
    """Rows are brought to another schema, with other columns; version, times and tags stay. A row
    whose schema is newer than that is left alone.
    """
    table = await bench.table()
    expires = bench.clock() + 10**9 if Capability.TTL in bench.capabilities else None
    tags = [("kit", "recoded")] if Capability.TAGS in bench.capabilities else []
    puts = [
        table.put(name, kind="old", size=1, schema=schema, tags=tags, expires=expires)
        for name, schema in (("older", 2), ("same", 3), ("newer", 4))
    ]
    await table.add(*puts, table.put("plain", kind="old"))
    before = {name: await table.get(name) for name in ("older", "same", "newer", "plain")}
    bench.clock.tick(1_000)
    recodes = [
        Recode(row, b"other bytes", "kit/other", 7, *wanted)
        for (name, row), wanted in zip(
            before.items(), [(3, ("new", 2, 0.5))] * 3 + [(None, None)], strict=True
        )
        if row is not None
    ]
    same(await table.adapter.recode(table.layout.name, recodes, []), 3, "the number of rows")
    for name, row in before.items():
        assert row is not None
        wanted_row = row
        if name != "newer":
            schema = row.schema if name == "plain" else 3
            wanted_row = msgspec.structs.replace(
                row, value=b"other bytes", content_type="kit/other", checksum=7, schema=schema
            )
        same(await table.get(name), wanted_row, f"the row {name!r}")
    if Capability.QUERY in bench.capabilities:
        for kind, names in (("new", ["older", "same"]), ("old", ["newer", "plain"])):
            found = await table.find(table.query(Compare("kind", Op.EQ, kind)))
            same(found, names, f"the rows whose kind is {kind}")
        by_score = table.query(Compare("score", Op.EQ, 0.5))
        same(await table.find(by_score), ["older", "same"], "the rows by their score")
    if Capability.TAGS in bench.capabilities:
        found = await table.find(table.query(Tagged("kit", "recoded")))
        same(found, ["newer", "older", "same"], "the tagged rows")


@check(Capability.TRANSACTIONS, Capability.TAGS)
async def recoding_changes_tags(bench: Bench) -> None:
    """Rows get other tags, or none, where that is asked for; the others keep theirs, and so does a
    row that was changed since it was read.
    """
    table = await bench.table()
    names = ("changed", "fewer", "kept", "more")
    await table.add(*(table.put(name, kind="x", tags=[("t", "1"), ("u", "1")]) for name in names))
    new = {"changed": (("t", "2"),), "fewer": (), "more": (("t", "2"), ("t", "2"), ("v", "3"))}
    recodes = [
        msgspec.structs.replace(recode, tags=new.get(table.name(recode.row)))
        for recode in await _recode(table, *names)
    ]
    await table.add(table.put("changed", kind="x", tags=[("t", "1")]))
    same(await table.adapter.recode(table.layout.name, recodes, []), 3, "the number of rows")
    for name, value, wanted in (
        ("t", "1", ["changed", "kept"]),
        ("u", "1", ["kept"]),
        ("t", "2", ["more"]),
        ("v", "3", ["more"]),
    ):
        found = await table.find(table.query(Tagged(name, value)))
        same(found, wanted, f"the rows tagged {name}={value}")
    row = await table.get("more")
    assert row is not None
    again = [Recode(row, b"again", "kit/other", 7, 2, ("y", 2, 0.5), (("w", "4"),))]
    same(await table.adapter.recode(table.layout.name, again, []), 1, "the number of rows")
    both = table.query(All((Tagged("w", "4"), Compare("kind", Op.EQ, "y"))))
    same(await table.find(both), ["more"], "the row with other columns, too")


async def _overwrite(table: KitTable) -> None:
    await table.add(table.put("one", b"theirs"))


async def _delete(table: KitTable) -> None:
    await table.add(table.delete("one"))


async def _replace(table: KitTable) -> None:
    await table.add(table.delete("one"), table.put("one", b"theirs"))


async def _recode_first(table: KitTable) -> None:
    (recode,) = await _recode(table, "one")
    theirs = msgspec.structs.replace(recode, value=b"theirs")
    await table.adapter.recode(table.layout.name, [theirs], [])


#: What others can do to a row between a look at it and its recoding.
CHANGES: dict[str, Callable[[KitTable], Awaitable[None]]] = {
    "overwritten": _overwrite,
    "deleted": _delete,
    "replaced": _replace,
    "recoded": _recode_first,
}


@check_each(Capability.TRANSACTIONS, cases=CHANGES)
async def recoding_spares_later_rows(
    bench: Bench, change: Callable[[KitTable], Awaitable[None]]
) -> None:
    """A row that was changed since it was read keeps its new content; the others are recoded."""
    table = await bench.table()
    await table.add(table.put("one", b"old", checksum=5), table.put("two", b"old"))
    recodes = await _recode(table, "one", "two", "nobody")
    await change(table)
    before = await table.get("one")
    same(await table.adapter.recode(table.layout.name, recodes, []), 1, "the number of rows")
    same(await table.get("one"), before, "the changed row")
    same(await table.value("two"), b"other bytes", "the other")


@check(Capability.TRANSACTIONS)
async def recoding_is_refused_whole(bench: Bench) -> None:
    """If a check does not hold, no row is recoded; if it does, all are."""
    table = await bench.table()
    other = await bench.plain_table(table.adapter)
    await table.add(table.put("one"), table.put("two"), other.put("guard"))
    guard = await other.get("guard")
    assert guard is not None
    recodes = await _recode(table, "one", "two")
    for wrong in (other.check("guard", 2, guard.created), other.check("nobody", 1)):
        with refused(Conflict) as caught:
            await table.adapter.recode(table.layout.name, recodes, [wrong])
        same([exc.key for exc in caught], [wrong.key], "the key of the conflict")
        same(await table.values(["one", "two"]), [b"value"] * 2, "the rows")
    right = other.check("guard", 1, guard.created)
    same(await table.adapter.recode(table.layout.name, recodes, [right]), 2, "the number of rows")


@check(Capability.TRANSACTIONS)
async def recoding_goes_unnoticed(bench: Bench) -> None:
    """Writers who expect versions, and check what they read, are not disturbed by recoding."""
    table = await bench.table()
    await table.add(table.put("sum", b"0"), table.put("other"))
    ended = False

    async def count() -> None:
        for _ in range(30):
            rows = [await table.get(name) for name in ("sum", "other")]
            read = [table.check(name, *_seen(row)) for name, row in _named(rows)]
            row = rows[0]
            assert row is not None
            number = int(row.value.removeprefix(b"again ")) + 1
            put = table.put("sum", b"%d" % number, expected=row.version)
            same(await table.commit(put, checks=read), [row.version + 1], "the version")

    async def recode() -> None:
        number = 0
        while not ended:
            number += 1
            row = await table.get("sum")
            assert row is not None
            again = b"again " + row.value.removeprefix(b"again ")
            made = Recode(row, again, "kit/other", number)
            await table.adapter.recode(table.layout.name, [made], [])
            await asyncio.sleep(0)

    recoding = asyncio.create_task(recode())
    try:
        await count()
    finally:
        ended = True
        await recoding
    row = await table.get("sum")
    same(row and (row.value.removeprefix(b"again "), row.version), (b"30", 31), "the sum")


def _named(rows: list[Row | None]) -> list[tuple[str, Row | None]]:
    return list(zip(("sum", "other"), rows, strict=True))


def _seen(row: Row | None) -> tuple[int, int]:
    return (0, 0) if row is None else (row.version, row.created)
