"""`Capability.QUERY`: conditions and orders over declared columns."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from perdure.storage.adapter import Capability
from perdure.storage.options import DEFAULT
from perdure.storage.query import All, AnyOf, Compare, Condition, Op, Scalar
from perdure.storage.rows import Column, Fill, Index, Layout
from perdure.testing.conformance.bench import Bench, KitTable, by
from perdure.testing.conformance.trials import check, check_each, holds, same

#: Text that becomes something else where values are pasted into SQL, patterns or formats.
HOSTILE = (
    "' OR '1'='1",
    "'; DROP TABLE perdure_kit_rows; --",
    '"; DELETE FROM perdure_kit_rows; --',
    "x' UNION SELECT 1 --",
    "%",
    "_",
    "%s",
    "?",
    "$1",
    "\\",
    "\\x00",
    "{}",
    "NULL",
    "null",
    "\u2028",
    "e\u0301",
    "é",
    "É",
    "ab\n",
    " ab",
    "",
)


class Sample(NamedTuple):
    """The columns of a sample row."""

    kind: str | None
    size: int | None
    score: float | None


ROWS = {
    "a": Sample("x", 1, 0.5),
    "b": Sample("x", 2, None),
    "c": Sample("xy", 3, 1.5),
    "d": Sample("y", 2, -0.5),
    "e": Sample(None, None, None),
    "f": Sample("", 0, 0.0),
    "g/1": Sample("Y", -5, 1e300),
    "g/2": Sample("é", 2**53 + 1, 2.5),
}


async def _filled(bench: Bench) -> KitTable:
    table = await bench.table()
    await table.add(*(table.put(name, **sample._asdict()) for name, sample in ROWS.items()))
    return table


def _c(column: str, op: str, value: Scalar | tuple[Scalar, ...]) -> Condition:
    return Compare(column, Op(op), value)


CONDITIONS: dict[str, tuple[Condition, str]] = {
    "equal": (_c("kind", "=", "x"), "a b"),
    "equal_empty": (_c("kind", "=", ""), "f"),
    "equal_null": (_c("kind", "=", None), "e"),
    "equal_integer_given_as_real": (_c("size", "=", 2.0), "b d"),
    "equal_beyond_a_double": (_c("size", "=", 2**53 + 1), "g/2"),
    "equal_real": (_c("score", "=", 1.5), "c"),
    "unequal": (_c("kind", "!=", "x"), "c d e f g/1 g/2"),
    "unequal_null": (_c("kind", "!=", None), "a b c d f g/1 g/2"),
    "less": (_c("size", "<", 2), "a f g/1"),
    "less_fraction": (_c("size", "<", 1.5), "a f g/1"),
    "less_or_equal": (_c("size", "<=", 2), "a b d f g/1"),
    "greater": (_c("score", ">", 0.5), "c g/1 g/2"),
    "greater_or_equal": (_c("score", ">=", 0.5), "a c g/1 g/2"),
    "greater_text": (_c("kind", ">", "x"), "c d g/2"),
    "less_text": (_c("kind", "<", "Z"), "f g/1"),
    "in": (_c("size", "in", (1, 3, 99)), "a c"),
    "in_text": (_c("kind", "in", ("é", "Y", "nope")), "g/1 g/2"),
    "in_nothing": (_c("size", "in", ()), ""),
    "prefix": (_c("kind", "prefix", "x"), "a b c"),
    "prefix_empty": (_c("kind", "prefix", ""), "a b c d f g/1 g/2"),
    "prefix_is_no_pattern": (_c("kind", "prefix", "%"), ""),
    "key": (_c("key", "prefix", "nowhere"), ""),
    "version": (_c("version", ">=", 2), ""),
    "all_of_none": (All(()), "a b c d e f g/1 g/2"),
    "any_of_none": (AnyOf(()), ""),
    "and": (All((_c("kind", "=", "x"), _c("size", ">", 1))), "b"),
    "or": (AnyOf((_c("kind", "=", "y"), _c("size", "=", 3))), "c d"),
    "nested": (
        All(
            (
                AnyOf((_c("kind", "=", "x"), _c("kind", "=", "y"))),
                AnyOf((_c("size", "=", 1), All((_c("size", "=", 2), _c("score", "!=", None))))),
            )
        ),
        "a d",
    ),
}


@check_each(Capability.QUERY, cases=CONDITIONS)
async def finds(bench: Bench, case: tuple[Condition, str]) -> None:
    """A condition finds the rows it describes. NULL is equal to NULL only, and in no order."""
    table = await _filled(bench)
    condition, wanted = case
    same(await table.find(table.query(condition)), wanted.split(), "what was found")


@check(Capability.QUERY)
async def text_is_only_text(bench: Bench) -> None:
    """Whatever text is compared with, it is compared as it is: it never becomes code, a pattern,
    or its own lower case.
    """
    table = await bench.table()
    await table.add(*(table.put(f"{n:02d}", kind=text) for n, text in enumerate(HOSTILE)))
    for number, text in enumerate(HOSTILE):
        found = await table.find(table.query(_c("kind", "=", text)))
        same(found, [f"{number:02d}"], f"what equals {text!r}")
    everything = [f"{n:02d}" for n in range(len(HOSTILE))]
    same(await table.find(table.query(_c("kind", "in", HOSTILE))), everything, "all of them")
    wanted = [name for name, text in zip(everything, HOSTILE, strict=True) if text > "_"]
    same(await table.find(table.query(_c("kind", ">", "_"))), wanted, "what is greater than '_'")


@check(Capability.QUERY)
async def columns_follow_the_row(bench: Bench) -> None:
    """A query sees the columns of the last write, and nothing of a deleted row."""
    table = await bench.table()
    await table.add(table.put("a", kind="x"), table.put("b", kind="x"), table.put("c", kind="x"))
    await table.add(table.put("a", kind="y"), table.delete("b"))
    same(await table.find(table.query(_c("kind", "=", "x"))), ["c"], "the old value")
    same(await table.find(table.query(_c("kind", "=", "y"))), ["a"], "the new value")


@check(Capability.QUERY)
async def times_are_columns(bench: Bench) -> None:
    """`created`, `updated` and `version` can be compared and ordered by."""
    table = await bench.table()
    await table.add(table.put("a"), table.put("b"))
    middle = bench.clock.tick(1_000)
    await table.add(table.put("c"), table.put("a"))
    same(await table.find(table.query(_c("created", ">", middle))), ["c"], "the younger")
    same(await table.find(table.query(_c("updated", ">", middle))), ["a", "c"], "the changed")
    same(await table.find(table.query(_c("version", "=", 2))), ["a"], "the second versions")
    same(await table.find(table.query(order=by("-updated"))), ["a", "c", "b"], "the newest first")


ORDERS = (
    ("kind",),
    ("-kind",),
    ("size", "kind"),
    ("-size", "score"),
    ("score", "-size", "kind"),
    ("-score", "-key"),
    ("kind", "-created"),
    ("-updated",),
)
PAGINGS = {
    f"{'_'.join(order).replace('-', 'minus_')}_by_{size}": (order, size)
    for order, size in itertools.product(ORDERS, (1, 3))
}


def _sorted(order: tuple[str, ...]) -> list[str]:
    """By definition: one stable sort for each column."""
    names = sorted(ROWS, reverse=order[-1].startswith("-"))
    written = list(ROWS)
    for part in reversed(order):
        column = part.removeprefix("-")

        def rank(name: str, column: str = column) -> tuple[bool, object]:
            if column == "key":
                return True, name
            if column in ("created", "updated"):
                return True, written.index(name)
            value = getattr(ROWS[name], column)
            return value is not None, value if value is not None else 0

        names.sort(key=rank, reverse=part.startswith("-"))
    return names


@check_each(Capability.QUERY, cases=PAGINGS)
async def orders_and_pages(bench: Bench, case: tuple[tuple[str, ...], int]) -> None:
    """Results come in the order asked for, NULL first, ties by key in the last direction; pages
    that begin behind the last row of the one before give every row once.
    """
    table = await _filled(bench)
    columns, size = case
    order = by(*columns)
    wanted = _sorted(columns)
    same(await table.find(table.query(order=order)), wanted, "the results in one")
    found: list[str] = []
    after = None
    while rows := await table.adapter.find(
        table.query(order=order, limit=size, after=after), DEFAULT
    ):
        found += [table.name(row) for row in rows]
        last = rows[-1]
        values = {
            **ROWS[found[-1]]._asdict(),
            "key": last.key,
            "created": last.created,
            "updated": last.updated,
        }
        after = tuple(values[part.column] for part in table.query(order=order).total_order())
    same(found, wanted, "all pages together")


@check(Capability.QUERY)
async def conditions_and_pages(bench: Bench) -> None:
    """Prefix, condition, order, offset and limit work together."""
    table = await _filled(bench)
    where = _c("size", ">=", 0)
    query = table.query(where, order=by("-size"), offset=1, limit=2)
    same(await table.find(query), ["c", "d"], "the page")
    query = table.query(where, prefix="g/", order=by("-size"))
    same(await table.find(query), ["g/2"], "the results below a prefix")


@check(Capability.QUERY)
async def removes(bench: Bench) -> None:
    """Removing by query deletes what the query finds, and tells how many rows that were."""
    table = await _filled(bench)
    remove = table.adapter.remove
    same(await remove(table.query(_c("kind", "=", "x")), DEFAULT), 2, "the number removed")
    same(await remove(table.query(_c("kind", "=", "x")), DEFAULT), 0, "the number removed again")
    same(await remove(table.query(prefix="g/"), DEFAULT), 2, "the number below a prefix")
    newest = table.query(order=by("-size"), limit=1)
    same(await remove(newest, DEFAULT), 1, "the number removed of a page")
    same(await table.find(table.query()), ["d", "e", "f"], "what is left")


_BARE = Layout("perdure_kit_grown")
_GROWN = Layout("perdure_kit_grown", (Column("kind", "text"),), (Index(("kind",)),))


async def _unfilled(table: KitTable) -> set[str]:
    found: set[str] = set()
    position = ""
    while page := await table.adapter.unfilled(table.layout.name, position, 2):
        keys, position = page
        if not keys:
            break
        found |= set(keys)
    return found


async def _fill(table: KitTable, **kinds: str) -> None:
    fills = []
    for name, kind in kinds.items():
        row = await table.get(name)
        assert row is not None
        fills.append(Fill(row.key, row.version, row.created, (kind,)))
    await table.adapter.fill(table.layout.name, fills)


@check(Capability.QUERY)
async def added_columns_are_filled(bench: Bench) -> None:
    """A column added to a collection with rows is named as missing until it was filled and
    activated; then queries find the old rows by it.
    """
    table = await bench.prepare(_BARE)
    await table.add(table.put("a"), table.put("b"))
    same(await table.adapter.prepare(_GROWN), {"kind"}, "what is missing")
    same(await table.adapter.prepare(_GROWN), {"kind"}, "what is missing after an interruption")
    table = KitTable(bench, table.adapter, _GROWN)
    await _fill(table, a="x", b="y")
    await table.adapter.activate(_GROWN)
    same(await table.find(table.query(_c("kind", "=", "y"))), ["b"], "what was found")
    same(await table.adapter.prepare(_GROWN), frozenset(), "what is missing at the end")
    row = await table.get("a")
    same(row and row.version, 1, "the version after filling")


@check(Capability.QUERY)
async def forgotten_columns_are_filled_again(bench: Bench) -> None:
    """A column that was no longer declared for a while is missing when it is declared again, or
    the rows that were written meanwhile are named as unfilled.
    """
    table = await bench.prepare(_GROWN)
    await table.add(table.put("a", kind="x"))
    same(await table.adapter.prepare(_BARE), frozenset(), "what is missing without the column")
    bare = KitTable(bench, table.adapter, _BARE)
    await bare.add(bare.put("b"), bare.put("a"))
    if not await table.adapter.prepare(_GROWN):
        keys = {table.key("a"), table.key("b")}
        holds(await _unfilled(table) >= keys, "a row that lacks the column is not named")
    await _fill(table, a="new", b="new")
    await table.adapter.activate(_GROWN)
    same(await table.find(table.query(_c("kind", "=", "new"))), ["a", "b"], "what was found")


@check(Capability.QUERY, Capability.SHARED)
async def what_others_leave_out_is_named(bench: Bench) -> None:
    """Rows that somebody writes who does not know a column are named, if the backend can tell, to
    those who know it: new ones, changed ones, ones made anew; and no others. Whoever opens the
    collection then is told that the column is missing.
    """
    old = await bench.prepare(_BARE)
    await old.add(*(old.put(name) for name in "abcde"))
    new = KitTable(bench, await bench.open(), _GROWN)
    await new.adapter.prepare(_GROWN)
    await _fill(new, **dict.fromkeys("abcde", "x"))
    await new.adapter.activate(_GROWN)
    if await new.adapter.unfilled(_GROWN.name, "", 1) is None:
        return
    own = {new.key(name) for name in "abcdefg"}
    same(await _unfilled(new) & own, set(), "what is unfilled at first")
    await old.add(old.put("a"), old.put("f"), old.delete("b"), old.put("b"), old.put("c"))
    await new.add(new.put("c", kind="y"), new.put("d", kind="y"), new.put("g", kind="y"))
    same(await _unfilled(new), {new.key(name) for name in "abf"}, "what is unfilled then")
    another = await bench.open()
    same(await another.prepare(_GROWN), {"kind"}, "what is missing for another")
    await _fill(new, a="x", b="x", f="x")
    same(await _unfilled(new) & own, set(), "what is unfilled in the end")
    same(await another.prepare(_GROWN), frozenset(), "what is missing in the end")
    for kind, names in (("x", "abef"), ("y", "cdg")):
        found = await new.find(new.query(_c("kind", "=", kind)))
        same(found, list(names), f"the rows whose kind is {kind}")


@check(Capability.QUERY)
async def filling_spares_what_changed(bench: Bench) -> None:
    """Filling skips a row that has another version, is gone or was made anew: its writer knew
    better.
    """
    table = await bench.prepare(_BARE)
    await table.add(*(table.put(name) for name in "abcd"))
    await table.adapter.prepare(_GROWN)
    table = KitTable(bench, table.adapter, _GROWN)
    rows = [await table.get(name) for name in ("a", "b", "c", "d")]
    fills = [Fill(row.key, row.version, row.created, ("filled",)) for row in rows if row]
    await table.add(table.put("a", kind="written"), table.delete("c"))
    await table.add(table.delete("d"), table.put("d", kind="written"))
    await table.adapter.fill(_GROWN.name, fills)
    await table.adapter.activate(_GROWN)
    same(await table.find(table.query(_c("kind", "=", "written"))), ["a", "d"], "the written")
    same(await table.find(table.query(_c("kind", "=", "filled"))), ["b"], "the filled")


@check(Capability.QUERY)
async def columns_change_their_kind(bench: Bench) -> None:
    """A column declared anew with another kind is missing, and holds the new kind once filled."""
    numbers = Layout("perdure_kit_grown", (Column("kind", "integer"),), (Index(("kind",)),))
    table = await bench.prepare(_GROWN)
    await table.add(table.put("a", kind="10"), table.put("b", kind="9"))
    same(await table.adapter.prepare(numbers), {"kind"}, "what is missing")
    changed = KitTable(bench, table.adapter, numbers)
    rows = [await table.get(name) for name in ("a", "b")]
    fills = [Fill(r.key, 1, r.created, (n,)) for r, n in zip(rows, (10, 9), strict=True) if r]
    await table.adapter.fill(numbers.name, fills)
    await table.adapter.activate(numbers)
    query = changed.query(_c("kind", ">", 1), order=by("kind"))
    same(await changed.find(query), ["b", "a"], "the order by number")
