"""Comparing stored records with the schema that is kept of them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from perdure.core.errors import PerdureError, Unsupported
from perdure.storage import codecs
from perdure.storage.codecs import PROTOBUF, Codec
from perdure.storage.rows import Row
from perdure.storage.schemas.numbering import Numbers, Wires
from perdure.storage.schemas.records import Schema, Version
from perdure.storage.schemas.validate import find_problems

#: Records that are named; further ones are counted.
_MOST_NAMED = 100


class Checked(msgspec.Struct):
    """What came of checking a collection."""

    collection: str
    #: The current schema version.
    schema: int
    records: int = 0
    #: Schema version → records of it.
    versions: dict[int, int] = {}
    #: Records that do not fit, or cannot be read; and what is wrong with the first of them, by key.
    unfit: int = 0
    problems: dict[str, list[str]] = {}

    def count(self, row: Row, current: Version, codec_of: Callable[[str], Codec]) -> None:
        """Look at a record, as it comes out of the chain."""
        self.records += 1
        self.versions[row.schema] = self.versions.get(row.schema, 0) + 1
        if row.schema != current.schema:
            return
        try:
            plain = codec_of(row.content_type).decode_plain(row.value)
        except PerdureError as exc:
            self.note(row.key, [exc.message])
        else:
            self.note(row.key, [str(each) for each in find_problems(current.description, plain)])

    def note(self, key: str, problems: list[str]) -> None:
        """Remember what is wrong with a record, if anything is."""
        self.unfit += bool(problems)
        if problems and len(self.problems) < _MOST_NAMED:
            self.problems[key] = problems


def reader_of(schema: Schema) -> Callable[[str], Codec]:
    """Content type → what reads it in this collection."""
    messages = functools.cache(functools.partial(protobuf, schema.numbers, {}))
    if not schema.numbers:
        return codecs.codec_of
    return lambda kind: messages() if kind == PROTOBUF else codecs.codec_of(kind)


def protobuf(numbers: Numbers, wires: Wires) -> Codec:
    """The codec of a collection's messages. Raises `Unsupported` if protobuf is not installed."""
    try:
        from perdure.storage.codecs.protobuf import Protobuf
    except ImportError as exc:
        raise Unsupported(
            "The serializer 'protobuf' needs protobuf.", hint="pip install 'perdure[protobuf]'"
        ) from exc
    return Protobuf(numbers, wires)
