"""State records: typed, long-lived state that is used for a while and then archived.

A type of them derives from `StateRecord`; the base class holds any plain data::

    @record("chats")
    class Chat(StateRecord, frozen=True, kw_only=True):
        topic: str = ""

    chats = StateRecords(bank.store, Chat)
    await chats.save(Chat(id="ada/1", type="chat", topic="engines"))
    recent = await chats.get_active(datetime.now(UTC) - timedelta(hours=1))
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from perdure.core import clock
from perdure.core.errors import InvalidInput
from perdure.core.input_types import require_text
from perdure.storage.collection import Collection
from perdure.storage.collection_reader import Executor, Stored
from perdure.storage.finder import QueryBuilder
from perdure.storage.options import DEFAULT, Options
from perdure.storage.records import Compressed, Indexed, Key, Tags, system_record
from perdure.storage.rows import Index

#: The indexes of a type of them: by type, by last use, by age.
STATE_INDEXES = (Index(("type", "last_active")), Index(("last_active",)), Index(("created",)))


@system_record("state_records", indexes=STATE_INDEXES)
class StateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """State that lasts: what it is, what it knows, when it was last in use."""

    id: Annotated[str, Key()]
    type: Annotated[str, Indexed()]
    state: Annotated[dict[str, Any], Compressed()] = {}
    #: When it was last in use; set by `StateRecords.save` and `touch`. None once it is archived.
    last_active: Annotated[datetime | None, Indexed()] = None
    archived: Annotated[datetime | None, Indexed()] = None
    tags: Annotated[dict[str, str], Tags()] = {}


C = TypeVar("C", bound=StateRecord)


class StateRecords(Generic[C]):
    """State records of one type. Lists leave archived ones out unless asked."""

    def __init__(self, executor: Executor, cls: type[C]) -> None:
        self._executor = executor
        self._records = Collection(executor, cls)

    async def get(self, id: str, options: Options = DEFAULT) -> C | None:
        return await self._records.get(id, options)

    async def save(self, record: C, options: Options = DEFAULT) -> C:
        """Store a record as active now, archived or not; returns it as stored."""
        current = msgspec.structs.replace(record, last_active=self._now(), archived=None)
        await self._records.put(current, options)
        return current

    async def touch(self, id: str) -> C:
        return await self._update(id, lambda: {"last_active": self._now(), "archived": None})

    async def archive(self, id: str) -> C:
        """Archive the record. It is kept, and `touch` or `save` brings it back."""
        return await self._update(id, lambda: {"last_active": None, "archived": self._now()})

    async def get_by_type(self, type: str, *, archived: bool = False) -> list[C]:
        wanted = require_text(type, "type")
        finder = self._records.query().where("type", "=", wanted).order_by("-last_active")
        return await (finder if archived else finder.where("archived", "=", None)).values()

    async def get_active(self, since: datetime, *, type: str | None = None) -> list[C]:
        """Records active at or after a moment, the most recently active first."""
        finder = self._records.query().where("last_active", ">=", since).order_by("-last_active")
        return await (finder if type is None else finder.where("type", "=", type)).values()

    def query(self) -> QueryBuilder[C]:
        return self._records.query()

    async def fetch(self, id: str, options: Options = DEFAULT) -> Stored[C] | None:
        return await self._records.fetch(id, options)

    async def _update(self, id: str, changes: Any) -> C:
        def change(record: C | None) -> C:
            if record is None:
                raise InvalidInput(f"There is no record {id!r}.", hint="Save it first.")
            return msgspec.structs.replace(record, **changes())

        return await self._records.change(id, change)

    def _now(self) -> datetime:
        return clock.to_datetime(self._executor.now())
