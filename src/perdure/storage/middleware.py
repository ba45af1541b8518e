"""The chain around every operation.

A middleware is a callable that gets an operation and the rest of the chain::

    async def log_writes(call: Call, proceed: Handler) -> Any:
        if isinstance(call, Commit):
            print(f"writing {len(call.batch.writes)} records")
        return await proceed(call)

It may change the call before it proceeds, the answer after, catch an error, or not proceed at all.
The first in the list is the outermost. Values are bytes here: records are encoded before the chain
and decoded after it.

Where the ones that come with Perdure stand is not a matter of taste: what is encrypted no longer
compresses, and a cache above encryption would hold what was meant to be secret. So each says its
`Stage`, and `compose` refuses a chain in another order.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from perdure.core.errors import DeadlineExceeded, InvalidInput
from perdure.storage.options import Consistency, Options
from perdure.storage.query import Query, Summary
from perdure.storage.rows import Batch, Check, Recode, Row

if TYPE_CHECKING:
    from perdure.storage.records import RecordType

S = TypeVar("S")


class Get(msgspec.Struct, frozen=True):
    """Read rows by key → ``list[Row | None]``."""

    collection: str
    keys: Sequence[str]
    options: Options


class Find(msgspec.Struct, frozen=True):
    """Read rows by query → ``list[Row]``."""

    query: Query
    options: Options


class Summarize(msgspec.Struct, frozen=True):
    """Compute figures → ``list[tuple]``."""

    summary: Summary
    options: Options


class Commit(msgspec.Struct, frozen=True):
    """Write a batch → ``list[int]``, the versions."""

    batch: Batch
    options: Options


class Remove(msgspec.Struct, frozen=True):
    """Delete by query → ``int``, how many."""

    query: Query
    options: Options


class Rewrite(msgspec.Struct, frozen=True):
    """Replace the bytes of rows → ``int``, how many were still as read.

    Versions and times stay. At the top of the chain values are plain, as in a `Commit`; a
    middleware that changes them leaves their checksums at 0.
    """

    collection: str
    recodes: tuple[Recode, ...]
    options: Options
    checks: tuple[Check, ...] = ()


class SearchCall(msgspec.Struct, frozen=True):
    """Look for something in an index beside the rows → what its engine answers.

    A middleware sees that it is done, by whom and when; what is looked for stays with `ask`.
    """

    #: The name of the index.
    collection: str
    #: How: ``text`` or ``vectors``.
    kind: str
    ask: Callable[[], Awaitable[Any]]
    #: How much an answer holds.
    count: Callable[[Any], int]
    options: Options


Call: TypeAlias = Get | Find | Summarize | Commit | Remove | Rewrite | SearchCall
Handler: TypeAlias = Callable[[Call], Awaitable[Any]]


class Middleware(Protocol):
    """A callable that wraps operations.

    It may have a `stage`. One that changes values may also have `is_due`: given a record type and a
    stored row, whether it would store it differently now. Migrations rewrite such rows.
    """

    def __call__(self, call: Call, proceed: Handler, /) -> Awaitable[Any]: ...


class Resident(Generic[S]):
    """A middleware that is attached to its store, and opened and closed with it."""

    _store: S | None = None

    def attach(self, store: S) -> None:
        """Called once, when the store is made."""
        self._store = store

    @property
    def store(self) -> S:
        """Raises `InvalidInput` if it is in no store's chain."""
        if self._store is None:
            raise InvalidInput(
                f"This {type(self).__name__} belongs to no store.",
                hint="Put it in a store's chain.",
            )
        return self._store

    async def open(self) -> None:
        """Called when the backend is open."""

    async def close(self) -> None:
        """Called before the backend is closed, if `open` was."""


