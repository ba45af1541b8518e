"""``perdure task``: the tasks of a project, for people and agents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from perdure.cli import readable, terminal
from perdure.cli.command_options import CommandSettings, LimitOption
from perdure.cli.project_access import FolderOption, project_here, project_shown
from perdure.core.display import plural

if TYPE_CHECKING:
    from perdure.project.task_records import Task, TaskState
    from perdure.project.task_transfer import TaskImport

TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="Its number, #12, or its id.")]
AsOption = Annotated[
    str, typer.Option("--as", metavar="NAME", help="Who you are; your user name if left out.")
]
TokenOption = Annotated[
    int | None, typer.Option("--token", help="The token that your claim returned.")
]
CommitsOption = Annotated[
    list[str] | None, typer.Option("--commit", help="A commit that shows it. May be repeated.")
]
TurnsOption = Annotated[
    list[str] | None,
    typer.Option("--turn", help="A turn that shows it: planner/auth#T-12. May be repeated."),
]
LabelsOption = Annotated[
    list[str] | None, typer.Option("--label", "-l", help="A label. May be repeated.")
]
PriorityOption = Annotated[int, typer.Option("--priority", "-p", help="0, most urgent, to 4.")]
NeedsOption = Annotated[
    list[str] | None, typer.Option("--needs", help="A task that comes first. May be repeated.")
]


async def add(
    settings: CommandSettings,
    title: Annotated[str, typer.Argument(metavar="TITLE", help="What is to be done.")],
    *,
    description: Annotated[str, typer.Option("--description", "-d", help="More about it.")] = "",
    priority: PriorityOption = 2,
    kind: Annotated[str, typer.Option("--kind", help="task, bug, feature, epic…")] = "task",
    label: LabelsOption = None,
    needs: NeedsOption = None,
    parent: Annotated[str | None, typer.Option("--parent", help="The task it is part of.")] = None,
    found_in: Annotated[
        list[str] | None,
        typer.Option("--discovered-from", help="The task during which it was found."),
    ] = None,
    owner: Annotated[str, typer.Option("--owner", help="Who is to do it.")] = "",
    by: AsOption = "",
    folder: FolderOption = Path(),
) -> None:
    """Add a task."""
    async with project_here(settings, folder) as project:
        task = await project.tasks.add(
            title,
            description=description,
            priority=priority,
            kind=kind,
            labels=label or (),
            needs=needs or (),
            parent=parent,
            discovered_from=found_in or (),
            owner=owner,
            by=by,
        )
        shared = project.settings.shared
    _tell(settings, task, f"{task.name} is added ({task.state}): {task.title}")
    if shared:
        terminal.note("Before you commit, `perdure task sync` writes it into .perdure/tasks.jsonl.")


async def list_(
    settings: CommandSettings,
    *,
    state: Annotated[
        str | None,
        typer.Option(
            "--state", help="Only ready, claimed, waiting, blocked, done or dropped ones."
        ),
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only theirs.")] = None,
    label: Annotated[str | None, typer.Option("--label", "-l", help="Only with it.")] = None,
    limit: LimitOption = 50,
    folder: FolderOption = Path(),
) -> None:
    """List tasks that are not closed, the most urgent first."""
    async with project_shown(settings, folder) as project:
        found = await project.tasks.list(
            cast("TaskState | None", state), owner=owner, label=label, limit=limit
        )
    _table(settings, found, "There are no such tasks.")


async def ready(
    settings: CommandSettings,
    *,
    label: Annotated[str | None, typer.Option("--label", "-l", help="Only with it.")] = None,
    limit: LimitOption = 10,
    folder: FolderOption = Path(),
) -> None:
    """List what can be begun now, the most urgent first."""
    async with project_shown(settings, folder) as project:
        found = await project.tasks.ready(limit, label=label)
    _table(settings, found, "No task is ready. `perdure task list` shows what waits.")


async def claim(
    settings: CommandSettings,
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="The most urgent ready one if left out.")
    ] = None,
    *,
    by: AsOption = "",
    lease: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long it is yours: 30m, 2h.")
    ] = "30m",
    token: Annotated[
        int | None, typer.Option("--token", help="Of your claim: renews it instead.")
    ] = None,
    label: Annotated[str | None, typer.Option("--label", "-l", help="Only with it.")] = None,
    folder: FolderOption = Path(),
) -> None:
    """Take a task, so that nobody else does.

    Claim it again with its token to keep it longer.
    """
    async with project_here(settings, folder) as project:
        taken = await project.tasks.claim(task, by=by, lease=lease, token=token, label=label)
    until = readable.absolute_time(taken.until)
    _tell(
        settings, taken, f"{taken.name} is yours until {until}, token {taken.token}: {taken.title}"
    )


async def release(
    settings: CommandSettings,
    task: TaskArgument,
    *,
    by: AsOption = "",
    token: TokenOption = None,
    folder: FolderOption = Path(),
) -> None:
    """Give a task back that you claimed."""
    async with project_here(settings, folder) as project:
        found = await project.tasks.release(task, by=by, token=token)
    _tell(settings, found, f"{found.name} is {found.state}: {found.title}")


async def done(
    settings: CommandSettings,
    task: TaskArgument,
    *,
    reason: Annotated[str, typer.Option("--reason", "-r", help="What came out of it.")] = "",
    commit: CommitsOption = None,
    turn: TurnsOption = None,
    drop: Annotated[bool, typer.Option("--drop", help="It is not done, and will not be.")] = False,
    by: AsOption = "",
    token: TokenOption = None,
    folder: FolderOption = Path(),
) -> None:
    """Close a task; what waited only for it is ready then."""
    async with project_here(settings, folder) as project:
        graph = project.tasks
        closed = await graph.done(
            task,
            by=by,
            token=token,
            reason=reason,
            commits=commit or (),
            turns=turn or (),
            dropped=drop,
        )
        freed = [each for each in await graph.named(closed.needed_by) if each.state == "ready"]
    if settings.json:
        terminal.emit({**task_json(closed), "now_ready": [task_json(each) for each in freed]})
        return
    terminal.say(f"{closed.name} is {closed.state}: {closed.title}")
    for each in freed:
        terminal.say(f"{each.name} is ready now: {each.title}")


async def block(
    settings: CommandSettings,
    task: TaskArgument,
    reason: Annotated[str, typer.Argument(metavar="[REASON]", help="What it waits for.")] = "",
    *,
    on: Annotated[
        list[str] | None, typer.Option("--on", help="A task that comes first. May be repeated.")
    ] = None,
    by: AsOption = "",
    token: TokenOption = None,
    folder: FolderOption = Path(),
) -> None:
    """Say that a task cannot go on: why, or until which tasks are over.

    Your claim on it ends.
    """
    async with project_here(settings, folder) as project:
        found = await project.tasks.block(task, reason=reason, on=on or (), by=by, token=token)
    _tell(settings, found, f"{found.name} is {found.state}: {found.title}")


async def unblock(
    settings: CommandSettings,
    task: TaskArgument,
    *,
    on: Annotated[
        list[str] | None, typer.Option("--on", help="A task that it does not need any more.")
    ] = None,
    folder: FolderOption = Path(),
) -> None:
    """Take away the reason, or a task that it needed."""
    async with project_here(settings, folder) as project:
        found = await project.tasks.unblock(task, on=on or ())
    _tell(settings, found, f"{found.name} is {found.state}: {found.title}")


async def edit(
    settings: CommandSettings,
    task: TaskArgument,
    *,
    title: Annotated[str | None, typer.Option("--title", help="Another title.")] = None,
    description: Annotated[
        str | None, typer.Option("--description", "-d", help="Another description.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", "-p", help="0, most urgent, to 4.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Another kind.")] = None,
    label: LabelsOption = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Who is to do it.")] = None,
    parent: Annotated[str | None, typer.Option("--parent", help="The task it is part of.")] = None,
    folder: FolderOption = Path(),
) -> None:
    """Change a task; what you do not name stays. Labels are replaced."""
    given = {
        "title": title,
        "description": description,
        "priority": priority,
        "kind": kind,
        "labels": None if label is None else tuple(label),
        "owner": owner,
        "parent": parent,
    }
    changes = {field: value for field, value in given.items() if value is not None}
    async with project_here(settings, folder) as project:
        found = await project.tasks.edit(task, **changes)
    _tell(settings, found, f"{found.name} is changed: {found.title}")


async def reopen(
    settings: CommandSettings, task: TaskArgument, *, folder: FolderOption = Path()
) -> None:
    """Open a task again that was closed."""
    async with project_here(settings, folder) as project:
        found = await project.tasks.reopen(task)
    _tell(settings, found, f"{found.name} is {found.state}: {found.title}")


async def note(
    settings: CommandSettings,
    task: TaskArgument,
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help="A remark.")] = "",
    *,
    commit: CommitsOption = None,
    turn: TurnsOption = None,
    by: AsOption = "",
    folder: FolderOption = Path(),
) -> None:
    """Add a remark to a task, or evidence: commits, turns."""
    async with project_here(settings, folder) as project:
        found = await project.tasks.note(task, text, by=by, commits=commit or (), turns=turn or ())
    _tell(
        settings,
        found,
        f"{found.name} has {plural(len(found.notes), 'note')}"
        f" and {len(found.evidence)} of evidence.",
    )


async def show(
    settings: CommandSettings, task: TaskArgument, *, folder: FolderOption = Path()
) -> None:
    """Show a task: why it waits, what needs it, what shows that it was done."""
    async with project_here(settings, folder) as project:
        graph = project.tasks
        found = await graph.get(task)
        why = await graph.why(task)
        others = {
            "parent": await graph.named([found.parent] if found.parent else []),
            "parts": await graph.parts(found),
            "needs": await graph.named(found.needs),
            "needed_by": await graph.named(found.needed_by),
            "discovered_from": await graph.named(found.discovered_from),
        }
        shown = {each.value for each in found.evidence if each.kind == "commit"}
        places = await project.anchors.where(shown)
    if settings.json:
        listed = {name: [task_json(each) for each in tasks] for name, tasks in others.items()}
        moved = {commit: now for commit, now in places.items() if now != commit}
        terminal.emit(
            {**task_json(found), **listed, "parent": found.parent, "why": why, "moved": moved}
        )
        return
    owner = f", {found.owner}" if found.owner else ""
    terminal.say(f"{found.name} ({found.state}, priority {found.priority}{owner}): {found.title}")
    terminal.note(f"{found.id} · {found.kind}" + "".join(f" · {each}" for each in found.labels))
    if found.description:
        terminal.verbatim(terminal.lines(found.description))
    for field, value in found.extra.items():
        if isinstance(value, str) and value.strip():
            terminal.verbatim(terminal.lines(f"{field}: {value}"))
    for line in why:
        terminal.say(line)
    headings = ("Part of", "Part", "Needs", "Needed by", "Found in")
    for heading, tasks in zip(headings, others.values(), strict=True):
        for each in tasks:
            terminal.say(f"{heading} {each.name} ({each.state}): {each.title}")
    for evidence in found.evidence:
        where = f" on {evidence.branch}" if evidence.branch else ""
        terminal.say(f"Evidence: {evidence.kind} {evidence.value}{where}")
        now = places.get(evidence.value, evidence.value)
        if evidence.kind == "commit" and now != evidence.value:
            terminal.say(f"  History was rewritten: it is {now} now." if now else "  It is gone.")
    for remark in found.notes:
        terminal.say(f"{remark.by or 'Note'}: {remark.text}")
    if found.reason:
        terminal.say(f"Closed: {found.reason}")


async def graph(
    settings: CommandSettings,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Closed tasks, too.")] = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid flowchart.")] = False,
    folder: FolderOption = Path(),
) -> None:
    """Show what waits for what: each task behind those that it needs."""
    from perdure.project.task_order import ranks

    async with project_here(settings, folder) as project:
        found = await project.tasks.all()
    shown = {each.id: each for each in found if everything or not each.is_closed}
    needs = {id: [n for n in task.needs if n in shown] for id, task in shown.items()}
    order = ranks(needs)
    links = [(shown[need], shown[id]) for id in shown for need in needs[id]]
    if settings.json:
        terminal.emit(
            {
                "tasks": [{**task_json(each), "rank": order[id]} for id, each in shown.items()],
                "links": [{"from": one.id, "to": other.id} for one, other in links],
            }
        )
        return
    if mermaid:
        lines = [
            f'  t{each.number}["{each.name} {_quoted(each.title)}"]' for each in shown.values()
        ]
        lines += [f"  t{one.number} --> t{other.number}" for one, other in links]
        terminal.verbatim(["flowchart TD", *lines])
        return
    for id, each in sorted(shown.items(), key=lambda item: (order[item[0]], item[1].number)):
        behind = ", ".join(shown[need].name for need in needs[id])
        after = f" after {behind}" if behind else ""
        terminal.say(f"{'  ' * min(order[id], 20)}{each.name} ({each.state}) {each.title}{after}")
    if not shown:
        terminal.say("There are no open tasks.")


async def import_(
    settings: CommandSettings,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Ours, or .beads/issues.jsonl.", allow_dash=True),
    ],
    *,
    folder: FolderOption = Path(),
) -> None:
    """Add tasks from JSON lines, also of beads. The same file again changes nothing."""
    from perdure.core.errors import InvalidInput
    from perdure.project.task_transfer import import_tasks

    try:
        stdin = typer.get_text_stream("stdin") if str(file) == "-" else None
        text = stdin.read() if stdin else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"{file} cannot be read: {exc}.", hint="Check the name.") from exc
    async with project_here(settings, folder) as project:
        report = await import_tasks(project.tasks, text)
    _report(settings, report)


async def export(
    settings: CommandSettings,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Printed if left out.")
    ] = None,
    *,
    folder: FolderOption = Path(),
) -> None:
    """Write all tasks as JSON lines, sorted by id."""
    from perdure.core.errors import Unavailable
    from perdure.project.project_location import write_atomically
    from perdure.project.task_transfer import export_tasks

    async with project_here(settings, folder) as project:
        text = await export_tasks(project.tasks)
    count = text.count("\n")
    if file is not None:
        try:
            write_atomically(file.absolute(), text.encode())
        except OSError as exc:
            raise Unavailable(
                f"{file} cannot be written: {exc.strerror}.", hint="Name another file."
            ) from exc
    if settings.json:
        terminal.emit({"tasks": count, "file": None if file is None else str(file)})
    elif file is None:
        typer.echo(text, nl=False)
    else:
        terminal.say(f"{plural(count, 'task')} in {file}.")


async def sync(settings: CommandSettings, *, folder: FolderOption = Path()) -> None:
    """Make .perdure/tasks.jsonl and the bank the same.

    What changed on both sides is merged.
    """
    from perdure.project.task_transfer import sync_tasks

    async with project_here(settings, folder) as project:
        report = await sync_tasks(project.tasks)
    _report(settings, report)


def task_json(task: Task) -> dict[str, Any]:
    """For programs: times as ISO 8601, with the number, the state and the token of the claim."""
    from perdure.core import clock
    from perdure.project.task_transfer import task_line

    line = task_line(task)
    line |= {"number": task.number, "state": task.state, "waits": task.waits}
    if task.token:
        until = clock.to_datetime(task.until).isoformat() if task.until else None
        line |= {"token": task.token, "until": until}
    return line


def _tell(settings: CommandSettings, task: Task, words: str) -> None:
    if settings.json:
        terminal.emit(task_json(task))
    else:
        terminal.say(words)


def _table(settings: CommandSettings, tasks: list[Task], none: str) -> None:
    if settings.json:
        terminal.emit({"tasks": [task_json(each) for each in tasks]})
        return
    if not tasks:
        terminal.say(none)
        return
    rows = [(each.name, str(each.priority), each.state, each.owner, each.title) for each in tasks]
    terminal.table(("Task", "P", "State", "Owner", "Title"), rows)


def _report(settings: CommandSettings, report: TaskImport) -> None:
    if settings.json:
        import msgspec

        terminal.emit(msgspec.to_builtins(report))
        return
    terminal.say(
        f"{plural(report.added, 'task')} added, {report.changed} changed,"
        f" {report.unchanged} unchanged."
    )
    if report.deleted:
        terminal.say(f"{report.deleted} were deleted in {report.format}: left out.")
    for field, count in sorted(report.kept.items()):
        terminal.say(f"The field {field} of {plural(count, 'task')} is kept as it is.")
    for remark in report.remarks:
        terminal.note(remark)


def _quoted(text: str) -> str:
    return text.replace('"', "'")
