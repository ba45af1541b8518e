"""A project: what a bank remembers of one repository, or of a folder without git."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from perdure.project.project_location import ProjectLocation, initialised
from perdure.services import Services

if TYPE_CHECKING:
    from perdure.project.file_index import FileIndex
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

    @functools.cached_property
    def files(self) -> FileIndex:
        from perdure.project.file_index import FileIndex

        return FileIndex(self.services, self.location)

    @functools.cached_property
    def tasks(self) -> TaskGraph:
        from perdure.project.task_graph import TaskGraph

        return TaskGraph(self.services, self.location)

    @functools.cached_property
    def team(self) -> Team:
        from perdure.project.team.team import Team

        return Team(self.services, self.location, tasks=self.tasks)
