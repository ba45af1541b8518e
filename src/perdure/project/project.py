"""A project: what a bank remembers of one repository, or of a folder without git."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from perdure.core.errors import Unavailable
from perdure.project.project_location import ProjectLocation, initialised
from perdure.recall.memory_records import Anchor
from perdure.services import Services

if TYPE_CHECKING:
    from perdure.project.anchored_entries import AnchoredEntries
    from perdure.project.anchors import Anchors, AnchorsReport
    from perdure.project.file_index import FileIndex
    from perdure.project.project_state import ProjectState
    from perdure.project.task_graph import TaskGraph
    from perdure.project.team.team import Team

__all__ = ["Project", "initialised"]


class Project:
    """The memory of a project. Its parts are made when they are first used, and each works without
    the others.
    """

    def __init__(self, services: Services, location: ProjectLocation) -> None:
        """Raises `NotFound` if the project was not initialised, `Corrupted`."""
        self.services = services
        self.location = location
        self.settings = initialised(location)

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
    def state(self) -> ProjectState:
        from perdure.project.project_state import ProjectState

        return ProjectState(self.services, self.location, here=self.here)

    async def write_files(self) -> tuple[str, ...]:
        """After a change that somebody asked for: what people changed in the files is merged, and
        the files are written. Returns what they should know; a file that cannot be written is no
        error, since the bank has everything.
        """
        try:
            return (await self.state.sync()).remarks if self.settings.state else ()
        except Unavailable as exc:
            return (f"{exc} {exc.hint or ''}".rstrip(),)

    @functools.cached_property
    def anchors(self) -> Anchors:
        from perdure.project.anchored_entries import commits_of
        from perdure.project.anchors import Anchors

        return Anchors(self.services, self.location, entries=lambda: commits_of(self.anchored))

    @functools.cached_property
    def anchored(self) -> tuple[AnchoredEntries, ...]:
        """The parts that have entries with anchors."""
        from perdure.project.anchored_entries import MemoryEntries, TaskEntries

        return MemoryEntries(self.services, self.location), TaskEntries(self.tasks)

    async def refresh(self, *, asks: bool = False) -> AnchorsReport:
        """Take in what happened to the repository: see `Anchors.refresh`."""
        return await self.anchors.refresh(asks=asks)

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
