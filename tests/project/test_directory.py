"""A bank knows its projects, wherever they moved."""

from __future__ import annotations

from pathlib import Path

import pytest

import perdure
from perdure.core.errors import NotFound
from perdure.project.project import find_project
from perdure.project.project_directory import list_projects, register_project
from perdure.project.project_location import ProjectLocation, ProjectSettings, new_project_id


def make(folder: Path, project: str, name: str) -> ProjectLocation:
    folder.mkdir(parents=True)
    location = ProjectLocation.find(folder)
    location.write_settings(ProjectSettings(project=project, name=name))
    return location


async def test_projects_are_found_where_they_are_now(tmp_path: Path) -> None:
    one, two = new_project_id(), new_project_id()
    async with perdure.open(f"sqlite:///{tmp_path}/memory.db") as bank:
        services = bank.services
        first = make(tmp_path / "one", one, "demo")
        await register_project(services, first)
        await register_project(services, make(tmp_path / "two", two, "other"))
        assert [each.name for each in await list_projects(services)] == ["demo", "other"]

        (tmp_path / "one").rename(tmp_path / "moved")
        with pytest.raises(NotFound, match="No folder"):
            await find_project(services, "demo")
        record = await register_project(services, ProjectLocation.find(tmp_path / "moved"))
        assert record.roots == (str(tmp_path / "moved"), str(tmp_path / "one"))
        for name in ("demo", one):
            assert (await find_project(services, name)).location.root == tmp_path / "moved"

        # Another project is in the folder now: it is not taken for this one.
        (tmp_path / "moved").rename(tmp_path / "away")
        make(tmp_path / "moved", two, "other")
        with pytest.raises(NotFound, match="No folder"):
            await find_project(services, one)
        with pytest.raises(NotFound, match="no project"):
            await find_project(services, "nobody")
