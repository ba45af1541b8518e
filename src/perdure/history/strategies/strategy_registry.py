"""Registry of history strategies by name.

A program adds one with `register_strategy`, an installed package with an entry point, a
configuration file under ``[history.strategies]``::

    [project.entry-points."perdure.strategies"]
    headlines = "my_package.history:Headlines"

What was registered wins over entry points. The names of Perdure's own cannot be taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from perdure.core.errors import InvalidInput, PerdureError
from perdure.core.input_types import require_text
from perdure.history.strategies.history_strategy import StrategyFactory

if TYPE_CHECKING:
    from importlib import metadata

GROUP = "perdure.strategies"
OWN = ("gradient", "one-shot", "regular")

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}").fullmatch

_registered: dict[str, StrategyFactory | str] = {}  # A text is ``module:name``.


def register_strategy(name: str, make: StrategyFactory) -> None:
    """Let sessions use a strategy of this name, in this process. `make` is called with the
    session's `SessionHistory`: a class that takes it, or a function. Raises `InvalidInput`.
    """
    if not callable(make):
        raise InvalidInput(
            f"The strategy {name!r} is a {type(make).__name__}, which cannot be called.",
            hint="Give a class, or a function that makes a strategy from a SessionHistory.",
        )
    _registered[_checked(name)] = make


def register_by_import(strategies: Mapping[str, str]) -> None:
    """The same by ``module:name``, imported when it is first used."""
    for name, place in strategies.items():
        _registered[_checked(name)] = place


def unregister_strategy(name: str) -> None:
    _registered.pop(name, None)


def strategy_names() -> list[str]:
    from importlib import metadata  # takes as long as opening a bank

    return sorted({*_registered, *OWN, *metadata.entry_points(group=GROUP).names})


def parse_strategy(text: object) -> str:
    """Raises `InvalidInput` if there is no such strategy."""
    if isinstance(text, str):
        if text in OWN or text in _registered:
            return text
        from importlib import metadata

        if metadata.entry_points(group=GROUP, name=text):
            return text
    raise InvalidInput(
        f"{text!r} is no history strategy.",
        hint=f"The strategies are {', '.join(strategy_names())}; docs/contexts.md tells how to add"
        " one.",
    )


def strategy_factory(name: str) -> StrategyFactory:
    """For a strategy that is not Perdure's own. Raises `InvalidInput` if it cannot be loaded."""
    found = _registered.get(name)
    if found is not None and not isinstance(found, str):
        return found
    from importlib import metadata

    if found is not None:
        return _load(metadata.EntryPoint(name, found, GROUP))
    return _load(next(iter(metadata.entry_points(group=GROUP, name=parse_strategy(name)))))


def _checked(name: str) -> str:
    if not _NAME(require_text(name, "name")):
        raise InvalidInput(
            f"{name!r} cannot be the name of a strategy.",
            hint="Use up to 32 lower-case letters, digits and dashes, the first one a letter.",
        )
    if name in OWN:
        raise InvalidInput(f"{name} is Perdure's own.", hint="Choose another name.")
    return name


def _load(entry: metadata.EntryPoint) -> StrategyFactory:
    try:
        found: StrategyFactory = entry.load()
    except PerdureError:
        raise
    except Exception as exc:  # it is somebody's module: anything may come out of its import
        raise InvalidInput(
            f"The strategy {entry.name} ({entry.value}) cannot be loaded:"
            f" {type(exc).__name__}: {exc}.",
            hint="Mend or remove what names it: a package, or history.strategies.",
        ) from exc
    if not callable(found):
        raise InvalidInput(
            f"The strategy {entry.name} ({entry.value}) cannot be called.",
            hint="Name a class, or a function that makes a strategy from a SessionHistory.",
        )
    return found
