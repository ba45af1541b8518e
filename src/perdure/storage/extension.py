"""Extensions: data beside the rows that takes part in commits, such as search indexes.

A `Batch` carries an extension's changes: they are committed with the rows or not at all. A backend
with `Capability.EXTENSIONS` has a class for them: `MemoryExtension`, `SQLiteExtension`,
`PostgresExtension`. Extensions are attached before the adapter is initialized.

A commit never fails because an extension's data are damaged or gone: rows are what matters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from perdure.core.errors import InvalidInput, Unsupported


class ExtensionChange(msgspec.Struct, frozen=True, gc=False):
    """A change to an extension's data, made by a commit."""

    extension: ClassVar[str] = ""


class Extension(ABC):
    """Keeps data in a store, beside its rows."""

    name: ClassVar[str]

    @abstractmethod
    def check(self, changes: Sequence[Any]) -> None:
        """Raises `InvalidInput`, before anything is written, if a change cannot be made."""


E = TypeVar("E", bound=Extension)


class Extensions(Generic[E]):
    """The extensions attached to one adapter, all of a class."""

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind
        self.attached: dict[str, E] = {}

    def attach(self, extension: Extension) -> None:
        """Raises `InvalidInput` if it is made for another backend."""
        if not isinstance(extension, self._kind):
            raise InvalidInput(
                f"{type(extension).__name__} is not a {self._kind.__name__}.",
                hint="Attach one that is made for this backend.",
            )
        self.attached[extension.name] = extension

    def __iter__(self) -> Iterator[E]:
        return iter(self.attached.values())

    def owner(self, change: ExtensionChange) -> E:
        """Raises `Unsupported` if no attached extension has this name."""
        try:
            return self.attached[change.extension]
        except KeyError:
            raise Unsupported(
                f"This store has no {change.extension or 'such extension'}.",
                hint="Attach it before the store is opened.",
            ) from None

    def parts(self, changes: Iterable[ExtensionChange]) -> list[tuple[E, list[ExtensionChange]]]:
        parts: dict[str, tuple[E, list[ExtensionChange]]] = {}
        for change in changes:
            name = change.extension
            if name not in parts:
                parts[name] = self.owner(change), []
            parts[name][1].append(change)
        return list(parts.values())

    def check(self, changes: Iterable[ExtensionChange]) -> None:
        for extension, own in self.parts(changes):
            extension.check(own)
