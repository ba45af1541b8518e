"""Where a repository stands, from few git processes: branches, what is reachable, reflogs.

Whether anything has changed is seen from the times of a few files, without any process.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from perdure.project.git_repository import GitHead, GitRepository

#: References that are no branch anybody works on: a stash, or what filter-branch leaves behind,
#: would keep rewritten commits alive.
_LIVE = (
    *("--exclude=refs/stash", "--exclude=refs/original/*", "--exclude=refs/notes/*"),
    *("--exclude=refs/replace/*", "--exclude=refs/bisect/*", "--exclude=refs/rewritten/*"),
    *("--exclude=refs/prefetch/*", "--exclude=refs/pull/*", "--exclude=refs/merge-requests/*"),
    "--all",
)
#: References that are kept in a position; of more, those of remotes are left out.
_MOST_REFS = 2_000
_REFLOG_BYTES = 4 * 1024 * 1024
#: A rebase or a similar operation that is not over.
_BUSY = ("rebase-merge", "rebase-apply", "sequencer", "MERGE_HEAD", "CHERRY_PICK_HEAD")
_reflog_line = re.compile(
    r"([0-9a-f]{40,64}) ([0-9a-f]{40,64}) .*? (\d+) [+-]\d{4}(?:\t(.*))?", re.ASCII
).fullmatch
_moved = re.compile(r"checkout: moving from (\S+) to (\S+)").fullmatch

#: What happened to a branch.
ChangeKind: TypeAlias = Literal[
    "commits", "merge", "cherry-pick", "amend", "rebase", "filter-branch", "force push",
    "reset", "rewritten", "deleted", "new", "branch change",
]  # fmt: skip


class ReflogEntry(msgspec.Struct, frozen=True):
    """One movement of a reference. `time` is in seconds."""

    before: str
    after: str
    time: int
    message: str


class BranchChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened to one branch between two looks."""

    kind: ChangeKind
    #: ``refs/heads/topic``; for a branch change, the branch that is checked out now.
    ref: str
    before: str = ""
    after: str = ""
    #: Commits that the branch lost, and new ones.
    removed: int = 0
    added: int = 0

    @property
    def branch(self) -> str:
        return short_name(self.ref)


def short_name(ref: str) -> str:
    """``topic`` of ``refs/heads/topic``, ``origin/topic`` of ``refs/remotes/origin/topic``; of a
    work tree without a branch ``HEAD``.
    """
    if ref.startswith("HEAD "):
        return "HEAD"
    return ref.removeprefix("refs/heads/").removeprefix("refs/remotes/")


def is_local(ref: str) -> bool:
    return ref.startswith("refs/heads/")


def references_stamp(git: GitRepository) -> str:
    """Differs after any reference has changed. Looks at the times of files and folders: renaming a
    lock file, as git does, changes the folder's.
    """
    marks = [_mark(git.git_dir / "logs" / "HEAD"), _mark(git.git_dir / "HEAD")]
    common = git.common_dir
    marks += [_mark(common / each) for each in ("packed-refs", "FETCH_HEAD", "shallow")]
    marks.append(_mark(common / "reftable" / "tables.list"))
    marks += _folders(common / "refs" / "heads")
    marks += _folders(common / "refs" / "remotes")
    return hashlib.sha256("\n".join(marks).encode()).hexdigest()[:32]


def is_busy(git: GitRepository) -> bool:
    """Whether a rebase, a merge or a cherry-pick waits for its end in this work tree."""
    return any((git.git_dir / each).exists() for each in _BUSY)


def busy_branch(git: GitRepository) -> str:
    """The branch that a rebase is about: git has checked out none meanwhile."""
    for folder in ("rebase-merge", "rebase-apply"):
        try:
            name = (git.git_dir / folder / "head-name").read_text().strip()
        except OSError:
            continue
        return name.removeprefix("refs/heads/") if is_local(name) else ""
    return ""


async def read_references(git: GitRepository) -> dict[str, str]:
    """Branches, here and of remotes, by their whole names."""
    listed = await git.run(
        "for-each-ref", "--format=%(objectname) %(refname) %(symref)", "refs/heads", "refs/remotes"
    )
    found: dict[str, str] = {}
    for line in listed.splitlines():
        commit, ref, *link = line.split(" ")
        if not any(link):
            found[ref] = commit
    if len(found) > _MOST_REFS:
        found = {ref: each for ref, each in found.items() if is_local(ref)}
    return found


def default_branch(git: GitRepository, references: Mapping[str, str]) -> str:
    """The branch that others are measured by; empty if none is known."""
    try:
        text = (git.common_dir / "refs/remotes/origin/HEAD").read_text().strip()
    except OSError:
        text = ""
    remote = text.removeprefix("ref: ")
    local = f"refs/heads/{remote.removeprefix('refs/remotes/origin/')}"
    for ref in (local, remote, "refs/heads/main", "refs/heads/master", "refs/heads/trunk"):
        if ref in references:
            return ref
    return ""


