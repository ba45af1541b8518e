"""Names of the agents and sessions of coding clients: Claude Code, Codex, opencode and others.

An agent is a client in a project, which is a folder: ``claude-code@demo-1a2b3c``. Recall stays
inside an agent by default, hence inside the project. A session is named by the client's own id of
the conversation, so proxy, hooks and importers write to the same one:

    session_of_client("claude-code", "/home/ada/demo", "8ffd…")    claude-code@demo-1a2b3c/8ffd…
    session_of_client("claude-code", "/home/ada/demo", "8ffd…", "a1b2")            …/8ffd….a1b2
    session_of_client("codex", "", "019c…")                        codex@019c…/019c…

A conversation whose folder is not known has an agent of its own: nothing is shared by mistake. The
file system is not looked at.
"""

from __future__ import annotations

import hashlib
import re

#: Bytes that the name of a session may have; see `perdure.history.log_records`.
_MOST = 120
#: Bytes of a client's name, of a folder's, and of a conversation's id in an agent's name.
_CLIENT, _FOLDER, _CONVERSATION = 16, 20, 38
_unfit = re.compile(r"[^\w.+=:-]+")
_separators = re.compile(r"[\\/]+")


def agent_of_client(client: str, folder: str, conversation: str) -> str:
    """The agent that a conversation belongs to. Without a folder it is the conversation's own."""
    name = _shortened(_fit(client), _CLIENT)
    if not folder:
        return f"{name}@{_shortened(_fit(conversation), _CONVERSATION)}"
    parts = [part for part in _separators.split(folder) if part]
    written = folder.rstrip("/\\") or folder
    last = _shortened(_fit(parts[-1]) if parts else "root", _FOLDER)
    return f"{name}@{last}-{_digest(written, 6)}"


def session_of_client(client: str, folder: str, conversation: str, sub_agent: str = "") -> str:
    """The session of a conversation, or of a sub-agent in it."""
    agent = agent_of_client(client, folder, conversation)
    name = ".".join(_fit(part) for part in (conversation, sub_agent) if part) or "unnamed"
    return f"{agent}/{_shortened(name, _MOST - len(agent.encode()) - 1)}"


def _fit(text: str) -> str:
    return _unfit.sub("-", text).strip("-.") or "unnamed"


def _shortened(name: str, most: int) -> str:
    """At most so many bytes; different names stay different."""
    raw = name.encode()
    if len(raw) <= most:
        return name
    return f"{raw[: most - 9].decode(errors='ignore')}-{_digest(name, 8)}"


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
