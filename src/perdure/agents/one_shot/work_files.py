"""Looks at the files of a run: tasks, log, and what changed. Writes nothing, also not to the index
of git; only `append_log` writes, and only to the log.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from perdure.agents.one_shot.run_records import RunSettings, TaskCount, WorkState
from perdure.core.errors import InvalidInput
from perdure.storage import registry

_box = re.compile(r"^\s*(?:>\s*)*(?:[-*+]|\d+[.)])\s+\[(.)\](?=\s)")
_fence = re.compile(r"^\s*(```|~~~)")
VERSIONS = frozenset({".git", ".hg", ".svn"})  # Folders of version control.
_SKIPPED = VERSIONS | {"node_modules", ".venv", "venv", "__pycache__"}
_MOST_FILES = 20_000
_WHOLE = 1 << 20  # A larger file is known by its size and time.
_LINES = 40  # Of what changed.
_PATIENCE = 120.0  # Seconds for a look at git.
MOST_TEXT = 1_000_000  # Characters of a specification, tasks, or the end of a log.


def read_text(path: str, *, tail: bool = False) -> str:
    """Empty if there is no such file. Of a long one the beginning, or the end."""
    try:
        text = Path(path).read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as exc:
        raise InvalidInput(
            f"{path} cannot be read: {exc.strerror}.", hint="Give a text file."
        ) from exc
    return text[-MOST_TEXT:] if tail else text[:MOST_TEXT]


def count_tasks(text: str) -> TaskCount:
    """The check boxes of a Markdown text: ``- [x]`` is done, any other mark is open. Boxes in code
    fences are none.
    """
    opened = done = 0
    fence = ""
    for line in text.splitlines():
        if found := _fence.match(line):
            if not fence:
                fence = found[1]
            elif fence == found[1]:
                fence = ""
        elif not fence and (box := _box.match(line)):
            ticked = box[1] in "xX"
            done, opened = done + ticked, opened + (not ticked)
    return TaskCount(opened, done)


def append_log(path: str, heading: str, lines: Iterable[str]) -> None:
    """Once: an entry with this heading is not written again. Raises `InvalidInput`."""
    before = read_text(path, tail=True)
    if f"{heading}\n" in before:
        return
    entry = "\n".join([heading, "", *lines, ""])
    gap = "" if not before or before.endswith("\n\n") else "\n" if before[-1] == "\n" else "\n\n"
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{gap}{entry}")
            file.flush()
            os.fsync(file.fileno())
    except OSError as exc:
        raise InvalidInput(
            f"The log {path} cannot be written: {exc.strerror}.", hint="Give another with --log."
        ) from exc


class WorkFolder:
    """The folder that an agent works in. `ours` are files that are no work: the bank's."""

    def __init__(self, settings: RunSettings, ours: Iterable[str] = ()) -> None:
        self._settings = settings
        self._folder = settings.folder
        self._ours = tuple(ours)

    async def look(self) -> WorkState:
        return await asyncio.to_thread(self._look)

    def files(self) -> list[Path]:
        """Of the folder, without the log, the bank, and what tools keep there."""
        return self._walk()

    def is_bank(self, path: Path) -> bool:
        return any(str(path).startswith(each) for each in self._ours)

    async def changes(self, since: WorkState, started: int) -> str:
        """What changed since, in some lines; of files that git does not know, those written after
        `started` (microseconds).
        """
        return await asyncio.to_thread(self._changes, since, started)

    def _look(self) -> WorkState:
        settings = self._settings
        digest = hashlib.sha256()
        commit = self._commit()
        if commit is None:
            self._hash_files(digest, self._walk())
        else:
            digest.update(commit.encode())
            if commit:
                digest.update(self._git("diff", "--no-ext-diff", "--no-textconv", "HEAD") or b"")
            self._hash_files(digest, self._untracked(commit))
        tasks = read_text(settings.tasks)
        digest.update(tasks.encode("utf-8", "replace"))  # it may lie elsewhere
        log = hashlib.sha256(read_text(settings.log, tail=True).encode("utf-8", "replace"))
        return WorkState(digest.hexdigest(), commit or "", count_tasks(tasks), log.hexdigest())

    def _changes(self, since: WorkState, started: int) -> str:
        commit, found = self._commit(), list[str]()
        if commit is None:
            new = self._walk()
        else:
            new = self._untracked(commit)
            if since.commit and commit != since.commit:
                log = self._git("log", "--oneline", "-20", f"{since.commit}..HEAD", paths=False)
                found += [
                    f"commit {line}" for line in (log or b"").decode(errors="replace").splitlines()
                ]
            base = since.commit or commit
            if base:
                stat = self._git("diff", "--stat", "--no-ext-diff", base) or b""
                found += stat.decode(errors="replace").splitlines()
        for path in new:
            try:
                if path.stat().st_mtime_ns >= started * 1_000:
                    found.append(f"new or changed: {path.relative_to(self._folder)}")
            except (OSError, ValueError):
                continue
        left = len(found) - _LINES
        return "\n".join([*found[:_LINES], *([f"… and {left} lines more"] if left > 0 else ())])

    def _commit(self) -> str | None:
        """None outside a repository, empty before its first commit."""
        if not self._git("rev-parse", "--is-inside-work-tree", paths=False):
            return None
        return (
            (self._git("rev-parse", "-q", "--verify", "HEAD", paths=False) or b"").decode().strip()
        )

    def _untracked(self, commit: str) -> list[Path]:
        which = ("--others",) if commit else ("--others", "--cached")
        names = self._git("ls-files", *which, "--exclude-standard", "-z") or b""
        paths = (Path(self._folder, os.fsdecode(name)) for name in names.split(b"\0") if name)
        return [path for path in paths if self._is_work(path)]

    def _walk(self) -> list[Path]:
        found = list[Path]()
        for folder, folders, names in os.walk(self._folder):
            folders[:] = sorted(name for name in folders if name not in _SKIPPED)
            found += [path for name in sorted(names) if self._is_work(path := Path(folder, name))]
            if len(found) > _MOST_FILES:
                break
        return found[:_MOST_FILES]

    def _is_work(self, path: Path) -> bool:
        return str(path) != self._settings.log and not self.is_bank(path)

    def _hash_files(self, digest: hashlib._Hash, paths: Iterable[Path]) -> None:
        for path in paths:
            digest.update(os.fsencode(path) + b"\0")
            for piece in _content(path):
                digest.update(piece)

    def _git(self, *words: str, paths: bool = True) -> bytes | None:
        """None if it fails. Takes no lock, and so does not refresh the index."""
        command = ["git", "--no-optional-locks", *words]
        if paths:
            command += ["--", ".", *self._without()]
        try:
            done = subprocess.run(  # noqa: S603  # git, with words of ours
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PATIENCE,
                check=False,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat", "LC_ALL": "C"},
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def _without(self) -> Iterator[str]:
        for path in (self._settings.log, *self._ours):
            if path.startswith(f"{self._folder}{os.sep}"):
                inside = os.path.relpath(path, self._folder)
                yield f":(exclude,literal){inside}"


def _content(path: Path) -> Iterator[bytes]:
    try:
        if path.is_symlink():
            yield os.fsencode(path.readlink())
            return
        known = path.stat()
        if known.st_size > _WHOLE or not path.is_file():
            yield f"{known.st_size} {known.st_mtime_ns}".encode()
        else:
            yield path.read_bytes()
    except OSError:
        yield b"gone"


def bank_files(url: str) -> tuple[str, ...]:
    """How the paths of a bank's own files begin."""
    return (registry.location(url),) if registry.parse(url).scheme == "sqlite" else ()


def newest_write(paths: Iterable[str]) -> int:
    """When one of these files was last written; 0 if there is none."""
    found = [0]
    for path in paths:
        with suppress(OSError):
            found.append(Path(path).stat().st_mtime_ns)
    return max(found)
