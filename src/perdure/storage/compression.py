"""Compression: zstd with dictionaries trained on a collection's own records.

A short text alone hardly compresses; with a dictionary of what such texts look like it shrinks to a
third. Once a collection has seen enough values, `train` makes one. Dictionaries are numbered per
collection and never deleted, because old values need the one they were written with; a value's
content type names it: ``application/msgpack;zstd=2``.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Annotated, Any, Protocol

import msgspec
import zstandard

from perdure.core.errors import Conflict, Corrupted, InvalidInput
from perdure.storage import keys
from perdure.storage.adapter import Batch, Consistency, Delete, Options, Put, Row, checksum
from perdure.storage.collection import Collection
from perdure.storage.middleware import Call, Commit, Find, Get, Handler
from perdure.storage.records import Key, RecordType, system_record

_MARK = ";zstd="
_LEVEL = 3
#: Shorter values are left alone: the frame would eat the gain.
_WORTH_IT = 64
#: Bytes seen at which a collection's next dictionary is trained. The first comes early, the second
#: once there is more variety; after that `Compression.train` makes one when it is asked to.
_TRAIN_AT = (64 * 1024, 1024 * 1024)
_FEWEST_SAMPLES = 50
#: What is kept to train with: so much of one value, so much in all; then one in so many replaces
#: another.
_SAMPLE_BYTES = 16 * 1024
_SAMPLES_BYTES = 2 * 1024 * 1024
_SPARSELY = 16
_DICTIONARY_BYTES = 32 * 1024


@system_record("dictionaries")
class Dictionary(msgspec.Struct, frozen=True):
    """A trained dictionary. Kept for ever."""

    id: Annotated[str, Key()]  # collection/number
    content: bytes
    samples: int


class Host(Protocol):
    """What compression needs of the store it works in."""

    @property
    def declared(self) -> dict[str, RecordType[Any]]: ...
    def collection(self, cls: type[Dictionary]) -> Collection[Dictionary]: ...


class _State:
    """Compression of one collection."""

    def __init__(self) -> None:
        self.number = 0  # of the newest dictionary; 0 is none
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self.decompressors = {0: zstandard.ZstdDecompressor()}
        self.samples: list[bytes | bytearray | memoryview] = []
        self.kept = 0  # bytes of samples
        self.seen = 0
        self.count = 0
        self.training = False

    def use(self, number: int, content: bytes) -> None:
        """Know a dictionary; the newest known one is used for writing."""
        data = zstandard.ZstdCompressionDict(content)
        self.decompressors[number] = zstandard.ZstdDecompressor(dict_data=data)
        if number > self.number:
            data.precompute_compress(level=_LEVEL)
            self.number = number
            self.compressor = zstandard.ZstdCompressor(level=_LEVEL, dict_data=data)

    def note(self, value: bytes) -> None:
        """Keep a value to train with: of many, every so often one; of a long one, a part."""
        self.seen += len(value)
        self.count += 1
        sample = value[:_SAMPLE_BYTES]
        if self.kept + len(sample) <= _SAMPLES_BYTES:
            self.samples.append(sample)
            self.kept += len(sample)
        elif self.samples and self.count % _SPARSELY == 0:
            place = self.count // _SPARSELY % len(self.samples)
            self.kept += len(sample) - len(self.samples[place])
            self.samples[place] = sample

    @property
    def due(self) -> bool:
        return (
            not self.training
            and self.number < len(_TRAIN_AT)
            and self.seen >= _TRAIN_AT[self.number]
            and len(self.samples) >= _FEWEST_SAMPLES
        )


class Compression:
    """The middleware. `attach` it to the store whose chain it is in.

    With ``writing=False`` it only reads: what was compressed before stays readable.
    """

    def __init__(self, *, writing: bool = True) -> None:
        self._writing = writing
        self._host: Host | None = None
        self._states: dict[str, _State] = {}
        #: Called when a dictionary could be trained; somebody then calls `train`.
        self.on_due: Callable[[], None] = lambda: None

    def attach(self, host: Host) -> None:
        """Say where dictionaries are kept and record types are known."""
        self._host = host

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        if isinstance(call, Commit):
            if self._writing and self._concerns(call.batch):
                call = await self._compressed(call)
            return await proceed(call)
        answer = await proceed(call)
        if isinstance(call, Get):
            return await self._expanded(call.collection, answer)
        if isinstance(call, Find):
            return await self._expanded(call.query.collection, answer)
        return answer

    async def train(self, collection: str | None = None) -> int:
        """Make dictionaries for the collections that are due, or a new one for this collection.

        Returns how many were made. The work is done in a thread.
        """
        if collection is not None:
            names = [collection] if len((await self._state(collection)).samples) > 0 else []
        else:
            names = [name for name, state in self._states.items() if state.due]
        for name in names:
            await self._train(name, self._states[name])
        return len(names)

    async def _train(self, name: str, state: _State) -> None:
        state.training = True
        samples, state.samples, state.kept = state.samples, [], 0
        try:
            size = min(_DICTIONARY_BYTES, sum(map(len, samples)) // 8)
            try:
                trained = await asyncio.to_thread(zstandard.train_dictionary, size, samples)
            except zstandard.ZstdError:
                state.seen = 0  # too little variety: try again with other samples
                return
            number = state.number + 1
            made = Dictionary(f"{name}/{keys.numbered(number)}", trained.as_bytes(), len(samples))
            # On disk before any value needs it.
            once = Options(consistency=Consistency.STRONG, expected=0)
            try:
                await self._dictionaries().put(made, once)
            except Conflict:  # another process was first: its dictionary is as good
                await self._load(name, state, number)
            else:
                state.use(number, made.content)
        finally:
            state.training = False

    def _concerns(self, batch: Batch) -> bool:
        declared = self._attached().declared
        for write in batch.writes:  # noqa: SIM110  # any() would cost more than it looks at
            if declared[write.collection].compressed:
                return True
        return False

    async def _compressed(self, commit: Commit) -> Commit:
        declared = self._attached().declared
        batch = commit.batch
        writes: list[Put | Delete] = []
        for write in batch.writes:
            if (
                isinstance(write, Put)
                and len(write.value) >= _WORTH_IT
                and declared[write.collection].compressed
            ):
                state = self._states.get(write.collection) or await self._state(write.collection)
                writes.append(self._compress(write, state))
            else:
                writes.append(write)
        return Commit(Batch(tuple(writes), batch.checks, batch.events), commit.options)

    def _compress(self, put: Put, state: _State) -> Put:
        state.note(put.value)
        if state.number < len(_TRAIN_AT) and state.due:
            self.on_due()
        packed = state.compressor.compress(put.value)
        if len(packed) >= len(put.value):
            return put
        content_type = f"{put.content_type}{_MARK}{state.number}"
        return Put(
            put.collection,
            put.key,
            packed,
            content_type,
            put.schema,
            checksum(put.key, content_type, put.schema, packed),
            put.columns,
            put.tags,
            put.expires,
            put.expected,
        )

    async def _expanded(self, collection: str, rows: list[Row | None]) -> list[Row | None]:
        expanded: list[Row | None] = []
        for row in rows:
            if row is None or _MARK not in row.content_type:
                expanded.append(row)
                continue
            content_type, number = _parts(row.content_type)
            state = self._states.get(collection) or await self._state(collection)
            if number not in state.decompressors:
                await self._load(collection, state, number)
            value = self._expand(collection, row, state.decompressors[number])
            expanded.append(
                Row(
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
            )
        return expanded

    @staticmethod
    def _expand(collection: str, row: Row, decompressor: zstandard.ZstdDecompressor) -> bytes:
        try:
            return decompressor.decompress(row.value)
        except zstandard.ZstdError as exc:
            name = f"{collection}/{row.key}"
            raise Corrupted(
                f"The record {name} cannot be decompressed: {exc}.",
                hint="Restore it from a backup.",
                record=name,
            ) from exc

    async def _state(self, collection: str) -> _State:
        """What is known about a collection; at first, its newest dictionary is looked up."""
        state = _State()
        page = await self._dictionaries().list(f"{collection}/", limit=1, descending=True)
        for item in page.values:
            state.use(int(item.id.rpartition("/")[2]), item.content)
        return self._states.setdefault(collection, state)

    async def _load(self, collection: str, state: _State, number: int) -> None:
        found = await self._dictionaries().get(f"{collection}/{keys.numbered(number)}")
        if found is None:
            raise Corrupted(
                f"Dictionary {number} of the collection {collection!r} is missing; records that"
                " were compressed with it cannot be read.",
                hint="Restore the collection perdure_dictionaries from a backup.",
            )
        state.use(number, found.content)

    def _dictionaries(self) -> Collection[Dictionary]:
        return self._attached().collection(Dictionary)

    def _attached(self) -> Host:
        if self._host is None:
            raise InvalidInput(
                "This compression belongs to no store.", hint="Call attach(store) first."
            )
        return self._host


@functools.lru_cache(maxsize=256)
def _parts(content_type: str) -> tuple[str, int]:
    """The content type of the plain value, and the number of the dictionary."""
    plain, _, number = content_type.partition(_MARK)
    return plain, int(number)