class Stage(IntEnum):
    """A middleware's position in the chain, outermost first."""

    #: Sees what callers see: tracing, metrics.
    WATCH = 0
    #: Anything else; a middleware that does not say has this.
    FREE = 1
    #: Adds its records to the batch: they are compressed and encrypted like others.
    AUDIT = 2
    COMPRESS = 3
    ENCRYPT = 4
    #: Holds rows as the backend holds them.
    CACHE = 5
    #: Sees what the backend sees.
    BACKEND = 6


_REASONS = {
    Stage.WATCH: "it would not see what callers see",
    Stage.FREE: "it would get values in another form than it was written for",
    Stage.AUDIT: "it would record bytes that mean nothing to a reader",
    Stage.COMPRESS: "encrypted bytes do not compress",
    Stage.ENCRYPT: "what stands before it would hold secrets in clear",
    Stage.CACHE: "it would answer for what it does not see",
}


def stage_of(middleware: Middleware) -> Stage:
    return getattr(middleware, "stage", Stage.FREE)


def is_due(chain: Sequence[Middleware], declared: RecordType[Any], row: Row) -> bool:
    """Whether any middleware in the chain would store the row differently now."""
    asked = (getattr(middleware, "is_due", None) for middleware in chain)
    return any(would(declared, row) for would in asked if would is not None)


def compose(chain: Sequence[Middleware], innermost: Handler) -> list[Handler]:
    """The chain's handler, then the one below each. `InvalidInput` if the order cannot work."""
    _check_order(chain)
    handlers = [innermost]
    for middleware in reversed(chain):
        handlers.append(_around(handlers[-1], middleware))
    return handlers[::-1]


def _check_order(chain: Sequence[Middleware]) -> None:
    for outer, inner in itertools.pairwise(chain):
        first, then = stage_of(outer), stage_of(inner)
        if first > then:
            raise InvalidInput(
                f"{_name(inner)} cannot stand below {_name(outer)} in the chain: {_REASONS[then]}.",
                hint="Put them in the order of perdure.storage.middleware.Stage.",
            )
        if first == then and Stage.AUDIT <= then <= Stage.CACHE:
            raise InvalidInput(
                f"{_name(outer)} and {_name(inner)} are both for {then.name.lower()}.",
                hint="Leave one of them out.",
            )


def _name(middleware: Middleware) -> str:
    return str(getattr(middleware, "__name__", type(middleware).__name__))


def _around(handler: Handler, middleware: Middleware) -> Handler:
    return lambda call: middleware(call, handler)


_OPERATIONS: dict[type, str] = {
    kind: kind.__name__.lower().removesuffix("call") for kind in Call.__args__
}


def operation_of(call: Call) -> str:
    return _OPERATIONS[type(call)]


def collections_of(call: Call) -> list[str]:
    """The collections of a call, in order; none for a batch without writes."""
    if isinstance(call, Commit):
        return sorted({write.collection for write in call.batch.writes})
    return [collection_of(call)]


def collection_of(call: Call) -> str:
    if isinstance(call, Commit):
        return call.batch.writes[0].collection if call.batch.writes else ""
    if isinstance(call, Get | Rewrite | SearchCall):
        return call.collection
    if isinstance(call, Summarize):
        return call.summary.query.collection
    return call.query.collection


class TimeLeft:
    """The options of a call for each of its steps, which share its deadline."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._until = None if options.deadline is None else time.monotonic() + options.deadline

    def options(self, kind: Options | None = None) -> Options:
        """Raises `DeadlineExceeded` if no time is left."""
        if self._until is None:
            return self._options if kind is None else kind
        left = self._until - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(
                "The time allowed was over before all steps of the call were done.",
                hint="Nothing was changed. Allow more time.",
            )
        return msgspec.structs.replace(self._options if kind is None else kind, deadline=left)

    def from_primary(self, call: Get | Find) -> Get | Find:
        options = msgspec.structs.replace(
            self.options(), consistency=Consistency.STRONG, max_staleness=None
        )
        return msgspec.structs.replace(call, options=options)
