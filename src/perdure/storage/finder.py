"""The query builder.

    recent = (
        bank.collection(Note).query()
        .where("author", "=", "ada")
        .where(any_of(where("stars", ">=", 3), tagged("pinned", "yes")))
        .order_by("-created")
        .limit(10)
    )
    notes = await recent.execute()

A builder is never changed: each method returns a new one. Only declared fields can be used; a field
without an index is refused, with the declaration that would make it work.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from perdure.core import clock
from perdure.core.errors import InvalidQuery, NotIndexed
from perdure.core.input_types import require_text, require_texts
from perdure.storage import record_keys
from perdure.storage.collection_reader import CollectionReader, Stored
from perdure.storage.options import DEFAULT, Options
from perdure.storage.query import (
    All,
    AnyOf,
    Compare,
    Condition,
    Figure,
    Op,
    Query,
    Scalar,
    SortOrder,
    Summary,
    Tagged,
)

T = TypeVar("T", bound=msgspec.Struct)

#: Values in one IN list; databases have limits of their own above this.
MAX_IN = 10_000
_DIRECTIONS = ("asc", "desc")


def where(field: str, op: str, value: object) -> Condition:
    """A comparison: ``=  !=  <  <=  >  >=  in  prefix``."""
    try:
        operator = Op(op)
    except ValueError:
        raise InvalidQuery(
            f"There is no operator {op!r}.", hint=f"Use one of {', '.join(Op)}."
        ) from None
    return Compare(field, operator, value)  # type: ignore[arg-type]  # checked by QueryBuilder


def tagged(name: str, value: str) -> Condition:
    return Tagged(name, value)


def all_of(*conditions: Condition) -> Condition:
    return All(conditions)


def any_of(*conditions: Condition) -> Condition:
    return AnyOf(conditions)


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page of results and the cursors to go on from it, in both directions."""

    items: list[Stored[T]]
    #: Give it as `after` for the following page; None on the last.
    next: str | None
    #: Give it as `before` for the page in front; None on the first.
    previous: str | None

    @property
    def values(self) -> list[T]:
        return [item.value for item in self.items]


class _Include(msgspec.Struct, frozen=True):
    cls: type
    via: str | None
    by: str | None


