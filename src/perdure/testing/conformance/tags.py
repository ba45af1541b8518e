"""`Capability.TAGS`: rows are found by ``name=value`` tags."""

from __future__ import annotations

from perdure.storage.adapter import Capability
from perdure.storage.options import DEFAULT
from perdure.storage.query import All, AnyOf, Compare, Condition, Op, Tagged
from perdure.testing.conformance.bench import Bench, KitTable
from perdure.testing.conformance.trials import check, check_each, same

ROWS: dict[str, list[tuple[str, str]]] = {
    "a": [("lang", "py"), ("state", "open")],
    "b": [("lang", "py"), ("state", "done")],
    "c": [("lang", "PY")],
    "d": [("lang", "py=3"), ("state", "")],
    "e": [],
    "f": [("lang", "py"), ("lang", "c")],
    "g": [("it's", '"); DROP TABLE x; --'), ("é", "🦊")],
}
CONDITIONS: dict[str, tuple[Condition, str]] = {
    "one": (Tagged("lang", "py"), "a b f"),
    "case_matters": (Tagged("lang", "PY"), "c"),
    "equals_sign": (Tagged("lang", "py=3"), "d"),
    "empty_value": (Tagged("state", ""), "d"),
    "two_values_of_a_name": (Tagged("lang", "c"), "f"),
    "unknown": (Tagged("lang", "rust"), ""),
    "name_and_value_swapped": (Tagged("py", "lang"), ""),
    "quotes": (Tagged("it's", '"); DROP TABLE x; --'), "g"),
    "unicode": (Tagged("é", "🦊"), "g"),
    "wildcard": (Tagged("lang", "%"), ""),
    "and": (All((Tagged("lang", "py"), Tagged("state", "open"))), "a"),
    "or": (AnyOf((Tagged("state", "done"), Tagged("lang", "c"))), "b f"),
    "with_a_column": (All((Tagged("lang", "py"), Compare("kind", Op.EQ, "x"))), "a"),
}
_NEEDS = (Capability.TAGS, Capability.LISTING)


async def _filled(bench: Bench) -> KitTable:
    table = await bench.table()
    await table.fill(
        *(
            table.put(name, tags=tags, kind="x" if name == "a" else "y")
            for name, tags in ROWS.items()
        )
    )
    return table


@check_each(*_NEEDS, Capability.QUERY, cases=CONDITIONS)
async def finds(bench: Bench, case: tuple[Condition, str]) -> None:
    """A tag finds the rows that carry it, name and value alike, alone or with other conditions."""
    table = await _filled(bench)
    condition, wanted = case
    same(await table.find(table.query(condition)), wanted.split(), "what was found")


@check(*_NEEDS)
async def tags_follow_the_row(bench: Bench) -> None:
    """A row carries the tags of its last write, and none when it is gone and written anew."""
    table = await _filled(bench)
    await table.add(table.put("a", tags=[("state", "done")]), table.delete("b"), table.put("b"))
    same(await table.find(table.query(Tagged("lang", "py"))), ["f"], "the old tag")
    same(await table.find(table.query(Tagged("state", "done"))), ["a"], "the new tag")


@check(*_NEEDS)
async def repeated_tags_count_once(bench: Bench) -> None:
    """A tag that is given twice is one tag."""
    table = await bench.table()
    await table.add(table.put("a", tags=[("x", "1"), ("x", "1")]))
    same(await table.find(table.query(Tagged("x", "1"))), ["a"], "what was found")


@check(*_NEEDS, Capability.QUERY)
async def removing_takes_tags_along(bench: Bench) -> None:
    """Rows are removed by tag, and their tags with them."""
    table = await _filled(bench)
    same(await table.adapter.remove(table.query(Tagged("lang", "py")), DEFAULT), 3, "the number")
    await table.add(table.put("a"), table.put("b"))
    same(await table.find(table.query(Tagged("lang", "py"))), [], "what was found")
