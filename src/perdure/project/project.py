"""A project: what a bank remembers of one repository, or of a folder without git."""

from __future__ import annotations

import functools
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perdure.core.errors import NotFound, PerdureError
from perdure.project.anchors import AnchorsReport
from perdure.project.git_repository import GitRepository
from perdure.project.project_directory import find_record, register_project
from perdure.project.project_location import ProjectLocation, initialised
from perdure.project.work_sessions import WorkRefresh, WorkSessions
from perdure.recall.memory_records import Anchor
from perdure.services import Services

if TYPE_CHECKING:
    from perdure.project.anchored_entries import AnchoredEntries
    from perdure.project.anchors import Anchors
    from perdure.project.file_index import FileIndex
    from perdure.project.journal import Journal
    from perdure.project.preamble import Preamble
    from perdure.project.project_files import WrittenFiles
    from perdure.project.project_history import ProjectHistory
    from perdure.project.project_state import ProjectState
    from perdure.project.session_files import SessionFiles
    from perdure.project.task_graph import TaskGraph
    from perdure.project.team.team import Team

__all__ = ["Project", "find_project", "initialised"]


#: Seconds that a refresh indexes files for, since somebody may wait for it; the rest is left to the
#: next one, and to `FileIndex.start`.
_INDEXING = 0.4


class ProjectRefresh(msgspec.Struct, frozen=True, kw_only=True):
    """What `Project.refresh` did."""

    history: AnchorsReport = AnchorsReport()
    #: Conversations with new turns, and how many were summarised.
    sessions: tuple[str, ...] = ()
    turns: int = 0
    #: Some are left for the next time.
    more: bool = False
    #: What the files said that the bank did not, in words.
    taken: tuple[str, ...] = ()
    #: What a person should know.
    remarks: tuple[str, ...] = ()


