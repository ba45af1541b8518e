"""Names of what can be recalled: as a session writes them, and as everybody does.

A session calls a round of its own line ``T-12.3``. Everywhere else it is ``planner/auth#T-12.3``,
after the session whose log holds it: for a turn that a fork shares, that is an ancestor.
"""

from __future__ import annotations

from perdure.core.turns import Position
from perdure.history.log_records import SessionRecord, owners


def split(key: str) -> tuple[str, str]:
    """The session and the rest of a key: ``("planner/auth", "T-12.3")``, ``("", "M-7")``."""
    session, hash_, rest = key.rpartition("#")
    return (session, rest) if hash_ else ("", key)


def owner_of(record: SessionRecord, turn: int) -> str:
    """The session whose log holds a turn of this session's line."""
    return next(owners(record, turn, turn)).session


def everywhere(record: SessionRecord, key: str) -> str:
    """The name that a key of this session has everywhere; of what is no turn, the key itself."""
    session, rest = split(key)
    if not rest.startswith("T-"):
        return key
    turn = Position.parse(rest).turn
    if session in {"", record.id}:
        return f"{owner_of(record, turn)}#{rest}"
    return key


def here(record: SessionRecord, key: str) -> str:
    """The name that this session has for a key: without a session, if it is of its own line."""
    session, rest = split(key)
    if not session or not rest.startswith("T-"):
        return key
    turn = Position.parse(rest).turn
    return rest if owner_of(record, turn) == session or session == record.id else key
