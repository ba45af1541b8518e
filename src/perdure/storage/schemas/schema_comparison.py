"""Compares two versions of a type: what changed, and whether that needs a migration."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perdure.storage.schemas.type_shapes import (
    ANYTHING,
    Description,
    EnumChoice,
    Field,
    Fields,
    Limits,
    Many,
    Mapping,
    Nested,
    OneOf,
    Scalar,
    Several,
    Shape,
    describe,
    without_none,
)


class Change(msgspec.Struct, frozen=True):
    """A field that differs, and whether older records need no migration for it."""

    field: str
    what: str
    needs_migration: bool

    def __str__(self) -> str:
        return f"{self.field}: {self.what}"


class SchemaComparison(msgspec.Struct, frozen=True):
    """All differences."""

    changes: tuple[Change, ...] = ()

    @property
    def needs_migration(self) -> bool:
        return any(change.needs_migration for change in self.changes)


def compare(
    old: Description | type[msgspec.Struct], new: Description | type[msgspec.Struct]
) -> SchemaComparison:
    """A renamed field counts as removed and added; changed limits always need a migration."""
    before = old if isinstance(old, Description) else describe(old)
    after = new if isinstance(new, Description) else describe(new)
    return SchemaComparison(tuple(_Comparer(before, after).fields("", "", "")))


class _Comparer:
    def __init__(self, old: Description, new: Description) -> None:
        self._old = old
        self._new = new
        self._seen: set[tuple[str, str]] = set()
        self._assumed: set[tuple[str, str]] = set()

    def fields(self, old: str, new: str, place: str) -> Iterator[Change]:
        if (old, new) in self._seen:
            return
        self._seen.add((old, new))
        before, after = self._old.types[old], self._new.types[new]
        if before.listed != after.listed:
            yield Change(place, "is written in another way (array_like)", needs_migration=True)
            return
        yield from self._gone(before, after, place)
        for field in after.fields:
            inside = f"{place}.{field.name}" if place else field.name
            was = before.get(field.name)
            if was is None:
                what = f"is new, {field.shape}" + ("" if field.required else ", with a default")
                yield Change(inside, what, needs_migration=field.required)
            else:
                yield from self._field(was, field, inside)

    def _gone(self, before: Fields, after: Fields, place: str) -> Iterator[Change]:
        for field in before.fields:
            if after.get(field.name) is None:
                inside = f"{place}.{field.name}" if place else field.name
                yield Change(inside, f"is gone, {field.shape}", needs_migration=after.closed)

    def _field(self, old: Field, new: Field, place: str) -> Iterator[Change]:
        if old.required != new.required:
            what = "has no default any more" if new.required else "has a default now"
            yield Change(place, what, needs_migration=new.required)
        yield from self._shape(old.shape, new.shape, place)

    def _shape(self, old: Shape, new: Shape, place: str) -> Iterator[Change]:
        was, could_be_none = without_none(old)
        now, can_be_none = without_none(new)
        match was, now:
            case Nested(), Nested():
                yield from self.fields(was.name, now.name, place)
            case Many(), Many() if (was.kind, was.limits) == (now.kind, now.limits):
                yield from self._shape(was.of, now.of, f"{place}[]")
            case Mapping(), Mapping() if (was.keys, was.limits) == (now.keys, now.limits):
                yield from self._shape(was.values, now.values, f"{place}[]")
            case OneOf(), OneOf() if was == now:
                for option in was.options:
                    yield from self._shape(option, option, place)
            case _ if was != now:
                yield Change(place, f"was {old}, is {new}", not self._accepts(new, old))
                return
        if could_be_none != can_be_none:
            what = "may be None now" if can_be_none else "may not be None any more"
            yield Change(place, what, needs_migration=could_be_none)

    def _accepts(self, new: Shape, old: Shape) -> bool:
        if new == ANYTHING:
            return True
        match old, new:
            case OneOf(options), _:
                return all(self._accepts(new, option) for option in options)
            case _, OneOf(options):
                return any(self._accepts(option, old) for option in options)
            case EnumChoice(values), EnumChoice(others):
                return set(values) <= set(others)
            case EnumChoice(values), Scalar(name, limits):
                return {type(value).__name__ for value in values} == {name} and not limits
            case Scalar(), Scalar():
                is_wider = old.name == new.name or (old.name, new.name) in _WIDER
                return is_wider and _is_within(old.limits, new.limits)
            case Many(), Many():
                return _is_within(old.limits, new.limits) and self._accepts(new.of, old.of)
            case Mapping(), Mapping():
                fits = self._accepts(new.keys, old.keys) and self._accepts(new.values, old.values)
                return fits and _is_within(old.limits, new.limits)
            case Several(), Several():
                same = len(old.places) == len(new.places) and old.required == new.required
                return same and all(map(self._accepts, new.places, old.places))
            case Nested(), Nested():
                return self._accepts_fields(new.name, old.name)
        return False

    def _accepts_fields(self, new: str, old: str) -> bool:
        if (old, new) in self._assumed:  # a type inside itself
            return True
        self._assumed.add((old, new))
        before, after = self._old.types[old], self._new.types[new]
        for field in after.fields:
            was = before.get(field.name)
            if field.required and (was is None or not was.required):
                return False
            if was is not None and not self._accepts(field.shape, was.shape):
                return False
        return not after.closed or all(after.get(field.name) for field in before.fields)


#: Types whose stored values can be read as another. Those that are stored as text are text.
_WIDER = {
    ("int", "float"),
    ("int", "Decimal"),
    ("float", "Decimal"),
    *((name, "str") for name in ("date", "time", "timedelta", "UUID", "Decimal")),
}


def _is_within(old: Limits, new: Limits) -> bool:
    return new.items() <= old.items()
