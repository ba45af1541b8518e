"""The parts of a project as one another sees them: what `Project` gives to those it is made of."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from perdure.project.anchors import Anchors
from perdure.project.journal import Journal
from perdure.project.project_location import ProjectLocation, ProjectSettings
from perdure.project.project_state import ProjectState
from perdure.project.session_files import SessionFiles
from perdure.project.task_graph import TaskGraph
from perdure.project.work_sessions import WorkSessions
from perdure.services import Services


class ProjectParts(Protocol):
    """See `project.Project`."""

    services: Services
    location: ProjectLocation
    settings: ProjectSettings

    @property
    def name(self) -> str: ...
    @property
    def anchors(self) -> Anchors: ...
    @property
    def state(self) -> ProjectState: ...
    @property
    def tasks(self) -> TaskGraph: ...
    @property
    def work(self) -> WorkSessions: ...
    @property
    def session_files(self) -> SessionFiles: ...
    @property
    def journal(self) -> Journal: ...
    async def in_this_line(self, commits: Collection[str]) -> set[str]: ...
    async def waiting_decisions(self) -> list[str]: ...
