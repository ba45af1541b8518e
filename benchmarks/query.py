"""A query with order and limit, and a group-by, over 100k records, against the same by hand.

By hand means: the same file, the same SQL, sent with apsw by somebody who knows the tables and
turns the rows into the same objects. Both answers are compared before anything is timed. The
select looks at the thousand records of one agent of a hundred, and sorts those with enough stars.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import apsw
import msgspec

from benchmarks.harness import Block, Report, alternate, awaited, called, ratio, work_folder
from benchmarks.ours import open_bank
from benchmarks.texts import Texts
from perdure import Compressed, Indexed, Key, record

AGENTS = 100
LIMIT = 20
STARS = 2


@record("calls", serializer="msgpack")  # as the rows that are read by hand
class Call(msgspec.Struct, frozen=True):
    """One model call: whose, how good, how long."""

    id: Annotated[str, Key()]
    agent: Annotated[str, Indexed()]
    stars: Annotated[int, Indexed()]
    tokens: Annotated[int, Indexed()]
    text: Annotated[str, Compressed()]


class ByHand:
    """What a user would write without Perdure, over Perdure's tables."""

    def __init__(self, path: Path) -> None:
        self._db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        self._db.pragma("cache_size", -16_000)  # as ours
        self._decoder = msgspec.msgpack.Decoder(Call)

    def select(self, agent: str) -> list[Call]:
        rows = self._db.execute(
            "SELECT r._value FROM calls r JOIN perdure_folders f ON f.id = r._folder"
            " WHERE r.agent = ? AND r.stars >= ?"
            " ORDER BY r.tokens DESC, (f.path || r._name) DESC LIMIT ?",
            (agent, STARS, LIMIT),
        )
        return [self._decoder.decode(value) for (value,) in rows]

    def group(self) -> list[dict[str, Any]]:
        rows = self._db.execute(
            "SELECT agent, count(*), sum(tokens), avg(stars) FROM calls"
            " GROUP BY agent ORDER BY agent"
        )
        return [
            {"agent": row[0], "calls": row[1], "tokens": row[2], "stars": row[3]} for row in rows
        ]

    def close(self) -> None:
        self._db.close()


async def run(report: Report, *, quick: bool) -> None:
    records, rounds, selects, groups = (500, 2, 5, 2) if quick else (100_000, 20, 50, 2)
    with work_folder() as folder:
        path = Path(folder) / "ours.db"
        async with open_bank(path, compression=False) as bank:
            calls = bank.collection(Call)
            for batch in _batches(records):
                await calls.put_many(batch)
            await bank.settle()

            async def select(agent: str) -> list[Call]:
                wanted = calls.query().where("agent", "=", agent).where("stars", ">=", STARS)
                return await wanted.order_by("-tokens").limit(LIMIT).values()

            async def group() -> list[dict[str, Any]]:
                finder = calls.query().group_by("agent")
                return await finder.aggregate(calls="count", tokens="sum tokens", stars="avg stars")

            by_hand = ByHand(path)
            assert await select(_agent(7)) == by_hand.select(_agent(7))
            assert await group() == by_hand.group()

            async def our_selects(number: int) -> Block:
                return await awaited(select, _agents(number, selects))

            async def hand_selects(number: int) -> Block:
                return called(by_hand.select, _agents(number, selects))

            async def our_groups(number: int) -> Block:
                return await awaited(lambda _: group(), _agents(number, groups))

            async def hand_groups(number: int) -> Block:
                return called(lambda _: by_hand.group(), _agents(number, groups))

            tallies = await alternate(
                {
                    "ours select": our_selects,
                    "raw select": hand_selects,
                    "ours group": our_groups,
                    "raw group": hand_groups,
                },
                rounds,
                quick=quick,
            )
            by_hand.close()
    for kind in ("select", "group"):
        report.ratio(f"{kind}_ratio_to_raw", ratio(tallies[f"ours {kind}"], tallies[f"raw {kind}"]))
    report.tallies(tallies)


def _agent(number: int) -> str:
    return f"agent-{number % AGENTS:03d}"


def _agents(number: int, count: int) -> list[str]:
    """Whom the operations of a round ask for; a group-by asks for all."""
    return [_agent(number * count + step) for step in range(count)]


def _batches(records: int, size: int = 500) -> Iterator[list[Call]]:
    rng = random.Random(2)
    texts = Texts(2)
    for start in range(0, records, size):
        yield [
            Call(
                f"{_agent(number)}/{number:08d}",
                _agent(number),
                rng.randrange(5),
                int(rng.lognormvariate(6, 1)),
                texts.message(400),
            )
            for number in range(start, min(start + size, records))
        ]