class Project:
    """The memory of a project. Its parts are made when they are first used, and each works without
    the others.
    """

    def __init__(self, services: Services, location: ProjectLocation) -> None:
        """Raises `NotFound` if the project was not initialised, `Corrupted`."""
        self.services = services
        self.location = location
        self.settings = initialised(location)
        #: Work trees of the same repository, by folder.
        self._neighbours: dict[Path, Project] = {}

    @property
    def id(self) -> str:
        return self.settings.project

    @property
    def name(self) -> str:
        return self.settings.name

    async def here(self) -> Anchor:
        """What is checked out in this work tree; without git, the project alone. The commit is
        noted, so that it can be followed when history is rewritten.
        """
        return await self.anchors.here()

    @functools.cached_property
    def anchors(self) -> Anchors:
        from perdure.project.anchored_entries import commits_of
        from perdure.project.anchors import Anchors

        return Anchors(self.services, self.location, entries=lambda: commits_of(self.anchored))

    @functools.cached_property
    def history(self) -> ProjectHistory:
        from perdure.project.project_history import ProjectHistory

        return ProjectHistory(self.services, self.location, self.anchors, lambda: self.anchored)

    @functools.cached_property
    def anchored(self) -> tuple[AnchoredEntries, ...]:
        """The parts that have entries with anchors."""
        from perdure.project.anchored_entries import MemoryEntries, StateEntries, TaskEntries

        return (
            MemoryEntries(self.services, self.location),
            TaskEntries(self.tasks),
            StateEntries(self.services, self.id),
        )

    @functools.cached_property
    def state(self) -> ProjectState:
        from perdure.project.project_state import ProjectState

        note = self.anchors.note
        return ProjectState(self.services, self.location, here=self.here, note_commits=note)

    @functools.cached_property
    def work(self) -> WorkSessions:
        from perdure.project.work_sessions import WorkSessions

        return WorkSessions(self.services, self.location, anchor_at=self.anchor_at)

    @functools.cached_property
    def session_files(self) -> SessionFiles:
        from perdure.project.session_files import SessionFiles

        return SessionFiles(self.work)

    @functools.cached_property
    def journal(self) -> Journal:
        from perdure.project.journal import Journal

        return Journal(self.work)

    @functools.cached_property
    def preamble(self) -> Preamble:
        from perdure.project.preamble import Preamble

        return Preamble(self)

    async def anchor_at(self, folder: Path, moment: int) -> Anchor:
        """What was checked out at a time (microseconds) in the work tree that a folder is in."""
        if folder == self.location.root or self.location.root in folder.parents:
            git = GitRepository.find(folder)
            if git is None or git.root == self.location.root:
                return await self.anchors.at_time(moment)
        known = self._neighbours.get(folder)
        if known is None:
            found = ProjectLocation.find(folder)
            settings = found.settings if found.git is not None else None
            same = settings is not None and settings.project == self.id
            known = self._neighbours[folder] = Project(self.services, found) if same else self
        if known is self:  # a folder that is gone, or of another repository
            return Anchor(repo=self.id)
        return await known.anchors.at_time(moment)

    async def in_this_line(self, commits: Collection[str]) -> set[str]:
        """Those commits that what is checked out goes back to, whatever was rewritten since."""
        head = await self.anchors.position()
        return await self.anchors.true_at(commits, head.commit) if head.commit else set()

    async def waiting_decisions(self) -> list[str]:
        """What somebody has to decide about rewritten history, in words."""
        numbers = await self.anchors.waiting()
        if not numbers:
            return []
        named = ", ".join(str(each) for each in numbers)
        return [f"History was rewritten and waits for a decision ({named}): project reconcile."]

    async def refresh(self, *, asks: bool = False, limit: int = 400) -> ProjectRefresh:
        """Bring the memory level with what happened to the repository, conversations and files.

        Every step can be repeated, and works if another one fails: what failed is in the remarks.
        At most `limit` turns are summarised; `more` tells that some are left. Nothing under git is
        written: see `write_files`.
        """
        remarks: list[str] = []
        history = AnchorsReport()
        try:
            await register_project(self.services, self.location)  # forgetting finds its files
            history = await self.anchors.refresh(asks=asks)
        except PerdureError as exc:
            remarks.append(str(exc))
        found = WorkRefresh()
        try:
            if self.settings.state or self.settings.journal:
                found = await self.work.refresh(limit=limit)
        except PerdureError as exc:
            remarks.append(str(exc))
        remarks += found.remarks
        files = await self._write_files(tracked=not self.settings.shared)
        remarks += files.remarks
        try:
            await self.files.refresh(_INDEXING)
        except PerdureError as exc:
            remarks.append(str(exc))
        return ProjectRefresh(
            history=history,
            sessions=found.sessions,
            turns=found.turns,
            more=found.more,
            taken=files.taken,
            remarks=tuple(remarks),
        )

    async def write_files(self) -> tuple[str, ...]:
        """After a change that somebody asked for: what people changed in the files is merged, and
        the files are written, also those under git. Returns what they should know; a file that
        cannot be written is no error, since the bank has everything.
        """
        return (await self._write_files(tracked=True)).remarks

    async def take_files(self) -> WrittenFiles:
        """Before something is shown: what people or git changed in the files is merged, if a cheap
        look says that there is something. Nothing under git is written.
        """
        from perdure.project.project_files import WrittenFiles, files_changed

        if not await files_changed(self):
            return WrittenFiles()
        return await self._write_files(tracked=not self.settings.shared)

    async def _write_files(self, *, tracked: bool) -> WrittenFiles:
        from perdure.project.project_files import write_project_files

        done = await write_project_files(self, tracked=tracked)
        try:
            await self.preamble.prebuild()
        except PerdureError as exc:
            done = msgspec.structs.replace(done, remarks=(*done.remarks, str(exc)))
        return done

    @functools.cached_property
    def files(self) -> FileIndex:
        from perdure.project.file_index import FileIndex

        return FileIndex(self.services, self.location)

    @functools.cached_property
    def tasks(self) -> TaskGraph:
        from perdure.project.task_graph import TaskGraph

        return TaskGraph(self.services, self.location, note_commits=self.anchors.note)

    @functools.cached_property
    def team(self) -> Team:
        from perdure.project.team.team import Team

        return Team(self.services, self.location, tasks=self.tasks)


async def find_project(services: Services, name: str) -> Project:
    """The project of an id or a name, at the first of its folders that is still there.
    Raises `NotFound`, `InvalidInput`.
    """
    record = await find_record(services, name)
    for root in record.roots:
        location = ProjectLocation.find(Path(root))
        settings = location.settings
        if settings is not None and settings.project == record.id:
            return Project(services, location)
    raise NotFound(
        f"No folder of {record.name!r} is here.",
        hint="Run a command of Perdure in its repository, on this machine.",
    )
