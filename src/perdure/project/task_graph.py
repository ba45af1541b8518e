"""The tasks of a project: which are ready, who works on which, and what waits for what.

``claim`` is a lease in one transaction: of two agents that ask for the same task at the same
moment one gets it. A lease that was not renewed runs out, and the task is ready again. Its token
grows with each claim; who gives a token that is not the present one is refused, however late.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from perdure.core import actors, clock
from perdure.core.errors import Conflict, InvalidInput, LeaseLost, NotFound
from perdure.project.project_location import ProjectLocation, initialised
from perdure.project.task_records import (
    CLOSED,
    LOWEST_PRIORITY,
    STATES,
    Task,
    TaskEvidence,
    TaskNote,
    TaskNumber,
    TaskState,
    new_task_id,
    settled,
    task_key,
)
from perdure.recall.memory_records import Anchor
from perdure.services import Services
from perdure.storage.collection import Collection
from perdure.storage.transaction import Transaction

_number = re.compile(r"#?([1-9]\d{0,8})", re.ASCII).fullmatch
_id = re.compile(r"tk_[0-9a-f]{3,12}", re.ASCII).fullmatch
_MAX_TITLE = 500
#: How long a claim lasts if nothing else is said.
LEASE = "30m"
#: What `edit` may change.
EDITABLE = ("title", "description", "priority", "kind", "labels", "owner", "parent")


class _Refused(Exception):
    """A conflict that trying again would not mend: `Store.transact` repeats a bare `Conflict`."""

    def __init__(self, error: Conflict) -> None:
        self.error = error


class TaskGraph:
    """The tasks of one project. A task is named by ``#12``, its id, or its imported name."""

    def __init__(
        self,
        services: Services,
        location: ProjectLocation,
        *,
        note_commits: Callable[[Sequence[str]], Awaitable[object]] | None = None,
    ) -> None:
        """`note_commits` is told of commits that become evidence, so that they can be followed
        when history is rewritten.
        """
        self._note_commits = note_commits
        self.services = services
        self.location = location
        self.project = initialised(location).project
        self._store = services.store

    # Reading

    async def get(self, name: str | int, /) -> Task:
        """Raises `NotFound`, and `InvalidInput` if an abbreviated id fits several."""
        return await self._find(self._store.collection(Task), name)

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
        found: builtins.list[Task] = []
        for each in states:
            query = self._query(each).order_by("priority", "number")
            if owner is not None:
                query = query.where("owner", "=", owner)
            plain = label is None and limit
            found += await (query.limit(limit) if plain else query).values()
        if label is not None:
            found = [each for each in found if label in each.labels]
        found.sort(key=_urgency)
        return found[:limit] if limit else found

    async def all(self) -> builtins.list[Task]:
        """Every task, closed or not, by number."""
        tasks = self._store.collection(Task)
        found = [each async for each in tasks.walk(f"{self.project}/")]
        return sorted(found, key=lambda each: each.number)

    async def ready(self, limit: int = 10, *, label: str | None = None) -> builtins.list[Task]:
        """What can be begun now, the most urgent first: nothing that it needs is open, and nobody
        holds it. Two indexed queries, whatever the number of tasks.
        """
        query = self._query("ready").order_by("priority", "number")
        found = await (query if label is not None else query.limit(limit)).values()
        late = self._query("claimed").where("until", "<=", self._store.now())
        found += await late.values()
        if label is not None:
            found = [each for each in found if label in each.labels]
        return sorted(found, key=_urgency)[:limit]

    async def why(self, name: str | int, /) -> builtins.list[str]:
        """Why a task cannot be begun, in words; empty if it can."""
        task, now = await self.get(name), self._store.now()
        if task.is_closed:
            return [f"It is {task.state}."]
        words = [f"It is blocked: {task.blocked}"] if task.blocked else []
        for each in await self.named(task.needs):
            if each.is_closed:
                continue
            how = f"{each.state}, by {each.owner}" if each.is_held(now) else each.state
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
        return [each for each in found if each is not None]

    # Changing

    async def add(
        self,
        title: str,
        *,
        description: str = "",
        priority: int = 2,
        kind: str = "task",
        labels: Iterable[str] = (),
        needs: Iterable[str | int] = (),
        parent: str | int | None = None,
        discovered_from: Iterable[str | int] = (),
        owner: str = "",
        by: str = "",
    ) -> Task:
        """Raises `InvalidInput`, `NotFound`."""
        anchor = await self._anchor()

        async def add(transaction: Transaction) -> Task:
            tasks = transaction.collection(Task)
            needed = [await self._find(tasks, each) for each in needs]
            found = [await self._find(tasks, each) for each in discovered_from]
            above = None if parent is None else await self._find(tasks, parent)
            now = transaction.now()
            task = Task(
                key=task_key(self.project, new_task_id()),
                project=self.project,
                number=await next_task_number(transaction, self.project),
                title=_title(title),
                description=description,
                priority=_priority(priority),
                kind=kind,
                labels=tuple(dict.fromkeys(labels)),
                parent=above.id if above else "",
                discovered_from=tuple(dict.fromkeys(each.id for each in found)),
                owner=owner,
                made=now,
                made_by=by or _actor(),
                made_at=anchor,
                changed=now,
            )
            return await self._link(tasks, task, needed)

        return await self._transact(add)

    async def claim(
        self,
        name: str | int | None = None,
        /,
        *,
        by: str = "",
        lease: str | float = LEASE,
        token: int | None = None,
        label: str | None = None,
    ) -> Task:
        """Take a task, or the most urgent that is ready; `token`, of an earlier claim, renews it.
        Keep the token of the result: `done` and `release` check it.

        Raises `Conflict` if somebody holds it or it cannot be begun, `LeaseLost` if the token is
        not the present one, `NotFound` if nothing is ready.
        """
        who, length = by or _actor(), clock.duration(lease)
        if name is not None:
            return await self._transact(
                lambda transaction: self._claim(transaction, name, who, length, token)
            )
        while True:
            waiting = await self.ready(20, label=label)
            for each in waiting:
                try:
                    return await self._transact(
                        lambda transaction, id=each.id: self._claim(  # type: ignore[misc]
                            transaction, id, who, length, None
                        )
                    )
                except Conflict:
                    continue  # somebody was faster
            if not waiting:
                raise NotFound(
                    "No task is ready.", hint="`perdure task list` shows what waits for what."
                )

    async def release(self, name: str | int, /, *, by: str = "", token: int | None = None) -> Task:
        """Give a task back. Raises `Conflict`, `LeaseLost` as `done` does."""

        def release(task: Task, now: int) -> Task:
            self._check_holder(task, by or _actor(), token, now)
            return replace(task, until=0, owner="")

        return await self._change(name, release)

    async def done(
        self,
        name: str | int,
        /,
        *,
        by: str = "",
        token: int | None = None,
        reason: str = "",
        commits: Sequence[str] = (),
        turns: Sequence[str] = (),
        dropped: bool = False,
    ) -> Task:
        """Close a task, with what shows it. What waited only for it becomes ready.

        Raises `Conflict` if another holds it, `LeaseLost` if `token` is not that of the present
        claim, `InvalidInput` if it is closed already.
        """
        who = by or _actor()
        evidence = await self._evidence(who, commits, turns)
        state: TaskState = "dropped" if dropped else "done"

        def close(task: Task, now: int) -> Task:
            if task.is_closed:
                raise InvalidInput(
                    f"{task.name} is {task.state} already.",
                    hint=f"`perdure task reopen {task.number}` opens it again.",
                )
            self._check_holder(task, who, token, now)
            return replace(
                task,
                state=state,
                until=0,
                owner=task.owner or who,
                closed=now,
                reason=reason,
                evidence=_joined(task.evidence, evidence, now),
            )

        return await self._change(name, close)

    async def reopen(self, name: str | int, /) -> Task:
        """Raises `InvalidInput` if it is not closed."""

        def reopen(task: Task, _: int) -> Task:
            if not task.is_closed:
                raise InvalidInput(f"{task.name} is open.", hint="Nothing was changed.")
            return replace(task, state="ready", closed=0, reason="", owner="", until=0)

        return await self._change(name, reopen)

    async def block(
        self, name: str | int, /, *, reason: str = "", on: Iterable[str | int] = ()
    ) -> Task:
        """It cannot go on: for a reason in words, or until other tasks are over. A claim on it
        ends. Raises `InvalidInput` if that would make tasks wait for each other in a circle.
        """
        wanted = builtins.list(on)
        if not reason.strip() and not wanted:
            raise InvalidInput(
                "Say why it is blocked.", hint="Give a reason, or the tasks that it needs: --on."
            )

        async def block(transaction: Transaction) -> Task:
            tasks = transaction.collection(Task)
            task = _open(await self._find(tasks, name))
            needed = [await self._find(tasks, each) for each in wanted]
            now = transaction.now()
            task = replace(task, blocked=reason.strip() or task.blocked, until=0, changed=now)
            return await self._link(tasks, task, needed)

        return await self._transact(block)

    async def unblock(self, name: str | int, /, *, on: Iterable[str | int] = ()) -> Task:
        """The reason is gone; with `on`, it does not need those tasks any more."""
        wanted = builtins.list(on)

        async def unblock(transaction: Transaction) -> Task:
            tasks = transaction.collection(Task)
            task = _open(await self._find(tasks, name))
            if not wanted:
                task = replace(task, blocked="", changed=transaction.now())
                await tasks.put(task := settled(task))
                return task
            for each in wanted:
                other = await self._find(tasks, each)
                if other.id not in task.needs:
                    raise InvalidInput(
                        f"{task.name} does not need {other.name}.",
                        hint=f"`perdure task show {task.number}` lists what it needs.",
                    )
                left = tuple(id for id in other.needed_by if id != task.id)
                await tasks.put(replace(other, needed_by=left))
                task = replace(
                    task,
                    needs=tuple(id for id in task.needs if id != other.id),
                    waits=task.waits - (not other.is_closed),
                    changed=transaction.now(),
                )
            await tasks.put(task := settled(task))
            return task

        return await self._transact(unblock)

    async def edit(self, name: str | int, /, **changes: Any) -> Task:
        """Change some of `EDITABLE`. Raises `InvalidInput`."""
        unknown = [each for each in changes if each not in EDITABLE]
        if unknown:
            raise InvalidInput(
                f"{unknown[0]} cannot be edited.", hint=f"These can: {', '.join(EDITABLE)}."
            )
        if changes.get("parent"):
            changes["parent"] = (await self.get(changes["parent"])).id

        def edit(task: Task, _: int) -> Task:
            edited = replace(task, **changes)
            if edited.parent == task.id:
                raise InvalidInput("A task is not a part of itself.", hint="Name another.")
            return replace(
                edited,
                title=_title(edited.title),
                priority=_priority(edited.priority),
                labels=tuple(dict.fromkeys(edited.labels)),
            )

        return await self._change(name, edit)

    async def note(
        self,
        name: str | int,
        /,
        text: str = "",
        *,
        by: str = "",
        commits: Sequence[str] = (),
        turns: Sequence[str] = (),
    ) -> Task:
        """Add a remark, or evidence, to a task in any state."""
        who = by or _actor()
        evidence = await self._evidence(who, commits, turns)

        def note(task: Task, now: int) -> Task:
            notes = (*task.notes, TaskNote(text.strip(), who, now)) if text.strip() else task.notes
            return replace(task, notes=notes, evidence=_joined(task.evidence, evidence, now))

        return await self._change(name, note)

    # Parts

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

    async def _transact(self, body: Callable[[Transaction], Awaitable[Task]]) -> Task:
        try:
            done = await self._store.transact(body)
            self.location.drop_preambles()
            return done
        except _Refused as refused:
            raise refused.error from None

    async def _change(self, name: str | int, change: Callable[[Task, int], Task]) -> Task:
        """Change one task, and the tasks that wait for it if it was closed or opened."""

        async def body(transaction: Transaction) -> Task:
            tasks, now = transaction.collection(Task), transaction.now()
            before = await self._find(tasks, name)
            after = settled(replace(change(before, now), changed=now))
            await tasks.put(after)
            if before.is_closed != after.is_closed:
                step = -1 if after.is_closed else 1
                keys = [task_key(self.project, each) for each in after.needed_by]
                for other in await tasks.get_many(keys):
                    if other is not None:
                        await tasks.put(settled(replace(other, waits=other.waits + step)))
            return after

        return await self._transact(body)

    async def _link(self, tasks: Collection[Task], task: Task, needed: Iterable[Task]) -> Task:
        """Put the task with further needs. Raises `InvalidInput` for a circle."""
        for other in needed:
            if other.id in task.needs:
                continue
            if way := await self._way(tasks, other, task.id):
                names = " → ".join(each.name for each in (task, *way))
                raise InvalidInput(
                    f"Tasks would wait for each other in a circle: {names}.",
                    hint=f"`perdure task unblock` takes a link away; {task.name} is unchanged.",
                )
            await tasks.put(replace(other, needed_by=(*other.needed_by, task.id)))
            task = replace(
                task, needs=(*task.needs, other.id), waits=task.waits + (not other.is_closed)
            )
        await tasks.put(task := settled(task))
        return task

    async def _way(self, tasks: Collection[Task], start: Task, end: str) -> builtins.list[Task]:
        """From a task along its needs to another. All that is read is checked at the commit, so
        two links that only together make a circle cannot both be written.
        """
        if start.id == end:
            return [start]
        came: dict[str, tuple[Task, str]] = {start.id: (start, "")}
        front = [start]
        while front:
            keys: dict[str, str] = {}
            for each in front:
                keys |= {id: each.id for id in each.needs if id not in came and id not in keys}
            found = await tasks.get_many(task_key(self.project, id) for id in keys)
            front = [each for each in found if each is not None]
            came |= {each.id: (each, keys[each.id]) for each in front}
            if end in came:
                way, id = [], end
                while id:
                    each, id = came[id]
                    way.append(each)
                return way[::-1]
        return []

    async def _claim(
        self, transaction: Transaction, name: str | int, who: str, length: int, token: int | None
    ) -> Task:
        tasks, now = transaction.collection(Task), transaction.now()
        task = await self._find(tasks, name)
        if token is not None:
            self._check_holder(task, who, token, now)
        elif task.is_held(now):
            raise _Refused(_held(task))
        if task.state not in {"ready", "claimed"}:
            raise _Refused(
                Conflict(
                    "tasks",
                    task.key,
                    message=f"{task.name} cannot be begun: it is {task.state}.",
                    hint=f"`perdure task show {task.number}` says why.",
                )
            )
        taken = replace(
            task,
            state="claimed",
            owner=who,
            until=now + length,
            token=task.token if token is not None else task.token + 1,
            changed=now,
        )
        await tasks.put(taken)
        return taken

    def _check_holder(self, task: Task, who: str, token: int | None, now: int) -> None:
        if token is not None and token != task.token:
            raise LeaseLost(
                f"The claim {token} on {task.name} ran out, and {task.owner or 'nobody'} has it"
                f" now (claim {task.token}). Nothing was changed.",
                hint="Take another task: `perdure task ready`. Add what you did as a note.",
            )
        if token is None and task.is_held(now) and task.owner != who:
            raise _Refused(_held(task))

    async def _anchor(self) -> Anchor:
        git = self.location.git
        if git is None:
            return Anchor(repo=self.project)
        head = await git.head()
        if head.commit and self._note_commits is not None:
            await self._note_commits([head.commit])
        return Anchor(repo=self.project, commit=head.commit, branch=head.branch)

    async def _evidence(
        self, who: str, commits: Sequence[str], turns: Sequence[str]
    ) -> tuple[TaskEvidence, ...]:
        git = self.location.git
        if commits and git is None:
            raise InvalidInput(
                "There are no commits here: the folder is in no repository.",
                hint="Leave commits out.",
            )
        found = []
        if commits and git is not None:
            branch = (await git.head()).branch
            whole = [await git.commit(each) for each in commits]
            if self._note_commits is not None:
                await self._note_commits(whole)
            found += [TaskEvidence("commit", each, branch, who) for each in whole]
        return (*found, *(TaskEvidence("turn", each, by=who) for each in turns))


