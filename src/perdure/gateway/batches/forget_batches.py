"""Forgets what requests and answers of batches say."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.gateway.batches.batch_records import BatchItem, BatchRecord
from perdure.gateway.batches.owned_batch import PORTION
from perdure.gateway.calls import indexable
from perdure.storage.store import Store


async def forget(store: Store, sessions: tuple[str, ...], agent: str | None = None) -> None:
    """Delete what requests and answers say, of these sessions, of this agent, and where no session
    is named, since that may hold words of any. What was not sent is not; the answer to what was is
    not kept, but counts. Names are removed.
    """
    items, batches = store.collection(BatchItem), store.collection(BatchRecord)
    wanted = [("session", indexable(session)) for session in sessions if session]
    wanted += [("agent", indexable(agent))] if agent else []
    for field, name in wanted:
        finder = items.query().where(field, "=", name).limit(PORTION)
        while found := await finder.values():
            await items.put_many(_forgotten(item, **{field: ""}) for item in found)
    after = None
    while True:
        page = await items.query().where("session", "=", "").limit(PORTION).page(after=after)
        said = [item for item in page.values if item.request or item.answer]
        await items.put_many(map(_forgotten, said))
        if (after := page.next) is None:
            break
    for record in [each async for each in batches.walk()]:
        options = record.options
        if options.session in sessions or (agent and options.agent == agent):
            await batches.change(record.id, lambda found: _unnamed(found or record))  # noqa: B023


def _forgotten(item: BatchItem, **gone: str) -> BatchItem:
    return replace(item, request=b"", answer=b"", forgotten=True, **gone)


def _unnamed(record: BatchRecord) -> BatchRecord:
    return replace(record, agent="", options=replace(record.options, agent="", session=""))
