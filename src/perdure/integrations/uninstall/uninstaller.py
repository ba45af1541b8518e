"""Takes Perdure out of a machine, for its user: planned first, then done part by part.

What cannot be taken out is told and left, with the reason; the rest goes. Running it again finds
what is still there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from perdure.bank import Bank
from perdure.config import Config, config_file, data_folder
from perdure.core.errors import PerdureError
from perdure.integrations.client_setup.project_list import (
    listed_projects,
    project_list_file,
)
from perdure.integrations.client_setup.project_setup import ProjectSetup
from perdure.integrations.uninstall.data_removal import DataRemoval, removable_data
from perdure.integrations.uninstall.package_removal import removal_advice
from perdure.integrations.uninstall.user_files import UserFile, mentions, user_files
from perdure.project.project_directory import list_projects
from perdure.project.project_location import ProjectLocation
from perdure.storage import registry

#: Seconds after which a temporary folder belongs to no running program.
_OLD = 86_400.0


class UninstallReport(msgspec.Struct, frozen=True, kw_only=True):
    """What goes, or would go; what stays by intention; what could not be taken out; what the user
    can do next.
    """

    gone: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Uninstaller:
    """Finds what is there, once, and takes it out. With `data`, banks and their artifacts, too."""

    def __init__(self, config: Config, *, data: bool = False) -> None:
        self._config = config
        self._data = data
        self._projects: list[tuple[ProjectLocation, Config, str]] = []
        self._files: list[UserFile] = []
        self._logs: list[Path] = []
        self._banks: list[str] = []
        self._held: list[DataRemoval] = []
        self._gone: list[str] = []
        self._kept: list[str] = []
        self._failed: list[str] = []

    async def look(self, folder: Path) -> UninstallReport:
        """What would be done; `folder` is where the user stands. Changes nothing."""
        await self._look_for_projects(folder)
        try:
            self._files = user_files()
        except PerdureError as exc:
            self._failed.append(str(exc))
        self._logs = [*sorted(data_folder().glob("proxy-*.log")), *_left_behind()]
        self._kept += [
            f"{each}, which a run may still use; when none goes on, delete it by hand"
            for each in _temporary("perdure-run-*")
        ]
        found = await removable_data(self._config, self._banks)
        self._held = found.going
        self._kept += found.elsewhere
        if self._data:
            self._failed += found.refused
        else:
            self._kept += found.refused
            self._kept += [f"{each.what}; --data deletes it" for each in self._held]
        self._kept += [f"{each}, which you wrote" for each in mentions()]
        if config_file().is_file():
            self._kept.append(f"{config_file()}, which you wrote")
        going = [what for _, _, what in self._projects]
        going += [each.what for each in self._files]
        going += [_logs_told(self._logs)] if self._logs else []
        return self._report(going + self.lost)

    @property
    def lost(self) -> list[str]:
        """What nobody can bring back."""
        return [each.what for each in self._held] if self._data else []

    async def run(self) -> UninstallReport:
        """Take out what `look` has found."""
        for location, config, what in self._projects:
            await self._remove_project(location, config, what)
        for file in self._files:
            self._do(file.what, file.work)
        for log in self._logs:
            self._do("", lambda log=log: _remove(log))  # type: ignore[misc]
        if self._logs:
            self._gone.append(_logs_told(self._logs))
        failed = len(self._failed)
        for each in self._held if self._data else ():
            if each.of_all and len(self._failed) > failed:
                self._kept.append(f"{each.what}, because a bank stays")
            else:
                self._do(each.what, each.work)
        if self._data and not self._failed:
            self._do("", lambda: project_list_file().unlink(missing_ok=True))
        self._remove_data_folder()
        return self._report(self._gone)

    # Projects ---------------------------------------------------------------------------------

    async def _look_for_projects(self, folder: Path) -> None:
        known = dict.fromkeys([*listed_projects(), *await self._roots_of_bank()])
        seen = set[Path]()
        for root in dict.fromkeys([*known, ProjectLocation.find(folder).root]):
            try:
                if not root.is_dir():
                    self._kept.append(
                        f"whatever is in {root}, which is not there now: if it was moved, run"
                        " `perdure project remove` in it"
                    )
                    continue
                location = ProjectLocation.find(root)
                settings = location.settings
                if settings is None or location.folder in seen:
                    continue
                parts = ProjectSetup(location).to_remove()
            except PerdureError as exc:
                self._failed.append(f"{root}: {exc}")
                continue
            except OSError as exc:
                self._failed.append(f"{root} cannot be reached: {exc.strerror}.")
                continue
            seen.add(location.folder)
            config = msgspec.structs.replace(self._config, bank=settings.bank or self._config.bank)
            what = f"the project memory of {location.root}: {', '.join(parts)}"
            self._projects.append((location, config, what))
            if root in known:
                self._banks.append(config.bank_url())
            elif settings.bank:
                # Anybody can have written that: the folder may come out of an archive.
                self._kept.append(
                    f"the bank {registry.shown(settings.bank)}, which {root} names: that folder was"
                    " not set up here"
                )

    async def _roots_of_bank(self) -> list[Path]:
        bank = Bank(config=self._config)
        try:
            if not await bank.store.adapter.exists():
                return []
            async with bank.looked_at():
                found = await list_projects(bank.services)
        except PerdureError as exc:
            self._kept.append(f"projects that only the bank knows of: {exc}")
            return []
        return [Path(root) for each in found for root in each.roots]

    async def _remove_project(self, location: ProjectLocation, config: Config, what: str) -> None:
        try:
            report = await ProjectSetup(location).remove(Bank(config=config))
        except PerdureError as exc:
            self._failed.append(f"{location.root}: {exc}")
        except OSError as exc:
            self._failed.append(f"{location.root}: {exc}.")
        else:
            self._gone.append(what)
            self._kept += [f"{location.root}: {each}" for each in report.left]

    # Files ------------------------------------------------------------------------------------

    def _do(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except PerdureError as exc:
            self._failed.append(str(exc))
        except OSError as exc:
            self._failed.append(f"{what or 'The data folder'} stays: {exc}.")
        else:
            self._gone += [what] if what else []

    def _remove_data_folder(self) -> None:
        folder = data_folder()
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if self._data and not self._failed:
                self._kept.append(f"{folder}, where there are other files")

    def _report(self, going: list[str]) -> UninstallReport:
        return UninstallReport(
            gone=tuple(going),
            kept=tuple(self._kept),
            failed=tuple(self._failed),
            notes=(
                "Backups, exports and master keys are where you put them.",
                removal_advice(),
            ),
        )


def _left_behind() -> list[Path]:
    """Copies that programs which were killed read from."""
    return [path for path, age in _temporary("perdure-import-*").items() if age > _OLD]


def _temporary(pattern: str) -> dict[Path, float]:
    """Temporary folders of this user, with their age in seconds."""
    found = {}
    for path in sorted(Path(tempfile.gettempdir()).glob(pattern)):
        try:
            known = path.lstat()
        except OSError:
            continue
        if known.st_uid == os.getuid():
            found[path] = time.time() - known.st_mtime
    return found


def _logs_told(logs: list[Path]) -> str:
    folders = dict.fromkeys(str(each.parent) for each in logs)
    return f"logs and temporary files in {', '.join(folders)} ({len(logs)})"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
