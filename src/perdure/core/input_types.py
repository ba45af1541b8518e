"""Checks that callers gave text, paths, names and values, or our records where those are needed.

Callers may not run a type checker. What is of another type gets one clear `InvalidInput` that says
what to give, before anything is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from perdure.core.display import with_article
from perdure.core.errors import InvalidInput

T = TypeVar("T")


def require_text(given: Any, name: str, *, hint: str = "") -> str:
    """Returns the text. `name` is the parameter's; `hint` is for who gives a path."""
    if isinstance(given, str):
        return given
    if not (hint and isinstance(given, os.PathLike)):
        hint = f'Give {name} as text: {name}="…".'
    raise InvalidInput(f"{name} is text, not {_kind(given)}.", hint=hint)


def require_texts(given: Any, name: str) -> list[str]:
    """Texts of any iterable; not a single text, whose letters nobody means."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidInput(
            f"{name} are texts, not {_kind(given)}.", hint=f"Give a list of texts: {name}=[…]."
        )
    return [require_text(each, name) for each in given]


def require_path(given: Any, name: str) -> Path:
    """A path, also one that is given as text."""
    if isinstance(given, str | Path):
        return Path(given)
    raise InvalidInput(
        f"{name} is a path, not {_kind(given)}.", hint=f'Give a path or a text: {name}="…".'
    )


def require_mapping(given: Any, name: str) -> Mapping[str, Any]:
    if isinstance(given, Mapping) and all(isinstance(key, str) for key in given):
        return given
    raise InvalidInput(
        f"{name} must be names and values, not {_kind(given)}.", hint=f'Give {name}={{"name": …}}.'
    )


def require_instance(given: Any, cls: type[T], name: str) -> T:
    if isinstance(given, cls):
        return given
    raise InvalidInput(
        f"{name} is {with_article(cls.__name__)}, not {_kind(given)}.",
        hint=f"Give {name}={cls.__name__}(…).",
    )


def _kind(given: Any) -> str:
    return "None" if given is None else with_article(type(given).__name__)
