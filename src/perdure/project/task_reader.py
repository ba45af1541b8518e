"""Reading the tasks of a project: which are ready, why others are not, what hangs together."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable
from typing import Any

from perdure.core import clock
from perdure.core.errors import InvalidInput, NotFound
from perdure.project.task_records import CLOSED, STATES, Task, TaskState, task_key
from perdure.services import Services
from perdure.storage.collection import Collection

_number = re.compile(r"#?([1-9]\d{0,8})", re.ASCII).fullmatch
_id = re.compile(r"tk_[0-9a-f]{3,12}", re.ASCII).fullmatch


class TaskReader:
    """The tasks of a project in a bank, wherever its folder is. A task is named by ``#12``, its
    id, or its imported name. A claim that has run out is shown as ``ready``.
    """

    def __init__(self, services: Services, project: str) -> None:
        self.services = services
        self.project = project
        self._store = services.store

    async def get(self, name: str | int, /) -> Task:
        """Raises `NotFound`, and `InvalidInput` if an abbreviated id fits several."""
        found = await self._find(self._store.collection(Task), name)
        return found.seen_at(self._store.now())

    async def list(
        self,
        state: TaskState | None = None,
        *,
        owner: str | None = None,
        label: str | None = None,
        limit: int = 0,
    ) -> builtins.list[Task]:
        """By priority, then by age; without a state those that are not closed. 0: all of them."""
        if state is not None and state not in STATES:
            raise InvalidInput(f"There is no state {state!r}.", hint=f"Use {', '.join(STATES)}.")
        states = [state] if state else [each for each in STATES if each not in CLOSED]
        queries = [self._query(each) for each in states if each != "claimed"]
        now = self._store.now()
        if "ready" in states:
            queries.append(self._query("claimed").where("until", "<=", now))
        if "claimed" in states:
            queries.append(self._query("claimed").where("until", ">", now))
        found: builtins.list[Task] = []
        for query in queries:
            asked = query if owner is None else query.where("owner", "=", owner)
            asked = asked.order_by("priority", "number")
            found += await (asked.limit(limit) if label is None and limit else asked).values()
        found = [each.seen_at(now) for each in found if label is None or label in each.labels]
        found.sort(key=_urgency)
        return found[:limit] if limit else found

    async def all(self) -> builtins.list[Task]:
        """Every task, closed or not, by number."""
        tasks = self._store.collection(Task)
        now = self._store.now()
        found = [each.seen_at(now) async for each in tasks.walk(f"{self.project}/")]
        return sorted(found, key=lambda each: each.number)

    async def ready(self, limit: int = 10, *, label: str | None = None) -> builtins.list[Task]:
        """What can be begun now, the most urgent first: nothing that it needs is open, and nobody
        holds it. Two indexed queries, whatever the number of tasks.
        """
        return await self.list("ready", label=label, limit=limit)

    async def why(self, name: str | int, /) -> builtins.list[str]:
        """Why a task cannot be begun, in words; empty if it can."""
        task, now = await self.get(name), self._store.now()
        if task.is_closed:
            return [f"It is {task.state}."]
        words = [f"It is blocked: {task.blocked}"] if task.blocked else []
        for each in await self.named(task.needs):
            if each.is_closed:
                continue
            how = f"{each.state} by {each.owner}" if each.is_held(now) else each.state
            how += f": {each.blocked}" if each.blocked else ""
            words.append(f"It needs {each.name} ({how}): {each.title}")
        if task.is_held(now):
            until = clock.to_datetime(task.until).isoformat(timespec="seconds")
            words.append(f"{task.owner} works on it until {until}.")
        return words

    async def named(self, ids: Iterable[str]) -> builtins.list[Task]:
        """The tasks with these ids; those that are not there are left out."""
        keys = [task_key(self.project, each) for each in ids]
        found = await self._store.collection(Task).get_many(keys)
        now = self._store.now()
        return [each.seen_at(now) for each in found if each is not None]

    async def parts(self, task: Task) -> builtins.list[Task]:
        """The tasks whose parent it is, by number."""
        query = self._store.collection(Task).query().where("project", "=", self.project)
        found = await query.where("parent", "=", task.id).order_by("number").values()
        return [each.seen_at(self._store.now()) for each in found]

    def _query(self, state: TaskState) -> Any:
        tasks = self._store.collection(Task)
        return tasks.query().where("project", "=", self.project).where("state", "=", state)

    async def _find(self, tasks: Collection[Task], name: str | int) -> Task:
        text = str(name).strip()
        query = tasks.query().where("project", "=", self.project)
        if found := _number(text):
            matches = await query.where("number", "=", int(found[1])).values()
        elif _id(text):
            matches = await tasks.query().prefix(task_key(self.project, text)).limit(2).values()
        else:
            matches = await query.where("external", "=", text).limit(2).values() if text else []
        if len(matches) > 1:
            raise InvalidInput(f"{text} fits several tasks.", hint="Write more of the id.")
        if not matches:
            raise NotFound(
                f"There is no task {text or 'without a name'}.",
                hint="`perdure task list` lists them; name one by #12 or by its id.",
            )
        return matches[0]


def _urgency(task: Task) -> tuple[int, int]:
    return task.priority, task.number
