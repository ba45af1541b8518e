"""`Capability.LISTING`: keys in order, by prefix, paged by key in both directions."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from perdure.storage.adapter import Capability
from perdure.storage.options import DEFAULT
from perdure.testing.conformance.bench import Bench, KitTable, by
from perdure.testing.conformance.trials import check, check_each, same

#: Chosen so that the wrong order shows: by folder, by locale, by UTF-16 unit, by letter case.
NAMES = (
    *("a", "a/1", "a/1/x", "a/1/x/y", "a/10", "a/2", "a-b", "a-b/1", "a0", "a.b", "a b"),
    *("A", "B/c", "b", "b/c/d", "b/c", "bc", "_", "z", "z/z/z/z", "é", "é/1", "e\u0301"),
    *("\ud7ff", "\ue000", "\uffff", "𐀀", "🦊/fox", "🦊", "~"),
)
PREFIXES = {
    "everything": "",
    "folder": "a/",
    "folder_of_one": "a-b/",
    "deep_folder": "a/1/",
    "part_of_a_name": "a",
    "part_below": "a/1",
    "whole_key": "a/1/x/y",
    "accent": "é",
    "astral": "🦊",
    "last_of_the_plane": "\uffff",
    "before_the_surrogates": "\ud7ff",
    "nothing": "nothing/",
    "wildcard": "a%",
    "underscore": "_",
}


async def _filled(bench: Bench) -> KitTable:
    table = await bench.table()
    await table.fill(*(table.put(name) for name in NAMES))
    return table


@check_each(Capability.LISTING, cases=PREFIXES)
async def lists(bench: Bench, prefix: str) -> None:
    """Keys that begin like the prefix, and only those, are listed by code point, both ways."""
    table = await _filled(bench)
    wanted = sorted(name for name in NAMES if name.startswith(prefix))
    same(await table.find(table.query(prefix=prefix)), wanted, "the listing")
    same(
        await table.find(table.query(prefix=prefix, order=by("-key"))),
        wanted[::-1],
        "the listing backwards",
    )


class Paging(NamedTuple):
    """How a listing is paged."""

    size: int
    prefix: str = ""
    descending: bool = False


PAGINGS = {
    f"{'backwards' if descending else 'forwards'}_by_{size}{where}": Paging(
        size, prefix, descending
    )
    for descending, size, (where, prefix) in itertools.product(
        (False, True), (1, 4), (("", ""), ("_below_a_prefix", "a"), ("_in_a_folder", "a/"))
    )
}


@check_each(Capability.LISTING, cases=PAGINGS)
async def pages(bench: Bench, paging: Paging) -> None:
    """Pages that begin behind the last key of the one before give every key once, in order."""
    table = await _filled(bench)
    order = by("-key" if paging.descending else "key")
    found: list[str] = []
    after = None
    while page := await table.find(
        table.query(prefix=paging.prefix, order=order, limit=paging.size, after=after)
    ):
        found += page
        after = table.mark(page[-1])
    wanted = sorted(
        (name for name in NAMES if name.startswith(paging.prefix)), reverse=paging.descending
    )
    same(found, wanted, "all pages together")


@check_each(Capability.LISTING, cases={"forwards": "key", "backwards": "-key"})
async def marks_need_not_exist(bench: Bench, order: str) -> None:
    """A page begins behind its mark though the row there was deleted or never existed."""
    table = await _filled(bench)
    for mark in ("a/1/w", "a/", "a/1", "", "aa", "é/", "\U0010ffff"):
        after = table.mark(mark)
        if mark == "a/1":
            await table.commit(table.delete("a/1"))
        left = [name for name in NAMES if name != "a/1" or mark in ("a/1/w", "a/")]
        wanted = sorted(name for name in left if (name < mark if order[0] == "-" else name > mark))
        found = await table.find(table.query(order=by(order), after=after))
        same(found, wanted[::-1] if order[0] == "-" else wanted, f"what is behind {mark!r}")


@check(Capability.LISTING)
async def marks_outside_the_prefix(bench: Bench) -> None:
    """A mark before or behind everything below the prefix gives all of it, or nothing."""
    table = await _filled(bench)
    inside = sorted(name for name in NAMES if name.startswith("a/"))
    for mark, order, wanted in (
        ("A", "key", inside),
        ("b", "key", []),
        ("b", "-key", inside[::-1]),
        ("A", "-key", []),
    ):
        query = table.query(prefix="a/", order=by(order), after=table.mark(mark))
        same(await table.find(query), wanted, f"what is behind {mark!r}, by {order}")


@check_each(Capability.LISTING, cases={"0": 0, "1": 1, "5": 5, "more_than_there_are": 1_000})
async def limits_and_offsets(bench: Bench, limit: int) -> None:
    """At most `limit` rows come, after `offset` were passed."""
    table = await _filled(bench)
    wanted = sorted(NAMES)
    for offset in (0, 3, 1_000):
        found = await table.find(table.query(limit=limit, offset=offset))
        same(found, wanted[offset : offset + limit], f"the page from {offset}")


@check(Capability.LISTING)
async def deleted_rows_are_not_listed(bench: Bench) -> None:
    """A deleted row leaves the listing, what lies below it stays."""
    table = await _filled(bench)
    await table.add(table.delete("a"), table.delete("a/1/x"))
    wanted = sorted(name for name in NAMES if name.startswith("a") and name not in {"a", "a/1/x"})
    same(await table.find(table.query(prefix="a")), wanted, "the listing")


@check(Capability.LISTING)
async def whole_rows_are_listed(bench: Bench) -> None:
    """A listed row is the row that reading its key gives."""
    table = await _filled(bench)
    rows = await table.adapter.find(table.query(), DEFAULT)
    keys = [row.key for row in rows]
    same(rows, await table.adapter.get(table.layout.name, keys, DEFAULT), "the rows")


@check(Capability.LISTING)
async def salvage_reads_everything(bench: Bench) -> None:
    """`salvage` pages through the rows of a sound store in key order."""
    table = await _filled(bench)
    found: list[str] = []
    after = bench.root
    while rows := await table.adapter.salvage(table.layout.name, after, 7):
        found += [table.name(row) for row in rows if row.key.startswith(bench.root)]
        after = rows[-1].key
    same(found, sorted(NAMES), "the rows")
