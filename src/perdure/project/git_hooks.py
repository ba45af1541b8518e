"""Git hooks of a project: put in, taken out, and proven to work.

===========================  =====================================================================
what is there                what is done
===========================  =====================================================================
git 2.54 or newer            hooks in the configuration, beside all others; no file is touched
no hook of that name         a file of our own in ``<git common dir>/hooks``
a shell script               our block behind its first line; the rest runs as before
any other program, a link,   ``core.hooksPath`` names a folder of ours, whose hooks run those of
or ``core.hooksPath`` is     the old one at their place; nothing there is touched: it may be
set (husky, a team's folder) tracked, or shared by all repositories
===========================  =====================================================================

What was done is written down in ``hooks.json`` before it is done, so that taking out puts back
what was there, byte for byte, also after a crash in between. What somebody changed meanwhile stays.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from pathlib import Path

import msgspec

from perdure.core.errors import Corrupted, Unavailable
from perdure.project import git_hook_script as script
from perdure.project.git_repository import GitRepository, clean_environment
from perdure.project.hook_spool import HookSpool
from perdure.project.project_location import ProjectLocation, write_atomically

_RECORD = "hooks.json"
_CONFIG_HOOKS = (2, 54)
_EXECUTABLE = 0o755
#: Seconds that a hook gets when it is tried.
_PATIENCE = 20.0


class HooksRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was done to put the hooks in."""

    #: ``files``, ``path`` (core.hooksPath) or ``config``.
    way: str
    #: Scripts that have our block now, and files that are ours.
    inserted: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    made_folder: bool = False
    #: The hooks' folder that stands behind ours.
    behind: str = ""
    #: Whether core.hooksPath was set in the repository itself, and not for the user.
    was_local: bool = False
    #: The repository's configuration before and after, to put it back byte for byte.
    config_before: bytes = b""
    config_after: bytes = b""


class HookTrial(msgspec.Struct, frozen=True):
    """Whether the hooks of one work tree write to the spool; if not, why."""

    worktree: str
    ok: bool
    reason: str = ""


