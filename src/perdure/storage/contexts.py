"""Contexts: typed, long-lived state records that are worked with for a while and then archived.

A session is one. A context type is a struct that derives from `Context`; the collection of the base
class holds contexts of any type whose state is plain data::

    @record("chats")
    class Chat(Context, frozen=True, kw_only=True):
        topic: str = ""

    chats = ContextStore(bank.store, Chat)
    await chats.save(Chat(id="ada/1", type="chat", topic="engines"))
    recent = await chats.get_active(datetime.now(UTC) - timedelta(hours=1))
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from perdure.core import clock
from perdure.core.errors import InvalidInput
from perdure.storage.collection import Executor, Stored
from perdure.storage.finder import Finder
from perdure.storage.options import DEFAULT, Options
from perdure.storage.records import Compressed, Indexed, Key, Tags, system_record
from perdure.storage.rows import Index


@system_record("contexts", indexes=[Index(("type", "active")), Index(("active",))])
class Context(msgspec.Struct, frozen=True, kw_only=True):
    """State that lasts: what it is, what it knows, when it was last in use."""

    id: Annotated[str, Key()]
    type: Annotated[str, Indexed()]
    state: Annotated[dict[str, Any], Compressed()] = {}
    #: When it was last in use; set by `ContextStore.save` and `touch`. None once it is archived.
    active: Annotated[datetime | None, Indexed()] = None
    archived: Annotated[datetime | None, Indexed()] = None
    tags: Annotated[dict[str, str], Tags()] = {}


C = TypeVar("C", bound=Context)


class ContextStore(Generic[C]):
    """Contexts of one type of record. Lists leave archived contexts out unless asked."""

    def __init__(self, executor: Executor, cls: type[C]) -> None:
        self._executor = executor
        self._contexts = executor.collection(cls)

    async def get(self, id: str, options: Options = DEFAULT) -> C | None:
        """The context of this id, archived or not."""
        return await self._contexts.get(id, options)

    async def save(self, context: C, options: Options = DEFAULT) -> C:
        """Store a context as in use now; returns it as stored. An archived one comes back."""
        current = msgspec.structs.replace(context, active=self._now(), archived=None)
        await self._contexts.put(current, options)
        return current

    async def touch(self, id: str) -> C:
        """Note that the context is in use now."""
        return await self._update(id, lambda: {"active": self._now(), "archived": None})

    async def archive(self, id: str) -> C:
        """Take the context out of use. It is kept, and `touch` or `save` brings it back."""
        return await self._update(id, lambda: {"active": None, "archived": self._now()})

    async def get_by_type(self, type: str, *, archived: bool = False) -> list[C]:
        """Contexts of a type, the most recently active first."""
        finder = self._contexts.query().where("type", "=", type).order_by("-active")
        return await self._living(finder, archived=archived).values()

    async def get_active(self, since: datetime, *, type: str | None = None) -> list[C]:
        """Contexts in use at or after a moment, the most recently active first."""
        finder = self._contexts.query().where("active", ">=", since).order_by("-active")
        return await (finder if type is None else finder.where("type", "=", type)).values()

    def query(self) -> Finder[C]:
        """Any other question."""
        return self._contexts.query()

    async def fetch(self, id: str, options: Options = DEFAULT) -> Stored[C] | None:
        """The context with its version, for optimistic changes."""
        return await self._contexts.fetch(id, options)

    async def _update(self, id: str, changes: Any) -> C:
        def change(context: C | None) -> C:
            if context is None:
                raise InvalidInput(f"There is no context {id!r}.", hint="Save it first.")
            return msgspec.structs.replace(context, **changes())

        return await self._contexts.change(id, change)

    def _now(self) -> datetime:
        return clock.to_datetime(self._executor.now())

    @staticmethod
    def _living(finder: Finder[C], *, archived: bool) -> Finder[C]:
        return finder if archived else finder.where("archived", "=", None)
