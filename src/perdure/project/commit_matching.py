"""Finds the successors of rewritten commits. Pure: prints in, matches out.

The steps go from sure to unsure, and each looks only at commits that no earlier one has placed:

1. the same changed lines (a patch-id without context), also where a commit has copies
2. the same tree: a new message, a squash onto the same base, the last piece of a split
3. the same author and time, if they are unique on both sides
4. the same changes as a run of commits: a branch that became one commit, or one that became several
5. at least half of its changed lines, rare ones counting more

Step 4 needs diffs that only git can make: see `BranchRun`. What fits several commits equally
well is not placed, but named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

import msgspec

from perdure.project.commit_prints import CommitPrint
from perdure.project.history_records import MoveMethod, UnclearMove

_ENOUGH_LINES = 0.5
#: A second candidate that is as close as this makes the match unclear.
_MARGIN = 0.1
#: What a piece of a split commit holds at least, and all of them together.
_PIECE, _ALL_PIECES = 0.15, 0.8
#: Candidates that are looked at closely.
_LIKELY = 5
#: For a commit that is still there, a link to another needs more lines in common.
_COPIED_LINES, _FEWEST_LINES = 0.8, 3


class CommitMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A commit and the one that has its change now."""

    old: str
    new: str
    method: MoveMethod
    sureness: float
    #: Further commits with the same change.
    copies: tuple[str, ...] = ()


class Matching(msgspec.Struct, frozen=True):
    """What was found; what is in neither has no successor."""

    matches: dict[str, CommitMatch]
    unclear: tuple[UnclearMove, ...] = ()


class BranchRun(msgspec.Struct, frozen=True):
    """Commits one after another, and the hash of what they changed together."""

    commits: tuple[str, ...]
    patch: str


def match_commits(
    olds: Sequence[CommitPrint],
    news: Sequence[CommitPrint],
    *,
    old_runs: Iterable[BranchRun] = (),
    new_runs: Iterable[BranchRun] = (),
    branches: Mapping[str, Collection[str]] | None = None,
) -> Matching:
    """Successors of `olds` among `news`, both oldest first. `branches` says which new commits are
    on which branch, the most telling branch first: it decides between exact copies.
    """
    search = _Search(olds, news, branches or {})
    search.by_patch()
    search.by_tree()
    search.by_author()
    search.by_runs(old_runs, new_runs)
    search.by_lines()
    return Matching(search.matches, tuple(search.unclear))


def match_copies(olds: Sequence[CommitPrint], news: Sequence[CommitPrint]) -> dict[str, str]:
    """For commits that are still there: others with the same change, or most of it."""
    by_patch = {each.patch: each for each in reversed(news) if each.patch}
    wanted = {each.branch_patch for each in olds} - {""}
    squashed = {patch: by_patch[patch] for patch in wanted & by_patch.keys()}
    found: dict[str, str] = {}
    lines = {each.commit: each.line_hashes for each in news if each.size >= _FEWEST_LINES}
    where = defaultdict[bytes, list[str]](list)
    for commit, hashes in lines.items():
        for each in hashes:
            where[each].append(commit)
    for old in olds:
        copy = by_patch.get(old.patch) if old.patch else None
        copy = copy or squashed.get(old.branch_patch)
        if copy is not None:
            found[old.commit] = copy.commit
            continue
        own = old.line_hashes
        if old.size < _FEWEST_LINES:
            continue
        held = Counter(commit for each in own for commit in where.get(each, ()))
        for commit, count in held.most_common(1):
            if count >= _COPIED_LINES * len(own):
                found[old.commit] = commit
    return found


def has_common_lines(old: CommitPrint, new: CommitPrint) -> bool:
    """Whether two commits may have to do with each other."""
    same = old.subject == new.subject or old.patch == new.patch
    return same or not old.lines or bool(old.line_hashes & new.line_hashes)


