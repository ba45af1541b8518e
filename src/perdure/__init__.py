"""Persistent memory for LLM agents.

    import perdure

    async with perdure.open("sqlite:///memory.db") as bank:
        session = await bank.session("planner/auth")
        ...

Everything public is reachable from here. Each name is imported when it is first used, so that
`import perdure` costs next to nothing. Type checkers read `__init__.pyi`, which
`tools/sync_stub.py` makes from this table.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

#: Modules and their public names.
_NAMES = {
    "perdure.agents.agent": "Agent AgentReply",
    "perdure.agents.agent_records": "AgentLimits",
    "perdure.agents.agent_tools": "ToolContext tool",
    "perdure.agents.agents": "Agents",
    "perdure.agents.agent_identity": "SigningKey",
    "perdure.agents.interaction": "Interaction",
    "perdure.agents.one_shot.run_records": "ExitRecord RunIteration RunRecord",
    "perdure.agents.one_shot.run_state": "RunEvent",
    "perdure.artifacts": "Artifact",
    "perdure.bank": "Bank open",
    "perdure.bank.backup": "check_backups",
    "perdure.bank.bank_copy": "restore",
    "perdure.sessions.session": "Session",
    "perdure.sessions.session_reader": "TailMessage",
    "perdure.config": "Config",
    "perdure.context.context": "Context",
    "perdure.context.history_tools": "HISTORY_TOOLS MEMORY_TOOLS",
    "perdure.context.session_tools": "Rendering",
    "perdure.core.actors": "acting_as",
    "perdure.core.clock": "new_id",
    "perdure.core.errors": """
        AccessDenied AgentError AllFailed ArtifactMissing BadAnswer BadBackup BudgetReached
        BudgetTooSmall Closed Conflict Corrupted DeadlineExceeded Denied GatewayError InvalidConfig
        InvalidInput InvalidKey InvalidQuery InvalidRecordType InvalidURL InvalidValue KeyRefused
        LeaseLost MessageParked MigrationFailed NewerSchema NoModel NotAStore NotFound NotIndexed
        PerdureError PromptTooLong ProviderDown RateLimited Rejected SchemaMismatch StorageError
        StorageFull StreamBroken TooLarge Unauthorized Unavailable UnknownBackend Unsupported
    """,
    "perdure.core.messages": """
        ArtifactPointer Media Message Reasoning Text ToolCall ToolResult Unknown Usage
    """,
    "perdure.core.turns": "Position Round Turn",
    "perdure.gateway.calls": "CallOptions Reply Request Shape Tool",
    "perdure.gateway.gateway": "Gateway",
    "perdure.history.log_records": "Link",
    "perdure.history.pruning": "prune_tool_results",
    "perdure.history.strategies.history_strategy": """
        HistorySegment HistoryStrategy SessionHistory
    """,
    "perdure.history.strategies.strategy_registry": "register_strategy unregister_strategy",
    "perdure.jobs": "Job",
    "perdure.recall.memory_records": "Memory",
    "perdure.recall.values": "Hit Recalled",
    "perdure.remote.connect_sync": "connect_sync",
    "perdure.remote.remote_bank": "RemoteBank connect",
    "perdure.remote.remote_session": "RemoteSession",
    "perdure.storage.assembly": "open_store",
    "perdure.storage.collection": "Collection",
    "perdure.storage.collection_reader": "Stored",
    "perdure.storage.finder": "Page all_of any_of tagged where",
    "perdure.storage.memory_windows": "TimeWindow",
    "perdure.storage.options": "Consistency Options bounded",
    "perdure.storage.records": "Compressed Encrypted Indexed Key Tags record",
    "perdure.storage.rows": "Index",
    "perdure.storage.state_records": "StateRecord StateRecords",
    "perdure.storage.subscriptions": "EventReceived",
    "perdure.storage.transaction": "Transaction",
    "perdure.sync": "open_sync",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_MODULES)  # noqa: PLE0605 (a list of texts)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
