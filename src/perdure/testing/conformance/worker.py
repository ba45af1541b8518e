"""The other process: ``python -m perdure.testing.conformance.worker JOB``.

Prints a line for each step that the store has acknowledged.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from functools import reduce
from typing import Any, Literal

import msgspec

from perdure.core.errors import Conflict
from perdure.search.engine import Document, SearchIndex, engine_of
from perdure.storage.adapter import Adapter
from perdure.storage.options import DEFAULT, STRONG
from perdure.storage.registry import extend
from perdure.storage.rows import Batch, Event, Layout, Put


class WorkerJob(msgspec.Struct, frozen=True):
    """A task, as `Bench.spawn` passes it."""

    task: Literal["write", "count"]
    url: str
    factory: str
    time: int
    layouts: list[Layout]
    keys: list[str]
    strong: bool = False
    emit: bool = False
    times: int = 0
    index: SearchIndex | None = None


async def write(adapter: Adapter, job: WorkerJob) -> None:
    """Each key to every collection, one batch a key, with an event and a document about it if
    the job says so; then wait to be killed.
    """
    options = STRONG if job.strong else DEFAULT
    if job.index is not None:
        await engine_of(adapter).prepare(job.index)
    for place, key in enumerate(job.keys):
        value, index = key.encode(), job.index
        batch = Batch(
            tuple(_put(layout, key, value) for layout in job.layouts),
            events=(Event("perdure.kit", key, value),) if job.emit else (),
            changes=(Document(index.name, place, ("common", f"t{place}"), value),) if index else (),
        )
        await adapter.commit(batch, options)
        print(key, flush=True)  # noqa: T201  # the acknowledgement
    await asyncio.sleep(3600)


async def count(adapter: Adapter, job: WorkerJob) -> None:
    (layout,), (key,) = job.layouts, job.keys
    for _ in range(job.times):
        while True:
            (row,) = await adapter.get(layout.name, [key], DEFAULT)
            number = 0 if row is None else int(row.value)
            put = _put(layout, key, str(number + 1).encode(), 0 if row is None else row.version)
            try:
                await adapter.commit(Batch((put,)), DEFAULT)
            except Conflict:
                continue
            break
    print("done", flush=True)  # noqa: T201  # the acknowledgement


def _put(layout: Layout, key: str, value: bytes, expected: int | None = None) -> Put:
    columns = (None,) * len(layout.columns)
    return Put(layout.name, key, value, "text/plain", 1, columns=columns, expected=expected)


async def work(job: WorkerJob) -> None:
    module, _, name = job.factory.partition(":")
    factory: Any = reduce(getattr, name.split("."), importlib.import_module(module))
    adapter: Adapter = factory(job.url, lambda: job.time)
    extend(adapter)
    await adapter.initialize()
    for layout in job.layouts:
        await adapter.prepare(layout)
    await (write if job.task == "write" else count)(adapter, job)
    await adapter.close()


if __name__ == "__main__":
    asyncio.run(work(msgspec.json.decode(sys.argv[1], type=WorkerJob)))
