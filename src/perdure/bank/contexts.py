"""Contexts: sessions and other state records, seen as one.

    await bank.contexts.get_active(datetime.now(UTC) - timedelta(hours=1))
    recent = (
        bank.contexts()
        .where("type", "=", "chat")
        .where("created", ">", datetime.now(UTC) - timedelta(days=7))
        .order_by("last_active", "desc")
        .limit(10)
        .include(["working_memory", "metadata"])
    )
    contexts = await recent.execute()

A context is a `StateRecord`. Its id is its own: one that is saved under the name of a session is
that session's state, and a session made under the id of a context takes it over. While a session is
written to, the `last_active` that conditions and limits go by is at most a minute behind.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from perdure.core import clock
from perdure.core.errors import InvalidInput, InvalidQuery
from perdure.core.input_types import require_instance, require_mapping, require_texts
from perdure.history.log_records import Head, SessionRecord
from perdure.history.turn_log import TOUCH_AFTER
from perdure.storage.collection import Collection
from perdure.storage.collection_reader import Stored
from perdure.storage.finder import QueryBuilder, sort_fields
from perdure.storage.memory_windows import WindowEntry
from perdure.storage.options import DEFAULT, Options
from perdure.storage.query import Condition
from perdure.storage.state_records import StateRecord, StateRecords
from perdure.storage.store import Store, join
from perdure.storage.transaction import Transaction

R = TypeVar("R")
Mask = Callable[[Mapping[str, Any]], dict[str, Any]]

_LAG = timedelta(microseconds=TOUCH_AFTER)
_INCLUDES = ("working_memory", "metadata")
_NUMBERS = ("message_count", "duration")
_PAGE = 5_000  # Contexts whose details are read at once.


class ContextView(msgspec.Struct, frozen=True, kw_only=True):
    """A context that a query found."""

    id: str
    type: str
    state: dict[str, Any]
    created: datetime
    updated: datetime
    #: None once it is archived.
    last_active: datetime | None
    archived: datetime | None
    #: Messages of a session, of a fork only its own; entries in the memory window of any other.
    message_count: int
    #: Seconds from its beginning to its last use.
    duration: float
    #: The current entries of its memory window, oldest first. Empty unless included.
    working_memory: list[WindowEntry] = []
    #: Its tags; of a session also agent, turns, parent, strategy and budget. Empty unless included.
    metadata: dict[str, Any] = {}


class Contexts:
    """Sessions and state records, in a bank or in a transaction. Call it for a query.

    Lists leave archived ones out unless asked, and begin with the most recently used. Secrets are
    masked before they are stored.
    """

    def __init__(self, executor: Store | Transaction, mask: Mask) -> None:
        self._executor = executor
        self._mask = mask
        self._sessions = StateRecords(executor, SessionRecord)
        self._others = StateRecords(executor, StateRecord)

    def __call__(self) -> ContextQuery:
        return self.query()

    def query(self) -> ContextQuery:
        return ContextQuery(self._executor, self._sessions.query(), self._others.query())

    async def get(self, id: str, options: Options = DEFAULT) -> StateRecord | None:
        found = await self._sessions.get(id, options)
        return await self._others.get(id, options) if found is None else found

    async def save(self, record: StateRecord, options: Options = DEFAULT) -> StateRecord:
        """Store a context as active now, archived or not; returns it as stored.

        Of a session it changes type, state and tags: the rest belongs to its log.
        """
        require_instance(record, StateRecord, "record")
        state, tags = self._mask(record.state), self._mask(record.tags)

        async def body(transaction: Transaction) -> StateRecord:
            session = await transaction.collection(SessionRecord).get(record.id)
            if session is None and isinstance(record, SessionRecord):
                raise _missing(record.id)
            saved = replace(
                record if session is None else session,
                type=record.type,
                state=state,
                tags=tags,
                last_active=clock.to_datetime(transaction.now()),
                archived=None,
            )
            await Collection[Any](transaction, type(saved)).put(saved, options)
            return saved

        return await join(self._executor, body)

    async def update(self, id: str, record: StateRecord) -> StateRecord:
        """`save` for a context that is there. Raises `InvalidInput` if it is not."""
        if require_instance(record, StateRecord, "record").id != id:
            raise InvalidInput(
                f"This is the context {record.id!r}, not {id!r}.", hint="A context keeps its id."
            )
        if await self.get(id) is None:
            raise _missing(id)
        return await self.save(record)

    async def touch(self, id: str) -> StateRecord:
        """Say that a context is in use; one that was archived comes back."""

        async def body(transaction: Transaction) -> StateRecord:
            kind = await self._kind(transaction, id)
            return await kind.touch(id)

        return await join(self._executor, body)

    async def archive(self, id: str) -> StateRecord:
        """Take a context out of use; returns it, `archived` telling since when.

        Nothing of it is lost. `touch` and `save` bring it back, and so does appending to a session,
        whoever has it open.
        """

        async def body(transaction: Transaction) -> StateRecord:
            kind, heads = await self._kind(transaction, id), transaction.collection(Head)
            head = await heads.get(id)
            if head is not None:
                # A new version of it: so whoever writes to the session learns of this.
                await heads.put(head)
            return await kind.archive(id)

        return await join(self._executor, body)

    async def get_by_type(self, type: str, *, archived: bool = False) -> list[StateRecord]:
        sessions = await self._sessions.get_by_type(type, archived=archived)
        others = await self._others.get_by_type(type, archived=archived)
        return _recent_first([*await self._exact(sessions), *others])

    async def get_active(self, since: datetime, *, type: str | None = None) -> list[StateRecord]:
        """Contexts in use at or after a moment."""
        require_instance(since, datetime, "since")
        sessions = await self._exact(await self._sessions.get_active(since - _LAG, type=type))
        others = await self._others.get_active(since, type=type)
        used = [each for each in sessions if each.last_active and each.last_active >= since]
        return _recent_first([*used, *others])

    async def _kind(self, transaction: Transaction, id: str) -> StateRecords[StateRecord]:
        """Raises `InvalidInput` if there is no such context."""
        for cls in (SessionRecord, StateRecord):
            if await Collection[Any](transaction, cls).get(id) is not None:
                return StateRecords(transaction, cls)
        raise _missing(id)

    async def _exact(self, sessions: list[SessionRecord]) -> list[SessionRecord]:
        heads = await Collection(self._executor, Head).get_many([each.id for each in sessions])
        return [
            replace(each, last_active=_last_use(each, head))
            for each, head in zip(sessions, heads, strict=True)
        ]


class ContextQuery:
    """A query over contexts under construction; each method returns a new one."""

    def __init__(
        self,
        executor: Store | Transaction,
        sessions: QueryBuilder[SessionRecord],
        others: QueryBuilder[StateRecord],
    ) -> None:
        self._executor = executor
        self._sessions, self._others = sessions, others
        self._order: tuple[tuple[str, bool], ...] = ()
        self._limit: int | None = None
        self._offset = 0
        self._includes = frozenset[str]()

    def where(self, field: str | Condition, op: str = "", value: object = None) -> ContextQuery:
        return self._with(lambda builder: builder.where(field, op, value))

    def tagged(self, **tags: str) -> ContextQuery:
        return self._with(lambda builder: builder.tagged(**tags))

    def order_by(self, *fields: str) -> ContextQuery:
        """Sort by these fields: ``"-created"``, or ``"created", "desc"``."""
        order = tuple(sort_fields(require_texts(fields, "fields")))
        return self._with(lambda builder: builder.order_by(*fields), order=order)

    def limit(self, limit: int) -> ContextQuery:
        self._others.limit(limit)
        return self._copy(limit=limit)

    def offset(self, offset: int) -> ContextQuery:
        self._others.offset(offset)
        return self._copy(offset=offset)

    def include(self, names: str | Iterable[str]) -> ContextQuery:
        """Load ``working_memory`` or ``metadata`` along, in one more read."""
        wanted = {names} if isinstance(names, str) else set(require_texts(names, "names"))
        for name in sorted(wanted.difference(_INCLUDES)):
            raise InvalidQuery(
                f"Contexts have no {name!r} to include.", hint=f"Use {' and '.join(_INCLUDES)}."
            )
        return self._copy(includes=self._includes | wanted)

    def aggregate(self, figures: Mapping[str, Mapping[str, str]]) -> ContextFigures:
        """Figures over the matches: see `ContextFigures`. Raises `InvalidQuery`."""
        return ContextFigures(self, figures)

    async def execute(self, options: Options = DEFAULT) -> list[ContextView]:
        upto = None if self._limit is None else self._limit + self._offset
        sessions, others = self._sessions, self._others
        if upto is not None:
            sessions, others = sessions.limit(upto), others.limit(upto)
        views = await self._views(
            [*await sessions.execute(options), *await others.execute(options)]
        )
        views.sort(key=lambda view: view.id, reverse=bool(self._order) and self._order[-1][1])
        for field, descending in reversed(self._order):
            views.sort(key=_by(field), reverse=descending)
        found = views[self._offset : upto]
        return await self._with_memories(found) if "working_memory" in self._includes else found

    async def first(self, options: Options = DEFAULT) -> ContextView | None:
        found = await self.limit(1).execute(options)
        return found[0] if found else None

    async def count(self, options: Options = DEFAULT) -> int:
        return await self._sessions.count(options) + await self._others.count(options)

    async def _views(self, items: Sequence[Stored[Any]]) -> list[ContextView]:
        views = list[ContextView]()
        for start in range(0, len(items), _PAGE):
            page = items[start : start + _PAGE]
            ids = [item.key for item in page]
            heads = await Collection(self._executor, Head).get_many(ids)
            counts = await self._entry_counts([i for i, h in zip(ids, heads, strict=True) if not h])
            views += [
                self._view(item, head, counts.get(item.key, 0))
                for item, head in zip(page, heads, strict=True)
            ]
        return views

    def _view(self, item: Stored[Any], head: Head | None, entries: int) -> ContextView:
        record = item.value
        last = _last_use(record, head)
        ended = clock.to_datetime(head.time) if head is not None else last or record.archived
        return ContextView(
            id=record.id,
            type=record.type,
            state=record.state,
            created=item.created,
            updated=item.updated,
            last_active=last,
            archived=record.archived,
            message_count=entries if head is None else head.messages,
            duration=max(0.0, (ended - item.created).total_seconds()) if ended else 0.0,
            metadata=_metadata(record, head) if "metadata" in self._includes else {},
        )

    async def _entry_counts(self, ids: Sequence[str]) -> dict[str, int]:
        entries = Collection(self._executor, WindowEntry).query().where("context", "in", ids)
        found = dict[str, int]()
        for row in await entries.group_by("context", "folded").aggregate(n="count") if ids else ():
            # Entries that were folded come with the one that stands for them, which is no original.
            found[row["context"]] = found.get(row["context"], 0) + row["n"] - bool(row["folded"])
        return found

    async def _with_memories(self, views: list[ContextView]) -> list[ContextView]:
        entries = Collection(self._executor, WindowEntry).query().where("folded", "=", "")
        found = dict[str, list[WindowEntry]]()
        for start in range(0, len(views), _PAGE):
            ids = [view.id for view in views[start : start + _PAGE]]
            for entry in await entries.where("context", "in", ids).order_by("at").values():
                found.setdefault(entry.context, []).append(entry)
        return [replace(view, working_memory=found.get(view.id, [])) for view in views]

    def _with(
        self, change: Callable[[QueryBuilder[Any]], QueryBuilder[Any]], **changes: Any
    ) -> ContextQuery:
        # State records first: a field that only sessions have is refused, with those there are.
        others = change(self._others)
        return self._copy(sessions=change(self._sessions), others=others, **changes)

    def _copy(self, **changes: Any) -> ContextQuery:
        made = copy.copy(self)
        vars(made).update({f"_{name}": value for name, value in changes.items()})
        return made


class ContextFigures:
    """Figures over contexts, to be executed.

    ``{"messages": {"$sum": "message_count"}, "by_type": {"$group": "type"}}``: ``$sum``, ``$avg``,
    ``$min`` and ``$max`` of `message_count` and `duration`; ``$group`` counts contexts by a field.
    Of no contexts an average, minimum and maximum is None. Every match is read.
    """

    def __init__(self, query: ContextQuery, figures: Mapping[str, Mapping[str, str]]) -> None:
        self._query = query
        given = require_mapping(figures, "figures")
        self._figures = [(name, *_figure(name, figure)) for name, figure in given.items()]

    async def execute(self, options: Options = DEFAULT) -> dict[str, Any]:
        views = await self._query.execute(options)
        found = dict[str, Any]()
        for name, operator, field in self._figures:
            values = [getattr(view, field) for view in views]
            found[name] = _OPERATORS[operator](values)
        return found


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


_OPERATORS: dict[str, Callable[[list[Any]], Any]] = {
    "$sum": sum,
    "$avg": _mean,
    "$min": lambda values: min(values, default=None),
    "$max": lambda values: max(values, default=None),
    "$group": lambda values: dict(Counter(values)),
}


def _figure(name: str, figure: object) -> tuple[str, str]:
    figure = require_mapping(figure, name)
    ((operator, field),) = figure.items() if len(figure) == 1 else (("", ""),)
    fields = ("type", "archived") if operator == "$group" else _NUMBERS
    if operator not in _OPERATORS or field not in fields:
        raise InvalidQuery(
            f"{name}: {dict(figure)} is no figure of contexts.",
            hint=f"Use one of {', '.join(_OPERATORS)} with {' or '.join(_NUMBERS)};"
            " $group takes type or archived.",
        )
    return operator, field


def _last_use(record: StateRecord, head: Head | None) -> datetime | None:
    """To the moment: a session's own note of it may be behind its head."""
    if record.last_active is None or head is None or not head.time:
        return record.last_active
    return max(record.last_active, clock.to_datetime(head.time))


def _metadata(record: StateRecord, head: Head | None) -> dict[str, Any]:
    if not isinstance(record, SessionRecord):
        return {"tags": record.tags}
    return {
        "tags": record.tags,
        "agent": record.agent,
        "turns": 0 if head is None else head.turn,
        "parent": record.parent,
        "strategy": record.strategy,
        "budget": record.budget,
    }


def _recent_first(records: list[Any]) -> list[StateRecord]:
    return sorted(records, key=lambda each: _rank(each.last_active), reverse=True)


def _by(field: str) -> Callable[[ContextView], tuple[bool, Any]]:
    name = "id" if field == "key" else field
    return lambda view: _rank(getattr(view, name))


def _rank(value: Any) -> tuple[bool, Any]:
    """As in the database: nothing comes before everything else."""
    return (False, 0) if value is None else (True, value)


def _missing(id: str) -> InvalidInput:
    return InvalidInput(
        f"There is no context {id!r}.",
        hint="Make it with bank.contexts.save(…), or a session with bank.session(…).",
    )