class _Search:
    def __init__(
        self,
        olds: Sequence[CommitPrint],
        news: Sequence[CommitPrint],
        branches: Mapping[str, Collection[str]],
    ) -> None:
        self.olds = {each.commit: each for each in olds}
        self.news = {each.commit: each for each in news if each.commit not in self.olds}
        self.on = {name: frozenset(commits) for name, commits in branches.items()}
        self.order = {commit: at for at, commit in enumerate(self.news)}
        self.matches: dict[str, CommitMatch] = {}
        self.unclear: list[UnclearMove] = []
        #: New commits that are exactly one old one.
        self.exact: set[str] = set()

    def left(self) -> list[CommitPrint]:
        return [each for commit, each in self.olds.items() if commit not in self.matches]

    def free(self) -> list[CommitPrint]:
        return [each for commit, each in self.news.items() if commit not in self.exact]

    def place(
        self,
        old: CommitPrint,
        new: CommitPrint,
        method: MoveMethod,
        sureness: float,
        copies: Iterable[CommitPrint] = (),
    ) -> None:
        self.matches[old.commit] = CommitMatch(
            old=old.commit,
            new=new.commit,
            method=method,
            sureness=round(sureness, 3),
            copies=tuple(each.commit for each in copies),
        )

    # Steps -----------------------------------------------------------------------------------

    def by_patch(self) -> None:
        self._by_key(lambda each: each.patch, "patch", 0.99)

    def by_tree(self) -> None:
        """A tree comes again after a revert; and a commit without changes has its parent's."""
        trees = Counter(each.tree for each in self.news.values())
        for olds, news in self._groups(lambda each: each.tree):
            old, new = olds[-1], news[-1]
            if len(olds) == 1 and trees[new.tree] == 1 and _has_common(old, new):
                self.place(old, new, "tree", 0.95)

    def by_author(self) -> None:
        """With its subject, then without; and without it only where the same files are touched."""
        for key, sureness in ((_signature, 0.95), (_author, 0.85)):
            for olds, news in self._groups(key):
                if len(olds) == 1 and len(news) == 1:
                    old, new = olds[0], news[0]
                    if sureness > 0.9 or _has_common(old, new):
                        self.place(old, new, "author", sureness)

    def by_runs(self, old_runs: Iterable[BranchRun], new_runs: Iterable[BranchRun]) -> None:
        by_patch = {each.patch: each for each in self.free() if each.patch}
        for run in old_runs:
            new = by_patch.get(run.patch)
            for commit in run.commits if new is not None and run.patch else ():
                if commit in self.olds and commit not in self.matches and new is not None:
                    self.place(self.olds[commit], new, "branch patch", 0.9)
        for old in self.left():
            new = by_patch.get(old.branch_patch) if old.branch_patch else None
            if new is not None:
                self.place(old, new, "branch patch", 0.85)
        pieces = {run.patch: run.commits[-1] for run in new_runs if run.patch}
        for old in self.left():
            last = pieces.get(old.patch) if old.patch else None
            if last is not None and last in self.news:
                self.place(old, self.news[last], "branch patch", 0.9)

    def by_lines(self) -> None:
        free = self.free()
        where = defaultdict[bytes, list[str]](list)
        for each in free:
            for line in each.line_hashes:
                where[line].append(each.commit)
        for old in self.left():
            own = old.line_hashes
            total = sum(1 / max(1, len(where.get(line, ()))) for line in own)
            held = defaultdict[str, float](float)
            for line in own:
                for commit in where.get(line, ()):
                    held[commit] += 1 / len(where[line])
            shares = {commit: weight / total for commit, weight in held.items()} if total else {}
            self._place_by_shares(old, shares, where)

    # Parts -----------------------------------------------------------------------------------

    def _groups(
        self, key: Callable[[CommitPrint], Hashable]
    ) -> list[tuple[list[CommitPrint], list[CommitPrint]]]:
        """Commits of both sides that have the same key and are not placed yet."""
        olds = defaultdict[Hashable, list[CommitPrint]](list)
        news = defaultdict[Hashable, list[CommitPrint]](list)
        for each in self.left():
            olds[key(each)].append(each)
        for each in self.free():
            news[key(each)].append(each)
        return [
            (group, news[name]) for name, group in olds.items() if name != "" and news.get(name)
        ]

    def _by_key(
        self, key: Callable[[CommitPrint], Hashable], method: MoveMethod, sureness: float
    ) -> None:
        for olds, news in self._groups(key):
            open_ = [*olds]
            if len(olds) > 1 or len(news) > 1:
                open_ = self._by_signature(olds, news, method, sureness)
            taken = {self.matches[each.commit].new for each in olds if each not in open_}
            rest = [each for each in news if each.commit not in taken] or news
            if len(open_) == len(rest):
                for old, new in zip(open_, rest, strict=True):
                    self.place(old, new, method, sureness)
            else:
                for old in open_:
                    first, *copies = sorted(rest, key=lambda each: self._rank(old, each))
                    self.place(old, first, method, sureness - 0.1, copies)
            self.exact.update(each.commit for each in news)

    def _by_signature(
        self,
        olds: list[CommitPrint],
        news: list[CommitPrint],
        method: MoveMethod,
        sureness: float,
    ) -> list[CommitPrint]:
        """Place those whose author and subject are the same, too; returns the others."""
        rest = []
        for old in olds:
            same = [each for each in news if _signature(each) == _signature(old)]
            alike = [each for each in olds if _signature(each) == _signature(old)]
            if len(alike) == 1 and same:
                first, *copies = sorted(same, key=lambda each: self._rank(old, each))
                others = news if len(olds) == 1 else ()
                more = [each for each in others if each not in same]
                self.place(old, first, method, sureness, (*copies, *more))
            else:
                rest.append(old)
        return rest

    def _rank(self, old: CommitPrint, new: CommitPrint) -> tuple[int, int]:
        """Its own branch first, then the order of the branches, then age."""
        names = [name for name, commits in self.on.items() if new.commit in commits]
        if old.branch and old.branch in names:
            return -1, self.order[new.commit]
        known = [*self.on]
        return (known.index(names[0]) if names else len(known)), self.order[new.commit]

    def _place_by_shares(
        self, old: CommitPrint, shares: dict[str, float], where: Mapping[bytes, list[str]]
    ) -> None:
        ranked = sorted(shares, key=lambda each: (-shares[each], self.order[each]))
        if not ranked:
            return
        lines = old.line_hashes
        # Weights are divided between commits that share a line; plain shares are not.
        plain = {
            each: sum(each in where.get(line, ()) for line in lines) / len(lines)
            for each in ranked[:_LIKELY]
        }
        pieces = [each for each in ranked if shares[each] >= _PIECE]
        if len(pieces) > 1 and max(plain.values()) < _ALL_PIECES:
            held = sum(any(each in pieces for each in where.get(line, ())) for line in lines)
            if held >= _ALL_PIECES * len(lines):
                last = max(pieces, key=self.order.__getitem__)
                self.place(old, self.news[last], "lines", 0.7)
                return
        likely = [each for each in plain if plain[each] >= _ENOUGH_LINES]
        if not likely:
            return
        close = [each for each in likely if shares[each] > shares[likely[0]] - _MARGIN]
        if len(close) > 1:
            alike = [e for e in close if _author(self.news[e]) == _author(old)]
            alike = alike or [e for e in close if self.news[e].subject == old.subject]
            if len(alike) != 1:
                self.unclear.append(UnclearMove(old.commit, tuple(close)))
                return
            close = alike
        self.place(old, self.news[close[0]], "lines", min(0.8, plain[close[0]]))


def _author(each: CommitPrint) -> str:
    return each.author


def _signature(each: CommitPrint) -> tuple[str, str]:
    return each.author, each.subject


def _has_common(old: CommitPrint, new: CommitPrint) -> bool:
    """Both touch a file, or none at all."""
    ours, theirs = old.file_hashes, new.file_hashes
    return bool(ours & theirs) or not (ours or theirs)
