"""The git command, run for one work tree, without blocking the event loop.

Hooks and clients set variables like ``GIT_DIR`` and ``GIT_INDEX_FILE`` that would send a command to
another repository: none of them is passed on. No command waits for a terminal, and none takes the
lock of the index to refresh it.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import msgspec

from perdure.core.errors import InvalidInput, Unavailable

#: A commit, or a branch that has none yet.
_commit = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", re.ASCII).fullmatch
_BRANCH = "refs/heads/"


class GitHead(msgspec.Struct, frozen=True):
    """What is checked out. An unborn branch has no commit, a detached head no branch."""

    commit: str = ""
    branch: str = ""


class GitFailed(Unavailable):
    """A git command that did not succeed."""

    def __init__(self, message: str, *, code: int, stderr: str) -> None:
        super().__init__(message, hint="Run it by hand in the repository to see more.")
        self.code = code
        self.stderr = stderr


class GitRepository:
    """One work tree of a repository. `git_dir` is its own, `common_dir` that of all work trees."""

    def __init__(self, root: Path, git_dir: Path, common_dir: Path) -> None:
        self.root = root
        self.git_dir = git_dir
        self.common_dir = common_dir

    @classmethod
    def find(cls, folder: Path) -> GitRepository | None:
        """The work tree that a folder is in. None if it is in none, also in a bare repository.
        Files are read; no process is started.
        """
        folder = absolute(folder)
        for root in (folder, *folder.parents):
            git_dir = _git_dir(root / ".git")
            if git_dir is not None:
                return cls(root, git_dir, _common_dir(git_dir))
        return None

    async def run(self, *args: str, stdin: bytes | None = None) -> str:
        """What the command prints, as text; bytes that are not UTF-8 are kept as surrogates.

        Raises `GitFailed`, and `Unavailable` if there is no git.
        """
        return (await self.run_bytes(*args, stdin=stdin)).decode(errors="surrogateescape")

    async def run_bytes(self, *args: str, stdin: bytes | None = None) -> bytes:
        code, out, err = await self._call(args, stdin)
        if code:
            raise _failure(args, code, err)
        return out

    async def try_run(self, *args: str, stdin: bytes | None = None) -> str | None:
        """The same; None if the command fails."""
        code, out, _ = await self._call(args, stdin)
        return None if code else out.decode(errors="surrogateescape")

    async def run_limited(self, *args: str, limit: int, stdin: bytes = b"") -> tuple[bytes, bool]:
        """What the command prints, at most so many bytes of it, and whether that is all.
        Raises `GitFailed`.
        """
        code, out, err = await self._call(args, stdin, limit)
        if code and len(out) < limit:
            raise _failure(args, code, err)
        return out, len(out) < limit

    async def head(self) -> GitHead:
        """Read from files; a process is started only for references that are kept otherwise."""
        text = _line(self.git_dir / "HEAD")
        if _commit(text):
            return GitHead(commit=text)
        reference = text.removeprefix("ref: ")
        found = _line(self.git_dir / reference) or _line(self.common_dir / reference)
        if not _commit(found):
            found = (await self.try_run("rev-parse", "--verify", "--quiet", "HEAD") or "").strip()
        if reference == "refs/heads/.invalid":  # a repository with reftables
            reference = (await self.try_run("symbolic-ref", "--quiet", "HEAD") or "").strip()
        return GitHead(commit=found, branch=reference.removeprefix(_BRANCH))

    async def commit(self, name: str) -> str:
        """The whole id of a commit that is named by a branch, tag or short id.
        Raises `InvalidInput`.
        """
        found = None
        if name and not name.startswith("-"):
            found = await self.try_run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        if found is None:
            raise InvalidInput(
                f"{name!r} is no commit of this repository.",
                hint="Name a branch, a tag, or the beginning of a commit's id.",
            )
        return found.strip()

    async def worktrees(self) -> list[Path]:
        """All work trees whose folders are there; the main one first, if there is one: a bare
        repository has none.
        """
        listed = await self.run("worktree", "list", "--porcelain", "-z")
        found = list[Path]()
        for lines in (entry.split("\0") for entry in listed.split("\0\0")):
            path = Path(lines[0].removeprefix("worktree "))
            if not lines[0].startswith("worktree ") or "bare" in lines:
                continue
            if path == self.common_dir.resolve():
                path = await self._main_worktree()
            if path.is_dir():
                found.append(path)
        return found

    async def _main_worktree(self) -> Path:
        """That of a submodule, or of a git folder that lies elsewhere: git lists the git folder in
        its place. One that git does not tell is the git folder, too.
        """
        if self.git_dir == self.common_dir:
            return self.root
        config = str(self.common_dir / "config")
        told = await self.try_run("config", "--file", config, "--type=path", "core.worktree")
        return _joined(self.common_dir, (told or "").rstrip("\n"))

    async def _call(
        self, args: tuple[str, ...], stdin: bytes | None, limit: int = 0
    ) -> tuple[int, bytes, bytes]:
        try:
            process = await asyncio.create_subprocess_exec(
                "git",
                *("-c", "core.quotePath=false", *args),
                cwd=self.root,
                env=clean_environment(),
                stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except FileNotFoundError as exc:
            raise Unavailable(
                "The git command or the work tree is not there.",
                hint="Install git, and work in a folder that is still there.",
            ) from exc
        try:
            if limit:
                out, err = await _read_some(process, stdin or b"", limit)
            else:
                out, err = await process.communicate(stdin)
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        return process.returncode or 0, out, err


async def _read_some(
    process: asyncio.subprocess.Process, stdin: bytes, limit: int
) -> tuple[bytes, bytes]:
    """Kills the process if it prints more."""
    assert process.stdin is not None  # noqa: S101  # all three are pipes
    assert process.stdout is not None  # noqa: S101
    assert process.stderr is not None  # noqa: S101
    process.stdin.write(stdin)
    process.stdin.close()
    errors = asyncio.create_task(process.stderr.read())
    parts, size = list[bytes](), 0
    while size < limit and (part := await process.stdout.read(1 << 16)):
        parts.append(part)
        size += len(part)
    if size >= limit and process.returncode is None:
        process.kill()
    await process.wait()
    return b"".join(parts)[:limit], await errors


def _failure(args: tuple[str, ...], code: int, err: bytes) -> GitFailed:
    words = err.decode(errors="replace").strip()
    # Settings for one command stand before its name.
    name = next((each for each in args if each.isalpha()), args[0])
    lines = words.splitlines() or [f"exit {code}"]
    # Behind the error there may be advice of many lines.
    why = next((each for each in lines if each.startswith(("fatal:", "error:"))), lines[-1])
    return GitFailed(
        f"git {name} failed: {why.rstrip('.')}.",
        code=code,
        stderr=words,
    )


def clean_environment() -> dict[str, str]:
    """Variables for a git command: those of this process, without any that name a repository."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_")
        or name.startswith(("GIT_CONFIG_", "GIT_AUTHOR_", "GIT_COMMITTER_"))
    }
    return kept | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


def bare_repository(folder: Path) -> Path | None:
    """The bare repository that a folder is, or is in."""
    for root in (folder, *folder.parents):
        if (root / "HEAD").is_file() and (root / "objects").is_dir() and (root / "refs").is_dir():
            return root
    return None


def _git_dir(link: Path) -> Path | None:
    if link.is_dir():
        return link if (link / "HEAD").exists() else None
    text = _line(link)  # of a further work tree or a submodule: a file that names the folder
    if not text.startswith("gitdir: "):
        return None
    named = _joined(link.parent, text.removeprefix("gitdir: "))
    return named if named.is_dir() else None


def _common_dir(git_dir: Path) -> Path:
    named = _line(git_dir / "commondir")
    return _joined(git_dir, named) if named else git_dir


def absolute(folder: Path) -> Path:
    """Without ``..``: what is above such a path by its words is not above the folder."""
    return Path(os.path.normpath(folder.absolute()))


def _joined(folder: Path, named: str) -> Path:
    return Path(os.path.normpath(folder / named))


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return ""
