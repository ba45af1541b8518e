"""What a section of the configuration is, and how its values are checked."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

import msgspec

from perdure.core.errors import InvalidConfig

Seconds = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
#: Names that people give to a provider's key.
_KEYS = frozenset({"key", "apikey", "token", "apitoken", "secret"})


class RefusedSetting(InvalidConfig, ValueError):
    """A section's own check failed. As a ValueError, msgspec adds where."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings, checked when they are made. Lists become tuples. Raises `InvalidConfig`."""

    #: Keys are not written here, but the name of their variable.
    holds_no_keys: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if _is_default(self):
            return  # at once: to read the types of every section takes some milliseconds
        for field in msgspec.structs.fields(self):
            given = getattr(self, field.name)
            if given is field.default or (field.default_factory is dict and given == {}):
                continue
            value = checked(given, field.type, f"{type(self).__name__}.{field.name}")
            msgspec.structs.force_setattr(self, field.name, value)


def _is_default(section: Section) -> bool:
    defaults = section.__struct_defaults__
    return len(defaults) == len(section.__struct_fields__) and all(
        given is default or (getattr(default, "factory", None) is dict and given == {})
        for given, default in zip(msgspec.structs.astuple(section), defaults, strict=True)
    )


def choices(wanted: Any) -> tuple[str, ...]:
    """The words that a type allows; none if it does not list them."""
    if get_origin(wanted) is Literal:
        return tuple(str(word) or '""' for word in get_args(wanted))
    return tuple(word for kind in _kinds(wanted) if kind is not wanted for word in choices(kind))


def checked(value: Any, wanted: Any, key: str = "") -> Any:
    """Raises `InvalidConfig`, naming the key, if the value is not of this type."""
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as exc:
        # Msgspec does not say which entry of a table it was: look for it.
        for place, inner, kind in _inside(value, wanted):
            checked(inner, kind, f"{key}{place}" if key else place.lstrip("."))
        raise trouble(exc, wanted, key) from exc


def trouble(exc: msgspec.ValidationError, wanted: Any, key: str) -> InvalidConfig:
    own = exc.__cause__ if isinstance(exc.__cause__, RefusedSetting) else None
    text = own.message if own else f"{str(exc).partition(' - at ')[0]}."
    allowed = choices(wanted)
    hint = f"Use one of {', '.join(allowed)}." if allowed else own.hint if own else "Correct it."
    if "unknown field" in text:
        field = text.rpartition("field `")[2].rstrip("`.")
        if getattr(wanted, "holds_no_keys", False) and field.lower().replace("_", "") in _KEYS:
            hint = "Put the key in a variable, and the variable's name in key_variable."
        key = f"{key}.{field}" if key else field
        return InvalidConfig(
            f"{key} is not a setting; docs/configuration.md lists them.", hint=hint
        )
    return InvalidConfig(f"{key}: {text[0].lower()}{text[1:]}" if key else text, hint=hint)


def _inside(value: Any, wanted: Any) -> Iterator[tuple[str, Any, Any]]:
    for kind in _kinds(wanted):
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, Section):
            for field in msgspec.structs.fields(kind):
                if field.name in value:
                    yield f".{field.name}", value[field.name], field.type
        elif isinstance(value, dict) and get_origin(kind) is dict:
            yield from ((f".{name}", each, get_args(kind)[1]) for name, each in value.items())
        elif isinstance(value, list | tuple) and get_origin(kind) is tuple:
            yield from ((f"[{at}]", each, get_args(kind)[0]) for at, each in enumerate(value))


def _kinds(wanted: Any) -> Iterator[Any]:
    origin = get_origin(wanted)
    if origin is Annotated:
        yield from _kinds(get_args(wanted)[0])
    elif origin in {Union, UnionType}:
        for kind in get_args(wanted):
            yield from _kinds(kind)
    else:
        yield wanted
