"""The names of the tools by which a model reaches its past; `context.history_tools` defines them.

They stand here because the index has to know them: what such a tool was asked and said is never
indexed again, or what was fetched once would be found ever after.
"""

from __future__ import annotations

#: They show what there is.
READING = (
    "history_get_turn",
    "history_search",
    "recall",
    "memory_get",
    "reference_get",
)
#: They change what a model has in view, or what it will remember.
CHANGING = (
    "history_set_fidelity",
    "board_pull",
    "board_post",
    "board_clear",
    "memory_add",
    "memory_edit",
    "memory_merge",
    "memory_pin",
    "memory_retire",
    "memory_restore",
    "memory_delete",
)
NAMES: frozenset[str] = frozenset((*READING, *CHANGING))


def reaches_past(tool: str) -> bool:
    """Whether it is a tool of ours; clients that reach them by MCP put the server's name first."""
    return tool in NAMES or (tool.startswith("mcp__perdure") and plain(tool) in NAMES)


def plain(tool: str) -> str:
    """Without the server's name."""
    return tool.rpartition("__")[2]
