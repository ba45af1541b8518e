"""What happened to a repository since it was last seen, and where its commits went."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from perdure.project.commit_matching import (
    BranchRun,
    CommitMatch,
    has_common_lines,
    match_commits,
    match_copies,
)
from perdure.project.commit_prints import (
    CommitPrint,
    patch_between,
    read_outlines,
    read_prints,
    stored,
)
from perdure.project.git_history import (
    BranchChange,
    between,
    change_kind,
    default_branch,
    is_local,
    recent,
    short_name,
    unreachable,
)
from perdure.project.git_repository import GitRepository
from perdure.project.history_records import CommitMove, UnclearMove
from perdure.project.range_diff import read_range_diff

#: Commits that are looked at: of one branch, of all, and with their diffs.
_MOST_OF_BRANCH, _MOST_NEW, _MOST_DIFFS = 2_000, 5_000, 300
#: Branches whose movement is looked at one by one, and diffs of runs of commits.
_MOST_BRANCHES, _MOST_RUNS = 30, 6
_DAY = 86_400


class BranchMovement(msgspec.Struct, frozen=True):
    """A branch that moved, with the commits that it lost and won, oldest first."""

    change: BranchChange
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


class HistoryFindings(msgspec.Struct, frozen=True, kw_only=True):
    """What a comparison found."""

    changes: tuple[BranchChange, ...] = ()
    #: Successors of commits, and links to copies.
    moves: dict[str, CommitMove] = {}
    unclear: tuple[UnclearMove, ...] = ()
    gone: tuple[str, ...] = ()
    #: Prints of the successors, to be noted.
    prints: tuple[CommitPrint, ...] = ()


class HistoryComparison:
    """Compares a clone with what it was. `noted` are the prints of all anchored commits."""

    def __init__(
        self,
        git: GitRepository,
        project: str,
        *,
        before: Mapping[str, str],
        now: Mapping[str, str],
        noted: Mapping[str, CommitPrint],
        moves: Mapping[str, CommitMove],
        maps: Mapping[str, str],
        in_vain: Collection[str] = (),
    ) -> None:
        self._git, self._project = git, project
        self._before, self._now = before, now
        self._noted, self._moves, self._maps = noted, moves, maps
        self._in_vain = frozenset(in_vain)
        self._default = default_branch(git, now)
        self._prints: dict[str, CommitPrint] = dict(noted)
        self._full: set[str] = {each for each in noted if noted[each].patch}

    async def run(self) -> HistoryFindings:
        """Raises `GitFailed`."""
        movements = [each async for each in self._movements()]
        ends = {old: self._end(old) for old in self._maps}
        asked = {*self._noted, *(new for old, new in ends.items() if old in self._noted)}
        dead = await unreachable(self._git, asked) if asked else set[str]()
        gone = dead & self._noted.keys()
        olds = await self._rewritten(movements, gone)
        found: dict[str, CommitMove] = {}
        doubtful = await self._doubtful(ends)
        for old, new in ends.items():
            if old not in doubtful and new not in dead:
                found[old] = CommitMove(key=f"{self._project}/{old}", to=new)
        open_ = [each for each in olds if each not in found]
        unclear: tuple[UnclearMove, ...] = ()
        news = await self._news()
        if open_ and news:
            matches, unclear = await self._match(open_, news, movements)
            found |= matches
        open_ = [each for each in open_ if each not in found]
        late = [each for each in open_ if each not in self._in_vain]
        if late:
            wide = await self._wide(late)
            if wide:
                matches, unclear = await self._match(late, wide, movements)
                found |= matches
        found |= {old: each for old, each in doubtful.items() if old not in found}
        if news:
            found = await self._copies(news, found, gone)
        targets = {each.to for each in found.values() if each.to} - self._noted.keys()
        await self._read(targets)
        prints = [stored(self._prints[each]) for each in targets if each in self._prints]
        return HistoryFindings(
            changes=tuple(each.change for each in movements),
            moves=found,
            unclear=tuple(each for each in unclear if each.commit not in found),
            gone=tuple(sorted(each for each in gone if each in open_ and each not in found)),
            prints=tuple(prints),
        )

    # What moved ------------------------------------------------------------------------------

    async def _movements(self) -> AsyncIterator[BranchMovement]:
        moved = [ref for ref in self._now if self._before.get(ref, "") != self._now[ref]]
        known = bool(self._before)
        moved.sort(key=lambda ref: not is_local(ref))
        for at, ref in enumerate(moved if known else ()):
            before, after = self._before.get(ref, ""), self._now[ref]
            if not before:
                if not ref.startswith("HEAD "):
                    yield BranchMovement(BranchChange(kind="new", ref=ref, after=after))
                continue
            if at >= _MOST_BRANCHES:
                break
            yield await self._movement(ref, before, after)
        for ref in [*self._before] if known else ():
            if ref not in self._now and not ref.startswith("HEAD"):
                change = BranchChange(kind="deleted", ref=ref, before=self._before[ref])
                tips = self._now.values()
                lost = await between(self._git, [change.before], tips, limit=_MOST_OF_BRANCH)
                yield BranchMovement(replace(change, removed=len(lost)), tuple(lost[::-1]))

    async def _movement(self, ref: str, before: str, after: str) -> BranchMovement:
        listed = await self._git.try_run(
            *("rev-list", "--topo-order", "--left-right", "--parents"),
            *(f"--max-count={_MOST_OF_BRANCH}", f"{before}...{after}", "--"),
        )
        lines = [line.split() for line in (listed or "").splitlines()]
        removed = [line[0][1:] for line in lines if line[0][0] == "<"]
        added = [line[0][1:] for line in lines if line[0][0] == ">"]
        change = BranchChange(
            kind="rewritten",
            ref=ref,
            before=before,
            after=after,
            removed=len(removed),
            added=len(added),
        )
        merged = any(before in line[1:] and len(line) > 2 for line in lines)
        if listed is not None:
            kind = change_kind(self._git, change, merged=merged)
            change = replace(change, kind=kind)
        return BranchMovement(change, tuple(removed[::-1]), tuple(added[::-1]))

    async def _rewritten(
        self, movements: Iterable[BranchMovement], gone: Collection[str]
    ) -> list[str]:
        """Noted commits that nothing leads to, or that a branch lost while another still has
        them; without those that are on the default branch, or have a successor already.
        """
        removed = dict.fromkeys(
            commit
            for each in movements
            if is_local(each.change.ref)
            for commit in each.removed
            if commit in self._noted and commit not in gone
        )
        if removed and self._default:
            removed = dict.fromkeys(
                await unreachable(self._git, removed, [self._now[self._default]])
            )
        placed = {each for each in gone if self._has_successor(each)}
        return [each for each in self._noted if each in {*gone, *removed} - placed]

    def _has_successor(self, commit: str) -> bool:
        """One that is noted: if that is gone, too, its own successor is looked for."""
        move = self._moves.get(commit)
        return move is not None and bool(move.to) and move.to in self._noted

    async def _doubtful(self, ends: Mapping[str, str]) -> dict[str, CommitMove]:
        """Of commits that git says became one with others, those that have nothing in common with
        it: a rebase says so, too, of a commit that it left out, since its change was there already.
        """
        shared = Counter(ends.values())
        noted = {old: new for old, new in ends.items() if old in self._noted and shared[new] > 1}
        await self._read([*noted, *noted.values()])
        found: dict[str, CommitMove] = {}
        for old, new in noted.items():
            ours, theirs = self._prints[old], self._prints.get(new)
            if theirs is not None and not has_common_lines(ours, theirs):
                key = f"{self._project}/{old}"
                found[old] = CommitMove(key=key, to=new, sureness=0.5)
        return found

    def _end(self, commit: str) -> str:
        seen = {commit}
        while (after := self._maps.get(commit, commit)) not in seen:
            seen.add(after)
            commit = after
        return commit

    # Candidates ------------------------------------------------------------------------------

    async def _news(self) -> list[str]:
        """Commits that no branch had before, oldest first. None if nothing is known of before."""
        moved = [each for ref, each in self._now.items() if self._before.get(ref) != each]
        if not self._before or not moved:
            return []
        found = await between(
            self._git, moved, dict.fromkeys(self._before.values()), limit=_MOST_NEW
        )
        return found[::-1]

    async def _wide(self, olds: Sequence[str]) -> list[str]:
        """All that is alive and not older than what is looked for, oldest first."""
        since = min(self._prints[each].committed for each in olds) - _DAY
        found = await recent(self._git, since, olds, limit=_MOST_NEW)
        return found[::-1]

    async def _read(self, commits: Collection[str]) -> None:
        """Prints with all lines."""
        wanted = [each for each in commits if each not in self._full]
        if wanted:
            read = await read_prints(self._git, self._project, wanted)
            for commit, each in read.items():
                held = self._noted.get(commit)
                if held is not None:
                    own = (held.branch, held.clone, held.branch_patch)
                    each = replace(each, branch=own[0], clone=own[1], branch_patch=own[2])  # noqa: PLW2901
                self._prints[commit] = each
            self._full.update(wanted)

    async def _candidates(
        self, olds: Sequence[CommitPrint], news: Sequence[str]
    ) -> list[CommitPrint]:
        """Prints of new commits. If there are many, diffs are made of those that look alike, and of
        the newest.
        """
        chosen = [*news]
        if len(news) > _MOST_DIFFS:
            outlines = await read_outlines(self._git, self._project, news)
            marks = {each for old in olds for each in (old.author, old.subject, old.tree)}
            alike = [
                commit
                for commit, each in outlines.items()
                if marks & {each.author, each.subject, each.tree}
            ]
            wanted = {*alike[-_MOST_NEW:], *news[-_MOST_DIFFS:]}
            chosen = [each for each in news if each in wanted][-4 * _MOST_DIFFS :]
        await self._read(chosen)
        return [self._prints[each] for each in chosen if each in self._prints]

    # Matches ---------------------------------------------------------------------------------

    async def _match(
        self, wanted: Sequence[str], news: Sequence[str], movements: Sequence[BranchMovement]
    ) -> tuple[dict[str, CommitMove], tuple[UnclearMove, ...]]:
        line = [commit for each in movements for commit in each.removed]
        await self._read(line[-_MOST_DIFFS:])
        # Neighbours that are not noted say which new commits are taken.
        every = dict.fromkeys((*(each for each in line if each in self._prints), *wanted))
        new_ids = {*news}
        olds = [self._prints[each] for each in every if each not in new_ids]
        candidates = await self._candidates(olds, news)
        branches = await self._branches(candidates, movements)
        found = match_commits(olds, candidates, branches=branches)
        if any(each not in found.matches or found.matches[each].sureness < 0.8 for each in wanted):
            old_runs, new_runs = await self._runs(found.matches, candidates, movements)
            if old_runs or new_runs:
                found = match_commits(
                    olds, candidates, old_runs=old_runs, new_runs=new_runs, branches=branches
                )
        matches = dict(found.matches)
        if any(each not in matches for each in wanted):
            matches |= await self._by_range_diff(wanted, matches, movements)
        moves = {each: _move(self._project, matches[each]) for each in wanted if each in matches}
        return moves, tuple(each for each in found.unclear if each.commit in {*wanted} - {*moves})

    async def _branches(
        self, candidates: Sequence[CommitPrint], movements: Sequence[BranchMovement]
    ) -> dict[str, Collection[str]]:
        """Which of the candidates are on which branch; the default one last: what one works on
        says more.
        """
        found: dict[str, Collection[str]] = {}
        ids = {each.commit for each in candidates}
        for each in movements:
            if each.added:
                found[each.change.branch] = {*each.added} & ids
        if self._default and len(found) == 0:
            tip = self._now[self._default]
            found[short_name(self._default)] = ids - await unreachable(self._git, ids, [tip])
        return found

    async def _runs(
        self,
        matches: Mapping[str, CommitMatch],
        candidates: Sequence[CommitPrint],
        movements: Sequence[BranchMovement],
    ) -> tuple[list[BranchRun], list[BranchRun]]:
        """Branches as wholes, and runs of commits between two that are placed."""
        olds, news = list[BranchRun](), list[BranchRun]()
        taken = {each.new for each in matches.values()}
        pairs = list[tuple[tuple[str, ...], list[BranchRun], bool]]()
        for each in movements:
            if len(each.removed) > 1:
                pairs.append((each.removed, olds, True))
                unsure = [
                    commit
                    for commit in each.removed
                    if commit not in matches or matches[commit].sureness < 0.9
                ]
                pairs += [(run, olds, False) for run in self._chains(unsure)]
        free = [each.commit for each in candidates if each.commit not in taken]
        pairs += [(run, news, False) for run in self._chains(free)]
        for run, runs, whole in pairs[:_MOST_RUNS]:
            start = self._prints[run[0]].parents[:1] if run[0] in self._prints else ()
            if whole:
                start = (self._now.get(self._default, ""),) if self._default else start
            if start and start[0]:
                patch = await patch_between(self._git, start[0], run[-1], fork=whole)
                runs.append(BranchRun(run, patch))
        return olds, news

    def _chains(self, commits: Iterable[str]) -> list[tuple[str, ...]]:
        """Runs of at least two commits, each the parent of the next."""
        runs = list[list[str]]()
        for each in commits:
            parents = self._prints[each].parents if each in self._prints else ()
            if runs and runs[-1][-1] in parents:
                runs[-1].append(each)
            else:
                runs.append([each])
        return [tuple(run) for run in runs if len(run) > 1]

    async def _by_range_diff(
        self,
        wanted: Sequence[str],
        matches: Mapping[str, CommitMatch],
        movements: Sequence[BranchMovement],
    ) -> dict[str, CommitMatch]:
        taken = {each.new for each in matches.values() if each.method == "patch"}
        found: dict[str, CommitMatch] = {}
        for each in movements:
            missing = [c for c in each.removed if c in wanted and c not in matches]
            if not missing or not each.added:
                continue
            pairs = await read_range_diff(self._git, each.change.before, each.change.after)
            for old in missing:
                new = pairs.get(old)
                if new is not None and new not in taken:
                    found[old] = CommitMatch(old=old, new=new, method="range-diff", sureness=0.6)
        return found

    async def _copies(
        self, news: Sequence[str], found: dict[str, CommitMove], gone: Collection[str]
    ) -> dict[str, CommitMove]:
        """Link commits that are still there to new ones with the same change."""
        ids = {*news}
        alive = [c for c in self._noted if c not in gone and c not in found and c not in ids]
        tips = [
            self._before[ref]
            for ref, tip in self._now.items()
            if ref in self._before and self._before[ref] != tip
        ]
        if not alive or not tips:
            return found
        elsewhere = await unreachable(self._git, alive, tips)
        olds = [self._noted[each] for each in alive if each in elsewhere]
        if not olds:
            return found
        candidates = await self._candidates(olds, news)
        links = match_copies(olds, candidates)
        links |= await self._squashed(olds, candidates, tips[0], links)
        made = dict(found)
        for old, new in links.items():
            move = self._moves.get(old) or CommitMove(key=f"{self._project}/{old}", method="patch")
            if new not in (move.to, *move.copies):
                made[old] = replace(move, copies=(*move.copies, new))
        return made

    async def _squashed(
        self,
        olds: Sequence[CommitPrint],
        candidates: Sequence[CommitPrint],
        base: str,
        links: Mapping[str, str],
    ) -> dict[str, str]:
        """Branches that are still there, and became one commit somewhere else."""
        by_patch = {each.patch: each.commit for each in candidates if each.patch}
        refs = {f"refs/heads/{each.branch}" for each in olds if each.commit not in links}
        found: dict[str, str] = {}
        for ref in sorted(refs & self._now.keys())[:_MOST_RUNS]:
            patch = await patch_between(self._git, base, self._now[ref], fork=True)
            if patch in by_patch:
                new = by_patch[patch]
                line = await between(self._git, [self._now[ref]], [new], limit=_MOST_OF_BRANCH)
                found |= dict.fromkeys({*line} & {each.commit for each in olds}, new)
        return found


def _move(project: str, match: CommitMatch) -> CommitMove:
    return CommitMove(
        key=f"{project}/{match.old}",
        to=match.new,
        method=match.method,
        sureness=match.sureness,
        copies=match.copies,
    )
