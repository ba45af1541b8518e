"""Scopes: which data key a record is encrypted with.

A scope has its own data keys: ``collection:notes``, or ``agent:ada`` for everything whose key
begins with ``ada/``. The last suffix of a value's content type names the kind of its scope and the
key's generation: ``application/msgpack;zstd=1;aesgcm=a12``. So it stays readable when the setting
changes.
"""

from __future__ import annotations

import functools
import hashlib

import msgspec

from perdure.core.errors import InvalidInput
from perdure.storage import record_keys

KEYS = "perdure_keys"
#: Never encrypted: data keys are wrapped, and schemas are kept beside the chain.
CLEAR = frozenset({KEYS, "perdure_schemas"})

_SYSTEM = "perdure_"
_ENTRIES = "perdure_entries"
#: Perdure's own collections whose keys begin with an agent, as those of users do. What stands
#: before the first slash in the others is a collection, a host or the like, whatever agents are
#: called.
OF_AGENTS = frozenset(
    {
        "perdure_boards",
        "perdure_state_records",
        "perdure_counts",
        "perdure_drafts",
        _ENTRIES,
        "perdure_epochs",
        "perdure_frames",
        "perdure_heads",
        "perdure_imports",
        "perdure_inbox",
        "perdure_injections",
        "perdure_memories",
        "perdure_memory_audits",
        "perdure_memory_versions",
        "perdure_prefix_texts",
        "perdure_prefixes",
        "perdure_ranges",
        "perdure_recall_habits",
        "perdure_receipts",
        "perdure_reflection_answers",
        "perdure_reflection_changes",
        "perdure_reflection_runs",
        "perdure_renditions",
        "perdure_sessions",
        "perdure_tinies",
        "perdure_turns",
        "perdure_marks",
        "perdure_undone",
        "perdure_uses",
    }
)
#: Nor would a bank be broken if nobody could read these.
_DISPENSABLE = OF_AGENTS | {"perdure_artifacts", "perdure_audit"}

_MARK = ";aesgcm="


class EncryptionMark(msgspec.Struct, frozen=True):
    """The encryption suffix of a content type, parsed."""

    #: Of the value before it was encrypted.
    content_type: str
    agent: bool
    generation: int


@functools.lru_cache(maxsize=4096)
def mark_of(content_type: str) -> EncryptionMark | None:
    """The parsed suffix of a content type; None if the value is not encrypted."""
    plain, mark, told = content_type.rpartition(_MARK)
    return EncryptionMark(plain, told[0] == "a", int(told[1:])) if mark else None


def suffix(scope: str, generation: int) -> str:
    return f"{_MARK}{scope[0]}{generation}"


def scope_at(collection: str, key: str, *, agent: bool) -> str:
    """The scope of a record; a key without a slash belongs to no agent."""
    name, slash, rest = key.partition("/")
    if collection == _ENTRIES and "/" not in rest:
        slash = ""  # the number of an entry, behind a context that is no agent's
    if agent and slash and (collection in OF_AGENTS or not collection.startswith(_SYSTEM)):
        return f"agent:{name}"
    return collection_scope(collection)


def check_dispensable(scope: str) -> None:
    """Raises `InvalidInput` if the bank needs what is in a scope to work."""
    kind, _, name = scope.partition(":")
    if kind == "collection" and name.startswith(_SYSTEM) and name not in _DISPENSABLE:
        raise InvalidInput(
            f"{scope} cannot be shredded: {name} is what Perdure needs to work.",
            hint="Shred what it is about: an agent, or a collection of your own.",
        )


@functools.cache
def collection_scope(collection: str) -> str:
    return f"collection:{collection}"


def row_key(scope: str) -> str:
    if len(scope.encode()) <= record_keys.MAX_KEY_BYTES:
        return scope
    return f"{scope.partition(':')[0]}:{hashlib.sha256(scope.encode()).hexdigest()}"


def check_scope(scope: str) -> str:
    """Returns the scope. Raises `InvalidInput` if it is malformed."""
    kind, _, name = scope.partition(":")
    if kind not in {"collection", "agent"} or not name or "/" in name:
        raise InvalidInput(
            f"{scope!r} is no scope.", hint="Write it like collection:notes or agent:ada."
        )
    return scope
