"""Persistent memory for LLM agents.

    import perdure

    async with perdure.open("sqlite:///memory.db") as bank:
        session = await bank.session("planner/auth")
        ...

Everything public is reachable from here. What is not an error is imported when it is first used,
so that `import perdure` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from perdure.core.errors import (
    AccessDenied,
    AllFailed,
    ArtifactMissing,
    BadAnswer,
    BadBackup,
    BudgetReached,
    BudgetTooSmall,
    Closed,
    Conflict,
    Corrupted,
    DeadlineExceeded,
    GatewayError,
    InvalidConfig,
    InvalidInput,
    InvalidKey,
    InvalidQuery,
    InvalidRecordType,
    InvalidURL,
    InvalidValue,
    KeyRefused,
    MigrationFailed,
    NewerSchema,
    NoModel,
    NotAStore,
    NotIndexed,
    PerdureError,
    PromptTooLong,
    ProviderDown,
    RateLimited,
    Rejected,
    SchemaMismatch,
    StorageError,
    StorageFull,
    StreamBroken,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnknownBackend,
    Unsupported,
)

if TYPE_CHECKING:
    from perdure.artifacts import Artifact
    from perdure.bank import Bank, open
    from perdure.bank.backup import check_backups
    from perdure.bank.bank_copy import restore
    from perdure.bank.session import Session
    from perdure.bank.session_reader import Said
    from perdure.config import Config
    from perdure.context.desk import Rendering
    from perdure.context.tools import HISTORY_TOOLS, MEMORY_TOOLS
    from perdure.core.actors import acting_as
    from perdure.core.messages import (
        Media,
        Message,
        Reasoning,
        Reference,
        Text,
        ToolCall,
        ToolResult,
        Unknown,
        Usage,
    )
    from perdure.core.turns import Position, Round, Turn
    from perdure.gateway.calls import Ask, Reply, Request, Shape, Tool
    from perdure.gateway.gateway import Gateway
    from perdure.history.pruning import prune_tool_results
    from perdure.history.records import Link
    from perdure.jobs import Job
    from perdure.recall.values import Hit, Recalled
    from perdure.storage.assembly import open_store
    from perdure.storage.collection import Collection, Stored
    from perdure.storage.contexts import Context, ContextStore
    from perdure.storage.finder import Page, all_of, any_of, tagged, where
    from perdure.storage.layouts import Index
    from perdure.storage.options import Consistency, Options, bounded
    from perdure.storage.records import Compressed, Encrypted, Indexed, Key, Tags, record
    from perdure.storage.subscriptions import EventReceived
    from perdure.storage.transaction import Transaction
    from perdure.storage.windows import TimeWindow
    from perdure.sync import open_sync

__version__ = "0.1.0"

_LAZY = {
    "perdure.artifacts": ("Artifact",),
    "perdure.bank": ("Bank", "open"),
    "perdure.bank.backup": ("check_backups",),
    "perdure.bank.bank_copy": ("restore",),
    "perdure.config": ("Config",),
    "perdure.context.desk": ("Rendering",),
    "perdure.context.tools": ("HISTORY_TOOLS", "MEMORY_TOOLS"),
    "perdure.core.actors": ("acting_as",),
    "perdure.core.messages": (
        "Media",
        "Message",
        "Reasoning",
        "Reference",
        "Text",
        "ToolCall",
        "ToolResult",
        "Unknown",
        "Usage",
    ),
    "perdure.core.turns": ("Position", "Round", "Turn"),
    "perdure.gateway.calls": ("Ask", "Reply", "Request", "Shape", "Tool"),
    "perdure.gateway.gateway": ("Gateway",),
    "perdure.history.pruning": ("prune_tool_results",),
    "perdure.history.records": ("Link",),
    "perdure.recall.values": ("Hit", "Recalled"),
    "perdure.bank.session": ("Session",),
    "perdure.bank.session_reader": ("Said",),
    "perdure.jobs": ("Job",),
    "perdure.storage.assembly": ("open_store",),
    "perdure.storage.layouts": ("Index",),
    "perdure.storage.options": ("Consistency", "Options", "bounded"),
    "perdure.storage.collection": ("Collection", "Stored"),
    "perdure.storage.contexts": ("Context", "ContextStore"),
    "perdure.storage.finder": ("Page", "all_of", "any_of", "tagged", "where"),
    "perdure.storage.records": ("Compressed", "Encrypted", "Indexed", "Key", "Tags", "record"),
    "perdure.storage.subscriptions": ("EventReceived",),
    "perdure.storage.transaction": ("Transaction",),
    "perdure.storage.windows": ("TimeWindow",),
    "perdure.sync": ("open_sync",),
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names}

__all__ = [
    "HISTORY_TOOLS",
    "MEMORY_TOOLS",
    "AccessDenied",
    "AllFailed",
    "Artifact",
    "ArtifactMissing",
    "Ask",
    "BadAnswer",
    "BadBackup",
    "Bank",
    "BudgetReached",
    "BudgetTooSmall",
    "Closed",
    "Collection",
    "Compressed",
    "Config",
    "Conflict",
    "Consistency",
    "Context",
    "ContextStore",
    "Corrupted",
    "DeadlineExceeded",
    "Encrypted",
    "EventReceived",
    "Gateway",
    "GatewayError",
    "Hit",
    "Index",
    "Indexed",
    "InvalidConfig",
    "InvalidInput",
    "InvalidKey",
    "InvalidQuery",
    "InvalidRecordType",
    "InvalidURL",
    "InvalidValue",
    "Job",
    "Key",
    "KeyRefused",
    "Link",
    "Media",
    "Message",
    "MigrationFailed",
    "NewerSchema",
    "NoModel",
    "NotAStore",
    "NotIndexed",
    "Options",
    "Page",
    "PerdureError",
    "Position",
    "PromptTooLong",
    "ProviderDown",
    "RateLimited",
    "Reasoning",
    "Recalled",
    "Reference",
    "Rejected",
    "Rendering",
    "Reply",
    "Request",
    "Round",
    "Said",
    "SchemaMismatch",
    "Session",
    "Shape",
    "StorageError",
    "StorageFull",
    "Stored",
    "StreamBroken",
    "Tags",
    "Text",
    "TimeWindow",
    "TooLarge",
    "Tool",
    "ToolCall",
    "ToolResult",
    "Transaction",
    "Turn",
    "Unauthorized",
    "Unavailable",
    "Unknown",
    "UnknownBackend",
    "Unsupported",
    "Usage",
    "acting_as",
    "all_of",
    "any_of",
    "bounded",
    "check_backups",
    "open",
    "open_store",
    "open_sync",
    "prune_tool_results",
    "record",
    "restore",
    "tagged",
    "where",
]


if not TYPE_CHECKING:  # a type checker would take any name for granted

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'perdure' has no attribute {name!r}")
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