async def next_task_number(transaction: Transaction, project: str, count: int = 1) -> int:
    """The first of so many new numbers."""
    numbers = transaction.collection(TaskNumber)
    found = await numbers.get(project) or TaskNumber(project)
    await numbers.put(TaskNumber(project, found.last + count))
    return found.last + 1


def _urgency(task: Task) -> tuple[int, int]:
    return task.priority, task.number


def _actor() -> str:
    actor = actors.current_actor()
    return actors.system_user() if actor is None else actor.name


def _title(text: str) -> str:
    title = " ".join(text.split())
    if not title or len(title) > _MAX_TITLE:
        raise InvalidInput(
            f"A title has 1 to {_MAX_TITLE} characters.", hint="Put the rest into --description."
        )
    return title


def _priority(priority: int) -> int:
    if not 0 <= priority <= LOWEST_PRIORITY:
        raise InvalidInput(
            f"There is no priority {priority}.", hint="Use 0 (most urgent) to 4; 2 is usual."
        )
    return priority


def _open(task: Task) -> Task:
    if task.is_closed:
        raise InvalidInput(
            f"{task.name} is {task.state}.",
            hint=f"`perdure task reopen {task.number}` opens it again.",
        )
    return task


def _held(task: Task) -> Conflict:
    until = clock.to_datetime(task.until).isoformat(timespec="seconds")
    return Conflict(
        "tasks",
        task.key,
        message=f"{task.name} is claimed by {task.owner} until {until}.",
        hint="Take another: `perdure task ready`. Whoever claimed it gives its token: --token.",
    )


def _joined(
    old: tuple[TaskEvidence, ...], new: Iterable[TaskEvidence], now: int
) -> tuple[TaskEvidence, ...]:
    known = {(each.kind, each.value) for each in old}
    fresh = (replace(each, at=now) for each in new if (each.kind, each.value) not in known)
    return (*old, *fresh)
