"""The dictionaries of collections: how they are trained and kept, and which one is in use.

A *stock* is what is trained and numbered by itself: ``notes``, all records of a collection, or
``notes/ada``, those of one key scope in it. What is encrypted with one key must not leave traces in
a dictionary that another one opens.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
import zstandard

from perdure.storage import keys
from perdure.storage.adapter import Adapter
from perdure.storage.collection import Collection
from perdure.storage.middleware import Handler, Middleware
from perdure.storage.options import STRONG, Options
from perdure.storage.records import Key, RecordType, system_record
from perdure.storage.rows import Check
from perdure.storage.transaction import Transaction

T = TypeVar("T", bound=msgspec.Struct)
#: What dictionaries are trained with.
Sample: TypeAlias = bytes | bytearray | memoryview

_MARK = ";zstd="
#: Before the number of a dictionary that belongs to the scope of its record.
_OWN = "@"
_NAMED = re.compile(f"{_MARK}({_OWN}?)([0-9]+)").search
_LEVEL = 3
#: Longer values are worth more effort: 6 % less, at a third of the speed.
_LONG, _LONG_LEVEL = 16 * 1024, 6
#: Shorter values are left alone: the frame would eat the gain.
WORTH_IT = 64
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
#: Dictionaries that are listed at once.
_PAGE = 50


@system_record("dictionaries")
class Dictionary(msgspec.Struct, frozen=True):
    """A trained dictionary. Kept for as long as a value may need it."""

    id: Annotated[str, Key()]  # stock/number
    content: bytes
    samples: int


@system_record("dictionaries_in_use")
class InUse(msgspec.Struct, frozen=True):
    """Which dictionary a stock is written with. Whoever writes with it checks this row.

    Never deleted, so that the numbers go on.
    """

    id: Annotated[str, Key()]  # the stock
    number: int
    #: Bytes of values that had been seen when it was trained. 0: there is none of this number,
    #: values are compressed without one.
    learnt: int
    #: Dictionaries below this number are to be deleted as soon as no value needs them.
    kept: int = 0


class Host(Protocol):
    """What compression needs of the store it works in."""

    @property
    def adapter(self) -> Adapter: ...
    @property
    def declared(self) -> dict[str, RecordType[Any]]: ...
    def collection(self, cls: type[T]) -> Collection[T]: ...
    def transaction(self, options: Options) -> Transaction: ...
    def below(self, middleware: Middleware) -> Handler: ...


class Edition:
    """What a stock is written with: one of its dictionaries, or none. Does not change."""

    def __init__(
        self,
        in_use: InUse | None,
        check: Check,
        content: bytes = b"",
        above: Check | None = None,
    ) -> None:
        #: How the row of `InUse` was found, or that there was none.
        self.row = check
        #: For one scope of a collection that has no such row yet: how that of the collection was
        #: found. Renewing the collection changes it.
        self.above = above
        self.number = in_use.number if in_use else 0
        self.learnt = in_use.learnt if in_use and content else 0
        self.kept = in_use.kept if in_use else 0
        #: Bytes to be seen before another is worth its training.
        self.train_at = next((enough for enough in _TRAIN_AT if enough > self.learnt), None)
        self._data = self._long_data = None
        if content:
            self._data = zstandard.ZstdCompressionDict(content)
            self._data.precompute_compress(level=_LEVEL)
            self._long_data = zstandard.ZstdCompressionDict(content)
            self._long_data.precompute_compress(level=_LONG_LEVEL)
        #: What a commit of values that were compressed with this has to check. The same tuple
        #: each time: the backend can see that it is the same.
        self.checks = (check,) if content else ()
        own = _OWN if "/" in check.key else ""
        self.mark = f"{_MARK}{own}{self.number}" if content else f"{_MARK}0"
        self.compress = self.compressor()

    def compressor(self) -> Callable[[bytes], bytes]:
        """For another thread: the one of `compress` must not be used by two at once."""
        short = zstandard.ZstdCompressor(level=_LEVEL, dict_data=self._data).compress
        long = zstandard.ZstdCompressor(level=_LONG_LEVEL, dict_data=self._long_data).compress
        return lambda value: long(value) if len(value) > _LONG else short(value)

    def decompressor(self) -> zstandard.ZstdDecompressor:
        return zstandard.ZstdDecompressor(dict_data=self._data)


class Samples:
    """Values to train with: of many, every so often one; of a long one, a part."""

    def __init__(self) -> None:
        self.values: list[Sample] = []
        self.seen = 0
        self._kept = 0  # bytes
        self._count = 0

    def note(self, value: bytes) -> None:
        self.seen += len(value)
        self._count += 1
        sample = value[:_SAMPLE_BYTES]
        if self._kept + len(sample) <= _SAMPLES_BYTES:
            self.values.append(sample)
            self._kept += len(sample)
        elif self.values and self._count % _SPARSELY == 0:
            place = self._count // _SPARSELY % len(self.values)
            self._kept += len(sample) - len(self.values[place])
            self.values[place] = sample

    def suffice(self, enough: int = _TRAIN_AT[0]) -> bool:
        """Whether a dictionary can be trained with them that is worth it.

        Long values are their own dictionary: one of 32 KB would save them next to nothing.
        """
        short = self.seen <= self._count * _LONG
        return self.seen >= enough and len(self.values) >= _FEWEST_SAMPLES and short


def train(samples: list[Sample]) -> bytes:
    """The content of a dictionary; empty if the samples have too little in common. Takes long."""
    size = min(_DICTIONARY_BYTES, sum(map(len, samples)) // 8)
    try:
        return zstandard.train_dictionary(size, samples).as_bytes()
    except zstandard.ZstdError:
        return b""


class Shelf:
    """Where the dictionaries of a store are kept."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def edition(self, stock: str) -> Edition:
        """What a stock is written with now.

        A dictionary that is missing, which `verify` tells of, is done without.
        """
        before: Check | None = None
        while True:
            found = await self._in_use().fetch(stock)
            if found is None:
                absent = Check(self._in_use().name, stock, 0)
                return Edition(None, absent, above=await self._above(stock))
            check = Check(self._in_use().name, stock, found.version, found.created_us)
            content = b""
            if found.value.learnt:
                content = await self.content(stock, found.value.number)
            if content or not found.value.learnt or check == before:
                return Edition(found.value, check, content)
            before = check  # it was replaced between the two reads, or it is missing

    async def content(self, stock: str, number: int) -> bytes:
        """The content of a dictionary; empty if there is none of this number."""
        found = await self._dictionaries().get(_key(stock, number))
        return b"" if found is None else found.content

    async def publish(
        self, stock: str, before: Edition, content: bytes, samples: Samples, *, only: bool
    ) -> None:
        """Make this the dictionary in use; empty content means none.

        With `only`, the older ones are to be deleted: see `withdrawn`. Raises `Conflict` if the
        edition that it follows is not in use any more. So what was learnt from values that somebody
        has since made sure to be forgotten never comes to be used.
        """
        number = max(before.number, *await self._numbers(stock), 0) + 1
        async with self._host.transaction(STRONG) as transaction:
            if before.above is not None:
                above = before.above
                transaction.expect(above.collection, above.key, above.version, above.created)
            learnt = samples.seen if content else 0
            kept = number if only else before.kept
            in_use = InUse(stock, number, learnt, kept)
            following = Options(expected=before.row.version)
            await transaction.collection(InUse).put(in_use, following)
            if content:
                made = Dictionary(_key(stock, number), content, len(samples.values))
                await transaction.collection(Dictionary).put(made, Options(expected=0))

    async def withdrawn(self, stock: str) -> set[int]:
        """The numbers of the dictionaries of a stock that are to be deleted."""
        found = await self._in_use().get(stock)
        if found is None or not found.kept:
            return set()
        return {number for number in await self._numbers(stock) if number < found.kept}

    async def discard(self, stock: str, numbers: Sequence[int]) -> None:
        """Delete dictionaries that no value needs."""
        places = [_key(stock, number) for number in numbers]
        await self._dictionaries().delete_many(places, STRONG)

    async def stocks(self, collection: str = "") -> list[str]:
        """What has or had a dictionary: in this collection, or everywhere."""
        names = [each.id for each in await self._in_use().query().order_by("key").values()]
        return [name for name in names if collection in ("", name.partition("/")[0])]

    async def _above(self, stock: str) -> Check | None:
        """How the row of the collection is found that a stock is one scope of."""
        collection, slash, _ = stock.partition("/")
        if not slash:
            return None
        found = await self._in_use().fetch(collection)
        if found is None:
            return Check(self._in_use().name, collection, 0)
        return Check(self._in_use().name, collection, found.version, found.created_us)

    async def _numbers(self, stock: str) -> list[int]:
        """The numbers of the dictionaries of a stock, also of those that cannot be read."""
        dictionaries, found = self._dictionaries(), list[int]()
        if not await dictionaries.is_there():
            return found
        after = prefix = f"{stock}/"
        while page := await self._host.adapter.salvage(dictionaries.name, after, _PAGE):
            places = [row.key.rpartition("/") for row in page if row.key.startswith(prefix)]
            found += [int(number) for place, _, number in places if place == stock]
            if len(places) < len(page):
                break
            after = page[-1].key
        return found

    def _dictionaries(self) -> Collection[Dictionary]:
        return self._host.collection(Dictionary)

    def _in_use(self) -> Collection[InUse]:
        return self._host.collection(InUse)


