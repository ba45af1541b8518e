"""Checks, and how they are registered.

A check is an async function of a `Bench` that returns if a guarantee holds; reports show its
docstring. `check` registers one; `check_each` one for each case. Each of them is a `Trial`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

import msgspec

from perdure.core.errors import PerdureError
from perdure.storage.adapter import Capability
from perdure.testing.conformance.bench import Bench

C = TypeVar("C")
E = TypeVar("E", bound=PerdureError)
Plain: TypeAlias = Callable[[Bench], Awaitable[None]]

#: The group of checks that every backend has to pass.
CORE = "core"


class Unmet(AssertionError):
    """A guarantee does not hold."""


class Trial(msgspec.Struct, frozen=True):
    """A registered check with its case."""

    name: str
    #: Capabilities that must be declared, the group first; none for the core.
    needs: tuple[Capability, ...]
    guarantee: str
    body: Plain

    @property
    def group(self) -> str:
        return self.needs[0].value if self.needs else CORE

    @property
    def id(self) -> str:
        """Unique in the kit: ``listing-pages_backwards``."""
        return f"{self.group}-{self.name}"


_trials: dict[str, Trial] = {}


def check(*needs: Capability) -> Callable[[Plain], Plain]:
    """Register a check of the first capability; it needs the others as well."""

    def register(body: Plain) -> Plain:
        _add(Trial(body.__name__, needs, _guarantee(body), body))
        return body

    return register


def check_each(
    *needs: Capability, cases: Mapping[str, C]
) -> Callable[[Callable[[Bench, C], Awaitable[None]]], Callable[[Bench, C], Awaitable[None]]]:
    """Register a check once for each case; it gets the bench and the case's value."""

    def register(
        body: Callable[[Bench, C], Awaitable[None]],
    ) -> Callable[[Bench, C], Awaitable[None]]:
        for name, case in cases.items():
            bound: Plain = functools.partial(_call, body, case)
            _add(Trial(f"{body.__name__}_{name}", needs, _guarantee(body), bound))
        return body

    return register


def registered() -> list[Trial]:
    """All checks, in the order of the levels."""
    order = [CORE, *(capability.value for capability in Capability)]
    return sorted(_trials.values(), key=lambda trial: order.index(trial.group))


def same(found: object, wanted: object, what: str = "the answer") -> None:
    """Raises `Unmet` unless both are equal and, if numbers, of one type.

    Not an assert statement: it shows both values without pytest, and holds under -O.
    """
    if found != wanted or _number_types(found) != _number_types(wanted):
        raise Unmet(f"{what} is {_short(found)}, and not {_short(wanted)}")


def holds(condition: object, what: str) -> None:
    """Raises `Unmet`, saying `what`, unless the condition is true."""
    if not condition:
        raise Unmet(what)


@contextmanager
def refused(error: type[E]) -> Iterator[list[E]]:
    """Raises `Unmet` unless the block raises this error, which is put into the list."""
    caught: list[E] = []
    try:
        yield caught
    except error as exc:
        caught.append(exc)
        return
    raise Unmet(f"{error.__name__} was not raised")


def _call(body: Callable[[Bench, C], Awaitable[None]], case: C, bench: Bench) -> Awaitable[None]:
    return body(bench, case)


def _add(trial: Trial) -> None:
    if trial.id in _trials:
        raise ValueError(f"two checks are called {trial.id}")
    _trials[trial.id] = trial


def _guarantee(body: Callable[..., object]) -> str:
    text = inspect.getdoc(body)
    if not text:
        raise ValueError(f"{body} does not say what it guarantees")
    return " ".join(text.split())


def _number_types(value: object) -> object:
    """2 and 2.0 are equal, but not the same answer."""
    if isinstance(value, list | tuple):
        return [_number_types(part) for part in value]
    return type(value) if isinstance(value, int | float) else None


def _short(value: object, limit: int = 300) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"
