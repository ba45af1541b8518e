"""What is special about each client: how it names conversations, and what its requests are for.

Headers come first, then the shape of the request. What is not recognised is a conversation: to
record too much is better than to lose something.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.gateway.providers import CallWire
from perdure.server.proxy.client_request import (
    ClientRequest,
    ConversationId,
    RequestKind,
    decode_json,
    read_request,
)

#: Claude Code's words for what a request is for, in ``x-claude-code-request-class``.
_CLAUDE_KINDS: dict[str, RequestKind] = {
    "main": "main",
    "subagent": "subagent",
    "compaction": "compaction",
    "auxiliary": "title",
}
#: Codex' words, in ``request_kind`` of its turn metadata.
_CODEX_KINDS: dict[str, RequestKind] = {
    "turn": "main",
    "compaction": "compaction",
    "compact": "compaction",
    "title": "title",
}
#: What the last text of a compaction request begins with.
_COMPACTIONS = (
    "CRITICAL: Respond with TEXT ONLY",
    "You are performing a CONTEXT CHECKPOINT COMPACTION",
)
#: What the text begins with that a client puts in place of what it compacted.
_SUMMARIES = (
    "This session is being continued from a previous conversation",
    "Another language model started to solve this problem and produced a summary",
)
#: Where a prompt tells the working folder; in JSON, up to the end of the line or of the text.
_FOLDER = re.compile(rb"(?:[Ww]orking directory: |<cwd>)((?:[^\"\\<]|\\[^n])+)", re.DOTALL)
#: In older versions of Claude Code the id of the user holds that of the session.
_old_session = re.compile(r"_session_([0-9a-fA-F-]{36})").search
#: Items in which the folder is looked for, from the first.
_HEAD_ITEMS = 8


def parse(
    wire: CallWire, headers: Mapping[str, str], path: str, body: bytes, folder: str = ""
) -> ClientRequest:
    """Read a request and recognise its conversation and kind. `headers` have names in lower case.
    `folder` is that of a request which names none. Raises `InvalidInput` if the body is no JSON
    object, or has a content encoding that we do not know: it can only be passed on.
    """
    request = read_request(wire, body, headers.get("content-encoding", ""))
    found = identify(request, headers, folder)
    kind = kind_of(request, headers, found, path)
    return msgspec.structs.replace(request, id=found, kind=kind)


def identify(
    request: ClientRequest, headers: Mapping[str, str], folder: str = ""
) -> ConversationId:
    client = client_of(headers)
    given = headers.get("x-perdure-session", "").strip()
    folder = headers.get("x-perdure-project", "").strip() or folder_in(request) or folder
    if client == "claude-code":
        session = headers.get("x-claude-code-session-id", "") or _claude_session(request)
        return ConversationId(
            client,
            conversation=session,
            sub_agent=headers.get("x-claude-code-agent-id", ""),
            parent=headers.get("x-claude-code-parent-agent-id", ""),
            folder=folder,
            session=given,
        )
    if client == "codex":
        root = headers.get("session-id", "") or headers.get("session_id", "")
        thread = headers.get("thread-id", "") or headers.get("conversation_id", "") or root
        forked = str(_codex_facts(headers).get("forked_from_thread_id") or "")
        parent = headers.get("x-codex-parent-thread-id", "")
        return ConversationId(
            client,
            conversation=thread,
            parent=parent or (root if root != thread and not forked else ""),
            forked_from=forked,
            folder=folder,
            session=given,
        )
    if client == "opencode":
        own = headers.get("x-session-id", "") or headers.get("x-opencode-session", "")
        parent = headers.get("x-parent-session-id", "")
        return ConversationId(client, conversation=own, parent=parent, folder=folder, session=given)
    return ConversationId(client, folder=folder, session=given)


def client_of(headers: Mapping[str, str]) -> str:
    agent = headers.get("user-agent", "").lower()
    if "x-claude-code-session-id" in headers or agent.startswith("claude-cli/"):
        return "claude-code"
    originator = headers.get("originator", "").lower()
    if originator.startswith("codex") or agent.startswith("codex") or "thread-id" in headers:
        return "codex"
    if "opencode" in agent or "x-opencode-session" in headers:
        return "opencode"
    return "other"


def kind_of(
    request: ClientRequest, headers: Mapping[str, str], found: ConversationId, path: str
) -> RequestKind:
    if path.endswith(("/count_tokens", "/input_tokens")):
        return "count"
    if not request.items:
        return "other"
    if found.client == "claude-code":
        told = _CLAUDE_KINDS.get(headers.get("x-claude-code-request-class", ""))
        if told == "main" and found.sub_agent:
            return "subagent"
        if told is not None:
            return told
    elif found.client == "codex":
        told = _CODEX_KINDS.get(str(_codex_facts(headers).get("request_kind", "")))
        if told is not None and told != "main":
            return told
    return _shape(request, found)


def _shape(request: ClientRequest, found: ConversationId) -> RequestKind:
    if _last_text(request).lstrip().startswith(_COMPACTIONS):
        return "compaction"
    known = found.client != "other"
    if known and not _has_tools(request):
        # Coding agents give tools to whoever works. What they ask beside that has none.
        if found.client == "claude-code":
            is_side = _asks_for_json(request) or request.field("max_tokens") == 1
        else:
            is_side = found.client == "opencode"
        if is_side:
            return "title"
    return "subagent" if found.sub_agent or found.parent else "main"


def is_summary(text: str) -> bool:
    """Whether a client wrote this in place of what it compacted."""
    return text.lstrip().startswith(_SUMMARIES)


def folder_in(request: ClientRequest) -> str:
    """The working folder as the system text tells it; empty if it does not."""
    heads: list[Any] = [request.fields.get(name) for name in ("system", "instructions")]
    heads += request.items[:_HEAD_ITEMS]
    for raw in heads:
        if raw is None:
            continue
        match = _FOLDER.search(bytes(raw))
        if match:
            try:
                return str(decode_json(b'"' + match[1] + b'"')).strip()
            except ValueError:
                return ""
    return ""


def _claude_session(request: ClientRequest) -> str:
    facts = request.field("metadata")
    user = facts.get("user_id") if isinstance(facts, dict) else None
    if not isinstance(user, str):
        return ""
    try:
        said = msgspec.json.decode(user)
    except msgspec.MsgspecError:
        old = _old_session(user)
        return old[1] if old else ""
    found = said.get("session_id") if isinstance(said, dict) else None
    return found if isinstance(found, str) else ""


def _codex_facts(headers: Mapping[str, str]) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(headers.get("x-codex-turn-metadata", "{}"))
    except msgspec.MsgspecError:
        return {}
    return said if isinstance(said, dict) else {}


def _has_tools(request: ClientRequest) -> bool:
    raw = request.fields.get("tools")
    return raw is not None and bytes(raw).strip() not in {b"", b"[]", b"null"}


def _asks_for_json(request: ClientRequest) -> bool:
    return b'"json_schema"' in bytes(request.fields.get("output_config", b"")) or (
        b'"json_schema"' in bytes(request.fields.get("output_format", b""))
    )


def _last_text(request: ClientRequest) -> str:
    """The last text of the last item."""
    try:
        item = decode_json(request.items[-1])
    except ValueError:
        return ""
    content = item.get("content") if isinstance(item, dict) else None
    if isinstance(content, str):
        return content
    for block in reversed(content if isinstance(content, list) else []):
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            return str(block["text"])
    return ""