async def unreachable(
    git: GitRepository, commits: Collection[str], tips: Iterable[str] | None = None
) -> set[str]:
    """Those of the commits that git does not have, or that neither these tips nor (None) any
    branch, tag or work tree leads to.
    """
    missing = await absent(git, commits)
    known = [each for each in commits if each not in missing]
    if not known:
        return missing
    behind: Iterable[str] = _LIVE if tips is None else tips
    listed = await git.run(
        *("rev-list", "--ignore-missing", "--stdin", "--not", *behind), stdin=_lines(known)
    )
    return missing | ({*listed.split()} & {*known})


async def absent(git: GitRepository, commits: Collection[str]) -> set[str]:
    """Those that git does not have."""
    if not commits:
        return set()
    checked = await git.run("cat-file", "--batch-check", stdin=_lines(commits))
    words = (line.split(" ") for line in checked.splitlines())
    return {line[0] for line in words if line[1:] != [] and line[1] != "commit"}


async def between(
    git: GitRepository, tips: Iterable[str], without: Iterable[str], *, limit: int
) -> list[str]:
    """Commits that the first ones lead to and the others do not, children first."""
    given = [*tips, *(f"^{each}" for each in without)]
    if not given:
        return []
    listed = await git.run(
        *("rev-list", "--topo-order", "--ignore-missing", f"--max-count={limit}", "--stdin"),
        stdin=_lines(given),
    )
    return listed.split()


async def recent(
    git: GitRepository, since: int, without: Iterable[str], *, limit: int
) -> list[str]:
    """All live commits that were made at a time (in seconds) or later, and are no ancestors of
    others, children first.
    """
    listed = await git.run(
        *("rev-list", "--topo-order", "--ignore-missing", f"--max-count={limit}"),
        *(f"--since={since}", "--stdin", *_LIVE),
        stdin=_lines(f"^{each}" for each in without),
    )
    return listed.split()


def read_reflog(git: GitRepository, ref: str) -> list[ReflogEntry]:
    """The movements of a reference, oldest first, as far as git kept them in a file."""
    folder = git.git_dir if ref == "HEAD" else git.common_dir
    try:
        with (folder / "logs" / ref).open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _REFLOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    found = (_reflog_line(line) for line in text.splitlines())
    return [ReflogEntry(m[1], m[2], int(m[3]), m[4] or "") for m in found if m is not None]


def head_at(git: GitRepository, moment: int, now: GitHead) -> GitHead | None:
    """What was checked out at a time (in seconds); None if the reflog does not reach back."""
    entries = read_reflog(git, "HEAD")
    branch = now.branch
    commit = now.commit
    for entry in reversed(entries):
        commit = entry.after
        if entry.time <= moment:
            return GitHead(commit=commit, branch=branch)
        if found := _moved(entry.message):
            branch = "" if re.fullmatch(r"[0-9a-f]{40,64}", found[1]) else found[1]
        commit = entry.before
    return GitHead(commit=commit, branch=branch) if entries and commit.strip("0") else None


def change_kind(git: GitRepository, change: BranchChange, *, merged: bool) -> ChangeKind:
    """What moved a branch, from its reflog and from what it lost and won."""
    messages = list[str]()
    for entry in reversed(read_reflog(git, change.ref)):
        if entry.after == change.before:
            break
        messages.append(entry.message)
    if not change.removed:
        message = messages[0] if messages else ""
        if message.startswith("cherry-pick"):
            return "cherry-pick"
        return "merge" if merged or message.startswith("merge") else "commits"
    if not is_local(change.ref):
        return "force push"
    for message in messages:
        for start, kind in _KINDS.items():
            if message.startswith(start):
                return kind
    return "rewritten" if change.added else "reset"


_KINDS: dict[str, ChangeKind] = {
    "rebase": "rebase",
    "pull --rebase": "rebase",
    "pull -r": "rebase",
    "commit (amend)": "amend",
    "filter-branch": "filter-branch",
    "reset": "reset",
}


def _lines(words: Iterable[str]) -> bytes:
    return "".join(f"{each}\n" for each in words).encode()


def _mark(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "-"
    return f"{found.st_mtime_ns}.{found.st_size}.{found.st_ino}"


def _folders(folder: Path) -> Iterator[str]:
    """Marks of a folder and of those in it."""
    yield _mark(folder)
    try:
        inner = [each.path for each in os.scandir(folder) if each.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for each in sorted(inner):
        yield from _folders(Path(each))
