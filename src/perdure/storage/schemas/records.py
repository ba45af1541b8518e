"""What the registry keeps of a collection: every version of its type, and its numbers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from perdure.core import clock
from perdure.core.errors import NewerSchema
from perdure.storage.records import Key, RecordType, system_record
from perdure.storage.rows import Index
from perdure.storage.schemas import numbering, shapes
from perdure.storage.schemas.numbering import Numbers
from perdure.storage.schemas.shapes import Description


class Version(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record type as it was declared from some time on.

    One schema version may stand here several times: fields with a default, indexes and the
    serializer can change without a migration.
    """

    schema: int
    serializer: str
    description: Description
    #: When it was first declared here, or declared again after another.
    since_us: int
    indexes: tuple[Index, ...] = ()
    #: Microseconds that records live, if they expire.
    ttl: int | None = None

    @property
    def since(self) -> datetime:
        """When it was first declared here, or declared again after another."""
        return clock.to_datetime(self.since_us)

    def same_as(self, other: Version) -> bool:
        """Whether they differ in nothing but their time."""
        return msgspec.structs.replace(self, since_us=0) == msgspec.structs.replace(
            other, since_us=0
        )


@system_record("schemas")
class Schema(msgspec.Struct, frozen=True, omit_defaults=True):
    """The schema of a collection: its versions, oldest first."""

    collection: Annotated[str, Key()]
    versions: tuple[Version, ...] = ()
    #: Of the fields of protobuf messages, if the collection ever had them.
    numbers: Numbers = {}

    @property
    def current(self) -> Version:
        """The version that was declared last."""
        return self.versions[-1]

    def check_not_newer(self, declared: RecordType[msgspec.Struct]) -> None:
        """Raises `NewerSchema` if the collection is ahead of the type that is about to use it."""
        if self.versions and self.current.schema > declared.schema:
            raise NewerSchema(
                f"The collection {self.collection!r} has schema version {self.current.schema};"
                f" {declared.cls.__name__} is declared with version {declared.schema}.",
                hint="Use the newer declaration, with all its migrations; nothing was changed.",
            )

    def declaring(self, declared: RecordType[msgspec.Struct], now: int) -> Schema:
        """The schema with this type as its current version; the same object if it already is.

        Raises `NewerSchema` as `check_not_newer` does.
        """
        self.check_not_newer(declared)
        description = shapes.describe(declared.cls)
        version = Version(
            declared.schema,
            declared.serializer,
            description,
            now,
            declared.layout.indexes,
            declared.ttl,
        )
        numbers = self.numbers
        if declared.serializer == "protobuf":
            wires = numbering.wires(description)
            numbers = numbering.extended(numbers, wires, declared.schema, now)
        is_current = bool(self.versions) and self.current.same_as(version)
        if is_current and numbers is self.numbers:
            return self
        # Two programs that take turns do not make the history longer each time.
        before = [each for each in self.versions if not each.same_as(version)]
        kept = self.versions if is_current else (*before, version)
        return Schema(self.collection, kept, numbers)