class QueryBuilder(Generic[T]):
    """A query under construction; each method returns a new one."""

    def __init__(
        self,
        collection: CollectionReader[T],
        query: Query | None = None,
        includes: tuple[_Include, ...] = (),
        group: tuple[str, ...] = (),
    ) -> None:
        self._collection = collection
        self._declared = collection.declared
        self._query = query or Query(collection.name)
        self._includes = includes
        self._group = group

    def where(self, field: str | Condition, op: str = "", value: object = None) -> QueryBuilder[T]:
        condition = where(field, op, value) if isinstance(field, str) else field
        checked = self._checked(condition)
        existing = self._query.where
        parts = existing.parts if isinstance(existing, All) else (existing,)
        return self._with(where=All((*parts, checked)))

    def tagged(self, **tags: str) -> QueryBuilder[T]:
        checked = (Tagged(name, require_text(value, name)) for name, value in tags.items())
        return self.where(All(tuple(checked)))

    def between(
        self, field: str, start: datetime | float | str, end: datetime | float | str | None = None
    ) -> QueryBuilder[T]:
        """Also require start <= field < end; without an end, only the start."""
        finder = self.where(require_text(field, "field"), ">=", start)
        return finder if end is None else finder.where(field, "<", end)

    def prefix(self, prefix: str) -> QueryBuilder[T]:
        return self._with(prefix=record_keys.check_prefix(prefix))

    def order_by(self, *fields: str) -> QueryBuilder[T]:
        """Sort by these fields; a leading minus means descending, as does ``"desc"`` behind one."""
        order = tuple(
            SortOrder(self._declared.field(field), descending)
            for field, descending in sort_fields(
                require_texts(fields, "fields"), self._declared.cls.__struct_fields__
            )
        )
        also = " Behind a field you may say asc or desc." if len(fields) > 1 else ""
        self._check_indexed({part.column for part in order}, also)
        # Keys are unique: what stands behind the key decides nothing, and a mark has the key last.
        keyed = [place for place, part in enumerate(order, 1) if part.column == "key"]
        return self._with(order=order[: keyed[0]] if keyed else order)

    def limit(self, limit: int) -> QueryBuilder[T]:
        if type(limit) is not int or limit < 0:
            raise InvalidQuery(f"A limit of {limit!r} makes no sense.", hint="Use 0 or more.")
        return self._with(limit=limit)

    def offset(self, offset: int) -> QueryBuilder[T]:
        """Skip so many results. For long lists, page with cursors: their cost does not grow."""
        if type(offset) is not int or offset < 0:
            raise InvalidQuery(f"An offset of {offset!r} makes no sense.", hint="Use 0 or more.")
        return self._with(offset=offset)

    def include(
        self, cls: type[Any], *, via: str | None = None, by: str | None = None
    ) -> QueryBuilder[T]:
        """Load related records along, in one extra query; see `Stored.related`.

        `via` names a field of *these* records that holds the other's key, or a list of keys; `by`
        an indexed field of the *others* that holds these records' key.
        """
        if (via is None) == (by is None):
            raise InvalidQuery("include needs either via= or by=.", hint="Give exactly one.")
        if via is not None and via not in self._declared.cls.__struct_fields__:
            raise InvalidQuery(
                f"{self._declared.cls.__name__} has no field {via!r}.", hint="Check via=."
            )
        if any(include.cls is cls for include in self._includes):
            raise InvalidQuery(
                f"{cls.__name__} is included twice, and one would hide the other.",
                hint="Load the second with get_many.",
            )
        return self._copy(includes=(*self._includes, _Include(cls, via, by)))

    def group_by(self, *fields: str) -> QueryBuilder[T]:
        columns = tuple(self._declared.field(field) for field in fields)
        self._check_indexed(set(columns))
        return self._copy(group=columns)

    async def execute(self, options: Options = DEFAULT) -> list[Stored[T]]:
        if not await self._collection.is_there():
            return []
        rows = await self._collection.executor.find(self._query, options)
        items = [self._collection.stored(row) for row in rows]
        return await self._load_related(items, options) if self._includes else items

    async def values(self, options: Options = DEFAULT) -> list[T]:
        return [item.value for item in await self.execute(options)]

    async def first(self, options: Options = DEFAULT) -> Stored[T] | None:
        items = await self.limit(1).execute(options)
        return items[0] if items else None

    async def page(
        self, *, after: str | None = None, before: str | None = None, options: Options = DEFAULT
    ) -> Page[T]:
        """One page of `limit` (20) results, behind or in front of a cursor, or from the offset."""
        if after is not None and before is not None:
            raise InvalidQuery("A page is after or before a cursor.", hint="Give only one.")
        size = 20 if self._query.limit is None else self._query.limit
        order = self._query.total_order()
        cursor = after if before is None else before
        mark, offset = None, self._query.offset
        if cursor is not None:
            opened = open(self._query.collection, order, cursor)
            # It was in a client's hands: its values are checked like those of a condition.
            mark = tuple(
                self._declared.scalar(part.column, value)
                for part, value in zip(order, opened, strict=True)
            )
            offset = 0
        backwards = before is not None
        if backwards:
            order = tuple(SortOrder(part.column, not part.descending) for part in order)
        finder = self._with(order=order, limit=size + 1, offset=offset, after=mark)
        items = await finder.execute(options)
        more = len(items) > size
        items = items[:size]
        if backwards:
            items.reverse()
        further, nearer = (more, cursor is not None) if not backwards else (True, more)
        return Page(
            items,
            self._cursor(items[-1]) if items and further else None,
            self._cursor(items[0]) if items and nearer else None,
        )

    async def count(self, options: Options = DEFAULT) -> int:
        if not await self._collection.is_there():
            return 0
        summary = Summary(self._query, ((Figure.COUNT, ""),))
        ((count,),) = await self._collection.executor.summarize(summary, options)
        return int(count or 0)

    async def exists(self, options: Options = DEFAULT) -> bool:
        return await self.first(options) is not None

    async def delete(self, options: Options = DEFAULT) -> int:
        if not await self._collection.is_there():
            return 0
        return await self._collection.executor.remove(self._query, options)

    async def aggregate(self, options: Options = DEFAULT, **figures: str) -> list[dict[str, Any]]:
        """Figures over the matches, one dict per group (one in all, without `group_by`).

        ``aggregate(messages="count", tokens="sum tokens")``: a function (count, sum, avg, min, max)
        and a field. Without values a figure is None, and a count 0.
        """
        if not figures:
            raise InvalidQuery(
                "Nothing was asked to be computed.", hint='Write: aggregate(messages="count").'
            )
        parsed = tuple(map(self._figure, require_texts(figures.values(), "figures")))
        rows: list[tuple[Scalar, ...]]
        if await self._collection.is_there():
            summary = Summary(self._query, parsed, self._group)
            rows = await self._collection.executor.summarize(summary, options)
        else:
            none = tuple(0 if kind is Figure.COUNT else None for kind, _ in parsed)
            rows = [] if self._group else [none]
        names = (*self._group, *figures)
        times = self._declared.times
        are_times = [
            *(column in times for column in self._group),
            *(kind in (Figure.MIN, Figure.MAX) and column in times for kind, column in parsed),
        ]
        return [
            {
                name: clock.to_datetime(value) if is_time and isinstance(value, int) else value
                for name, value, is_time in zip(names, row, are_times, strict=True)
            }
            for row in rows
        ]

    def _with(self, **changes: Any) -> QueryBuilder[T]:
        return self._copy(query=msgspec.structs.replace(self._query, **changes))

    def _copy(
        self,
        *,
        query: Query | None = None,
        includes: tuple[_Include, ...] | None = None,
        group: tuple[str, ...] | None = None,
    ) -> QueryBuilder[T]:
        return QueryBuilder(
            self._collection,
            self._query if query is None else query,
            self._includes if includes is None else includes,
            self._group if group is None else group,
        )

    def _checked(self, condition: Condition) -> Condition:
        match condition:
            case All(parts):
                return All(tuple(self._checked(part) for part in parts))
            case AnyOf(parts):
                return AnyOf(tuple(self._checked(part) for part in parts))
            case Tagged(name, value):
                if not self._declared.layout.tagged:
                    raise NotIndexed(
                        f"{self._declared.cls.__name__} has no tags.",
                        hint="Mark a field: tags: Annotated[dict[str, str], Tags()] = {}.",
                    )
                if "=" in name:
                    raise InvalidQuery(
                        f"{name!r} cannot be the name of a tag.", hint="Names have no '='."
                    )
                record_keys.check_indexed(f"{name}={value}", "tags")
                return condition
            case Compare(field, op, value):
                return self._comparison(self._declared.field(field), op, value)

    def _comparison(self, column: str, op: Op, value: object) -> Compare:
        self._check_indexed({column})
        if op is Op.IN:
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise InvalidQuery(f"{value!r} is not a list.", hint="Give 'in' a list of values.")
            values = tuple(dict.fromkeys(self._declared.comparable(column, one) for one in value))
            if len(values) > MAX_IN:
                raise InvalidQuery(
                    f"{len(values):,} values are too many for 'in'.",
                    hint=f"Ask for at most {MAX_IN:,} at a time.",
                )
            return Compare(column, op, values)
        scalar = self._declared.comparable(column, value)
        if scalar is None and op not in (Op.EQ, Op.NE):
            raise InvalidQuery(f"Nothing is {op} None.", hint="Use = or != with None.")
        if op is Op.PREFIX and not isinstance(scalar, str):
            raise InvalidQuery(f"{scalar!r} is not a prefix.", hint="Use text.")
        return Compare(column, op, scalar)

    def _check_indexed(self, columns: set[str], also: str = "") -> None:
        declared, layout = self._declared, self._declared.layout
        covered = {"key"}.union(*(index.columns for index in layout.indexes))
        covered |= {column for index in layout.indexes for column, _ in index.where}
        for column in sorted(columns - covered):
            name = declared.cls.__name__
            hint = f"Mark it in {name}: {column}: Annotated[…, Indexed()]."
            if declared.is_own or not declared.can_index(column):
                usable = sorted(covered - {"key"} | {declared.key_field})
                hint = f"Use one of {', '.join(usable)}, or look at the results of the query."
            elif column in ("created", "updated"):
                hint = f'Declare it: @record("{layout.name}", indexes=[Index(("{column}",))]).'
            if column not in ("created", "updated", *declared.cls.__struct_fields__):
                known = ", ".join(declared.cls.__struct_fields__)
                raise NotIndexed(f"{name} has no field {column!r}.", hint=f"It has {known}.{also}")
            raise NotIndexed(f"The field {column!r} of {name} is not indexed.", hint=hint)

    def _figure(self, text: str) -> tuple[Figure, str]:
        kind, _, field = text.partition(" ")
        try:
            figure = Figure(kind)
        except ValueError:
            raise InvalidQuery(
                f"There is no figure {kind!r}.", hint=f"Use one of {', '.join(Figure)}."
            ) from None
        if not field:
            if figure is not Figure.COUNT:
                raise InvalidQuery(f"{kind} of what?", hint=f'Name a field: "{kind} tokens".')
            return figure, ""
        column = self._declared.field(field)
        self._check_indexed({column})
        numeric = column in ("created", "updated") or self._declared.kinds.get(column) != "text"
        if figure in (Figure.SUM, Figure.AVG) and (column == "key" or not numeric):
            raise InvalidQuery(f"{field} is text: it has no {kind}.", hint="Use a number field.")
        return figure, column

    async def _load_related(self, items: list[Stored[T]], options: Options) -> list[Stored[T]]:
        loaded: list[dict[type, list[Any]]] = [{} for _ in items]
        for include in self._includes:
            others = CollectionReader[Any](self._collection.executor, include.cls)
            found: dict[str, list[Any]] = {}
            if include.by is not None:
                finder = QueryBuilder(others).where(include.by, "in", [item.key for item in items])
                for other in await finder.values(options) if items else []:
                    found.setdefault(getattr(other, include.by), []).append(other)
                wanted = [[item.key] for item in items]
            else:
                wanted = [_key_list(getattr(item.value, str(include.via))) for item in items]
                unique = list(dict.fromkeys(key for keys_ in wanted for key in keys_))
                records = await others.get_many(unique, options)
                found = {k: [r] for k, r in zip(unique, records, strict=True) if r is not None}
            for related, links in zip(loaded, wanted, strict=True):
                related[include.cls] = [other for key in links for other in found.get(key, [])]
        return [
            msgspec.structs.replace(item, _related=related)
            for item, related in zip(items, loaded, strict=True)
        ]

    def _cursor(self, item: Stored[T]) -> str:
        columns = dict(
            zip(self._declared.kinds, self._declared.columns(item.value), strict=True),
            key=item.key,
            created=item.created_us,
            updated=item.updated_us,
            version=item.version,
        )
        order = self._query.total_order()
        mark = tuple(columns[part.column] for part in order)
        return seal(self._query.collection, order, mark)


