"""The checks of ``perdure doctor``. A failing one is reported; the others still run."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from perdure import __version__
from perdure import config as configuration
from perdure.artifacts.artifact_places import S3Address
from perdure.bank import Bank
from perdure.cli import terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings
from perdure.cli.pause_commands import described
from perdure.cli.terminal import ProgressBar
from perdure.config import Config
from perdure.config.pauses import Pauses
from perdure.core.display import install_hint
from perdure.core.errors import PerdureError, Unavailable
from perdure.storage import registry

_LIBRARIES = ("apsw", "msgspec", "obstore", "zstandard")
#: Older ones can damage a database in WAL mode when a checkpoint meets a write.
_SOUND_SQLITE = (3, 51, 3)
#: Seconds the bank gets to answer.
_DEADLINE = 20.0
#: With less than this, the next checkpoint may fail.
_FREE_BYTES = 64_000_000


class FolderUse(msgspec.Struct, frozen=True):
    """What a folder takes on disk."""

    folder: str
    exists: bool
    files: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        if not self.exists:
            return f"{self.folder} (none yet)"
        files = terminal.plural(self.files, "file")
        return f"{self.folder} ({files}, {terminal.format_size(self.bytes)})"


class DiagnosedPart(msgspec.Struct, frozen=True):
    """What was found of one part, and what to do about it."""

    part: str
    ok: bool
    what: str
    advice: str = ""


class Diagnosis:
    """The facts of the JSON object, and one check per part."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.checks: list[DiagnosedPart] = []

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def add(self, part: str, what: str, *, ok: bool = True, advice: str = "") -> None:
        self.checks.append(DiagnosedPart(part, ok, what, advice))

    def add_fault(self, part: str, error: PerdureError) -> None:
        self.add(part, error.message, ok=False, advice=error.hint)


async def diagnose(settings: CommandSettings) -> Diagnosis:
    """Check every part. Raises nothing: errors become faults in the report."""
    report = Diagnosis()
    async with ProgressBar("asking the bank"):
        _examine_libraries(report)
        config = _examine_config(report, settings)
        if config is not None:
            _examine_pause(report)
            await _examine_bank(report, settings, config)
            await asyncio.to_thread(_examine_disk, report, config)
    return report


def _examine_libraries(report: Diagnosis) -> None:
    python = platform.python_version()
    versions: dict[str, str | None] = {"python": python, "perdure": __version__}
    report.facts["versions"] = versions
    report.add("Python", f"{python} on {platform.system()}")
    report.add("Perdure", __version__)
    _examine_sqlite(report, versions)
    optional = f"Only banks on PostgreSQL need it. {install_hint('postgres')}"
    for name in (*_LIBRARIES, "psycopg"):
        versions[name] = found = _version(name)
        is_needed = name in _LIBRARIES
        if found is not None:
            report.add(name, found)
        else:
            advice = "Install perdure again." if is_needed else optional
            report.add(name, "Not installed.", ok=not is_needed, advice=advice)


def _examine_sqlite(report: Diagnosis, versions: dict[str, str | None]) -> None:
    try:
        import apsw
    except ImportError as exc:
        versions["sqlite"] = None
        report.add("SQLite", f"It cannot be loaded: {exc}.", ok=False, advice="Install apsw again.")
        return
    versions["sqlite"] = found = apsw.sqlite_lib_version()
    if tuple(map(int, found.split("."))) >= _SOUND_SQLITE:
        report.add("SQLite", found)
    else:
        needed = ".".join(map(str, _SOUND_SQLITE))
        advice = f"Install an apsw that brings SQLite {needed} or newer."
        report.add("SQLite", f"{found} can damage a bank.", ok=False, advice=advice)


