"""`Capability.AGGREGATE`: sums, averages, counts and groups, computed where the data is."""

from __future__ import annotations

from perdure.storage.adapter import Capability
from perdure.storage.options import DEFAULT
from perdure.storage.query import Compare, Figure, Op, Scalar, Summary
from perdure.testing.conformance.bench import Bench, KitTable, by
from perdure.testing.conformance.trials import check, check_each, same

#: kind, size, score — halves, whose sums are exact in any order.
ROWS: dict[str, tuple[str | None, int | None, float | None]] = {
    "a": ("x", 1, 0.5),
    "b": ("x", 2, None),
    "c": ("y", 4, 1.5),
    "d": ("y", None, -4.5),
    "e": (None, 3, None),
    "f": ("é", 2**62, 2.0),
}
_NEEDS = (Capability.AGGREGATE, Capability.QUERY)


async def _filled(bench: Bench) -> KitTable:
    table = await bench.table()
    await table.add(
        *(
            table.put(name, kind=kind, size=size, score=score)
            for name, (kind, size, score) in ROWS.items()
        )
    )
    return table


FIGURES: dict[str, tuple[str, str, Scalar]] = {
    "count_of_rows": ("count", "", 6),
    "count_of_values": ("count", "size", 5),
    "count_of_text": ("count", "kind", 5),
    "sum_of_integers": ("sum", "size", 2**62 + 10),
    "sum_of_reals": ("sum", "score", -0.5),
    "avg_of_reals": ("avg", "score", -0.125),
    "min_of_integers": ("min", "size", 1),
    "max_of_integers": ("max", "size", 2**62),
    "min_of_reals": ("min", "score", -4.5),
    "max_of_reals": ("max", "score", 2.0),
    "min_of_text": ("min", "kind", "x"),
    "max_of_text": ("max", "kind", "é"),
}


@check_each(*_NEEDS, cases=FIGURES)
async def computes(bench: Bench, case: tuple[str, str, Scalar]) -> None:
    """A figure over all rows is exact and of its column's type; NULLs are left out."""
    table = await _filled(bench)
    figure, column, wanted = case
    summary = Summary(table.query(), ((Figure(figure), column),))
    same(await table.adapter.summarize(summary, DEFAULT), [(wanted,)], figure)


@check(*_NEEDS)
async def averages_of_integers_are_real(bench: Bench) -> None:
    """The average of whole numbers is a real number, also when it comes out even."""
    table = await _filled(bench)
    for value, wanted in (("x", 1.5), ("y", 4.0)):
        query = table.query(Compare("kind", Op.EQ, value))
        summary = Summary(query, ((Figure.AVG, "size"),))
        same(await table.adapter.summarize(summary, DEFAULT), [(wanted,)], "the average")


@check(*_NEEDS)
async def times_are_figures(bench: Bench) -> None:
    """The first and the last time of writing are figures."""
    table = await _filled(bench)
    last = bench.clock()
    summary = Summary(table.query(), ((Figure.MIN, "created"), (Figure.MAX, "updated")))
    same(await table.adapter.summarize(summary, DEFAULT), [(last - 5, last)], "first and last")


@check_each(*_NEEDS, cases={figure.value: figure for figure in Figure})
async def nothing_has_no_figure(bench: Bench, figure: Figure) -> None:
    """Of no values every figure is None, and a count 0; of no rows there is no group."""
    table = await _filled(bench)
    query = table.query(Compare("kind", Op.EQ, "nobody"))
    wanted = 0 if figure is Figure.COUNT else None
    summary = Summary(query, ((figure, "size"),))
    same(await table.adapter.summarize(summary, DEFAULT), [(wanted,)], figure.value)
    grouped = Summary(query, ((figure, "size"),), ("kind",))
    same(await table.adapter.summarize(grouped, DEFAULT), [], "the groups")


GROUPS: dict[str, tuple[tuple[str, ...], list[tuple[Scalar, ...]]]] = {
    "by_text": (
        ("kind",),
        [
            (None, 1, 3, None),
            ("x", 2, 3, 0.5),
            ("y", 2, 4, -3.0),
            ("é", 1, 2**62, 2.0),
        ],
    ),
    "by_integer": (
        ("size",),
        [
            (None, 1, None, -4.5),
            (1, 1, 1, 0.5),
            (2, 1, 2, None),
            (3, 1, 3, None),
            (4, 1, 4, 1.5),
            (2**62, 1, 2**62, 2.0),
        ],
    ),
    "by_two": (
        ("kind", "size"),
        [
            (None, 3, 1, 3, None),
            ("x", 1, 1, 1, 0.5),
            ("x", 2, 1, 2, None),
            ("y", None, 1, None, -4.5),
            ("y", 4, 1, 4, 1.5),
            ("é", 2**62, 1, 2**62, 2.0),
        ],
    ),
    "by_version": (("version",), [(1, 6, 2**62 + 10, -0.5)]),
}


@check_each(*_NEEDS, cases=GROUPS)
async def groups(bench: Bench, case: tuple[tuple[str, ...], list[tuple[Scalar, ...]]]) -> None:
    """There is a line for each group, NULL being a group, ordered by group with NULL first."""
    table = await _filled(bench)
    group, wanted = case
    figures = ((Figure.COUNT, ""), (Figure.SUM, "size"), (Figure.SUM, "score"))
    found = await table.adapter.summarize(Summary(table.query(), figures, group), DEFAULT)
    same(found, wanted, "the groups")


@check(*_NEEDS)
async def conditions_apply(bench: Bench) -> None:
    """Prefix and condition choose the rows; order, limit, offset and mark do not apply."""
    table = await _filled(bench)
    where = Compare("size", Op.LT, 4)
    query = table.query(where, order=by("-size"), limit=1, offset=1, after=table.mark("zzz", 2))
    summary = Summary(query, ((Figure.COUNT, ""), (Figure.SUM, "size")))
    same(await table.adapter.summarize(summary, DEFAULT), [(3, 6)], "the figures")
    below = Summary(table.query(where, prefix="a"), ((Figure.COUNT, ""),))
    same(await table.adapter.summarize(below, DEFAULT), [(1,)], "the count below a prefix")
