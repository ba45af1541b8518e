"""Whether data fits a description: names every place where it does not."""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any

import msgspec

from perdure.core.errors import InvalidRecordType
from perdure.storage.codecs.value_codec import in_words
from perdure.storage.schemas.type_shapes import (
    Description,
    EnumChoice,
    Limits,
    Many,
    Mapping,
    Nested,
    OneOf,
    Scalar,
    Several,
    Shape,
)

_MOST_DEPTH = 32


class FieldProblem(msgspec.Struct, frozen=True):
    """A place in the data, such as ``address.city``, and what is wrong there."""

    field: str
    what: str

    def __str__(self) -> str:
        return f"{self.field}: {self.what}" if self.field else self.what


def find_problems(description: Description, data: Any) -> list[FieldProblem]:
    """In the order of the fields. As in JSON, times, UUIDs and number keys may be text."""
    if description.types[""].listed and isinstance(data, Sequence):
        names = [field.name for field in description.fields]
        data = dict(zip(names, data, strict=False))
    return list(_Checker(description).check(Nested(""), data, ""))


def check_description(description: Description) -> None:
    """Raises `InvalidRecordType` if no data could be compared with it: it was not made from a
    class here.
    """
    if "" not in description.types:
        raise _unusable(description, "it does not describe the record itself, as type ''")
    for fields in description.types.values():
        for field in fields.fields:
            _check_shape(description, field.shape, field.name, 0)


def _check_shape(description: Description, shape: Shape, field: str, depth: int) -> None:
    if depth > _MOST_DEPTH:
        raise _unusable(description, f"{field} is nested too deeply")
    match shape:
        case Nested(name) if name not in description.types:
            raise _unusable(description, f"{field} has an unknown type {name!r}")
        case Scalar(name, limits) if limits and name != "anything":
            try:
                _converter(name, tuple(limits.items()))(None)
            except msgspec.ValidationError:
                pass
            except (TypeError, ValueError, re.error) as exc:
                raise _unusable(description, f"the limits of {field} are none: {exc}") from exc
    for inner in _inside(shape):
        _check_shape(description, inner, field, depth + 1)


def _inside(shape: Shape) -> tuple[Shape, ...]:
    match shape:
        case Many():
            return (shape.of,)
        case Several():
            return shape.places
        case Mapping():
            return (shape.keys, shape.values)
        case OneOf():
            return shape.options
        case _:
            return ()


def _unusable(description: Description, what: str) -> InvalidRecordType:
    return InvalidRecordType(
        f"The description of {description.name} cannot be used: {what}.",
        hint="Write it as GET /api/v1/schemas/{collection} shows one.",
    )


