"""Anchors: which commit something was true at, and where that commit is after a rewrite.

Git hooks are hints. `refresh` compares what was recorded of a clone with what is there now, and
keeps where rewritten commits went (`CommitMove`). Entries keep the commit that they were written
at; `where` and `true_at` translate. A move that a person or the policy decided to *fork* does not
count: those entries stay with the old line.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from perdure.core.clock import SECOND
from perdure.project.commit_prints import (
    CommitPrint,
    patch_between,
    print_key,
    read_prints,
    shallow_edge,
    stored,
)
from perdure.project.git_history import (
    BranchChange,
    absent,
    busy_branch,
    default_branch,
    head_at,
    is_busy,
    read_references,
    references_stamp,
    unreachable,
)
from perdure.project.git_repository import GitHead, GitRepository
from perdure.project.history_records import (
    ClonePosition,
    CommitMove,
    Decision,
    ProjectOperation,
    WorktreePosition,
)
from perdure.project.hook_spool import HookSpool
from perdure.project.project_location import ProjectLocation, initialised
from perdure.recall.memory_records import Anchor
from perdure.services import Services
from perdure.storage.record_keys import numbered
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.project.history_comparison import HistoryFindings

#: Positions that are kept of a work tree, for times that its reflog has forgotten.
_TRAIL = 300
#: Looks at a clone that others change meanwhile.
_ATTEMPTS = 5
_CLONE = "clone"


class AnchorsReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `refresh` found."""

    #: What happened to branches since the last look; empty: nothing.
    changes: tuple[BranchChange, ...] = ()
    #: The operation in which rewritten commits and their successors are recorded; 0: none.
    operation: int = 0
    #: Numbers of the operations that wait for a decision.
    waiting: tuple[int, ...] = ()
    #: A rebase or merge is not over: nothing was compared.
    busy: bool = False


class _Look(NamedTuple):
    """What a comparison found, and what it saw."""

    found: HistoryFindings
    references: dict[str, str]
    spool: dict[str, int]
    noted: Mapping[str, CommitPrint]