def sort_fields(fields: Sequence[str], known: Sequence[str] = ()) -> Iterator[tuple[str, bool]]:
    """Fields and whether each descends: ``"-created"``, or ``"created", "desc"``."""
    for place, field in enumerate(fields):
        if field in _DIRECTIONS and field not in known and place:
            continue
        follows = fields[place + 1] if place + 1 < len(fields) else ""
        descends = follows == "desc" and follows not in known
        yield field.removeprefix("-"), field.startswith("-") or descends


def _key_list(value: object) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)  # type: ignore[call-overload]


def seal(collection: str, order: tuple[SortOrder, ...], mark: tuple[Scalar, ...]) -> str:
    packed = msgspec.msgpack.encode((_fingerprint(collection, order), mark))
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def open(collection: str, order: tuple[SortOrder, ...], cursor: str) -> tuple[Scalar, ...]:
    """The order values in a cursor. Raises `InvalidQuery` if it belongs elsewhere."""
    require_text(cursor, "cursor")
    try:
        packed = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        fingerprint, mark = msgspec.msgpack.decode(packed, type=tuple[int, tuple[Scalar, ...]])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        fingerprint, mark = -1, ()
    if fingerprint != _fingerprint(collection, order) or len(mark) != len(order):
        raise InvalidQuery(
            "The cursor does not belong to this query.",
            hint="Use one from a page of the same collection in the same order.",
        )
    return mark


def _fingerprint(collection: str, order: tuple[SortOrder, ...]) -> int:
    parts = (f"{part.column} {part.descending}" for part in order)
    return zlib.crc32(" ".join((collection, *parts)).encode())
