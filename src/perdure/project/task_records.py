"""The records of tasks: a graph in which a task waits for the tasks that it needs.

===================  =================  ==========================================
collection           key                what it holds
===================  =================  ==========================================
tasks                ``pr_1/tk_9f…``    one task, with its links and its claim
task_numbers         ``pr_1``           the last short number that was given
===================  =================  ==========================================

A task's id is random and the same everywhere; its number is short and of this bank.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.recall.memory_records import Anchor
from perdure.storage.records import Compressed, Indexed, Key, system_record
from perdure.storage.rows import Index

#: ``waiting`` needs other tasks first; ``blocked`` has a reason that a person or agent gave.
TaskState: TypeAlias = Literal["ready", "claimed", "waiting", "blocked", "done", "dropped"]
STATES: tuple[TaskState, ...] = ("ready", "claimed", "waiting", "blocked", "done", "dropped")
CLOSED = frozenset({"done", "dropped"})
#: 0 is most urgent.
LOWEST_PRIORITY = 4


class TaskEvidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """What shows that a task was worked on: a commit, a turn (``planner/auth#T-12``), a file…"""

    kind: Literal["commit", "turn", "file", "link", "text"]
    value: str
    branch: str = ""
    by: str = ""
    at: int = 0  # Microseconds.


class TaskNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """A remark."""

    text: str
    by: str = ""
    at: int = 0  # Microseconds.


class TaskLink(msgspec.Struct, frozen=True, omit_defaults=True):
    """A link that nothing waits for: ``related``, ``duplicates``…"""

    kind: str
    task: str


@system_record(
    "tasks",
    indexes=[
        Index(("project", "state", "priority", "number")),
        Index(("project", "state", "until")),
        Index(("project", "number")),
        Index(("project", "external")),
        Index(("project", "parent")),
    ],
)
class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task. Times are microseconds since 1970; other tasks are named by their ids."""

    key: Annotated[str, Key()]
    project: str
    number: int
    state: TaskState = "ready"
    title: str
    description: Annotated[str, Compressed()] = ""
    priority: int = 2
    kind: str = "task"
    labels: tuple[str, ...] = ()
    #: What has to be over first, and how many of them are not.
    needs: tuple[str, ...] = ()
    waits: int = 0
    #: The tasks that need this one: the same links, seen from the other end.
    needed_by: tuple[str, ...] = ()
    parent: str = ""
    discovered_from: tuple[str, ...] = ()
    links: tuple[TaskLink, ...] = ()
    #: Why it cannot go on, in words; empty: it can.
    blocked: str = ""
    #: Who has it or is to do it; and the lease of who works on it now. The token grows with each.
    owner: Annotated[str, Indexed()] = ""
    until: int = 0
    token: int = 0
    evidence: tuple[TaskEvidence, ...] = ()
    notes: tuple[TaskNote, ...] = ()
    #: Why it was closed.
    reason: str = ""
    made: int = 0
    made_by: str = ""
    made_at: Anchor = Anchor()
    changed: int = 0
    closed: int = 0
    #: Its name where it was imported from: ``bd-7h7``.
    external: str | None = None
    #: Fields of an imported file that have no place here. They are exported again.
    extra: Annotated[dict[str, Any], Compressed()] = {}

    @property
    def id(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def name(self) -> str:
        """``#12``."""
        return f"#{self.number}"

    @property
    def is_closed(self) -> bool:
        return self.state in CLOSED

    def is_held(self, now: int) -> bool:
        """Somebody works on it, and their lease has not run out."""
        return self.state == "claimed" and self.until > now

    def seen_at(self, now: int) -> Task:
        """As people see it: what was claimed is ready again when the lease has run out."""
        late = self.state == "claimed" and self.until <= now
        return replace(self, state="ready") if late else self


@system_record("task_numbers")
class TaskNumber(msgspec.Struct, frozen=True):
    """The last number that a task of a project got in this bank."""

    project: Annotated[str, Key()]
    last: int = 0


def new_task_id() -> str:
    """48 random bits."""
    return f"tk_{secrets.token_hex(6)}"


def task_id_for(external: str) -> str:
    """The id of a task that has a name elsewhere: the same in every clone, however often it is
    imported.
    """
    return f"tk_{hashlib.sha256(external.encode()).hexdigest()[:12]}"


def task_key(project: str, id: str) -> str:
    return f"{project}/{id}"


def settled(task: Task) -> Task:
    """The task with the state that follows from its fields."""
    if task.is_closed:
        return task
    state: TaskState = "ready"
    if task.blocked:
        state = "blocked"
    elif task.waits > 0:
        state = "waiting"
    elif task.until:
        state = "claimed"
    return replace(task, state=state)
