"""`perdure project init` and `remove`: a project's bank, settings, files, hooks and clients.

Everything that could refuse is asked before anything is changed. Each step can be done again: what
is there stays as it is.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from perdure.bank import Bank
from perdure.core.errors import InvalidInput, PerdureError, Unavailable
from perdure.integrations.client_hooks.client_hook_script import SCRIPT_NAME, client_hook_script
from perdure.integrations.client_setup.coding_clients import (
    BEGIN,
    CLIENTS,
    END,
    TAKE_OUT,
    ClientPlaces,
    CodingClient,
)
from perdure.integrations.client_setup.file_edits import (
    EditRecord,
    PlannedEdit,
    PlannedReturn,
    with_lines,
)
from perdure.integrations.client_setup.project_list import list_project, unlist_projects
from perdure.project.file_index import forget_files
from perdure.project.git_hooks import GitHooks
from perdure.project.git_repository import GitRepository, bare_repository
from perdure.project.hook_spool import HookSpool
from perdure.project.project_directory import list_projects, register_project
from perdure.project.project_files import told_taken
from perdure.project.project_location import (
    ProjectLocation,
    ProjectSettings,
    initialised,
    new_project_id,
    write_atomically,
)
from perdure.project.projections import IGNORED
from perdure.project.sharing import (
    committed_state,
    install_driver,
    is_shared,
    remove_driver,
)
from perdure.project.state_file import STATE_FILE
from perdure.project.task_transfer import TASK_FILE, sync_tasks
from perdure.storage import registry
from perdure.storage.adapter import Capability

_id = re.compile(r"pr_[0-9a-f]{16}", re.ASCII).fullmatch
#: What is in ``.perdure`` besides what people put there.
_FILES = ("project_state.json", "sessions", "journal", "tasks.jsonl", "local", ".gitignore")


class SetupReport(msgspec.Struct, frozen=True):
    """What was done, what was left, and what the user should know."""

    project: str
    name: str
    root: str
    done: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class SetupWishes(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted. `bank` is an address, or empty for the user's default; `clients` names them,
    or None for all that are found. `hooks` of None keeps what was wanted before: at first, hooks.
    """

    name: str = ""
    bank: str = ""
    hooks: bool | None = None
    clients: Sequence[str] | None = None
    #: Somebody is there, and can be asked about rewritten history later.
    asks: bool = False


#: Whether a client's files may be changed; asked once for each client.
Agree = Callable[[CodingClient, Sequence[Path]], bool]


