"""The chain around every operation.

A middleware is a callable that gets an operation and the rest of the chain::

    async def log_writes(call: Call, proceed: Handler) -> Any:
        if isinstance(call, Commit):
            print(f"writing {len(call.batch.writes)} records")
        return await proceed(call)

It may change the call before it proceeds, the answer after, catch an error, or not proceed at all.
The first in the list is the outermost. Values are bytes here: records are encoded before the chain
and decoded after it.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from perdure.storage.adapter import Batch, Options
from perdure.storage.query import Query, Summary


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


Call: TypeAlias = Get | Find | Summarize | Commit | Remove
Handler: TypeAlias = Callable[[Call], Awaitable[Any]]


class Middleware(Protocol):
    """Anything that wraps operations."""

    def __call__(self, call: Call, proceed: Handler, /) -> Awaitable[Any]: ...


def compose(chain: Sequence[Middleware], innermost: Handler) -> Handler:
    """One handler that runs the chain, first to last, around the innermost."""
    return functools.reduce(_around, reversed(chain), innermost)


def _around(handler: Handler, middleware: Middleware) -> Handler:
    return lambda call: middleware(call, handler)


def collection_of(call: Call) -> str:
    """The collection a call is about; of a batch, its first write's."""
    if isinstance(call, Commit):
        return call.batch.writes[0].collection if call.batch.writes else ""
    if isinstance(call, Get):
        return call.collection
    if isinstance(call, Summarize):
        return call.summary.query.collection
    return call.query.collection