def _examine_config(report: Diagnosis, settings: CommandSettings) -> Config | None:
    file = settings.config or configuration.config_file()
    found = file.is_file()
    report.facts["config"] = {"file": str(file), "found": found}
    report.facts["data_folder"] = str(configuration.data_folder())
    try:
        config = settings.load()
    except PerdureError as exc:
        report.add_fault("Configuration", exc)
        return None
    report.add("Configuration", str(file) if found else f"defaults; there is no {file}")
    report.add("Data folder", str(configuration.data_folder()))
    return config


def _examine_pause(report: Diagnosis) -> None:
    try:
        pause = Pauses().current()
    except PerdureError as exc:
        report.add_fault("Recording", exc)
        return
    report.facts["paused"] = pause is not None
    report.add("Recording", "It is on." if pause is None else described(pause))


async def _examine_bank(report: Diagnosis, settings: CommandSettings, config: Config) -> None:
    facts: dict[str, Any] = {
        "url": registry.shown(config.bank_url()),
        "reachable": False,
        "error": None,
    }
    report.facts["bank"] = facts
    try:
        async with asyncio.timeout(_DEADLINE):
            # One that was named is expected to be there; the usual one is made when it is needed.
            if settings.bank is None and not await Bank(config=config).store.adapter.exists():
                where = registry.location(config.bank_url())
                advice = "Make one with `perdure bank init`."
                report.add("Bank", f"There is none at {where} yet.", advice=advice)
                return
            async with existing_bank(settings, config) as bank:
                found = await bank.info()
    except Exception as exc:  # noqa: BLE001  # whatever is wrong with it belongs in the report
        if settings.debug:
            traceback.print_exc()
        error = _told(exc)
        facts["error"] = terminal.described(error)
        report.add_fault("Bank", error)
        return
    facts.update(
        reachable=True,
        backend=found.backend,
        capabilities=found.capabilities,
        collections=found.collections,
        bytes=sum(each.bytes or 0 for each in found.collections),
    )
    records = terminal.plural(sum(each.rows for each in found.collections), "record")
    report.add("Bank", f"{found.url} ({records}, {terminal.format_size(facts['bytes'])})")


def _examine_disk(report: Diagnosis, config: Config) -> None:
    try:
        folder = Bank(config=config).artifacts.place
    except PerdureError:
        return  # there is no such backend, and the bank's check has said so
    use = folder_use(folder)
    if isinstance(use, S3Address) or isinstance(folder, S3Address):  # both are, then
        report.facts["artifacts"] = str(use)
        report.add("Artifacts", str(use))
        return
    report.facts["artifacts"] = use
    if use.exists and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        advice = "Change its permissions, or set artifacts.folder to another one."
        report.add("Artifacts", f"{folder} may not be read and written.", ok=False, advice=advice)
    else:
        report.add("Artifacts", str(use))
    place = next((parent for parent in (folder, *folder.parents) if parent.is_dir()), Path.cwd())
    free = shutil.disk_usage(place).free
    report.facts["disk"] = {"folder": str(place), "free": free}
    if free >= _FREE_BYTES:
        report.add("Free space", f"{terminal.format_size(free)} in {place}")
    else:
        what = f"Only {terminal.format_size(free)} are left in {place}."
        report.add("Free space", what, ok=False, advice="Make room before anything is written.")


def _told(error: Exception) -> PerdureError:
    if isinstance(error, PerdureError):
        return error
    if isinstance(error, TimeoutError):
        return Unavailable(
            f"The bank did not answer within {_DEADLINE:.0f} seconds.",
            hint="Check that its server runs and can be reached from here.",
        )
    return PerdureError(
        f"{type(error).__name__}: {error}.", hint="Run it with --debug to see where this is from."
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def folder_use(folder: Path | S3Address) -> FolderUse | S3Address:
    """The size of a folder, without files that vanish meanwhile. S3 is not listed: that is slow
    and may cost.
    """
    if isinstance(folder, S3Address):
        return folder
    if not folder.is_dir():
        return FolderUse(str(folder), exists=False)
    files = total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_size
            except OSError:
                continue
            files += 1
    return FolderUse(str(folder), True, files, total)
