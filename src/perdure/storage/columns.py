"""How field values become column values.

A column holds text, a whole number or a number. Times and booleans are whole numbers, enums their
values. What no database can hold in an index is refused here, before anything is written.
"""

from __future__ import annotations

import enum
import math
import types
import typing
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, get_args, get_origin

from perdure.core import clock
from perdure.core.errors import InvalidInput, InvalidRecordType, InvalidValue
from perdure.storage import keys
from perdure.storage.layouts import Kind
from perdure.storage.query import Scalar

_INT64 = range(-(2**63), 2**63)


def column_of(cls: type, field: str, hint: Any) -> tuple[Kind, Callable[[Any], Scalar]]:
    """The column kind of a field's type, and how its values are turned into that."""
    options = [hint]
    if get_origin(hint) in (typing.Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
    kinds = {_scalar_kind(option) for option in options}
    if len(kinds) != 1 or None in kinds:
        raise InvalidRecordType(
            f"{cls.__name__}.{field} has a type that cannot be indexed.",
            hint="Index text, whole numbers, numbers, booleans, datetimes, enums, or their | None.",
        )
    kind: Kind = kinds.pop()  # type: ignore[assignment]  # None was refused above

    def convert(value: Any) -> Scalar:
        if value is None:
            return None
        if isinstance(value, enum.Enum):
            value = value.value
        if kind == "text":
            if not isinstance(value, str):
                raise _misfit(value, field, "text")
            return keys.check_indexed(value, field)
        if kind == "real":
            return real(value, field)
        if isinstance(value, datetime):
            return _moment(value, field)
        return integer(value, field)

    return kind, convert


def is_time(hint: Any) -> bool:
    """Whether a field of this type holds times."""
    return hint is datetime or datetime in get_args(hint)


def _scalar_kind(hint: Any) -> Kind | None:
    if get_origin(hint) is typing.Literal:
        kinds = {_scalar_kind(type(value)) for value in get_args(hint)}
        return kinds.pop() if len(kinds) == 1 else None
    if not isinstance(hint, type):
        return None
    if issubclass(hint, enum.Enum):
        kinds = {_scalar_kind(type(member.value)) for member in hint}
        return kinds.pop() if len(kinds) == 1 else None
    if issubclass(hint, str):
        return "text"
    if issubclass(hint, int | datetime):
        return "integer"
    return "real" if issubclass(hint, float) else None


def integer(value: int, field: str) -> int:
    if not isinstance(value, int):  # in a range, anything else would be looked for one by one
        raise _misfit(value, field, "a whole number")
    if int(value) not in _INT64:
        raise InvalidValue(
            f"{value} in indexed field {field!r} does not fit in 64 bits.",
            hint="Index a smaller number, or its text.",
        )
    return int(value)


def real(value: float | None, field: str) -> float | None:
    if value is not None and not isinstance(value, int | float):
        raise _misfit(value, field, "a number")
    if value is not None and math.isnan(value):
        raise InvalidValue(
            f"Indexed field {field!r} is not a number (NaN), which has no place in an order.",
            hint="Use None.",
        )
    return None if value is None else float(value)


def _misfit(value: object, field: str, wanted: str) -> InvalidValue:
    return InvalidValue(
        f"{value!r} in indexed field {field!r} is not {wanted}.", hint="Use a value of its type."
    )


def _moment(value: datetime, field: str) -> int:
    try:
        return clock.from_datetime(value)
    except InvalidInput as exc:
        raise InvalidValue(f"Indexed field {field!r}: {exc.message}", hint=exc.hint) from None


def tag_pairs(tags: Iterable[tuple[str, str]] | dict[str, str]) -> tuple[tuple[str, str], ...]:
    pairs = tuple(tags.items() if isinstance(tags, dict) else tags)
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name:
            raise InvalidValue(
                f"{name!r}: {value!r} cannot be a tag.",
                hint="A tag is a name without '=' and a value, both text.",
            )
        keys.check_indexed(f"{name}={value}", "tags")
    return pairs