class ProjectSetup:
    """Sets up the project of a location, and takes it out."""

    def __init__(self, location: ProjectLocation) -> None:
        self._location = location
        self._record = EditRecord(location.folder)
        self._done: list[str] = []
        self._left: list[str] = []
        self._notes: list[str] = []

    # Set up -----------------------------------------------------------------------------------

    async def init(self, bank: Bank, wishes: SetupWishes, agree: Agree) -> SetupReport:
        """Raises `InvalidInput`, `Corrupted` for a file that cannot be understood, `Unavailable`
        for one that cannot be written. The first two change nothing.
        """
        if Capability.DURABLE not in bank.store.adapter.capabilities:
            raise InvalidInput(
                f"A bank at {registry.shown(bank.url)} ends with the program that opens it.",
                hint="Name a place that lasts, such as sqlite:///memory.db.",
            )
        location = self._location
        bare = bare_repository(location.root) if location.git is None else None
        if bare is not None:
            raise InvalidInput(
                f"{bare} is a bare repository: nobody works in it.",
                hint="Run `perdure project init` in a work tree, or in a clone of it.",
            )
        committed = await committed_state(location)
        chosen = self._choose(wishes)
        before = location.settings
        hooks = wishes.hooks
        if hooks is None:
            hooks = before is None or before.hooks
        plans = {client.name: self._plan(client, hooks) for client in chosen}
        with _told_if_unwritable():
            async with bank:
                settings = before or ProjectSettings(
                    project=await self._id(bank, committed),
                    name=self._shared(committed, "name") or location.root.name or "project",
                )
                settings = msgspec.structs.replace(
                    settings,
                    shared=settings.shared or committed is not None or is_shared(location.files),
                    hooks=hooks,
                    name=wishes.name or settings.name,
                    bank=wishes.bank or settings.bank,
                )
                self._write_own(
                    settings, "changed" if before else "joined" if committed else "made"
                )
                await register_project(bank.services, location)
                self._list()
                await self._refresh(bank, asks=wishes.asks)
            await self._git_hooks(settings)
            if location.git is not None and settings.shared:
                await install_driver(location.git)
            await self._set_up(chosen, plans, settings, agree)
            await self._warn_of_bank(bank)
            return self._report(settings)

    def _list(self) -> None:
        try:
            list_project(self._location.root)
        except OSError as exc:
            self._notes.append(f"`perdure uninstall` will not know of this project: {exc}.")

    async def _refresh(self, bank: Bank, *, asks: bool) -> None:
        """What is checked out is noted, and the first preamble made."""
        try:
            found = await bank.project(self._location.root).refresh(asks=asks)
            if found.taken:
                self._done.append(f"took from the files: {told_taken(found.taken)}")
        except PerdureError as exc:  # it is done again at any time
            self._notes.append(str(exc))

    def _choose(self, wishes: SetupWishes) -> list[CodingClient]:
        """Raises `InvalidInput`."""
        if wishes.clients is None:
            return [each for each in CLIENTS.values() if each.is_here(self._location.root)]
        for name in wishes.clients:
            if name not in CLIENTS:
                raise InvalidInput(
                    f"There is no client {name!r} that can be set up.",
                    hint=f"Use {' or '.join(CLIENTS)}; others can start `perdure mcp`.",
                )
        return [CLIENTS[name] for name in dict.fromkeys(wishes.clients)]

    def _plan(self, client: CodingClient, hooks: bool) -> list[PlannedEdit]:  # noqa: FBT001
        places = ClientPlaces(
            self._location.root, main_tree(self._location), self._location.folder, hooks
        )
        plans = [
            self._record.plan(file.path, client.name, file.put_in, TAKE_OUT[file.path.name])
            for file in client.files(places)
        ]
        return [each for each in plans if each is not None]

    async def _id(self, bank: Bank, committed: str | None) -> str:
        """Of a clone of a team, that of the shared state; of a project that was here before, its
        own.
        """
        shared = self._shared(committed, "project")
        if _id(shared):
            return shared
        root = str(main_tree(self._location))
        for known in await list_projects(bank.services):
            if root in known.roots[:1] or str(self._location.root) in known.roots[:1]:
                self._notes.append("What the bank knows of this project from before is used.")
                return known.id
        return new_project_id()

    def _shared(self, committed: str | None, field: str) -> str:
        """What the state file in the work tree says; if there is none, or it is broken or in
        conflict, the committed one.
        """
        try:
            text = (self._location.files / STATE_FILE).read_bytes()
        except OSError:
            text = b""
        return _text_field(text, field) or _text_field(committed or "", field)

    def _write_own(self, settings: ProjectSettings, what: str) -> None:
        location = self._location
        if location.settings != settings:
            location.write_settings(settings)
            self._done.append(f"{what} the project {settings.name!r}")
        ignore = location.files / ".gitignore"
        if not ignore.exists():
            location.files.mkdir(exist_ok=True)
            write_atomically(ignore, IGNORED.encode())
            self._done.append(f"{location.files.name}/ for files to read, which git ignores")
        self._write_script()

    async def _git_hooks(self, settings: ProjectSettings) -> None:
        location = self._location
        if location.git is None:
            self._notes.append(
                "There is no git here: memory and tasks work, without branches, anchors and hooks."
            )
            return
        hooks = GitHooks(location)
        if not settings.hooks:
            if await hooks.uninstall():
                self._done.append("took the git hooks out")
            self._left.append("the git hooks (`perdure project init --hooks` puts them in)")
            return
        before = hooks.record
        record = await hooks.install()
        if before != record:
            way = {"files": "in .git/hooks", "path": "by core.hooksPath"}.get(
                record.way, "in the repository's configuration"
            )
            self._done.append(f"git hooks {way}")
        for trial in await hooks.prove():
            if not trial.ok:
                self._notes.append(f"The hooks do not work in {trial.worktree}: {trial.reason}.")

    async def _set_up(
        self,
        chosen: list[CodingClient],
        plans: dict[str, list[PlannedEdit]],
        settings: ProjectSettings,
        agree: Agree,
    ) -> None:
        location, agreed = self._location, list[str]()
        made: set[str] = set()
        for client in chosen:
            edits = plans[client.name]
            if any(each.changes for each in edits) and not agree(
                client, [Path(each.edit.path) for each in edits if each.changes]
            ):
                self._left.append(f"{client.title} (`perdure project init --yes` sets it up)")
                continue
            changed = [each.edit.path for each in edits if self._record.make(each)]
            made.update(changed)
            agreed.append(client.name)
            if changed:
                self._done.append(f"{client.title}: {', '.join(map(self._short, changed))}")
                self._notes += [client.note] if client.note else []
        if not chosen:
            self._notes.append(
                "No client was found. `--clients claude-code,codex` sets one up that comes later."
            )
        if agreed:
            self._exclude()
            await self._warn_tracked(sorted(made))
        names = tuple(dict.fromkeys((*settings.clients, *agreed)))
        if names != settings.clients:
            location.write_settings(msgspec.structs.replace(settings, clients=names))

    def _write_script(self) -> None:
        location = self._location
        HookSpool(location.folder, "clients").make()
        script, text = location.folder / SCRIPT_NAME, client_hook_script().encode()
        if not script.is_file() or script.read_bytes() != text:
            write_atomically(script, text)

    def _exclude(self) -> None:
        """Keep files that were made here out of git."""
        git = self._location.git
        if git is None:
            return
        trees = (self._location.root, main_tree(self._location))
        lines = set[str]()
        for edit in self._record.all().values():
            path = Path(edit.path)
            inside = next((tree for tree in trees if tree in path.parents), None)
            if edit.before is None and edit.client and inside is not None:
                lines.add(f"/{path.relative_to(inside).as_posix()}")
            elif edit.before is None and edit.client:  # of another work tree
                lines.update(f"/{name}" for name in _OF_TREES if edit.path.endswith(f"/{name}"))
        if lines:
            planned = self._record.plan(
                git.common_dir / "info" / "exclude",
                "",
                lambda text: with_lines(text, BEGIN, END, sorted(lines)),
                TAKE_OUT["exclude"],
            )
            if planned is not None:
                self._record.make(planned)

    async def _warn_tracked(self, paths: list[str]) -> None:
        git = self._location.git
        if git is None or not paths:
            return
        found = await git.try_run("ls-files", "-z", "--full-name", "--", *paths) or ""
        self._notes += [
            f"{name} is under git: it has paths of this machine now. Do not commit them."
            for name in found.split("\0")
            if name
        ]

    async def _warn_of_bank(self, bank: Bank) -> None:
        """A bank in the work tree would be committed with everything else."""
        git, path = self._location.git, registry.location(bank.url)
        inside = git is not None and git.root in Path(path).parents
        if git is None or not inside or git.common_dir in Path(path).parents:
            return
        if await git.try_run("check-ignore", "-q", "--", path) is None:
            self._notes.append(
                f"{self._short(path)} is in the work tree, and git does not ignore it: add"
                f" /{self._short(path)}* to .gitignore, so that it is not committed."
            )

    def _short(self, path: str) -> str:
        root = self._location.root
        return str(Path(path).relative_to(root)) if root in Path(path).parents else path

    # Take out ---------------------------------------------------------------------------------

    def to_remove(self) -> tuple[str, ...]:
        """What `remove` would take out, in a word each. Raises `Corrupted` as it does."""
        location = self._location
        found = [self._short(each.edit.path) for each in self._planned_returns()]
        if location.git is not None and GitHooks(location).record is not None:
            found.append("git hooks")
        if location.files.is_dir() and location.files not in location.folder.parents:
            found.append(f"{location.files.name}/")
        return (*found, f"{self._short(str(location.folder))}/")

    async def remove(self, bank: Bank) -> SetupReport:
        """Take out all that `init` has put in. What the bank knows stays, and what people wrote
        into files goes there first. Raises `NotFound` if there is no project, `Corrupted` if a
        client's file cannot be understood: then nothing is changed. `Unavailable` if something
        cannot be written.
        """
        location = self._location
        settings = initialised(location)
        returns = self._planned_returns()
        with _told_if_unwritable():
            is_safe = await self._take_in(bank)
            for planned in returns:
                if self._record.take_back(planned):
                    self._done.append(f"took it out of {self._short(planned.edit.path)}")
            if location.git is not None and await GitHooks(location).uninstall():
                self._done.append("took the git hooks out")
            if is_safe:
                await self._remove_files(settings)
            else:
                self._left.append(f"{location.files.name}/, because the bank cannot be asked")
            if location.git is not None:
                await remove_driver(location.git)
            _remove_folder(location.folder)
            if location.git is None:
                _remove_if_empty(location.files)
            with suppress(OSError):  # then `perdure uninstall` finds nothing there
                trees = [] if location.git is None else await location.git.worktrees()
                unlist_projects((location.root, *trees))
            self._notes.append("What the bank knows stays: `perdure project init` finds it again.")
            return self._report(settings)

    async def _take_in(self, bank: Bank) -> bool:
        """Whether the bank has all that the files say. The index of the repository's files goes."""
        try:
            if not await bank.store.adapter.exists():
                return False
            async with bank.looked_at():
                project = bank.project(self._location.root)
                await project.refresh()
                if (self._location.files / TASK_FILE).exists():
                    await sync_tasks(project.tasks)
                await forget_files(bank.services, project.id)
        except PerdureError as exc:
            self._notes.append(str(exc))
            return False
        return True

    def _planned_returns(self) -> list[PlannedReturn]:
        """The exclusions last: until then the files are to be ignored."""
        edits = sorted(self._record.all().values(), key=lambda edit: not edit.client)
        return [self._record.plan_back(edit, TAKE_OUT[Path(edit.path).name]) for edit in edits]

    async def _remove_files(self, settings: ProjectSettings) -> None:
        """Files made from the bank. What is under git, and what people put there, stays."""
        git = self._location.git
        trees = [self._location.root] if git is None else await git.worktrees()
        for tree in trees:
            folder = tree / ".perdure"
            here = None if git is None else GitRepository.find(tree)
            listed = await here.try_run("ls-files", "--", ".perdure") if here else ""
            if settings.shared or listed:
                self._left.append(f"{self._short(str(folder))}/, which is under git")
            else:
                self._remove_made(folder)

    def _remove_made(self, folder: Path) -> None:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            self._left.append(f"{self._short(str(folder))}, which is no folder of ours")
            return
        for name in _FILES:
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if folder.is_dir() and not _remove_if_empty(folder):
            self._left.append(f"{self._short(str(folder))}/, where somebody has put files")
        else:
            self._done.append(f"took {self._short(str(folder))}/ out")

    def _report(self, settings: ProjectSettings) -> SetupReport:
        return SetupReport(
            settings.project,
            settings.name,
            str(self._location.root),
            tuple(self._done),
            tuple(self._left),
            tuple(self._notes),
        )


_UNWRITABLE = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR),
}


@contextmanager
def _told_if_unwritable() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        what = str(exc.filename or "The project")
        verb = "cannot be written" if exc.errno in _UNWRITABLE else "cannot be used"
        raise Unavailable(
            f"{what} {verb}: {exc.strerror or exc}.",
            hint="Mend that and run it again: it goes on where it was.",
        ) from exc


#: Files that each work tree has for itself.
_OF_TREES = (".mcp.json", ".codex/hooks.json", ".codex/config.toml")


def main_tree(location: ProjectLocation) -> Path:
    """The main work tree; this one, if the repository has none."""
    git = location.git
    if git is not None and git.common_dir.name == ".git" and git.common_dir != git.git_dir:
        return git.common_dir.parent
    return location.root


def _text_field(text: str | bytes, field: str) -> str:
    """A field of a state file; empty if there is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return ""
    value = found.get(field) if isinstance(found, dict) else None
    return value if isinstance(value, str) else ""


def _remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _remove_if_empty(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return not folder.exists()
    return True
