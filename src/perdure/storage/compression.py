"""Compression: values of record types that ask for it, and large ones, are stored as zstd frames.

Short texts need a dictionary to compress well. The one that ships was trained on text of our own
(tools/train_dictionary.py), so it holds no user data to be forgotten. A value's content type names
the dictionary it needs: ``application/msgpack;zstd=1``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, ClassVar, TypeVar

import msgspec
import zstandard

from perdure.core.errors import Corrupted
from perdure.storage.middleware import (
    Call,
    Commit,
    Find,
    Get,
    Handler,
    Resident,
    Rewrite,
    Stage,
    collection_of,
)
from perdure.storage.records import RecordType
from perdure.storage.rows import MAX_VALUE_BYTES, Batch, Put, Recode, Row
from perdure.storage.store import Store

W = TypeVar("W", Put, Recode)

#: The dictionary that values are compressed with. A better one gets the next number, and a file
#: beside this one: values name the one they need, so those that were released stay.
NUMBER = 1
_MARK = ";zstd="
_LEVEL = 4
#: Longer values are worth more effort: 6 % less, at a third of the speed.
_LONG, _LONG_LEVEL = 16 * 1024, 6
#: Shorter values are left alone: the frame would eat the gain.
_WORTH_IT = 64
#: The content type says what a frame is and which dictionary it needs: eight bytes less each.
_FORMAT = zstandard.FORMAT_ZSTD1_MAGICLESS


class Compression(Resident[Store]):
    """Compresses values on write, expands them on read; with ``writing=False`` only expands."""

    stage: ClassVar[Stage] = Stage.COMPRESS

    def __init__(self, *, writing: bool = True, above: int = 4_096) -> None:
        """Above so many bytes values of any type are compressed; with 0 only those of types that
        ask for it.
        """
        self._writing = writing
        self._declared: Mapping[str, RecordType[Any]] = {}
        self._above = above or MAX_VALUE_BYTES
        self._decompressors: dict[int, zstandard.ZstdDecompressor] = {}

    def attach(self, store: Store) -> None:
        super().attach(store)
        self._declared = store.declared

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        if isinstance(call, Commit):
            return await proceed(self._compressed(call) if self._writing else call)
        if isinstance(call, Rewrite):
            return await proceed(self._compressed_again(call) if self._writing else call)
        if isinstance(call, Get | Find):
            collection = collection_of(call)
            return [self._expanded(collection, row) for row in await proceed(call)]
        return await proceed(call)

    def is_due(self, declared: RecordType[Any], row: Row) -> bool:
        asked = declared.compressed or len(row.value) > self._above
        if not (self._writing and asked) or ";" in row.content_type:
            return False
        return self._packed(row.value) is not None

    def _compressed(self, commit: Commit) -> Commit:
        declared, batch = self._declared, commit.batch
        packed: dict[int, Put] = {}
        for place, write in enumerate(batch.writes):
            if isinstance(write, Put) and (
                declared[write.collection].compressed or len(write.value) > self._above
            ):
                packed[place] = self._packed_write(write)
        if not packed:
            return commit
        writes = tuple([packed.get(place, write) for place, write in enumerate(batch.writes)])
        return Commit(Batch(writes, batch.checks, batch.events, batch.changes), commit.options)

    def _packed_write(self, write: W) -> W:
        packed = self._packed(write.value)
        if packed is None:
            return write
        content_type = f"{write.content_type}{_MARK}{NUMBER}"
        return msgspec.structs.replace(write, value=packed, content_type=content_type, checksum=0)

    def _compressed_again(self, rewrite: Rewrite) -> Rewrite:
        declared = self._declared.get(rewrite.collection)
        asked = declared is not None and declared.compressed
        recodes = tuple(
            self._packed_write(recode) if asked or len(recode.value) > self._above else recode
            for recode in rewrite.recodes
        )
        return msgspec.structs.replace(rewrite, recodes=recodes)

    def _packed(self, value: bytes) -> bytes | None:
        if len(value) < _WORTH_IT:
            return None
        packed = (self._compress_long if len(value) > _LONG else self._compress)(value)
        return packed if len(packed) < len(value) else None

    def _expanded(self, collection: str, row: Row | None) -> Row | None:
        form = None if row is None else _form(row.content_type)
        if row is None or form is None:
            return row
        content_type, number = form
        try:
            decompressor = self._decompressors.get(number) or self._decompressor(number)
            value = decompressor.decompress(row.value)
        except (zstandard.ZstdError, FileNotFoundError) as exc:
            name = f"{collection}/{row.key}"
            raise Corrupted(
                f"The record {name} cannot be decompressed: {exc}.",
                hint="Restore it from a backup."
                if isinstance(exc, zstandard.ZstdError)
                else "It was written by a newer Perdure: install that one.",
                record=name,
            ) from exc
        return Row(
            row.key,
            value,
            content_type,
            row.schema,
            row.version,
            row.created,
            row.updated,
            row.expires,
            row.checksum,
        )

    # Neither may be used by two threads at once, so each middleware has its own --------------

    @functools.cached_property
    def _compress(self) -> Callable[[bytes], bytes]:
        return _compressor(_LEVEL)

    @functools.cached_property
    def _compress_long(self) -> Callable[[bytes], bytes]:
        return _compressor(_LONG_LEVEL)

    def _decompressor(self, number: int) -> zstandard.ZstdDecompressor:
        made = zstandard.ZstdDecompressor(dict_data=_dictionary(number, 0), format=_FORMAT)
        self._decompressors[number] = made
        return made


def _compressor(level: int) -> Callable[[bytes], bytes]:
    settings = zstandard.ZstdCompressionParameters.from_level(
        level, format=_FORMAT, write_content_size=True, write_dict_id=False
    )
    dictionary = _dictionary(NUMBER, level)
    return zstandard.ZstdCompressor(compression_params=settings, dict_data=dictionary).compress


@functools.cache
def _dictionary(number: int, level: int) -> zstandard.ZstdCompressionDict:
    """A shipped dictionary, prepared for a level; 0: to decompress. `FileNotFoundError` if none."""
    content = (files(__package__) / f"compression-{number}.zdict").read_bytes()
    dictionary = zstandard.ZstdCompressionDict(content)
    if level:
        dictionary.precompute_compress(level=level)
    return dictionary


@functools.lru_cache(maxsize=256)
def _form(content_type: str) -> tuple[str, int] | None:
    """The plain content type and the dictionary's number; None if compression was not last."""
    plain, mark, number = content_type.rpartition(_MARK)
    return (plain, int(number)) if mark and number.isdigit() else None