class GitHooks:
    """The hooks of a repository, shared by its work trees."""

    def __init__(self, location: ProjectLocation) -> None:
        """Raises `Unavailable` without git."""
        if location.git is None:
            raise Unavailable(
                f"{location.root} is not under git.", hint="Hooks need a git repository."
            )
        self._git: GitRepository = location.git
        self._folder = location.folder
        self._hooks = self._git.common_dir / "hooks"
        self._config = self._git.common_dir / "config"
        self.spool = HookSpool(location.folder, "git")

    @property
    def record(self) -> HooksRecord | None:
        """None if no hooks were put in. Raises `Corrupted`."""
        try:
            return msgspec.json.decode((self._folder / _RECORD).read_bytes(), type=HooksRecord)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as exc:
            raise Corrupted(
                f"{self._folder / _RECORD} cannot be read: {exc}.",
                hint="Look into the repository's hooks for blocks that begin with `# >>> perdure`.",
            ) from exc

    async def install(self) -> HooksRecord:
        """Put the hooks in; again after something else has taken them out. Raises `GitFailed`,
        `Unavailable` if a file cannot be written.
        """
        try:
            return await self._install()
        except OSError as exc:
            raise Unavailable(
                f"The git hooks cannot be written: {exc}.",
                hint="Mend the rights of the repository's hooks, or use --no-hooks.",
            ) from exc

    async def _install(self) -> HooksRecord:
        before = self.record
        if before is not None:
            if all(trial.ok for trial in await self.prove()):
                self._write_script()  # that of this version
                return before
            await self.uninstall()
        self._write_script()
        self.spool.make()
        path = await self._git.try_run("config", "--type=path", "core.hooksPath")
        if await git_version(self._git) >= _CONFIG_HOOKS:
            return await self._into_config()
        record = None
        if path is None and not self._hooks.is_symlink():
            record = self._into_files()
        return record or await self._into_path((path or str(self._hooks)).rstrip("\n"))

    async def uninstall(self) -> bool:
        """Put back what was there. False if no hooks were put in. Raises `Corrupted`, `GitFailed`,
        OSError.
        """
        record = self.record
        if record is None:
            return False
        if record.way == "files":
            self._out_of_files(record)
        else:
            await self._out_of_config(record)
            _remove_files(self._folder / "hooks", record.made)
        (self._folder / script.SCRIPT_NAME).unlink(missing_ok=True)
        (self._folder / _RECORD).unlink()
        return True

    def _write_script(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / script.SCRIPT_NAME, script.git_hook_script().encode())

    def _note(self, record: HooksRecord) -> HooksRecord:
        write_atomically(self._folder / _RECORD, msgspec.json.encode(record))
        return record

    # In .git/hooks

    def _into_files(self) -> HooksRecord | None:
        """None if a hook is there that cannot take our block."""
        texts: dict[str, tuple[str, int]] = {}
        made: list[str] = []
        for hook in script.HOOKS:
            path = self._hooks / hook
            own = script.own(hook, "../perdure")
            is_lost = path.is_file() and not path.is_symlink() and _text(path) == own
            if is_lost or not os.path.lexists(path):  # our own, of which the record was lost
                made.append(hook)
                texts[hook] = own, _EXECUTABLE
                continue
            if path.is_symlink() or not os.access(path, os.X_OK):
                return None
            new = script.with_block(_text(path), hook, "../perdure")
            if new is None:
                return None
            texts[hook] = new, path.stat().st_mode
        inserted = tuple(hook for hook in texts if hook not in made)
        record = self._note(
            HooksRecord("files", inserted, tuple(made), made_folder=not self._hooks.is_dir())
        )
        self._hooks.mkdir(exist_ok=True)
        for hook, (text, mode) in texts.items():
            _write_hook(self._hooks / hook, text, mode)
        return record

    def _out_of_files(self, record: HooksRecord) -> None:
        for hook in record.inserted + record.made:
            # pre-commit renames a hook that is there when it comes.
            for path in (self._hooks / hook, self._hooks / f"{hook}.legacy"):
                text = "" if path.is_symlink() or not path.is_file() else _text(path)
                rest = script.without_block(text)
                if rest == text:
                    continue
                if rest == script.SHEBANG and hook in record.made:
                    path.unlink()
                else:  # somebody's own, or somebody has written more into ours: that stays
                    _write_hook(path, rest, path.stat().st_mode)
        if record.made_folder:
            _remove_if_empty(self._hooks)

    # By core.hooksPath

    async def _into_path(self, behind: str) -> HooksRecord:
        was_local = await self._git.try_run("config", "--local", "core.hooksPath") is not None
        folder = self._folder / "hooks"
        names = dict.fromkeys((*script.CLIENT_HOOKS, *_executables(self._git.root / behind)))
        record = HooksRecord(
            "path",
            made=tuple(names),
            behind=behind,
            was_local=was_local,
            config_before=_bytes(self._config),
        )
        self._note(record)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            _write_hook(folder / name, script.chained(name, "..", behind), _EXECUTABLE)
        await self._git.run("config", "--local", "core.hooksPath", str(folder))
        return self._note(
            msgspec.structs.replace(record, config_after=_bytes(self._config)),
        )

    # In the configuration

    async def _into_config(self) -> HooksRecord:
        """Needs git 2.54: tried there only by its documentation."""
        record = self._note(
            HooksRecord("config", made=script.HOOKS, config_before=_bytes(self._config))
        )
        folder = self._folder / "hooks"
        folder.mkdir(parents=True, exist_ok=True)
        for hook in script.HOOKS:
            _write_hook(folder / hook, script.own(hook, ".."), _EXECUTABLE)
            await self._git.run("config", "--local", f"hook.perdure-{hook}.event", hook)
            command = str(folder / hook)
            await self._git.run("config", "--local", f"hook.perdure-{hook}.command", command)
        return self._note(
            msgspec.structs.replace(record, config_after=_bytes(self._config)),
        )

    async def _out_of_config(self, record: HooksRecord) -> None:
        now = _bytes(self._config)
        if now == record.config_before:
            return
        if record.config_after and now == record.config_after:
            _write_config(self._config, record.config_before)
        elif record.way == "config":
            for hook in script.HOOKS:
                name = f"hook.perdure-{hook}"
                await self._git.try_run("config", "--local", "--remove-section", name)
        else:
            path = await self._git.try_run("config", "--local", "core.hooksPath")
            if (path or "").rstrip("\n") != str(self._folder / "hooks"):
                return  # somebody has set another one since
            if record.was_local:
                await self._git.run("config", "--local", "core.hooksPath", record.behind)
            else:
                await self._git.run("config", "--local", "--unset", "core.hooksPath")

    # Proof

    async def prove(self) -> list[HookTrial]:
        """Let git fire a hook in each work tree, and look for its line in the spool. Hooks of
        others are not run: ours ends before them.
        """
        record = self.record
        if record is None:
            return []
        return [await self._try(tree, record) for tree in await self._git.worktrees()]

    async def _try(self, tree: Path, record: HooksRecord) -> HookTrial:
        repository = GitRepository.find(tree)
        if repository is None:
            return HookTrial(str(tree), False, "its git folder is gone")
        path = await repository.try_run("rev-parse", "--git-path", "hooks") or ""
        for hook in script.HOOKS:
            if record.way == "config":
                file = self._folder / "hooks" / hook
            else:
                file = tree / path.rstrip("\n") / hook
            if script.BEGIN.encode() not in _bytes(file):
                return HookTrial(str(tree), False, f"{file} is not ours, or gone")
            if not os.access(file, os.X_OK):
                return HookTrial(str(tree), False, f"{file} is not executable")
            token = secrets.token_hex(8)
            await _fire(repository, hook, token, file)
            if not await asyncio.to_thread(self._has, token):
                return HookTrial(str(tree), False, f"{hook} wrote nothing into the spool")
        return HookTrial(str(tree), True)

    def _has(self, token: str) -> bool:
        files = [*self.spool.folder.glob("git.*"), self.spool.file]
        return any(token.encode() in _bytes(file) for file in files)


