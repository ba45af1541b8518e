"""A process that writes audited records until it is killed: ``audited_writer URL NUMBER``.

It prints a line for each write that was acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import sys

from perdure.config.settings import AuditConfig
from perdure.storage.audit import Audit
from perdure.storage.compression import Compression
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from tests.storage.notes import Note

LANES = 4


async def main(url: str, number: int) -> None:
    config = AuditConfig(collections=("notes",))
    async with Store(adapter_for(url), middleware=[Audit(config), Compression()]) as store:
        await asyncio.gather(*(write(store, random.Random(f"{number} {n}")) for n in range(LANES)))


async def write(store: Store, dice: random.Random) -> None:
    """Lanes share their records, so that they get into each other's way."""
    notes = store.collection(Note)
    while True:
        key = f"n{dice.randrange(6)}"
        note = Note(key, stars=dice.randrange(5), text="word " * dice.randrange(50))
        match dice.randrange(5):
            case 0:
                await notes.delete(key)
            case 1:
                await notes.query().where("stars", "=", note.stars).limit(2).delete()
            case 2:
                await notes.put_many([note, Note(f"m{dice.randrange(6)}")])
            case _:
                await notes.put(note)
        print(key, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
