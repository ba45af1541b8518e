"""The project that a command means."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings
from perdure.core.errors import NotFound, PerdureError

if TYPE_CHECKING:
    from perdure.project.project import Project
    from perdure.project.project_location import ProjectLocation


FolderOption = Annotated[
    Path, typer.Option("--folder", "-C", metavar="FOLDER", help="A folder of the project.")
]


def project_location(folder: Path) -> ProjectLocation:
    """The project that a folder is in, initialised or not. Raises `NotFound` without the folder."""
    from perdure.project.project_location import ProjectLocation

    if not folder.is_dir():
        raise NotFound(f"There is no folder {folder}.", hint="Name one that is there.")
    return ProjectLocation.find(folder)


@asynccontextmanager
async def project_here(settings: CommandSettings, folder: Path = Path()) -> AsyncIterator[Project]:
    """The project of a folder, in the bank of --bank, else in its own. Without background work.
    Raises `NotFound` if there is none, `Unavailable` if its bank is not there.
    """
    from perdure.project.project import Project, initialised

    location = project_location(folder)
    own = initialised(location)
    settings.bank = settings.bank or own.bank or None
    async with existing_bank(settings) as bank:
        yield Project(bank.services, location)


@asynccontextmanager
async def project_shown(settings: CommandSettings, folder: Path = Path()) -> AsyncIterator[Project]:
    """The same for a command that shows something: it has what people or git changed in the
    project's files, and commits that were rewritten are followed.
    """
    from perdure.project.project_files import told_taken

    async with project_here(settings, folder) as project:
        try:
            found = await project.take_files()
            await project.anchors.refresh(asks=can_ask(settings))
        except PerdureError as exc:  # what is in the bank can be shown
            terminal.note(str(exc))
        else:
            if found.taken:
                terminal.note(f"Took in from the files: {told_taken(found.taken)}.")
            for each in found.remarks:
                terminal.note(each)
        yield project


def can_ask(settings: CommandSettings) -> bool:
    """Whether a person reads what is printed, and can answer."""
    return not settings.json and sys.stdin.isatty()
