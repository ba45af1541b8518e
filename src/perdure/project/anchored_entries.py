"""Entries with anchors: what the parts of a project say of them, so that they can be followed,
listed, and hidden by a rewind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace

from perdure.core.errors import NotFound, PerdureError
from perdure.project.project_location import ProjectLocation
from perdure.project.state_records import EntryStatus, StateEntry, entry_key
from perdure.recall.memory_records import Memory, machine, shown
from perdure.services import Services

if TYPE_CHECKING:
    from perdure.project.task_graph import TaskGraph

_TITLE = 80


class AnchoredEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that was true at a commit."""

    #: ``memory``, ``task``, ``milestone``…
    kind: str
    id: str
    title: str
    commit: str
    branch: str = ""
    #: Microseconds.
    made: int = 0


class AnchoredEntries(Protocol):
    """The entries of one part of a project."""

    @property
    def kind(self) -> str: ...

    async def entries(self) -> list[AnchoredEntry]:
        """All that have an anchor and are not hidden."""
        ...

    async def hide(self, ids: Collection[str], why: str) -> list[str]:
        """Hide these; nothing is deleted. Returns those that it hid."""
        ...

    async def show(self, ids: Collection[str]) -> list[str]:
        """Show what `hide` hid again. Returns those that it could show."""
        ...


class MemoryEntries:
    """Memories that were anchored in this project."""

    kind = "memory"

    def __init__(self, services: Services, location: ProjectLocation) -> None:
        self._services, self._location = services, location

    async def entries(self) -> list[AnchoredEntry]:
        from perdure.project.memory_scope import MemoryScope

        settings = self._location.settings
        scope = await MemoryScope.of_location(self._services, self._location)
        found = []
        for agent in scope.agents:
            query = self._services.store.collection(Memory).query()
            for each in (
                await query.where("agent", "=", agent).where("status", "=", "active").values()
            ):
                anchor = each.anchor
                if anchor and anchor.commit and settings and anchor.repo == settings.project:
                    found.append(
                        AnchoredEntry(
                            kind=self.kind,
                            id=each.id,
                            title=f"{shown(each.id)} {_brief(each.text)}",
                            commit=anchor.commit,
                            branch=anchor.branch,
                            made=each.first,
                        )
                    )
        return found

    async def hide(self, ids: Collection[str], why: str) -> list[str]:
        recall = await self._services.loaded_recall()
        return [id for id in ids if await _done(recall.memories.retire(shown(id), by=machine(why)))]

    async def show(self, ids: Collection[str]) -> list[str]:
        recall = await self._services.loaded_recall()
        author = machine("rewind")
        return [id for id in ids if await _done(recall.memories.restore(shown(id), by=author))]


class TaskEntries:
    """Tasks, at the commit that they were made at. What shows that one is done follows, too."""

    kind = "task"

    def __init__(self, tasks: TaskGraph) -> None:
        self._tasks = tasks

    async def entries(self) -> list[AnchoredEntry]:
        found = []
        for task in await self._tasks.all():
            places = [(task.made_at.commit, task.made_at.branch, "")]
            places += [(e.value, e.branch, "evidence") for e in task.evidence if e.kind == "commit"]
            for commit, branch, what in places:
                # A task that is dropped is hidden.
                if commit and (what or task.state != "dropped"):
                    found.append(
                        AnchoredEntry(
                            kind=what or self.kind,
                            id=task.id,
                            title=f"{task.name} {_brief(task.title)}",
                            commit=commit,
                            branch=branch,
                            made=task.made,
                        )
                    )
        return found

    async def hide(self, ids: Collection[str], why: str) -> list[str]:
        """Open tasks are dropped; those that are done stay: they were done."""
        return [
            task.id
            for task in await self._tasks.named(ids)
            if not task.is_closed
            and await _done(self._tasks.done(task.id, dropped=True, reason=why, by=task.owner))
        ]

    async def show(self, ids: Collection[str]) -> list[str]:
        found = await self._tasks.named(ids)
        return [
            task.id
            for task in found
            if task.state == "dropped" and await _done(self._tasks.reopen(task.id))
        ]


class StateEntries:
    """Goals, milestones, checkpoints and links."""

    kind = "state"

    def __init__(self, services: Services, project: str) -> None:
        self._entries = services.store.collection(StateEntry)
        self._project = project

    async def entries(self) -> list[AnchoredEntry]:
        found = []
        async for each in self._entries.walk(f"{self._project}/"):
            commit = each.commit or each.made_at.commit
            if commit and each.kind != "project" and each.status != "removed":
                found.append(
                    AnchoredEntry(
                        kind=self.kind,
                        id=each.id,
                        title=f"{each.kind} {_brief(each.title)}",
                        commit=commit,
                        branch=each.branch or each.made_at.branch,
                        made=each.made,
                    )
                )
        return found

    async def hide(self, ids: Collection[str], why: str) -> list[str]:
        return [id for id in ids if await self._set(id, "removed")]

    async def show(self, ids: Collection[str]) -> list[str]:
        return [id for id in ids if await self._set(id, "open")]

    async def _set(self, id: str, status: EntryStatus) -> bool:
        """What is done stays done: `closed` says so."""
        key, changed = entry_key(self._project, id), False

        def change(entry: StateEntry | None) -> StateEntry:
            nonlocal changed
            if entry is None:
                raise NotFound(f"There is no entry {id}.", hint="It was deleted.")
            changed = (entry.status == "removed") != (status == "removed")
            after = "done" if status == "open" and entry.closed else status
            return replace(entry, status=after) if changed else entry

        return await _done(self._entries.change(key, change)) and changed


async def all_entries(parts: Iterable[AnchoredEntries]) -> list[AnchoredEntry]:
    return [each for part in parts for each in await part.entries()]


async def commits_of(parts: Sequence[AnchoredEntries]) -> list[str]:
    return [*dict.fromkeys(each.commit for each in await all_entries(parts))]


async def _done(work: Awaitable[object]) -> bool:
    try:
        await work
    except PerdureError:  # changed meanwhile, by somebody who knows better
        return False
    return True


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TITLE else f"{line[: _TITLE - 1]}…"
