"""Files for people, made from the bank, and what people changed in them since.

For each file that is written its text is kept beside the settings, for each work tree: the *base*.
A file that differs from its base was edited by hand, or brought by git. Whoever merges reads all
three, commits to the bank, writes the file, then the base; killed in between, the same merge is
done again, and changes nothing.

A file that cannot be merged is left alone, or a copy of it is kept beside it: ``….kept-<hash>``.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from perdure.core.errors import Unavailable
from perdure.project.git_repository import GitRepository
from perdure.project.project_location import ProjectLocation, write_atomically
from perdure.project.state_file import STATE_FILE

_PATIENCE, _POLL = 15.0, 0.02  # Seconds that one process waits for another's merge.
#: In the folder of bases: what it is called in the banks that files are written from.
_PLACE = "place"
IGNORED = "# Made by Perdure. `perdure project share` puts state, journal and tasks under git.\n*\n"


class ProjectedFile(msgspec.Struct, frozen=True):
    """A file as it is, and as it was written last. None: there is none."""

    name: str
    text: str | None
    base: str | None
    #: When it was changed. Microseconds.
    changed: int = 0

    @property
    def is_edited(self) -> bool:
        """Whether somebody else wrote it. A file that is gone is not: it is written again."""
        return self.text is not None and self.text != self.base


class Projections:
    """The files of one work tree. Names are paths below ``.perdure``."""

    def __init__(self, location: ProjectLocation) -> None:
        self.location = location
        self._bases = location.folder / "projections" / location.worktree

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """One process at a time merges and writes. Raises `Unavailable`."""
        path = self._bases.with_name(f"{self._bases.name}.lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = path.open("ab")
        except OSError as exc:
            raise _unwritable(path, exc) from exc
        with handle:
            end = time.monotonic() + _PATIENCE
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() > end:
                        raise Unavailable(
                            f"Another process is at work on {self.location.files}.",
                            hint="Try again when it has ended.",
                        ) from None
                await asyncio.sleep(_POLL)
            yield

    def path(self, name: str) -> Path:
        return self.location.files / name

    def read(self, name: str) -> ProjectedFile:
        """Raises `Unavailable` if it cannot be read."""
        path = self.path(name)
        text = _read(path)
        changed = 0 if text is None else path.stat().st_mtime_ns // 1_000
        return ProjectedFile(name, text, _read(self._bases / name), changed)

    def is_edited(self, name: str) -> bool:
        """The same question, without reading it if its size and times are those of its base."""
        try:
            file, base = self.path(name).stat(), (self._bases / name).stat()
        except OSError:
            return self.path(name).exists()
        # The base is written behind the file. Who edits within that moment changes the size, or
        # is found by reading.
        if file.st_size == base.st_size and file.st_mtime_ns <= base.st_mtime_ns:
            return False
        return self.read(name).is_edited

    def names(self, folder: str) -> list[str]:
        """The files of a folder that were written here."""
        found = [path.name for path in (self._bases / folder).glob("*") if path.is_file()]
        return sorted(f"{folder}/{name}" for name in found if not name.startswith("."))

    def write(self, name: str, text: str, before: str | None) -> bool:
        """Write a file, and its base, unless it is not any more as it was `before`: then False.
        Raises `Unavailable` if it cannot be written.
        """
        path = self.path(name)
        try:
            self._prepare()
            if _read(path) != before:
                return False
            if text != before:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, text.encode())
        except OSError as exc:
            raise _unwritable(path, exc) from exc
        self.note(name, text)
        return True

    def note(self, name: str, text: str) -> None:
        """What the file says is merged: it is the base now. Raises `Unavailable`."""
        base = self._bases / name
        try:
            base.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(base, text.encode())
        except OSError as exc:
            raise _unwritable(base, exc) from exc

    async def incoming(self, file: ProjectedFile) -> list[tuple[str | None, str]]:
        """What is to be merged into the bank: pairs of a common version (None: unknown) and
        another one. Of a file under git, what a checkout or pull brought is compared with the
        version that both lines of history have in common: that an older branch lacks an entry
        does not remove it.
        """
        if not file.is_edited or file.text is None or not file.text.strip():
            return []
        git, path = self.location.git, f".perdure/{file.name}"
        head = "" if git is None else (await git.head()).commit
        there = await git.try_run("show", f"{head}:{path}") if git and head else None
        if git is None or there is None:
            return [(file.base, file.text)]
        before = await self._committed_at(git, file, path)
        common = await git.try_run("merge-base", before, head) if before else None
        was = await git.try_run("show", f"{common.strip()}:{path}") if common else None
        return [(was, there), (there, file.text)]

    async def _committed_at(self, git: GitRepository, file: ProjectedFile, path: str) -> str:
        """The commit that holds what was written last; if none does, the one that was checked out
        then.
        """
        if file.base is not None:
            blob = (await git.run("hash-object", "--stdin", stdin=file.base.encode())).strip()
            commits = await git.try_run(
                "log", "--all", "--reflog", "--format=%H", f"--find-object={blob}", "--", path
            )
            for commit in (commits or "").split():  # also those that replaced it
                held = await git.try_run("rev-parse", "--verify", "--quiet", f"{commit}:{path}")
                if held is not None and held.strip() == blob:
                    return commit
        return _read(self._bases / f"{file.name}.at") or ""

    async def note_here(self, name: str, text: str) -> None:
        """The same as `note`, with the commit that is checked out."""
        self.note(name, text)
        if self.location.git is not None:
            self.note(f"{name}.at", (await self.location.git.head()).commit)

    def place(self) -> str | None:
        """A random name of this folder of bases; None if nothing was written yet."""
        found = _read(self._bases / _PLACE)
        if found is None and self._bases.is_dir() and any(self._bases.iterdir()):
            return self.new_place()
        return found

    def new_place(self) -> str:
        place = secrets.token_hex(8)
        self.note(_PLACE, place)
        return place

    def digest(self) -> str:
        """Of the base of the state file."""
        text = _read(self._bases / STATE_FILE) or ""
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()

    def forget(self) -> None:
        """What was written last is not known any more: as if git had brought all files."""
        try:
            if self._bases.exists():
                shutil.rmtree(self._bases)
        except OSError as exc:
            raise _unwritable(self._bases, exc) from exc

    def remove(self, name: str) -> None:
        """Raises `Unavailable`."""
        for path in (self.path(name), self._bases / name):
            try:
                path.unlink(missing_ok=True)
            except OSError as exc:
                raise _unwritable(path, exc) from exc

    def keep(self, name: str, text: str) -> Path:
        """Keep a copy of what cannot be merged, once. Raises `Unavailable`."""
        path = self.path(name)
        digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]
        kept = path.with_name(f"{path.stem}.kept-{digest}{path.suffix}")
        try:
            self._prepare()
            kept.parent.mkdir(parents=True, exist_ok=True)
            if not kept.exists():
                write_atomically(kept, text.encode(errors="surrogateescape"))
        except OSError as exc:
            raise _unwritable(kept, exc) from exc
        return kept

    def _prepare(self) -> None:
        """The folder, which git ignores until it is shared."""
        folder = self.location.files
        if folder.is_symlink():
            raise Unavailable(
                f"{folder} is a link to another place; nothing is written there.",
                hint="Replace it by a folder.",
            )
        folder.mkdir(parents=True, exist_ok=True)
        ignore = folder / ".gitignore"
        if self.location.git is not None and not os.path.lexists(ignore):
            write_atomically(ignore, IGNORED.encode())


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode(errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise Unavailable(
            f"{path} cannot be read: {exc.strerror}.", hint="Mend its rights."
        ) from exc


def _unwritable(path: Path, exc: OSError) -> Unavailable:
    return Unavailable(
        f"{path} cannot be written: {exc.strerror}. The bank has everything.",
        hint="Make room or mend the rights, then run `perdure project refresh`.",
    )
