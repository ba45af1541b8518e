"""The part of ``perdure doctor`` about the project of this folder."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from perdure.cli import terminal
from perdure.cli.diagnosis import Diagnosis
from perdure.core.errors import PerdureError
from perdure.integrations.client_hooks.client_hook_script import SCRIPT_NAME, client_hook_script
from perdure.integrations.client_hooks.hook_failures import read_failures
from perdure.integrations.client_hooks.transcript_import import read_state
from perdure.integrations.client_setup.coding_clients import CLIENTS, TAKE_OUT, ClientPlaces
from perdure.integrations.client_setup.file_edits import EditRecord
from perdure.integrations.client_setup.project_setup import main_tree
from perdure.project.git_hooks import GitHooks
from perdure.project.project_location import ProjectLocation, ProjectSettings

#: Seconds: failures of this time are told, those of this time are a fault, and lines of the spool
#: that nobody has read for so long.
_TOLD, _FRESH, _STALE = 7 * 86_400, 86_400, 3_600
_AGAIN = "Run `perdure project init` again."


class SpoolUse(msgspec.Struct, frozen=True):
    """What lies in a spool."""

    name: str
    bytes: int
    #: Bytes that were not read, and seconds since they were written.
    unread: int
    age: int


async def examine_project(report: Diagnosis, folder: Path) -> None:
    """Says nothing where no project was set up."""
    location = ProjectLocation.find(folder)
    try:
        settings = location.settings
        if settings is None:
            return
        report.add("Project", f"{settings.name} ({settings.project}) at {location.root}")
        report.facts["project"] = {"project": settings.project, "root": str(location.root)}
        await _examine_git_hooks(report, location, settings)
        _examine_clients(report, location, settings)
        _examine_spools(report, location)
        _examine_failures(report, location)
    except PerdureError as exc:
        report.add_fault("Project", exc)


async def _examine_git_hooks(
    report: Diagnosis, location: ProjectLocation, settings: ProjectSettings
) -> None:
    if location.git is None:
        report.add("Git hooks", "There is no git here.")
        return
    hooks = GitHooks(location)
    if hooks.record is None:
        advice = (
            _AGAIN
            if settings.hooks
            else "They were not wanted: `perdure project init --hooks` puts them in."
        )
        report.add("Git hooks", "None were put in.", advice=advice)
        return
    trials = await hooks.prove()
    report.facts["project"]["git_hooks"] = trials
    for trial in trials:
        what = f"They fire in {trial.worktree}"
        if not trial.ok:
            what = f"They do not work in {trial.worktree}: {trial.reason}."
        report.add("Git hooks", what, ok=trial.ok, advice="" if trial.ok else _AGAIN)


def _examine_clients(
    report: Diagnosis, location: ProjectLocation, settings: ProjectSettings
) -> None:
    script = location.folder / SCRIPT_NAME
    if settings.clients and (
        not script.is_file() or script.read_bytes() != client_hook_script().encode()
    ):
        what = f"{script} is not of this installation, or gone."
        report.add("Client hooks", what, ok=False, advice=_AGAIN)
    record = EditRecord(location.folder)
    places = ClientPlaces(location.root, main_tree(location), location.folder, settings.hooks)
    for name in settings.clients:
        client = CLIENTS.get(name)
        if client is None:
            continue
        plans = [
            record.plan(file.path, name, file.put_in, TAKE_OUT[file.path.name])
            for file in client.files(places)
        ]
        old = [plan.edit.path for plan in plans if plan is not None and plan.changes]
        if old:
            what = f"Not as it should be: {', '.join(old)}."
            report.add(client.title, what, ok=False, advice=_AGAIN)
        else:
            report.add(client.title, "It is set up here.", advice=client.note)


def _examine_spools(report: Diagnosis, location: ProjectLocation) -> None:
    state = read_state(location.folder)
    found = [
        _spool_use(location.folder / "spool", "clients", state.position),
        _spool_use(location.folder / "spool", "git", {}),
    ]
    report.facts["project"]["spools"] = found
    clients, git = found
    what = f"{terminal.format_size(clients.bytes)} of clients, {terminal.format_size(git.bytes)}"
    is_late = clients.unread > 0 and clients.age > _STALE
    if is_late:
        hours = terminal.plural(clients.age // 3_600, "hour")
        what = f"{terminal.format_size(clients.unread)} of clients wait for {hours}; {what}"
    advice = "The next turn of a client starts an import; see the failures." if is_late else ""
    report.add("Hook spool", f"{what} of git", ok=not is_late, advice=advice)
    report.facts["project"]["last_import"] = {
        "time": state.time,
        "messages": state.messages,
        "transcripts": state.transcripts,
    }
    if state.time:
        messages = terminal.plural(state.messages, "message")
        report.add("Last import", f"{_moment(state.time)}: {messages} from transcripts")


def _spool_use(folder: Path, name: str, position: dict[str, int]) -> SpoolUse:
    total = unread = 0
    oldest = time.time()
    for path in (folder / name, *folder.glob(f"{name}.*")):
        try:
            status = path.stat()
        except OSError:
            continue
        total += status.st_size
        left = max(status.st_size - position.get(path.name, 0), 0)
        if left:
            unread += left
            oldest = min(oldest, status.st_mtime)
    return SpoolUse(name, total, unread, int(time.time() - oldest) if unread else 0)


def _examine_failures(report: Diagnosis, location: ProjectLocation) -> None:
    now = time.time()
    found = [each for each in read_failures(location.folder) if now - each.time < _TOLD]
    report.facts["project"]["hook_failures"] = {
        "count": len(found),
        "last": found[-1] if found else None,
    }
    if not found:
        report.add("Hook failures", "None in the last seven days")
        return
    last = found[-1]
    what = (
        f"{len(found)} in the last seven days; the last one {_moment(last.time)}, in {last.event}"
        f"{f' of {last.client}' if last.client else ''}: {last.what.rstrip('.')}."
    )
    report.add("Hook failures", what, ok=now - last.time > _FRESH, advice="Clients never see them.")


def _moment(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
