"""The short-lived memory of a project: what went on in each conversation of a client.

======================  ==============================  =========================================
collection              key                             what it holds
======================  ==============================  =========================================
project_sessions        ``pr_1/codex@demo-1a2b3c/019c…``  one conversation, and how far it was read
project_turns           ``…/00000012``                  what came of one turn of it
project_notes           ``pr_1/nt_9f…``                 a note, of the scratchpad and the journal
======================  ==============================  =========================================

All of it is made from turns, and can be made again, but for notes and what people changed by hand.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from perdure.recall.memory_records import Anchor
from perdure.storage.record_keys import numbered
from perdure.storage.records import Compressed, Indexed, Key, system_record

TodoState: TypeAlias = Literal["open", "active", "done"]


class CommandRun(msgspec.Struct, frozen=True, array_like=True):
    """A command, and its exit code; None if nobody said it."""

    command: str
    exit: int | None = None


class Todo(msgspec.Struct, frozen=True, array_like=True):
    """An item of a list that a client keeps for itself."""

    id: str
    text: str
    state: TodoState = "open"


class MadeCommit(msgspec.Struct, frozen=True, array_like=True):
    """A commit that was made during a turn."""

    id: str
    subject: str = ""


class Approval(msgspec.Struct, frozen=True, array_like=True):
    """What a person was asked for, and whether they agreed."""

    what: str
    granted: bool


@system_record("project_turns")
class TurnSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a turn. Times are microseconds since 1970."""

    key: Annotated[str, Key()]
    project: Annotated[str, Indexed()]
    session: str
    turn: int
    #: More may come.
    open: bool = False
    started: int = 0
    ended: int = 0
    #: The date where it was said, which names its page of the journal.
    day: str = ""
    anchor: Anchor = Anchor()
    #: What the user said; the turn in one or two sentences.
    asked: Annotated[str, Compressed()] = ""
    summary: Annotated[str, Compressed()] = ""
    files: tuple[str, ...] = ()
    commands: Annotated[tuple[CommandRun, ...], Compressed()] = ()
    commits: tuple[MadeCommit, ...] = ()
    approvals: tuple[Approval, ...] = ()
    decided: Annotated[tuple[str, ...], Compressed()] = ()
    open_ends: Annotated[tuple[str, ...], Compressed()] = ()
    #: The client's list at its end; calls that nobody has answered yet.
    todos: Annotated[tuple[Todo, ...], Compressed()] = ()
    waiting: tuple[str, ...] = ()
    #: It changed that list.
    listed: bool = False
    #: Tasks of the project that it claimed.
    tasks: tuple[str, ...] = ()
    #: Its entry of the journal as people changed it; empty: made from the rest.
    journal: Annotated[str, Compressed()] = ""
    #: People took it out of the journal.
    struck: bool = False

    @property
    def name(self) -> str:
        return f"T-{self.turn}"


@system_record("project_sessions")
class WorkSession(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One conversation of a client. Times are microseconds since 1970."""

    key: Annotated[str, Key()]
    project: Annotated[str, Indexed()]
    #: Its name in the bank.
    session: Annotated[str, Indexed()]
    client: str
    #: The folder that it took place in; and the stem of its file.
    root: str = ""
    file: str = ""
    started: int = 0
    #: When something of it was written last.
    active: int = 0
    #: What was checked out when it began, and at its newest turn.
    began_at: Anchor = Anchor()
    anchor: Anchor = Anchor()
    #: Turns up to this one are closed and summarised; what of its log was read.
    done: int = 0
    pieces: int = 0
    forgets: int = 0
    undone: int = 0
    #: Grows with whatever its files show.
    version: int = 0
    #: What people changed in its file: a path of names, and what stands there now (None: gone).
    edits: Annotated[dict[str, Any], Compressed()] = {}
    #: Words in front of the entries of a page of its journal, by date.
    prefaces: Annotated[dict[str, str], Compressed()] = {}


@system_record("project_notes")
class ProjectNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A note that somebody made during the work."""

    key: Annotated[str, Key()]
    project: Annotated[str, Indexed()]
    text: Annotated[str, Compressed()]
    #: The conversation that it belongs to; empty: none.
    session: Annotated[str, Indexed()] = ""
    by: str = ""
    at: int = 0  # Microseconds.
    day: str = ""
    anchor: Anchor = Anchor()
    struck: bool = False

    @property
    def id(self) -> str:
        return self.key.rpartition("/")[2]


def session_key(project: str, session: str) -> str:
    return f"{project}/{session}"


def summary_key(project: str, session: str, turn: int) -> str:
    return f"{project}/{session}/{numbered(turn)}"


def new_note_key(project: str) -> str:
    """48 random bits."""
    return f"{project}/nt_{secrets.token_hex(6)}"
