"""The records of a project's history: where each clone stood, where commits went, who decided.

=======================  =====================  ==================================================
collection               key                    what it holds
=======================  =====================  ==================================================
commit_prints            ``pr_1/<commit>``      what recognises a commit
clone_positions          ``pr_1/<clone>``       the branches and heads of a clone, as last seen
commit_moves             ``pr_1/<commit>``      where a commit is now, and how that is known
project_operations       ``pr_1/00000003``      one rewrite or rewind, with what was before
=======================  =====================  ==================================================

Entries (memories, tasks, the project's state) keep the commit that they were written at. Only
`CommitMove` says where that commit is now.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from perdure.project.git_history import BranchChange
from perdure.project.git_repository import GitHead
from perdure.storage.records import Compressed, Indexed, Key, system_record

#: How a successor was found, from sure to unsure.
MoveMethod: TypeAlias = Literal[
    "map", "patch", "tree", "author", "branch patch", "lines", "range-diff", "person"
]
#: ``waiting``: nobody has decided; entries follow until somebody says ``fork``.
Decision: TypeAlias = Literal["waiting", "rebase", "fork"]
OperationKind: TypeAlias = Literal["rewrite", "rewind"]


class WorktreePosition(msgspec.Struct, frozen=True, array_like=True):
    """What was checked out in a work tree, from a moment (in microseconds) on."""

    commit: str
    branch: str
    since: int

    @property
    def head(self) -> GitHead:
        return GitHead(commit=self.commit, branch=self.branch)


@system_record("clone_positions")
class ClonePosition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A clone as it was at the last look."""

    key: Annotated[str, Key()]  # project/clone
    stamp: str = ""
    references: Annotated[dict[str, str], Compressed()] = {}
    #: By the name of the work tree, oldest first.
    worktrees: dict[str, tuple[WorktreePosition, ...]] = {}
    #: Commits whose successors were looked for in vain.
    lost: Annotated[tuple[str, ...], Compressed()] = ()
    #: How far the git hooks' spool was read.
    spool: dict[str, int] = {}


@system_record("commit_moves")
class CommitMove(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A commit that was rewritten, or whose change is in other commits, too."""

    key: Annotated[str, Key()]  # project/commit
    #: Its successor; empty if the commit itself goes on.
    to: str = ""
    method: MoveMethod = "map"
    #: From 0 to 1.
    sureness: float = 1.0
    #: Further commits with the same change: cherry-picks, a squash of its branch.
    copies: tuple[str, ...] = ()
    decision: Decision = "waiting"
    #: The number of the operation that it came from.
    operation: int = 0

    @property
    def commit(self) -> str:
        return self.key.rpartition("/")[2]


class UnclearMove(msgspec.Struct, frozen=True):
    """A commit that went, and several that could be its successor."""

    commit: str
    candidates: tuple[str, ...]


class HiddenEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry that a rewind hid."""

    kind: str
    id: str


@system_record("project_operations")
class ProjectOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rewrite of history and what was decided about it, or a rewind. Times are microseconds."""

    key: Annotated[str, Key()]  # project/number
    project: Annotated[str, Indexed()]
    kind: OperationKind
    state: Annotated[Literal["waiting", "done", "undone"], Indexed()] = "waiting"
    at: int = 0
    clone: str = ""
    worktree: str = ""
    #: What happened, for a rewrite.
    changes: tuple[BranchChange, ...] = ()
    moves: Annotated[tuple[CommitMove, ...], Compressed()] = ()
    unclear: tuple[UnclearMove, ...] = ()
    gone: tuple[str, ...] = ()
    #: Of a rewrite: what was decided, when and by whom; ``policy``: by the settings.
    decision: Decision = "waiting"
    decided: int = 0
    by: str = ""
    #: The decisions before this one, oldest first: what `undo` goes back to.
    before: tuple[tuple[Decision, int, str], ...] = ()
    #: What the moves of these commits were before; those that had none are left out.
    former: Annotated[tuple[CommitMove, ...], Compressed()] = ()
    #: A person took the policy's decision back: it is theirs now.
    held: bool = False
    #: Of a rewind: where to, and what it hid.
    commit: str = ""
    hidden: Annotated[tuple[HiddenEntry, ...], Compressed()] = ()

    @property
    def number(self) -> int:
        return int(self.key.rpartition("/")[2])
