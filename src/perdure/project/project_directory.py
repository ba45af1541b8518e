"""The projects that a bank remembers something of, and the folders where they are."""

from __future__ import annotations

from typing import Annotated

import msgspec

from perdure.core.errors import InvalidInput, NotFound
from perdure.project.project_location import ProjectLocation, initialised
from perdure.services import Services
from perdure.storage.records import Key, system_record
from perdure.storage.transaction import Transaction


@system_record("projects")
class ProjectRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A project of this bank."""

    id: Annotated[str, Key()]
    name: str
    #: Work trees and clones in which it was initialised or used; the last one first.
    roots: tuple[str, ...] = ()
    made: int = 0  # Microseconds.


async def register_project(services: Services, location: ProjectLocation) -> ProjectRecord:
    """Note that a project is at a folder. Raises `NotFound` if it was not initialised."""
    settings = initialised(location)
    root = str(location.root)

    async def register(transaction: Transaction) -> ProjectRecord:
        projects = transaction.collection(ProjectRecord)
        found = await projects.get(settings.project)
        if found is not None and (found.name, *found.roots[:1]) == (settings.name, root):
            return found
        before = () if found is None else found.roots
        made = ProjectRecord(
            id=settings.project,
            name=settings.name,
            roots=(root, *(each for each in before if each != root)),
            made=transaction.now() if found is None else found.made,
        )
        await projects.put(made)
        return made

    return await services.store.transact(register)


async def list_projects(services: Services) -> list[ProjectRecord]:
    found = await services.store.collection(ProjectRecord).query().values()
    return sorted(found, key=lambda each: (each.name, each.id))


async def find_record(services: Services, name: str) -> ProjectRecord:
    """The project of an id or a name. Raises `NotFound`, and `InvalidInput` if several fit."""
    known = [each for each in await list_projects(services) if name in (each.id, each.name)]
    if len(known) > 1:
        ids = ", ".join(each.id for each in known)
        raise InvalidInput(f"There are several projects {name!r}.", hint=f"Name its id: {ids}.")
    if not known:
        raise NotFound(
            f"There is no project {name!r}.", hint="Run `perdure project init` in its repository."
        )
    return known[0]
