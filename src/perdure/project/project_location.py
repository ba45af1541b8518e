"""Where a project is: its folder, its repository, and the settings that lie beside the repository.

Perdure's own files are in ``<git common dir>/perdure``, where no commit, checkout or clean sees
them and all work trees share them; without git in ``.perdure/local``. What people read is in
``.perdure`` at the top of the work tree: see `projections`.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from perdure.core.errors import Corrupted, NotFound
from perdure.project.git_repository import GitRepository, absolute

_SETTINGS = "project.json"
_id = re.compile(r"pr_[0-9a-f]{16}", re.ASCII).fullmatch

#: What becomes of entries when the history they are anchored to was rewritten: they follow it, stay
#: with the old line, or wait until somebody is asked.
RewritePolicy: TypeAlias = Literal["ask", "rebase", "fork"]
#: What an agent does on a branch that is behind the one it came from.
StalePolicy: TypeAlias = Literal["ask", "go-on"]


class ProjectSettings(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The settings of a project on this machine: ``project.json``. Fields that it does not know
    are an error of whoever wrote them: see `read_settings`.
    """

    #: ``pr_`` and 16 random digits. Clones of a team have the same, from the shared state.
    project: str
    name: str
    #: Empty: the user's default bank.
    bank: str = ""
    #: Which parts are kept.
    state: bool = True
    vectors: bool = True
    journal: bool = True
    #: State and journal are under git.
    shared: bool = False
    #: Hooks of git and of clients were wanted.
    hooks: bool = True
    on_rewrite: RewritePolicy = "ask"
    #: The same where nobody can be asked.
    unattended: Literal["rebase", "fork"] = "rebase"
    on_stale: StalePolicy = "ask"
    #: Tokens of the preamble.
    preamble: Annotated[int, msgspec.Meta(ge=100, le=20_000)] = 1_500
    #: Clients that were set up: ``claude-code``, ``codex``.
    clients: tuple[str, ...] = ()


class ProjectLocation:
    """A project's place. `root` is the top of the work tree, `folder` holds our own files."""

    def __init__(self, root: Path, git: GitRepository | None) -> None:
        self.root = root
        self.git = git
        self.folder = root / ".perdure" / "local" if git is None else git.common_dir / "perdure"
        self._settings: ProjectSettings | None = None

    @classmethod
    def find(cls, path: Path) -> ProjectLocation:
        """The project that a folder is in, initialised or not: that of the work tree, else of the
        nearest folder that has one, else of the folder itself.
        """
        path = absolute(path)
        git = GitRepository.find(path)
        if git is not None:
            return cls(git.root, git)
        for root in (path, *path.parents):
            if (root / ".perdure" / "local" / _SETTINGS).is_file():
                return cls(root, None)
        return cls(path, None)

    @property
    def files(self) -> Path:
        """Where the files for people are."""
        return self.root / ".perdure"

    @property
    def worktree(self) -> str:
        """A name of this work tree among those of the project: ``main``, or git's own name."""
        if self.git is None or self.git.git_dir == self.git.common_dir:
            return "main"
        return self.git.git_dir.name

    @property
    def settings(self) -> ProjectSettings | None:
        """None if the project was not initialised. Raises `Corrupted`."""
        if self._settings is None:
            self._settings = read_settings(self.folder / _SETTINGS)
        return self._settings

    def write_settings(self, settings: ProjectSettings) -> None:
        """Replaces the file at once, or leaves it as it was."""
        self.folder.mkdir(parents=True, exist_ok=True)
        data = msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n"
        write_atomically(self.folder / _SETTINGS, data)
        self._settings = settings

    def drop_preambles(self) -> None:
        """What preambles show has changed: hooks have them made anew."""
        for path in (self.folder / "preamble").glob("*.json"):
            with suppress(OSError):  # it is made anew at the next turn's end
                path.unlink(missing_ok=True)

    def remove_settings(self) -> None:
        (self.folder / _SETTINGS).unlink(missing_ok=True)
        self._settings = None


def initialised(location: ProjectLocation) -> ProjectSettings:
    """The settings of a project. Raises `NotFound`, `Corrupted`."""
    settings = location.settings
    if settings is None:
        raise NotFound(
            f"{location.root} has no project memory.",
            hint="Run `perdure project init` there.",
        )
    return settings


def new_project_id() -> str:
    return f"pr_{secrets.token_hex(8)}"


def read_settings(path: Path) -> ProjectSettings | None:
    """None if there is no such file. Raises `Corrupted` if it cannot be read."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise Corrupted(f"{path} cannot be read: {exc.strerror}.", hint="Mend its rights.") from exc
    try:
        settings = msgspec.json.decode(data, type=ProjectSettings)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise Corrupted(
            f"{path} is no settings of a project: {exc}.",
            hint="Mend the file, or move it away and run `perdure project init`.",
        ) from exc
    if not _id(settings.project):
        raise Corrupted(
            f"{path} names no project: {settings.project!r}.",
            hint="Move it away and run `perdure project init`.",
        )
    return settings


def write_atomically(path: Path, data: bytes) -> None:
    """Readers see the old file or the new one, also after kill -9."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
