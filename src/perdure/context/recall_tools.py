"""The tools by which a model searches memories, and stores them."""

from __future__ import annotations

from perdure.context.session_tools import Findings, SessionTools
from perdure.context.tool_arguments import PAST, ToolArguments, ToolKind, bounded, brief, tool
from perdure.history.turn_tags import escape
from perdure.recall.memory_records import KINDS

_MOST_FOUND, _FOUND = 50, 5
#: Characters of what is said about an answer.
_NOTES = 400
_LIMIT = {"type": "integer", "minimum": 1, "default": _FOUND}
_MEMORY = {"type": "string", "description": "M-7"}


async def _search(session: SessionTools, given: ToolArguments) -> str:
    query, limit = given.text("query"), given.number("limit", _FOUND, _MOST_FOUND)
    answer = await session.search(query, limit)
    if not answer.found:
        return _nothing(brief(query), answer)
    return f"Best first. {PAST} history_get_turn fetches one.\n{_listed(answer)}"


async def _recall(session: SessionTools, given: ToolArguments) -> str:
    query, limit = given.text("query"), given.number("limit", _FOUND, _MOST_FOUND)
    # Some models give an empty text for what they leave away.
    where = given.text("session").strip() if given.of.get("session", "") != "" else ""
    answer = await session.recall(query, limit, where)
    if not answer.found:
        return _nothing(brief(query) + (f" in {brief(where)}" if where else ""), answer)
    head = "Best first. history_get_turn fetches a turn, memory_get a memory, reference_get a"
    return f"{head} reference layer. {PAST}\n{_listed(answer)}"


def _nothing(what: str, answer: Findings) -> str:
    return f"Nothing was found for {what}. {_noted(answer) or 'Try fewer or other words.'}"


def _listed(answer: Findings) -> str:
    lines = [
        f"{_line(each.id)}: {_line(each.line)}" + (f" [{_line(each.why)}]" if each.why else "")
        for each in answer.found
    ]
    if said := _noted(answer):
        lines.append(f"Note: {said}")
    return "\n".join(lines)


def _noted(answer: Findings) -> str:
    """Why something may be missing, in a line; empty if nothing is known to be."""
    said = _line(" ".join(answer.notes))
    return said if len(said) <= _NOTES else f"{said[:_NOTES]}…"


def _line(text: str) -> str:
    return escape(" ".join(text.split()))


async def _memory_add(session: SessionTools, given: ToolArguments) -> str:
    return await session.memory_add(given.text("kind"), given.text("text"), given.texts("tags"))


async def _memory_edit(session: SessionTools, given: ToolArguments) -> str:
    return await session.memory_edit(given.text("id").strip(), given.text("text"))


async def _memory_merge(session: SessionTools, given: ToolArguments) -> str:
    memories = await session.memories()
    return await memories.memory_merge(given.texts("ids"), _optional(given, "text"))


async def _memory_pin(session: SessionTools, given: ToolArguments) -> str:
    memories = await session.memories()
    return await memories.memory_pin(
        given.text("id").strip(), pinned=given.flag("pinned", default=True)
    )


async def _memory_retire(session: SessionTools, given: ToolArguments) -> str:
    memories = await session.memories()
    return await memories.memory_retire(given.text("id").strip(), _optional(given, "superseded_by"))


async def _memory_restore(session: SessionTools, given: ToolArguments) -> str:
    memories = await session.memories()
    return await memories.memory_restore(given.text("id").strip())


async def _memory_delete(session: SessionTools, given: ToolArguments) -> str:
    memories = await session.memories()
    return await memories.memory_delete(given.text("id").strip())


def _optional(given: ToolArguments, name: str) -> str | None:
    return given.text(name) if given.of.get(name) is not None else None


async def _memory_get(session: SessionTools, given: ToolArguments) -> str:
    return bounded(await session.memory_get(given.text("id").strip()), "It is too long.")


async def _reference_get(session: SessionTools, given: ToolArguments) -> str:
    text = await session.reference_get(given.text("name").strip())
    return bounded(text, "recall finds what you need of it.")


#: They look for something.
SEARCHING = (
    ToolKind(
        tool(
            "history_search",
            "Find turns of this conversation.",
            ("query",),
            query={"type": "string"},
            limit=_LIMIT,
        ),
        '{"query": "token refresh", "limit": 5}',
        _search,
    ),
    ToolKind(
        tool(
            "recall",
            "Find what you knew: turns of all your conversations, memories, reference layers.",
            ("query",),
            query={"type": "string"},
            limit=_LIMIT,
            session={"type": "string", "description": "Only there: agent/name"},
        ),
        '{"query": "token refresh", "limit": 5}',
        _recall,
    ),
    ToolKind(
        tool("memory_get", "Fetch a memory.", ("id",), id=_MEMORY),
        '{"id": "M-7"}',
        _memory_get,
    ),
    ToolKind(
        tool("reference_get", "Fetch a reference layer.", ("name",), name={"type": "string"}),
        '{"name": "oauth"}',
        _reference_get,
    ),
)
#: They change what is remembered.
REMEMBERING = (
    ToolKind(
        tool(
            "memory_add",
            "Remember something beyond this conversation, in a sentence or two.",
            ("kind", "text"),
            kind={"type": "string", "enum": list(KINDS)},
            text={"type": "string"},
            tags={"type": "array", "items": {"type": "string"}},
        ),
        '{"kind": "preference", "text": "Prefers small commits.", "tags": ["git"]}',
        _memory_add,
    ),
    ToolKind(
        tool(
            "memory_edit",
            "Change what a memory says.",
            ("id", "text"),
            id=_MEMORY,
            text={"type": "string"},
        ),
        '{"id": "M-7", "text": "Prefers small commits."}',
        _memory_edit,
    ),
    ToolKind(
        tool(
            "memory_merge",
            "Make several memories one: the first, which says this text.",
            ("ids",),
            ids={"type": "array", "items": _MEMORY},
            text={"type": "string"},
        ),
        '{"ids": ["M-7", "M-9"], "text": "Prefers small commits, without merges."}',
        _memory_merge,
    ),
    ToolKind(
        tool(
            "memory_pin",
            "Let a memory come first, or no more.",
            ("id",),
            id=_MEMORY,
            pinned={"type": "boolean", "default": True},
        ),
        '{"id": "M-7"}',
        _memory_pin,
    ),
    ToolKind(
        tool(
            "memory_retire",
            "Take a memory that no longer holds out of use.",
            ("id",),
            id=_MEMORY,
            superseded_by={"type": "string", "description": "M-9, if that holds instead"},
        ),
        '{"id": "M-7"}',
        _memory_retire,
    ),
    ToolKind(
        tool("memory_restore", "Take a memory into use again.", ("id",), id=_MEMORY),
        '{"id": "M-7"}',
        _memory_restore,
    ),
    ToolKind(
        tool(
            "memory_delete",
            "Delete a memory for good: what should never have been kept.",
            ("id",),
            id=_MEMORY,
        ),
        '{"id": "M-7"}',
        _memory_delete,
    ),
)
