"""Entries of the audit trail, and their ids."""

from __future__ import annotations

import itertools
import os
import re
from contextvars import ContextVar
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from perdure.core import clock
from perdure.core.actors import current_actor, system_user
from perdure.core.clock import Clock
from perdure.core.errors import InvalidInput, StorageError
from perdure.storage.query import All, AnyOf, Compare, Condition, Query, Summary, Tagged
from perdure.storage.records import Key, system_record, type_of
from perdure.storage.rows import Index, Put, Recode, Row

#: All entries lie in one folder: backends list such keys at no more than their number.
FOLDER = "trail/"
#: Stands for the hash of content that could not be read any more when it was written over.
UNREADABLE = "unreadable"
_TIME_DIGITS = 14
_is_id = re.compile(rf"{FOLDER}[0-9a-f]{{{_TIME_DIGITS}}}[0-9a-f]+").fullmatch


class Action(StrEnum):
    """What was done."""

    PUT = "put"
    DELETE = "delete"
    #: Records were kept in other bytes: another key, another schema, another serializer.
    REWRITE = "rewrite"
    READ = "read"
    #: Records were looked for; each one found has an entry of its own.
    FIND = "find"
    SUMMARIZE = "summarize"
    #: An index was searched, by words (text) or by meaning (vectors).
    SEARCH = "search"
    PRUNE = "prune"
    #: A server refused requests; `query` names the operation, `count` says how many.
    DENY = "deny"


@system_record(
    "audit",
    indexes=[
        Index(("record", "collection", "at")),
        Index(("collection", "at")),
        Index(("actor", "at")),
        Index(("action", "at")),
    ],
)
class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry of the trail. Holds keys and hashes, never content."""

    #: Sorts by time; unique across processes.
    id: Annotated[str, Key()]
    at: datetime
    actor: str
    action: Action
    collection: str
    record: str = ""
    #: 0: there was none.
    version_before: int = 0
    version_after: int = 0
    #: Of content type and value, 128 bits in hexadecimal; empty if there was no record.
    hash_before: str = ""
    hash_after: str = ""
    count: int = 1
    #: When the record as written will expire.
    expires: datetime | None = None
    #: What was asked for: fields and operators of a query, without the values.
    query: str = ""
    reason: str = ""


TRAIL = type_of(AuditEntry).name

#: Set while `AuditTrail` itself writes: what is otherwise refused is then let through.
trail_writes: ContextVar[bool] = ContextVar("perdure_audit_writes", default=False)


class EntryWriter:
    """Makes entries with ids, actor and time. One for each middleware."""

    def __init__(self, now: Clock, actor: str = "") -> None:
        self._now = now
        self._actor = actor
        # Entries of one moment are in the order in which they were made; those of other processes
        # have other numbers.
        self._numbers = itertools.count(int.from_bytes(os.urandom(5)) << 32)
        self._last = 0

    def entry(self, action: Action, collection: str, record: str = "", **facts: Any) -> AuditEntry:
        # A clock that is set back must not turn the order around.
        at = self._last = max(self._last, self._now())
        actor = current_actor()
        if actor is None:
            name, reason = self._actor or system_user(), ""
        else:
            name, reason = actor.name, actor.reason
        return AuditEntry(
            id=f"{FOLDER}{at:0{_TIME_DIGITS}x}{next(self._numbers):018x}",
            at=clock.to_datetime(at),
            actor=name,
            action=action,
            collection=collection,
            record=record,
            reason=reason,
            **facts,
        )


def as_put(entry: AuditEntry) -> Put:
    return type_of(AuditEntry).encode(entry, None, 0)


def is_same(row: Row, recode: Recode) -> bool:
    """Whether a rewritten row is still the same entry; its serializer and schema may differ."""
    declared = type_of(AuditEntry)
    after = msgspec.structs.replace(
        row, value=recode.value, content_type=recode.content_type, schema=recode.new_schema
    )
    try:
        entry = declared.decode(after)
        return declared.decode(row) == entry and recode.columns in {None, declared.columns(entry)}
    except StorageError:  # what cannot be read may be anything
        return False


def time_of(id: str) -> int:
    """When the entry of this id was made. Raises `InvalidInput` for an impossible id."""
    if not _is_id(id):
        raise InvalidInput(
            f"{id!r} is no place in the audit trail.", hint="Use a page's `next`, or an entry's id."
        )
    return int(id[len(FOLDER) : len(FOLDER) + _TIME_DIGITS], 16)


def first_id(at: int) -> str:
    """An id before every entry of this moment and later, and behind all earlier ones."""
    return f"{FOLDER}{max(at, 0):0{_TIME_DIGITS}x}"


def expiry(row: Row | Put) -> datetime | None:
    return None if row.expires is None else clock.to_datetime(row.expires)


def of_query(query: Query) -> str:
    """Such as ``author = ? and stars >= ? · keys from ada/ · by -created · at most 10``.

    Values may be content and are left out; a prefix is part of keys, which the trail names.
    """
    parts = [_condition(query.where) or "all"]
    if query.prefix:
        parts.append(f"keys from {query.prefix}")
    if query.order:
        order = (f"{'-' if part.descending else ''}{part.column}" for part in query.order)
        parts.append(f"by {', '.join(order)}")
    if query.limit is not None:
        parts.append(f"at most {query.limit}")
    return " · ".join(parts)


def of_summary(summary: Summary) -> str:
    """The same for figures: ``count, sum stars · per author · all``."""
    figures = ", ".join(f"{kind.value} {column}".strip() for kind, column in summary.figures)
    parts = [figures, f"per {', '.join(summary.group)}" if summary.group else ""]
    return " · ".join(part for part in (*parts, of_query(summary.query)) if part)


def _condition(condition: Condition) -> str:
    match condition:
        case Compare(column=column, op=op):
            return f"{column} {op.value} ?"
        case Tagged(name=name):
            return f"tagged {name}"
        case All(parts=parts):
            return " and ".join(filter(None, map(_condition, parts)))
        case AnyOf(parts=parts):
            return f"({' or '.join(_condition(part) or 'all' for part in parts)})"
