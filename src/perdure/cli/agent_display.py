"""How agents, messages, questions and schedules are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.cli import readable, terminal
from perdure.core.clock import to_datetime
from perdure.core.display import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

    from perdure.agents.agent_records import (
        AgentMessage,
        AgentQuestion,
        AgentRecord,
        AgentSchedule,
        AgentVersion,
    )

_TIMES = ("made", "accepted", "started", "ended", "due", "asked", "answered", "next")
_ROOM = 60


def plain(record: msgspec.Struct) -> dict[str, Any]:
    """For ``--json``: times as text, None where there is none."""
    import msgspec

    # Fields that have their defaults are there, too.
    found = {name: msgspec.to_builtins(getattr(record, name)) for name in record.__struct_fields__}
    for name in _TIMES:
        if name in found:
            found[name] = to_datetime(found[name]).isoformat() if found[name] else None
    return found


def show_agents(found: Sequence[AgentRecord]) -> None:
    rows = [
        (
            each.name,
            each.status,
            f"v{each.version}",
            ", ".join(each.skills),
            ", ".join(each.tasks),
            one_line(each.description, _ROOM),
        )
        for each in found
    ]
    if rows:
        terminal.table(("Name", "Status", "Version", "Skills", "Tasks", "Description"), rows)
    terminal.note(f"{terminal.plural(len(found), 'agent')}.")


def show_agent(record: AgentRecord, version: AgentVersion, waiting: dict[str, int]) -> None:
    tools = [f"{each.name}{' (asks)' if each.approval else ''}" for each in version.tools]
    limits = version.limits
    facts = {
        "Id": record.id,
        "Status": record.status,
        "Version": f"{version.number} of {readable.absolute_time(version.made)},"
        f" by {version.made_by}" + (f" ({version.reason})" if version.reason else ""),
        "Description": record.description,
        "Model": version.model or "as the gateway chooses",
        "Tools": ", ".join(tools),
        "Skills": ", ".join(record.skills),
        "Tasks": ", ".join(record.tasks),
        "Limits": f"{limits.steps} model calls, {limits.tokens:,} tokens, ${limits.dollars:g},"
        f" {limits.seconds:g} s",
        "Project": record.project,
        "File": version.file,
        "SHA-256": version.sha256,
        "Messages": ", ".join(f"{count:,} {state}" for state, count in waiting.items()) or "none",
    }
    terminal.say(record.name, style="bold")
    terminal.table(("", ""), [(name, value) for name, value in facts.items() if value])
    terminal.say()
    terminal.prose(version.prompt)


def show_versions(found: Sequence[AgentVersion]) -> None:
    rows = [
        (
            str(each.number),
            readable.absolute_time(each.made),
            each.made_by,
            each.reason,
            each.model,
            each.sha256[:12],
            one_line(each.prompt, _ROOM),
        )
        for each in found
    ]
    terminal.table(("Version", "Made", "By", "Reason", "Model", "File", "Prompt"), rows)


def show_messages(found: Sequence[AgentMessage]) -> None:
    rows = [
        (
            each.id,
            each.state,
            each.session.partition("/")[2] + (f"#T-{each.turn}" if each.turn else ""),
            each.task,
            one_line(each.body, _ROOM),
            one_line(each.reply if each.state == "done" else each.error, _ROOM),
        )
        for each in found
    ]
    if rows:
        terminal.listing(("Message", "State", "Session", "Task", "Text", "Outcome"), rows)
    terminal.note(f"{terminal.plural(len(found), 'message')}.")


def show_questions(found: Sequence[AgentQuestion]) -> None:
    for each in found:
        terminal.say(each.id, style="bold")
        terminal.prose(f"  {each.text}")
        if each.kind == "approval":
            terminal.prose(f"  {each.tool}({one_line(each.arguments, 400)})")
    terminal.note(f"{terminal.plural(len(found), 'question')}.")


def show_schedules(found: Sequence[AgentSchedule], now: int) -> None:
    from perdure.agents.schedules import shown_rule

    rows = [
        (
            each.id,
            shown_rule(each),
            one_line(each.error, _ROOM)
            or f"{readable.absolute_time(each.next)} ({readable.time_ahead(each.next, now)})",
            one_line(each.body, _ROOM),
        )
        for each in found
    ]
    if rows:
        terminal.listing(("Schedule", "Rule", "Next", "Message"), rows)
    terminal.note(f"{terminal.plural(len(found), 'schedule')}.")
