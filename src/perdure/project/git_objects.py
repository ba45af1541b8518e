"""Trees and files of a repository as git keeps them, read without a work tree.

A blob is named by its *digest*, the bytes of its id. Nothing is fetched: of a partial clone, what
is not here counts as missing.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import cached_property
from types import TracebackType
from typing import NamedTuple, Self

from perdure.core.errors import Unavailable
from perdure.project.git_repository import GitFailed, GitRepository, clean_environment

#: What a regular file's mode begins with; links and submodules are 120000 and 160000.
_REGULAR = b"100"
#: Where the id stands in a line of `git ls-tree`: ``100644 blob 0123…<TAB>path``.
_ID = 12
#: Ids that are sent to git before an answer is read: both pipes have room for that.
_AHEAD = 64
#: Attributes of files that nobody writes by hand.
_MARKS = ("linguist-generated", "linguist-vendored")


class TreeFile(NamedTuple):
    """A regular file of a tree. Bytes of its path that are not UTF-8 are kept as surrogates."""

    path: str
    digest: bytes


class Tree:
    """The regular files of a commit, in the order of their paths."""

    def __init__(self, commit: str, files: Sequence[TreeFile]) -> None:
        self.commit = commit
        self.files = files

    @cached_property
    def by_digest(self) -> dict[bytes, list[str]]:
        """The paths of each content."""
        found = dict[bytes, list[str]]()
        for path, digest in self.files:
            found.setdefault(digest, []).append(path)
        return found

    def paths_with(self, part: str) -> list[TreeFile]:
        """Files in whose paths this stands, in small letters."""
        text, starts = self._lowered
        found, at = list[TreeFile](), text.find(part)
        while at >= 0:
            line = bisect_right(starts, at) - 1
            found.append(self.files[line])
            if line + 1 == len(starts):
                break
            at = text.find(part, starts[line + 1])
        return found

    @cached_property
    def _lowered(self) -> tuple[str, list[int]]:
        """All paths in one text, which is searched much faster, and where each begins."""
        lines = [path.lower().replace("\n", " ") for path, _ in self.files]
        starts, at = list[int](), 0
        for line in lines:
            starts.append(at)
            at += len(line) + 1
        return "\n".join(lines), starts


class GitFiles:
    """The files of a repository, at any commit."""

    def __init__(self, git: GitRepository) -> None:
        self.git = git

    async def head(self) -> str:
        """The commit that is checked out; empty if there is none yet."""
        return (await self.git.head()).commit

    async def tree(self, commit: str) -> Tree:
        """Raises `GitFailed` if the commit is not here."""
        listed = await self.git.run_bytes("ls-tree", "-r", "-z", "--full-tree", commit)
        return await asyncio.to_thread(_tree, commit, listed)

    async def changed(self, before: str, after: str) -> list[TreeFile] | None:
        """Files that one commit has and another has not, or has with other content. None if one
        of them is not here.
        """
        try:
            listed = await self.git.run_bytes(
                "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", before, after
            )
        except GitFailed:
            return None
        found = list[TreeFile]()
        parts = listed.split(b"\0")
        for head, path in zip(parts[::2], parts[1::2], strict=False):
            # :100644 100644 <before> <after> M
            _, mode, _, id, _ = head.split(b" ")
            if mode.startswith(_REGULAR):
                name = path.decode(errors="surrogateescape")
                found.append(TreeFile(name, bytes.fromhex(id.decode())))
        return found

    def reader(self, most: int) -> BlobReader:
        return BlobReader(self.git, most)

    async def set_aside(self, paths: Sequence[str]) -> set[str]:
        """Those of the paths that attributes of the repository call generated or vendored."""
        if not await asyncio.to_thread(self._has_marks):
            return set()
        text = "".join(f"{path}\0" for path in paths).encode(errors="surrogateescape")
        told = await self.git.try_run("check-attr", "-z", "--stdin", *_MARKS, stdin=text)
        words = (told or "").split("\0")
        return {
            path
            for path, value in zip(words[::3], words[2::3], strict=False)
            if value not in ("unspecified", "unset", "false")
        }

    def _has_marks(self) -> bool:
        for file in (self.git.root / ".gitattributes", self.git.common_dir / "info/attributes"):
            try:
                if b"linguist-" in file.read_bytes():
                    return True
            except OSError:
                continue
        return False


def _tree(commit: str, listed: bytes) -> Tree:
    found = list[TreeFile]()
    for line in listed.split(b"\0"):
        if line.startswith(_REGULAR):
            tab = line.index(b"\t")
            path = line[tab + 1 :].decode(errors="surrogateescape")
            found.append(TreeFile(path, bytes.fromhex(line[_ID:tab].decode())))
    return Tree(commit, found)


class BlobReader(AbstractAsyncContextManager["BlobReader"]):
    """Reads contents by one `git cat-file`. Use it in `async with`, for one task at a time."""

    def __init__(self, git: GitRepository, most: int) -> None:
        """Contents of more than `most` bytes are not given."""
        self._git, self._most = git, most
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *("git", "cat-file", "--batch"),
                cwd=self._git.root,
                env=clean_environment() | {"GIT_NO_LAZY_FETCH": "1"},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=1 << 20,
            )
        except FileNotFoundError as exc:
            raise Unavailable(
                "The git command or the work tree is not there.",
                hint="Install git, and work in a folder that is still there.",
            ) from exc
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def read(self, digests: Iterable[bytes]) -> AsyncIterator[tuple[bytes, bytes | None]]:
        """Each digest with its content; None if it is not here, no file, or too large.

        Raises `Unavailable` if git ends before it answered.
        """
        wanted = list(digests)
        for start in range(0, len(wanted), _AHEAD):
            some = wanted[start : start + _AHEAD]
            self._send(some)
            for digest in some:
                yield digest, await self._content()

    def _send(self, digests: Sequence[bytes]) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(b"".join(b"%s\n" % each.hex().encode() for each in digests))

    async def _content(self) -> bytes | None:
        if self._process is None or self._process.stdout is None:
            raise _ended()
        out = self._process.stdout
        try:
            words = (await out.readuntil(b"\n")).split()
            if len(words) != 3:
                return None  # <id> missing
            size = int(words[2])
            if words[1] == b"blob" and size <= self._most:
                return (await out.readexactly(size + 1))[:-1]
            left = size + 1
            while left:
                left -= len(await out.readexactly(min(left, 1 << 20)))
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            raise _ended() from exc
        return None


def _ended() -> Unavailable:
    return Unavailable(
        "git ended before it had read all files.", hint="Run `git fsck` in the repository."
    )
