"""What takes part in a store's commits beside its rows: search indexes, say.

An extension keeps data of its own in the database of a store. A `Batch` carries its changes, and
they are committed with the rows or not at all. Each backend that has the seam declares
`Capability.EXTENSIONS`, and says in a class of its own what an extension does there: a
`MemoryExtension`, a `SQLiteExtension`, a `PostgresExtension`. It is attached to an adapter before
that is initialized, and reads and writes through the adapter's connections.

A commit never fails because an extension's data are damaged or gone: rows are what matters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from perdure.core.errors import Unsupported


class ExtensionChange(msgspec.Struct, frozen=True, gc=False):
    """What a commit changes in the data of an extension."""

    #: The `Extension.name` of the one that makes it.
    extension: ClassVar[str] = ""


class Extension(ABC):
    """Keeps data in a store, beside its rows."""

    name: ClassVar[str]

    @abstractmethod
    def check(self, changes: Sequence[Any]) -> None:
        """Raises `InvalidInput`, before anything is written, if one of them cannot be made."""


E = TypeVar("E", bound=Extension)


class Extensions(Generic[E]):
    """What is attached to one adapter."""

    def __init__(self) -> None:
        self.attached: dict[str, E] = {}

    def __iter__(self) -> Iterator[E]:
        return iter(self.attached.values())

    def owner(self, change: ExtensionChange) -> E:
        """Raises `Unsupported` if nothing that is attached makes such changes."""
        try:
            return self.attached[change.extension]
        except KeyError:
            raise Unsupported(
                f"This store has no {change.extension or 'such extension'}.",
                hint="Attach it before the store is opened.",
            ) from None

    def parts(self, changes: Iterable[ExtensionChange]) -> list[tuple[E, list[ExtensionChange]]]:
        """The changes of each extension, in their order."""
        parts: dict[str, tuple[E, list[ExtensionChange]]] = {}
        for change in changes:
            name = change.extension
            if name not in parts:
                parts[name] = self.owner(change), []
            parts[name][1].append(change)
        return list(parts.values())

    def check(self, changes: Iterable[ExtensionChange]) -> None:
        """See `Extension.check`."""
        for extension, own in self.parts(changes):
            extension.check(own)