def _key(stock: str, number: int) -> str:
    return f"{stock}/{keys.numbered(number)}"


class Form(NamedTuple):
    """How a compressed value was made."""

    #: The content type of the plain value.
    content_type: str
    #: The number of the dictionary; 0: none.
    number: int
    #: Whether it is one of its record's own key scope.
    own: bool


@functools.lru_cache(maxsize=256)
def form(content_type: str) -> Form | None:
    """How a value was compressed; None if it was not, or if something else was done to it since."""
    plain, mark, number = content_type.rpartition(_MARK)
    if not mark or ";" in number:
        return None
    return Form(plain, int(number.removeprefix(_OWN)), number.startswith(_OWN))


def is_hidden(content_type: str) -> bool:
    """Whether something else than compression was done to a value last: it was encrypted."""
    return ";" in content_type and form(content_type) is None


def named(content_type: str) -> tuple[int, bool] | None:
    """The dictionary that a value needs, whatever was done to it since, and whether it is one of
    its record's own key scope; None if it needs none.
    """
    found = _NAMED(content_type)
    return (int(found[2]), bool(found[1])) if found else None


def stock_of(collection: str, key: str, *, own: bool) -> str:
    """The stock that a record belongs to."""
    scope, slash, _ = key.partition("/")
    return f"{collection}/{scope}" if own and slash else collection
