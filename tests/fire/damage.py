"""A bank with something of everything, and what can still be told about it when it is damaged."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

import perdure
from perdure.bank import Bank
from tests.fire.records import Entry, Mirror, Paper, content_of, entry, mirror


@perdure.record("fire_labels", ttl="30d")
class Label(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    topic: Annotated[str, perdure.Indexed()]
    labels: Annotated[dict[str, str], perdure.Tags()] = {}


ENTRIES = [entry(f"room {n % 7}/shelf {n % 3}/{n:03d}", n) for n in range(90)]
MIRRORS = [mirror(f"{n:03d}") for n in range(60)]
LABELS = [Label(f"{n:03d}", f"topic {n % 5}", {"kind": f"k{n % 4}"}) for n in range(60)]
PAPERS = [f"paper {n}" for n in range(5)]


async def furnish(bank: Bank) -> None:
    """Write it all."""
    await bank.collection(Entry).put_many(ENTRIES)
    await bank.collection(Label).put_many(LABELS)
    for record in MIRRORS:
        async with bank.transaction() as tx:
            await tx.collection(Mirror).put(record)
            tx.emit("mirror", record.id, key=record.id)
    for key in PAPERS:
        artifact = await bank.artifacts.put(content_of(key))
        await bank.collection(Paper).put(Paper(key, artifact.hash))


class Damage(msgspec.Struct):
    """What a look at a bank finds out."""

    #: Errors and findings of `verify`: the damage is noticed.
    noticed: list[str] = []
    #: Records and answers that are not there or not as they should be, without an error.
    wrong: list[str] = []
    #: Values that differ from what was written, handed out without an error. Never acceptable.
    lies: list[str] = []


async def inspect(url: str) -> Damage:
    """Open the bank, read all of it in several ways, and verify it.

    Only errors of our own are caught: any other is a fault of ours.
    """
    damage = Damage()
    bank = perdure.open(url)
    try:
        await bank.open()
    except perdure.PerdureError as exc:
        damage.noticed.append(f"open: {exc!r}")
        return damage
    try:
        await _read(bank, damage)
        await _ask(bank, damage)
        try:
            async for problem in bank.verify():
                damage.noticed.append(f"{problem.subject}: {problem.what}")
        except perdure.PerdureError as exc:
            damage.noticed.append(f"verify: {exc!r}")
    finally:
        await bank.close()
    return damage


async def _read(bank: Bank, damage: Damage) -> None:
    """Each record by its key."""
    for wanted in (ENTRIES, MIRRORS, LABELS):
        records: Any = bank.collection(type(wanted[0]))
        for record in wanted:
            what = f"{records.name}/{record.id}"
            try:
                found = await records.get(record.id)
            except perdure.PerdureError as exc:
                damage.noticed.append(f"{what}: {exc!r}")
                continue
            if found is None:
                damage.wrong.append(what)
            elif found != record:
                damage.lies.append(what)
    for key in PAPERS:
        try:
            paper = await bank.collection(Paper).get(key)
            if paper is None:
                damage.wrong.append(key)
            elif await bank.artifacts.read(paper.artifact) != content_of(key):
                damage.lies.append(key)
        except perdure.PerdureError as exc:
            damage.noticed.append(f"{key}: {exc!r}")


async def _ask(bank: Bank, damage: Damage) -> None:
    """Lists and queries, whose answers are known."""
    entries, labels = bank.collection(Entry), bank.collection(Label)
    questions: dict[str, tuple[Any, Any]] = {
        "all": (entries.query().values(), sorted(ENTRIES, key=lambda record: record.id)),
        "count": (entries.query().count(), len(ENTRIES)),
        "order": (
            entries.query().where("number", ">=", 40).order_by("-number").values(),
            ENTRIES[:39:-1],
        ),
        "topic": (
            labels.query().where("topic", "=", "topic 3").values(),
            [record for record in LABELS if record.topic == "topic 3"],
        ),
        "tag": (
            labels.query().tagged(kind="k2").values(),
            [record for record in LABELS if record.labels["kind"] == "k2"],
        ),
    }
    for name, (question, expected) in questions.items():
        try:
            answer = await question
        except perdure.PerdureError as exc:
            damage.noticed.append(f"{name}: {exc!r}")
            continue
        if answer != expected:
            damage.wrong.append(name)
