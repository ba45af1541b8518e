"""All files of a project for people: merged with the bank, and written where something changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from perdure.core.display import plural
from perdure.core.errors import PerdureError
from perdure.project import journal
from perdure.project.projection_bases import forget_foreign_bases, note_bases
from perdure.project.session_files import here
from perdure.project.state_file import STATE_FILE

if TYPE_CHECKING:
    from perdure.project.project_parts import ProjectParts
    from perdure.project.work_records import WorkSession

#: Which versions of sessions their files have.
_WRITTEN = "written.json"


#: What was taken from files is named, up to so many.
_TOLD = 5


def told_taken(taken: Iterable[str]) -> str:
    """What was taken from the files; of many the first ones."""
    named = [*taken]
    more = [f"{len(named) - _TOLD} more"] if len(named) > _TOLD else []
    return "; ".join([*named[:_TOLD], *more])


class WrittenFiles(msgspec.Struct, frozen=True):
    """What people should know, and what the files said that the bank did not, in words."""

    remarks: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()


async def write_project_files(project: ProjectParts, *, tracked: bool) -> WrittenFiles:
    """Take over what people changed in state, tasks, session files and journal, then write what
    changed; `tracked`: also files that are under git once they are shared.
    """
    remarks: list[str] = []
    taken: list[str] = []
    settings = project.settings
    try:
        if settings.state:
            synced = await project.state.sync(write=tracked)
            remarks += synced.remarks
            taken += synced.taken
        tasks = await _tasks(project, write=tracked)
        remarks += tasks.remarks
        taken += tasks.taken
    except PerdureError as exc:
        remarks.append(str(exc))
    if settings.state or settings.journal:
        try:
            remarks += await _work(project, tracked=tracked)
        except PerdureError as exc:
            remarks.append(str(exc))
    return WrittenFiles(tuple(remarks), tuple(taken))


async def files_changed(project: ProjectParts) -> bool:
    """Whether somebody changed state, tasks or journal since they were written: a cheap look."""
    from perdure.project.task_transfer import tasks_edited

    files = project.state.projections
    names = [*([STATE_FILE] if project.settings.state else []), *files.names(journal.FOLDER)]
    return any(files.is_edited(name) for name in names) or await tasks_edited(project.tasks)


async def _tasks(project: ProjectParts, *, write: bool) -> WrittenFiles:
    """Only if there is a file: `share` and `task sync` make it."""
    from perdure.project.task_transfer import TASK_FILE, sync_tasks

    if not (project.location.files / TASK_FILE).exists():
        return WrittenFiles()
    found = await sync_tasks(project.tasks, write=write)
    number = found.added + found.changed
    return WrittenFiles(found.remarks, (plural(number, "task"),) if number else ())


async def _work(project: ProjectParts, *, tracked: bool) -> list[str]:
    settings, work, remarks = project.settings, project.work, list[str]()
    files = project.state.projections
    async with files.locked():
        await forget_foreign_bases(project.services, project.settings.project, files)
        sessions = here(work, await work.list())
        if settings.state:
            remarks += await project.session_files.merge(sessions)
        if settings.journal:
            await project.journal.merge(sessions, shared=settings.shared)
        sessions = here(work, await work.list())
        written = _versions(files.read(_WRITTEN).base)
        if settings.state:
            stale = _stale(sessions, written.get("sessions", {}))
            await project.session_files.write(stale)
            written["sessions"] = {each.session: each.version for each in sessions}
        if settings.journal and (tracked or not settings.shared):
            await project.journal.write(_stale(sessions, written.get("journal", {})))
            written["journal"] = {each.session: each.version for each in sessions}
        text = msgspec.json.encode(written, order="sorted").decode()
        if files.read(_WRITTEN).base != text:
            files.note(_WRITTEN, text)
        await note_bases(project.services, project.settings.project, files)
    return remarks


def _stale(sessions: Sequence[WorkSession], written: dict[str, int]) -> list[WorkSession]:
    return [each for each in sessions if written.get(each.session) != each.version]


def _versions(text: str | None) -> dict[str, dict[str, int]]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, dict[str, int]])
    except msgspec.DecodeError:
        return {}  # all of them are written anew