class Anchors:
    """The anchors of one project, seen from one work tree."""

    def __init__(
        self,
        services: Services,
        location: ProjectLocation,
        *,
        entries: Callable[[], Awaitable[Iterable[str]]] | None = None,
    ) -> None:
        """`entries` says at which commits there are entries: they are noted when something has
        changed, wherever the entries came from. Raises `NotFound` if the project was not
        initialised.
        """
        self._entries = entries
        self.location = location
        self.project = initialised(location).project
        self._store = services.store
        self._noted: set[str] = set()
        self._clone = ""
        #: What is reachable, as long as the stamp of the references is the same.
        self._stamp, self._alive = "", dict[str, bool]()

    # Where things are ------------------------------------------------------------------------

    async def position(self) -> GitHead:
        """What is checked out; in a rebase its branch, too. Changes nothing."""
        git = self.location.git
        if git is None:
            return GitHead()
        head = await git.head()
        if not head.branch and (branch := busy_branch(git)):
            return GitHead(commit=head.commit, branch=branch)
        return head

    async def here(self) -> Anchor:
        """The anchor of something that is true now. Its commit is noted."""
        head = await self.position()
        if head.commit:
            await self.note([head.commit])
        return Anchor(repo=self.project, commit=head.commit, branch=head.branch)

    async def at_time(self, moment: int) -> Anchor:
        """What was checked out in this work tree at a time (in microseconds), from git's reflog or
        the recorded positions. A time before both has their first commit.
        """
        git = self.location.git
        if git is None:
            return Anchor(repo=self.project)
        now = await self.position()
        found = head_at(git, moment // SECOND, now)
        if found is None:
            trail = await self._trail()
            earlier = [each for each in trail if each.since <= moment] or [*trail[:1]]
            at = earlier[-1] if earlier else None
            found = now if at is None else GitHead(commit=at.commit, branch=at.branch)
        if found.commit:
            await self.note([found.commit], branch=found.branch)
        return Anchor(repo=self.project, commit=found.commit, branch=found.branch)

    async def note(self, commits: Sequence[str], *, branch: str | None = None) -> None:
        """Keep what recognises these commits later. Those that git does not have are left out."""
        git = self.location.git
        fresh = [each for each in dict.fromkeys(commits) if each and each not in self._noted]
        if git is None or not fresh:
            return
        prints = self._store.collection(CommitPrint)
        held = await prints.get_many([print_key(self.project, each) for each in fresh])
        wanted = [c for c, each in zip(fresh, held, strict=True) if each is None or not each.tree]
        if wanted:
            head = await self.position()
            read = await read_prints(git, self.project, wanted)
            if branch is None:
                branch = head.branch
            clone = self._clone_id(git)
            made = [replace(stored(p), branch=branch, clone=clone) for p in read.values()]
            if head.commit in read:
                patch = await self._branch_patch(git, head)
                made = [
                    replace(p, branch_patch=patch) if p.commit == head.commit else p for p in made
                ]
            await prints.put_many(made)
        self._noted.update(fresh)

    async def where(self, commits: Collection[str]) -> dict[str, str]:
        """Where each commit is now: itself, its successor, or empty if it is gone. One that is only
        known from another clone, or lies behind the edge of a shallow one, is itself.
        """
        git = self.location.git
        wanted = {*commits} - {""}
        if git is None or not wanted:
            return {each: each for each in commits}
        moves = await self._moves(wanted)
        involved = wanted | {each for move in moves.values() for each in (move.to, *move.copies)}
        alive = await self._living(git, involved - {""})
        found: dict[str, str] = {}
        lost = list[str]()
        for each in commits:
            found[each] = each and self._place(each, moves, alive)
            if each and not found[each]:
                lost.append(each)
        return found | {each: each for each in await self._elsewhere(git, lost)}

    async def true_at(self, commits: Collection[str], at: str) -> set[str]:
        """Those that are, or whose successor or copy is, a commit or an ancestor of it. Raises
        `InvalidInput` if `at` names no commit.
        """
        git = self.location.git
        wanted = {*commits} - {""}
        if git is None or not wanted:
            return {*commits}
        tip = await git.commit(at)
        moves = await self._moves(wanted)
        same = {each: self._same(each, moves) for each in wanted}
        involved = {each for group in same.values() for each in group}
        without = await unreachable(git, involved, [tip])
        found = {each for each, group in same.items() if group - without}
        edge = shallow_edge(git)
        if edge and without:
            found |= await self._behind_edge(git, wanted - found, edge)
        return found

    async def ancestors(self, commits: Collection[str], at: str) -> set[str]:
        """Those that are a commit or an ancestor of it themselves."""
        git = self.location.git
        if git is None or not commits:
            return {*commits}
        return {*commits} - await unreachable(git, commits, [at])

    async def preview(self) -> HistoryFindings:
        """What `refresh` would find now. Nothing is kept. Raises `GitFailed`."""
        from perdure.project.history_comparison import HistoryFindings

        git = self.location.git
        if git is None or is_busy(git):
            return HistoryFindings()
        clone = await self._store.collection(ClonePosition).get(self._clone_key(git))
        clone = clone or ClonePosition(key=self._clone_key(git))
        look = await self._look(git, clone, await git.head())
        return look.found

    # Comparing -------------------------------------------------------------------------------

    async def refresh(self, *, asks: bool = False) -> AnchorsReport:
        """Compare the repository with the last look, and record where rewritten commits went.

        With `asks` a rewrite waits for a decision if the settings say ``ask``; without, the
        settings' policy for unattended runs decides. When nothing has changed, no process is
        started. Raises `GitFailed`.
        """
        git = self.location.git
        if git is None:
            return AnchorsReport()
        if is_busy(git):
            return AnchorsReport(busy=True, waiting=await self.waiting())
        for _ in range(_ATTEMPTS):
            stamp = references_stamp(git)
            head = await git.head()
            clone = await self._store.collection(ClonePosition).get(self._clone_key(git))
            clone = clone or ClonePosition(key=self._clone_key(git))
            trail = clone.worktrees.get(self.location.worktree, ())
            same = bool(trail) and trail[-1].head == head
            spool = HookSpool(self.location.folder, "git")
            if same and clone.stamp == stamp and spool.is_empty():
                break
            report = await self._compare(git, clone, stamp, head, asks=asks)
            if report is not None:
                return report
        return AnchorsReport(waiting=await self.waiting())

    async def waiting(self) -> tuple[int, ...]:
        """Numbers of the rewrites that nobody has decided about."""
        query = self._store.collection(ProjectOperation).query()
        found = (
            await query.where("project", "=", self.project).where("state", "=", "waiting").values()
        )
        return tuple(sorted(each.number for each in found))

    async def _compare(
        self, git: GitRepository, clone: ClonePosition, stamp: str, head: GitHead, *, asks: bool
    ) -> AnchorsReport | None:
        """None if another process was faster."""
        if self._entries is not None:
            await self.note([*await self._entries()], branch="")
        look = await self._look(git, clone, head)
        trail = clone.worktrees.get(self.location.worktree, ())
        if not trail or trail[-1].head != head:
            position = WorktreePosition(head.commit, head.branch, self._store.now())
            trail = (*trail, position)[-_TRAIL:]
        after = replace(
            clone,
            stamp=stamp,
            references=look.references,
            worktrees=clone.worktrees | {self.location.worktree: trail},
            lost=look.found.gone,
            spool=look.spool,
        )
        operation = await self._keep(clone, after, look, asks=asks)
        if operation is None:
            return None
        HookSpool(self.location.folder, "git").discard(look.spool)
        return AnchorsReport(
            changes=look.found.changes, operation=operation, waiting=await self.waiting()
        )

    async def _look(self, git: GitRepository, clone: ClonePosition, head: GitHead) -> _Look:
        from perdure.project.history_comparison import HistoryComparison

        reading = HookSpool(self.location.folder, "git").read(clone.spool)
        lines = [line.fields for line in reading.lines if line.name == "post-rewrite"]
        own = f"HEAD {self.location.worktree}"
        before = clone.references
        others = {ref: c for ref, c in before.items() if ref.startswith("HEAD ") and ref != own}
        now = await read_references(git) | others
        if head.commit and not head.branch:
            now[own] = head.commit
        noted = {each.commit: each async for each in self._prints()}
        comparison = HistoryComparison(
            git,
            self.project,
            before=before,
            now=now,
            noted=noted,
            moves=await self._all_moves() if noted else {},
            maps=_rewritten_pairs(lines),
            in_vain=clone.lost,
        )
        found = await comparison.run()
        trail = clone.worktrees.get(self.location.worktree, ())
        if trail and trail[-1].branch != head.branch:
            change = BranchChange(
                kind="branch change",
                ref=f"refs/heads/{head.branch}" if head.branch else "HEAD",
                before=trail[-1].commit,
                after=head.commit,
            )
            found = replace(found, changes=(*found.changes, change))
        return _Look(found, now, reading.position, noted)

    async def _keep(
        self,
        before: ClonePosition,
        after: ClonePosition,
        look: _Look,
        *,
        asks: bool,
    ) -> int | None:
        """Write all of it at once; None if another process has written meanwhile."""
        found, noted = look.found, look.noted
        settings = initialised(self.location)
        decision: Decision = "waiting"
        if settings.on_rewrite != "ask":
            decision = settings.on_rewrite
        elif not asks:
            decision = settings.unattended
        clone = before.key.rpartition("/")[2]

        async def keep(transaction: Transaction) -> int | None:
            positions = transaction.collection(ClonePosition)
            if (await positions.get(before.key) or ClonePosition(key=before.key)) != before:
                return None
            moves = transaction.collection(CommitMove)
            keys = [print_key(self.project, each) for each in found.moves]
            former = {each.commit: each for each in await moves.get_many(keys) if each is not None}
            fresh = {
                commit: each
                for commit, each in found.moves.items()
                if commit not in former or _news(former[commit], each)
            }
            moved = [each for c, each in fresh.items() if c in noted and each.to]
            number = 0
            if moved or any(each.commit in noted for each in found.unclear):
                number = await next_operation(transaction, self.project)
                done = decision != "waiting" or not moved
                operation = ProjectOperation(
                    key=f"{self.project}/{numbered(number)}",
                    project=self.project,
                    kind="rewrite",
                    state="done" if done else "waiting",
                    at=transaction.now(),
                    clone=clone,
                    worktree=self.location.worktree,
                    changes=tuple(each for each in found.changes if each.removed or each.added),
                    moves=tuple(replace(each, operation=number) for each in moved),
                    unclear=found.unclear,
                    gone=found.gone,
                    decision=decision if moved else "rebase",
                    decided=transaction.now() if done else 0,
                    by="policy" if done else "",
                    former=tuple(former[e.commit] for e in moved if e.commit in former),
                    before=(("waiting", 0, ""),) if done and moved else (),
                )
                await transaction.collection(ProjectOperation).put(operation)
            for commit, each in fresh.items():
                mine = number if each.to and commit in noted else each.operation
                what = decision if each.to and commit in noted else each.decision
                if not each.to or commit not in noted:
                    what = "rebase" if what == "waiting" else what
                await moves.put(replace(each, operation=mine, decision=what))
            if found.prints:
                made = [replace(each, clone=clone) for each in found.prints]
                await transaction.collection(CommitPrint).put_many(made)
            await positions.put(after)
            return number

        return await self._store.transact(keep)

    # Parts -----------------------------------------------------------------------------------

    def _place(self, commit: str, moves: Mapping[str, CommitMove], alive: Collection[str]) -> str:
        move, seen = moves.get(commit), {commit}
        if move is not None and move.decision == "fork":
            return commit
        first = move
        while move is not None and move.to and move.to not in seen and move.decision != "fork":
            if move.to in alive:
                return move.to
            seen.add(move.to)
            move = moves.get(move.to)
        if commit in alive:
            return commit
        return next((each for each in first.copies if each in alive), "") if first else ""

    def _same(self, commit: str, moves: Mapping[str, CommitMove]) -> set[str]:
        """The commit and all that have its change."""
        found, open_ = {commit}, [commit]
        while open_:
            move = moves.get(open_.pop())
            if move is None:
                continue
            further = {*move.copies} | ({move.to} - {""} if move.decision != "fork" else set())
            open_ += further - found
            found |= further
        return found

    async def _moves(self, commits: Iterable[str]) -> dict[str, CommitMove]:
        """The moves of these commits, and of where they went."""
        found: dict[str, CommitMove] = {}
        open_ = {*commits}
        while open_:
            keys = [print_key(self.project, each) for each in open_]
            read = await self._store.collection(CommitMove).get_many(keys)
            new = {each.commit: each for each in read if each is not None}
            found |= new
            seen = found.keys() | open_
            open_ = {c for each in new.values() for c in (each.to, *each.copies)} - seen - {""}
        return found

    async def _all_moves(self) -> dict[str, CommitMove]:
        walk = self._store.collection(CommitMove).walk(f"{self.project}/")
        return {each.commit: each async for each in walk}

    def _prints(self) -> AsyncIterator[CommitPrint]:
        return self._store.collection(CommitPrint).walk(f"{self.project}/")

    async def _living(self, git: GitRepository, commits: Collection[str]) -> set[str]:
        stamp = references_stamp(git)
        if stamp != self._stamp:
            self._stamp, self._alive = stamp, {}
        unknown = [each for each in commits if each not in self._alive]
        if unknown:
            gone = await unreachable(git, unknown)
            self._alive |= {each: each not in gone for each in unknown}
        return {each for each in commits if self._alive[each]}

    async def _elsewhere(self, git: GitRepository, commits: Sequence[str]) -> list[str]:
        """Of commits that nothing leads to: those that this clone never had, or has cut off."""
        missing = [*await absent(git, commits)]
        if not missing:
            return []
        if shallow_edge(git):
            return missing
        keys = [print_key(self.project, each) for each in missing]
        held = await self._store.collection(CommitPrint).get_many(keys)
        clone = self._clone_id(git)
        pairs = zip(missing, held, strict=True)
        return [commit for commit, each in pairs if each is None or each.clone != clone]

    async def _behind_edge(
        self, git: GitRepository, commits: Collection[str], edge: Collection[str]
    ) -> set[str]:
        """Those that are older than what a shallow clone has: they cannot be checked."""
        prints = await read_prints(git, self.project, edge)
        oldest = min((each.committed for each in prints.values()), default=0)
        missing = await absent(git, commits)
        keys = [print_key(self.project, each) for each in missing]
        held = await self._store.collection(CommitPrint).get_many(keys)
        return {each.commit for each in held if each is not None and each.committed <= oldest}

    async def _branch_patch(self, git: GitRepository, head: GitHead) -> str:
        references = await read_references(git)
        base = default_branch(git, references)
        if not base or not head.branch or base == f"refs/heads/{head.branch}":
            return ""
        return await patch_between(git, references[base], head.commit, fork=True)

    async def _trail(self) -> tuple[WorktreePosition, ...]:
        git = self.location.git
        if git is None:
            return ()
        found = await self._store.collection(ClonePosition).get(self._clone_key(git))
        return () if found is None else found.worktrees.get(self.location.worktree, ())

    def _clone_key(self, git: GitRepository) -> str:
        return f"{self.project}/{self._clone_id(git)}"

    def _clone_id(self, git: GitRepository) -> str:
        """The same after the clone was moved, another one for a copy of it."""
        if not self._clone:
            self._clone = f"{_clone_mark(self.location)}{git.common_dir.stat().st_ino:x}"
        return self._clone


async def next_operation(transaction: Transaction, project: str) -> int:
    page = await transaction.collection(ProjectOperation).list(
        f"{project}/", limit=1, descending=True
    )
    return page.values[0].number + 1 if page.items else 1


def _news(former: CommitMove, move: CommitMove) -> bool:
    """Whether a move says more than the one that is there."""
    return (former.to, {*former.copies}) != (move.to, {*move.copies})


def _rewritten_pairs(lines: Iterable[Sequence[str]]) -> dict[str, str]:
    """Old and new commits, as post-rewrite told them: ``amend OLD NEW``."""
    found: dict[str, str] = {}
    for fields in lines:
        _, *words = (fields[3] if len(fields) > 3 else "").split()
        found |= {old: new for old, new in zip(words[::2], words[1::2], strict=False) if old != new}
    return found


def _clone_mark(location: ProjectLocation) -> str:
    path = location.folder / _CLONE
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        mark = secrets.token_hex(6)
    location.folder.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{_CLONE}.{mark}")
    beside.write_text(mark, encoding="ascii")
    try:
        os.link(beside, path)  # the first one stays
    except OSError:
        if not path.exists():
            beside.replace(path)
    beside.unlink(missing_ok=True)
    return path.read_text(encoding="ascii").strip()
