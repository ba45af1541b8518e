"""Partial indexes: their constants stand in the SQL, so that the database can use them."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest

import perdure
from perdure.storage.finder import all_of, any_of, where
from perdure.storage.rows import Index
from perdure.storage.store import Store


@perdure.record(
    "chores",
    indexes=[
        Index(("due",), where=(("state", "pending"),)),
        Index(("until",), where=(("state", "running"),)),
    ],
)
class Chore(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    state: str
    due: int = 0
    until: int = 0


async def test_a_choice_between_partial_indexes(store: Store) -> None:
    """SQLite's planner fails on this with parameters in place of the constants."""
    chores = store.collection(Chore)
    await chores.put_many(
        [
            Chore("a", "pending", due=1),
            Chore("b", "pending", due=9),
            Chore("c", "running", until=3),
            Chore("d", "done", due=1),
        ]
    )
    ready = any_of(
        all_of(where("state", "=", "pending"), where("due", "<=", 5)),
        where("state", "=", "running"),
    )
    assert [item.key for item in await chores.query().where(ready).execute()] == ["a", "c"]
    assert await chores.query().where(ready).count() == 2
    assert await chores.query().where(ready).delete() == 2


async def test_a_constant_that_is_not_declared_stays_a_parameter(store: Store) -> None:
    chores = store.collection(Chore)
    await chores.put(Chore("a", "it's; DROP TABLE chores"))
    found = chores.query().where("state", "=", "it's; DROP TABLE chores")
    assert [item.key for item in await found.execute()] == ["a"]


@pytest.mark.parametrize("constant", ["it's", "a b", "x;y", "é"])
def test_a_constant_is_a_plain_word(constant: str) -> None:
    with pytest.raises(perdure.InvalidRecordType, match="plain word"):
        perdure.record("odd", indexes=[Index(("due",), where=(("state", constant),))])(
            msgspec.defstruct(
                "Odd",
                [("id", Annotated[str, perdure.Key()]), ("state", str), ("due", int)],
                frozen=True,
            )
        )
