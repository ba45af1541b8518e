"""The tasks of a project: which are ready, who works on which, and what waits for what.

``claim`` is a lease in one transaction: of two agents that ask for the same task at the same
moment one gets it. A lease that was not renewed runs out, and the task is ready again. Its token
grows with each claim; who gives a token that is not the present one is refused, however late.
"""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from perdure.core import actors, clock
from perdure.core.errors import Conflict, InvalidInput, LeaseLost, NotFound
from perdure.project.project_location import ProjectLocation, initialised
from perdure.project.task_reader import TaskReader
from perdure.project.task_records import (
    LOWEST_PRIORITY,
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

_MAX_TITLE = 500
#: Tasks that an error about a circle names.
_MOST_NAMED = 8
#: How long a claim lasts if nothing else is said.
LEASE = "30m"
#: What `edit` may change.
EDITABLE = ("title", "description", "priority", "kind", "labels", "owner", "parent")


class _Refused(Exception):
    """A conflict that trying again would not mend: `Store.transact` repeats a bare `Conflict`."""

    def __init__(self, error: Conflict) -> None:
        self.error = error


class TaskGraph(TaskReader):
    """The tasks of one project, in its folder: commits are evidence, and what is added is anchored
    at the one that is checked out.
    """

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
        super().__init__(services, initialised(location).project)
        self.location = location
        self._note_commits = note_commits

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
        """Give a task back. Raises `Conflict`, `LeaseLost` as `done` does, and `InvalidInput` if
        nobody has claimed it.
        """

        def release(task: Task, now: int) -> Task:
            if task.state != "claimed":
                raise InvalidInput(
                    f"{task.name} is {task.state}: nobody has claimed it.",
                    hint="Nothing was changed.",
                )
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
        self,
        name: str | int,
        /,
        *,
        reason: str = "",
        on: Iterable[str | int] = (),
        by: str = "",
        token: int | None = None,
    ) -> Task:
        """It cannot go on: for a reason in words, or until other tasks are over. The claim of who
        says so ends. Raises `InvalidInput` if that would make tasks wait for each other in a
        circle, and `Conflict` or `LeaseLost` as `done` does.
        """
        wanted = builtins.list(on)
        if not reason.strip() and not wanted:
            raise InvalidInput(
                "Say why it is blocked.", hint="Give a reason, or the tasks that it needs."
            )

        async def block(transaction: Transaction) -> Task:
            tasks = transaction.collection(Task)
            task = _open(await self._find(tasks, name))
            needed = [await self._find(tasks, each) for each in wanted]
            now = transaction.now()
            self._check_holder(task, by or _actor(), token, now)
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
        if unknown or not changes:
            what = f"{unknown[0]} cannot be edited" if unknown else "Nothing is to be changed"
            raise InvalidInput(f"{what}.", hint=f"These can be edited: {', '.join(EDITABLE)}.")

        async def edit(transaction: Transaction) -> Task:
            tasks = transaction.collection(Task)
            task = await self._find(tasks, name)
            edited = replace(task, changed=transaction.now(), **changes)
            if edited.parent and edited.parent != task.parent:
                edited = replace(edited, parent=(await self._find(tasks, edited.parent)).id)
                await self._check_parent(tasks, edited)
            edited = replace(
                edited,
                title=_title(edited.title),
                priority=_priority(edited.priority),
                labels=tuple(dict.fromkeys(edited.labels)),
            )
            await tasks.put(edited)
            return edited

        return await self._transact(edit)

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
        """Add a remark, or evidence, to a task in any state. Raises `InvalidInput`."""
        if not (text.strip() or commits or turns):
            raise InvalidInput("There is nothing to note.", hint="Give a text, a commit or a turn.")
        who = by or _actor()
        evidence = await self._evidence(who, commits, turns)

        def note(task: Task, now: int) -> Task:
            notes = (*task.notes, TaskNote(text.strip(), who, now)) if text.strip() else task.notes
            return replace(task, notes=notes, evidence=_joined(task.evidence, evidence, now))

        return await self._change(name, note)

    # Parts

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
        """Put the task with further needs. Raises `InvalidInput` for a circle: there can be one
        only if something needs the task already.
        """
        for other in needed:
            if other.id in task.needs:
                continue
            is_needed = task.needed_by or other.id == task.id
            if is_needed and (way := await self._way(tasks, other, task.id)):
                names = [each.name for each in (task, *way)]
                if len(names) > _MOST_NAMED:
                    names = [*names[: _MOST_NAMED // 2], "…", *names[-_MOST_NAMED // 2 :]]
                raise InvalidInput(
                    f"Tasks would wait for each other in a circle: {' → '.join(names)}.",
                    hint=f"`perdure task unblock` takes a link away; {task.name} is unchanged.",
                )
            await tasks.put(replace(other, needed_by=(*other.needed_by, task.id)))
            task = replace(
                task, needs=(*task.needs, other.id), waits=task.waits + (not other.is_closed)
            )
        await tasks.put(task := settled(task))
        return task

    async def _check_parent(self, tasks: Collection[Task], task: Task) -> None:
        above: Task | None = task
        while above is not None and above.parent:
            above = await tasks.get(task_key(self.project, above.parent))
            if above is not None and above.id == task.id:
                raise InvalidInput(
                    f"{task.name} would be a part of itself.", hint="Name another parent."
                )

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
                f"Claim {token} on {task.name} does not hold: {task.owner or 'nobody'} has it now"
                f" (claim {task.token}). Nothing was changed.",
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
        hint="Take another: `perdure task ready`. Whoever claimed it gives its token.",
    )


def _joined(
    old: tuple[TaskEvidence, ...], new: Iterable[TaskEvidence], now: int
) -> tuple[TaskEvidence, ...]:
    known = {(each.kind, each.value) for each in old}
    fresh = (replace(each, at=now) for each in new if (each.kind, each.value) not in known)
    return (*old, *fresh)