class _Checker:
    def __init__(self, description: Description) -> None:
        self._description = description

    def check(self, shape: Shape, value: Any, place: str) -> Iterator[FieldProblem]:
        match shape:
            case Scalar():
                yield from _check_scalar(shape, value, place)
            case EnumChoice():
                if not any(value == each and _is_bool(value, each) for each in shape.values):
                    yield FieldProblem(place, f"expected {shape}, got {_shown(value)}")
            case Nested():
                yield from self._check_fields(shape, value, place)
            case Many():
                yield from self._check_many(shape, value, place)
            case Several():
                yield from self._check_several(shape, value, place)
            case Mapping():
                yield from self._check_mapping(shape, value, place)
            case OneOf():
                yield from self._check_options(shape, value, place)

    def _check_fields(self, shape: Nested, value: Any, place: str) -> Iterator[FieldProblem]:
        if not isinstance(value, dict):
            name = shape.name or self._description.name
            yield FieldProblem(place, f"expected {name}, got {_kind(value)}")
            return
        fields = self._description.types[shape.name]
        for field in fields.fields:
            inside = f"{place}.{field.name}" if place else field.name
            if field.name in value:
                yield from self.check(field.shape, value[field.name], inside)
            elif field.required:
                yield FieldProblem(inside, "is missing")
        for name in value if fields.closed else ():
            if fields.get(name) is None:
                yield FieldProblem(f"{place}.{name}" if place else str(name), "is not a field")

    def _check_many(self, shape: Many, value: Any, place: str) -> Iterator[FieldProblem]:
        if not isinstance(value, list | tuple | set | frozenset):
            yield FieldProblem(place, f"expected {shape.kind}, got {_kind(value)}")
            return
        yield from _check_length(shape.limits, value, place)
        for number, item in enumerate(value):
            yield from self.check(shape.of, item, f"{place}[{number}]")

    def _check_several(self, shape: Several, value: Any, place: str) -> Iterator[FieldProblem]:
        if not isinstance(value, list | tuple):
            yield FieldProblem(place, f"expected tuple, got {_kind(value)}")
            return
        least = len(shape.places) if shape.required < 0 else shape.required
        if not least <= len(value) <= len(shape.places):
            yield FieldProblem(place, f"expected {len(shape.places)} values, got {len(value)}")
        for number, (inner, item) in enumerate(zip(shape.places, value, strict=False)):
            yield from self.check(inner, item, f"{place}[{number}]")

    def _check_mapping(self, shape: Mapping, value: Any, place: str) -> Iterator[FieldProblem]:
        if not isinstance(value, dict):
            yield FieldProblem(place, f"expected dict, got {_kind(value)}")
            return
        yield from _check_length(shape.limits, value, place)
        for key, item in value.items():
            inside = f"{place}[{key!r}]"
            for problem in self.check(shape.keys, _as_key(shape.keys, key), inside):
                yield FieldProblem(inside, f"as a key: {problem.what}")
            yield from self.check(shape.values, item, inside)

    def _check_options(self, shape: OneOf, value: Any, place: str) -> Iterator[FieldProblem]:
        found = [list(self.check(option, value, place)) for option in shape.options]
        if not all(found):
            return
        # Of several structs, the one that was most likely meant.
        close = [each for each in found if all(problem.field != place for problem in each)]
        if close:
            yield from min(close, key=len)
        else:
            yield FieldProblem(place, f"expected {shape}, got {_shown(value)}")


_TYPES: dict[str, Any] = {
    "None": type(None),
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "datetime": datetime,
    "date": date,
    "time": time,
    "timedelta": timedelta,
    "UUID": uuid.UUID,
    "Decimal": Decimal,
}


def _check_scalar(shape: Scalar, value: Any, place: str) -> Iterator[FieldProblem]:
    if shape.name == "anything":
        return
    try:
        _converter(shape.name, tuple(shape.limits.items()))(value)
    except msgspec.ValidationError as exc:
        words = str(exc)
        if words.startswith("Expected `") and "got `" in words:
            yield FieldProblem(place, f"expected {shape.name}, got {_kind(value)}")
        else:
            yield FieldProblem(place, in_words(exc))


@functools.cache
def _converter(name: str, limits: tuple[tuple[str, Any], ...]) -> Callable[[Any], Any]:
    wanted = _TYPES[name]
    if limits:
        wanted = Annotated[wanted, msgspec.Meta(**dict(limits))]
    return functools.partial(msgspec.convert, type=wanted)


def _check_length(limits: Limits, value: Any, place: str) -> Iterator[FieldProblem]:
    least, most = limits.get("min_length"), limits.get("max_length")
    if isinstance(least, int) and len(value) < least:
        yield FieldProblem(place, f"expected at least {least}, got {len(value)}")
    if isinstance(most, int) and len(value) > most:
        yield FieldProblem(place, f"expected at most {most}, got {len(value)}")


def _as_key(shape: Shape, key: Any) -> Any:
    """A key as it was meant: JSON writes number keys as text."""
    if isinstance(key, str) and isinstance(shape, Scalar) and shape.name in ("int", "float"):
        try:
            return _TYPES[shape.name](key)
        except ValueError:
            return key
    return key


def _is_bool(value: Any, choice: Any) -> bool:
    """Whether both are, or neither: True equals 1."""
    return isinstance(value, bool) is isinstance(choice, bool)


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _shown(value: Any) -> str:
    if isinstance(value, str | int | float) and len(repr(value)) <= 40:
        return repr(value)
    return _kind(value)