async def git_version(git: GitRepository) -> tuple[int, ...]:
    words = await git.run("version")
    return tuple(int(each) for each in re.findall(r"\d+", words)[:2])


async def _fire(git: GitRepository, hook: str, token: str, file: Path) -> None:
    """As git does it where it can (2.36 and newer), else the file itself."""
    command = ["git", "hook", "run", "--ignore-missing", hook, "--"]
    if await git_version(git) < (2, 36):
        command = [str(file)]
    process = await asyncio.create_subprocess_exec(
        *(*command, *(("0", "0", "1") if hook == "post-checkout" else ())),
        cwd=git.root,
        env=clean_environment() | {script.PROBE: token},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(_PATIENCE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _text(path: Path) -> str:
    """Latin-1 keeps every byte."""
    return path.read_bytes().decode("latin-1")


def _executables(folder: Path) -> list[str]:
    """The hooks in a folder."""
    if not folder.is_dir():
        return []
    return [
        path.name
        for path in folder.iterdir()
        if re.fullmatch(r"[a-z][a-z-]+", path.name) and path.is_file() and os.access(path, os.X_OK)
    ]


def _write_hook(path: Path, text: str, mode: int) -> None:
    """At once: git may run it at any moment."""
    beside = path.with_name(f".{path.name}.perdure-{secrets.token_hex(4)}")
    try:
        beside.write_bytes(text.encode("latin-1"))
        beside.chmod(mode & 0o7777)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _write_config(path: Path, data: bytes) -> None:
    """As git does it: who holds the lock file may replace the configuration."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        file = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, path.stat().st_mode & 0o777)
    except FileExistsError as exc:
        raise Unavailable(
            "Another process is changing the repository's configuration.",
            hint="Try again in a moment.",
        ) from exc
    with os.fdopen(file, "wb") as opened:
        opened.write(data)
    lock.replace(path)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError:
        return b""


def _remove_files(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)
    _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # it is not there, or somebody else uses it
