"""What happened to the repository and what is decided about it: status, reconcile, rewind.

Following a rewrite or not, and hiding entries, are recorded operations (`ProjectOperation`) with
what was before. Each can be undone; none deletes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.core.display import plural
from perdure.core.errors import InvalidInput, NotFound
from perdure.project.anchored_entries import AnchoredEntries, AnchoredEntry, all_entries
from perdure.project.anchors import Anchors, next_operation
from perdure.project.commit_prints import print_key
from perdure.project.git_history import BranchChange
from perdure.project.git_repository import GitRepository
from perdure.project.history_records import (
    CommitMove,
    Decision,
    HiddenEntry,
    ProjectOperation,
)
from perdure.project.project_location import ProjectLocation
from perdure.services import Services
from perdure.storage.collection import Collection
from perdure.storage.record_keys import numbered
from perdure.storage.transaction import Transaction

#: ``here``: in what is checked out. ``elsewhere``: on another branch, or in another clone.
#: ``linked``: on another branch, and its change is here, too. ``moved``: followed to a successor
#: that is here. ``gone``: nothing has it any more. ``unclear``: several could be its successor.
EntryPlace: TypeAlias = Literal["here", "moved", "linked", "elsewhere", "gone", "unclear"]

_DECISIONS: dict[str, Decision] = {"rebase": "rebase", "fork": "fork"}


class PlacedEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry, and where its commit is now."""

    entry: AnchoredEntry
    place: EntryPlace
    #: The commit that stands for it now.
    now: str = ""
    #: Of an unclear one.
    candidates: tuple[str, ...] = ()


class ProjectStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where a project stands."""

    project: str
    name: str
    commit: str
    branch: str
    #: A rebase or merge is not over.
    busy: bool
    #: Since the last look.
    changes: tuple[BranchChange, ...]
    #: Rewrites that wait for a decision, with how many entries each is about.
    waiting: tuple[tuple[ProjectOperation, int], ...]
    entries: tuple[PlacedEntry, ...]

    def count(self, place: EntryPlace) -> int:
        return sum(each.place == place for each in self.entries)


class ProjectHistory:
    """The operations of one project."""

    def __init__(
        self,
        services: Services,
        location: ProjectLocation,
        anchors: Anchors,
        parts: Callable[[], Sequence[AnchoredEntries]],
    ) -> None:
        self.location, self.anchors = location, anchors
        self._store, self._parts = services.store, parts

    # Reading ---------------------------------------------------------------------------------

    async def status(
        self, changes: tuple[BranchChange, ...] = (), *, busy: bool = False
    ) -> ProjectStatus:
        """`changes` and `busy` are what `Anchors.refresh` has just reported."""
        settings = self.location.settings
        head = await self.anchors.position()
        entries = await all_entries(self._parts())
        waiting = [(each, _count(each, entries)) for each in await self.waiting()]
        return ProjectStatus(
            project=self.anchors.project,
            name="" if settings is None else settings.name,
            commit=head.commit,
            branch=head.branch,
            busy=busy,
            changes=changes,
            waiting=tuple(waiting),
            entries=tuple(await self._placed(entries, head.commit)),
        )

    async def operations(self, limit: int = 20) -> list[ProjectOperation]:
        """The newest first."""
        operations = self._store.collection(ProjectOperation)
        page = await operations.list(f"{self.anchors.project}/", limit=limit, descending=True)
        return page.values

    async def waiting(self) -> list[ProjectOperation]:
        """Rewrites that nobody has decided about, oldest first."""
        found = [await self.get(each) for each in await self.anchors.waiting()]
        return [each for each in found if each.kind == "rewrite"]

    async def get(self, number: int) -> ProjectOperation:
        """Raises `NotFound`."""
        return await self._operation(self._store.collection(ProjectOperation), number)

    async def entries_of(self, operation: ProjectOperation) -> list[AnchoredEntry]:
        """The entries that a rewrite is about."""
        commits = _commits(operation)
        return [each for each in await all_entries(self._parts()) if each.commit in commits]

    # Deciding --------------------------------------------------------------------------------

    async def decide(
        self, decision: str, number: int | None = None, *, by: str
    ) -> list[ProjectOperation]:
        """Let entries follow their commits (``rebase``) or stay with the old line (``fork``): for
        one rewrite, whatever was decided before, or for all that wait. Raises `NotFound`,
        `InvalidInput`.
        """
        if decision not in _DECISIONS:
            raise InvalidInput(f"There is no decision {decision!r}.", hint="Use rebase or fork.")
        what = _DECISIONS[decision]
        numbers = [each.number for each in await self.waiting()] if number is None else [number]

        async def decide(transaction: Transaction) -> list[ProjectOperation]:
            operations, decided = transaction.collection(ProjectOperation), []
            for each in numbers:
                found = await self._operation(operations, each)
                if found.kind != "rewrite":
                    raise InvalidInput(
                        f"{each} is a rewind: it cannot be rebased or forked.",
                        hint=f"`perdure project reconcile --undo {each}` takes it back.",
                    )
                earlier = (found.decision, found.decided, found.by)
                after = replace(
                    found,
                    state="done",
                    decision=what,
                    decided=transaction.now(),
                    by=by,
                    before=(*found.before, earlier),
                )
                await operations.put(after)
                await self._mark(transaction, after, what)
                decided.append(after)
            return decided

        decided = await self._store.transact(decide)
        self.location.drop_preambles()
        return decided

    async def undo(self, number: int | None = None, *, by: str) -> ProjectOperation:
        """Take back a decision or a rewind, the last one if none is named. A rewrite whose first
        decision is taken back waits again, and its entries stay at their old commits until somebody
        decides; the policy does not. Raises `NotFound`, `InvalidInput`.
        """
        if number is None:
            number = await self._last_done()
        found = await self.get(number)
        if found.kind == "rewind":
            return await self._undo_rewind(found, by)

        async def undo(transaction: Transaction) -> ProjectOperation:
            operations = transaction.collection(ProjectOperation)
            operation = await self._operation(operations, found.number)
            if operation.decision == "waiting":
                raise InvalidInput(
                    f"Nothing is decided about rewrite {operation.number}.",
                    hint="`perdure project reconcile` asks about it.",
                )
            first: tuple[Decision, int, str] = ("waiting", 0, "")
            earlier = operation.before[-1] if operation.before else first
            after = replace(
                operation,
                state="waiting" if earlier[0] == "waiting" else "done",
                decision=earlier[0],
                decided=earlier[1],
                by=earlier[2],
                before=operation.before[:-1],
                held=True,
            )
            await operations.put(after)
            # Undecided, but not as before it was asked: who took it back did not want it followed.
            await self._mark(transaction, after, "fork" if earlier[0] == "waiting" else earlier[0])
            return after

        undone = await self._store.transact(undo)
        self.location.drop_preambles()
        return undone

    # Rewinding -------------------------------------------------------------------------------

    async def rewind(self, commit: str, *, by: str) -> ProjectOperation:
        """Hide the entries that are anchored behind a commit in what is checked out; other branches
        keep theirs. New ones may be made. Raises `InvalidInput` if there are none.
        """
        entries = await self.entries_behind(commit)
        if not entries:
            raise InvalidInput(
                f"No entry is anchored behind {commit[:10]}.",
                hint="`perdure project status --entries` shows where entries are anchored.",
            )

        async def plan(transaction: Transaction) -> ProjectOperation:
            number = await next_operation(transaction, self.anchors.project)
            planned = ProjectOperation(
                key=f"{self.anchors.project}/{numbered(number)}",
                project=self.anchors.project,
                kind="rewind",
                state="done",
                at=transaction.now(),
                worktree=self.location.worktree,
                by=by,
                commit=commit,
                hidden=tuple(HiddenEntry(each.kind, each.id) for each in entries),
            )
            await transaction.collection(ProjectOperation).put(planned)
            return planned

        # Planned first: after kill -9 in between, undoing it shows whatever was hidden.
        operation = await self._store.transact(plan)
        for part in self._parts():
            ids = [each.id for each in entries if each.kind == part.kind]
            await part.hide(ids, f"rewound to {commit[:10]} ({operation.number})")
        self.location.drop_preambles()
        return operation

    async def entries_behind(self, commit: str) -> list[AnchoredEntry]:
        """What a rewind would hide: entries behind a commit in what is checked out, or on no branch
        any more. Raises `InvalidInput` if the commit is not in what is checked out.
        """
        git = self._git()
        head = await self.anchors.position()
        if await self.anchors.ancestors([commit], head.commit) != {commit}:
            raise InvalidInput(
                f"{commit[:10]} is not in the history of what is checked out.",
                hint="Check out a branch that has it; entries of other branches stay as they are.",
            )
        entries = [e for e in await all_entries(self._parts()) if e.kind in self._kinds()]
        places = await self.anchors.where({each.commit for each in entries})
        own = await self.anchors.ancestors({*places.values()} - {""}, head.commit)
        # A commit that nothing leads to any more was on this line if it is behind `commit`.
        found = {old: now or old for old, now in places.items() if not now or now in own}
        stdin = "".join(f"{each}\n" for each in (f"^{commit}", *sorted(found.values()))).encode()
        listed = await git.run(
            "rev-list", "--ignore-missing", "--ancestry-path", "--stdin", stdin=stdin
        )
        behind = {*listed.split()}
        return [each for each in entries if found.get(each.commit) in behind]

    async def resolve(self, name: str, checkpoints: Sequence[tuple[str, str]] = ()) -> str:
        """The commit of a checkpoint (title and commit of each are given) or of anything that git
        can name. A checkpoint's commit is followed through rewrites. Raises `InvalidInput`.
        """
        words = name.strip().casefold()
        fits = [commit for title, commit in checkpoints if title.casefold() == words and commit]
        if fits:
            now = (await self.anchors.where([fits[-1]]))[fits[-1]]
            if not now:
                raise InvalidInput(
                    f"The commit of the checkpoint {name!r} is gone.", hint="Name another commit."
                )
            return now
        return await self._git().commit(name)

    async def _undo_rewind(self, operation: ProjectOperation, by: str) -> ProjectOperation:
        if operation.state == "undone":
            raise InvalidInput(
                f"Rewind {operation.number} is undone already.", hint="Nothing to do."
            )
        for part in self._parts():
            await part.show([each.id for each in operation.hidden if each.kind == part.kind])
        undone = replace(operation, state="undone", by=by, decided=self._store.now())
        await self._store.collection(ProjectOperation).put(undone)
        self.location.drop_preambles()
        return undone

    # Parts -----------------------------------------------------------------------------------

    async def _placed(self, entries: Sequence[AnchoredEntry], head: str) -> list[PlacedEntry]:
        commits = {each.commit for each in entries}
        places = await self.anchors.where(commits)
        here = await self.anchors.true_at(commits, head) if head else set[str]()
        own = await self.anchors.ancestors(commits, head) if head else set[str]()
        unclear = {
            each.commit: each.candidates
            for operation in await self.operations(100)
            for each in operation.unclear
        }
        found = []
        for each in entries:
            now = places[each.commit]
            place: EntryPlace = "elsewhere"
            if each.commit in own:
                place = "here"
            elif each.commit in here:
                place = "moved" if now != each.commit else "linked"
            elif not now:
                place = "unclear" if each.commit in unclear else "gone"
            candidates = unclear.get(each.commit, ()) if place == "unclear" else ()
            found.append(PlacedEntry(entry=each, place=place, now=now, candidates=candidates))
        return found

    async def _mark(
        self, transaction: Transaction, operation: ProjectOperation, decision: Decision
    ) -> None:
        """Write the decision into the moves that still are this operation's."""
        moves = transaction.collection(CommitMove)
        keys = [print_key(self.anchors.project, each.commit) for each in operation.moves]
        for each in await moves.get_many(keys):
            if each is not None and each.operation == operation.number:
                await moves.put(replace(each, decision=decision))

    async def _operation(
        self, operations: Collection[ProjectOperation], number: int
    ) -> ProjectOperation:
        found: ProjectOperation | None = None
        if 0 < number < 10**8:
            found = await operations.get(f"{self.anchors.project}/{numbered(number)}")
        if found is None:
            raise NotFound(
                f"There is no rewrite or rewind {number}.",
                hint="`perdure project reconcile --list` lists them.",
            )
        return found

    async def _last_done(self) -> int:
        done = [
            (max(each.decided, each.at), each.number)
            for each in await self.operations(100)
            if each.state == "done" and (each.moves or each.hidden)
        ]
        if not done:
            raise NotFound(
                "Nothing was decided that could be undone.",
                hint="`perdure project reconcile --list` lists rewrites and rewinds.",
            )
        return max(done)[1]

    def _kinds(self) -> set[str]:
        return {each.kind for each in self._parts()}

    def _git(self) -> GitRepository:
        if self.location.git is None:
            raise InvalidInput(
                f"{self.location.root} is not under git.", hint="There is no history to look at."
            )
        return self.location.git


def _count(operation: ProjectOperation, entries: Sequence[AnchoredEntry]) -> int:
    commits = _commits(operation)
    return sum(each.commit in commits for each in entries)


def _commits(operation: ProjectOperation) -> set[str]:
    return {each.commit for each in operation.moves} | {each.commit for each in operation.unclear}


def told(change: BranchChange) -> str:
    """What happened to a branch, in words."""
    what = {
        "new": "is new",
        "deleted": "was deleted",
        "branch change": "is checked out now",
        "reset": f"was reset by {plural(change.removed, 'commit')}",
        "commits": f"has {plural(change.added, 'new commit')}",
        "merge": f"has a merge, {plural(change.added, 'new commit')}",
        "cherry-pick": f"has {plural(change.added, 'commit')} picked from elsewhere",
        "amend": "has its last commit amended",
        "rebase": f"was rebased: {plural(change.removed, 'commit')} rewritten",
        "filter-branch": f"was filtered: {plural(change.removed, 'commit')} rewritten",
        "force push": f"was pushed by force elsewhere: {plural(change.removed, 'commit')} replaced",
        "rewritten": f"was rewritten: {plural(change.removed, 'commit')} replaced",
    }[change.kind]
    return f"{change.branch or 'HEAD'} {what}"
