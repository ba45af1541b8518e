"""What an agent is told: how to work, how to end, what was found out; and an investigator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from perdure.agents.one_shot.run_records import CheckResult, RunIteration, RunRecord
from perdure.agents.one_shot.run_verdicts import unfinished
from perdure.core.display import plural
from perdure.core.messages import Message, Text
from perdure.gateway.prices import dollars

#: What became of a run, behind its name.
ENDINGS = {
    "finished": "ended",
    "failed": "failed",
    "silent": "was ended by the watchdog: it gave no sign of life",
    "overtime": "was ended: its time was over",
    "interrupted": "was interrupted, and ended in the middle of its work",
}


def prompt_for(record: RunRecord) -> str:
    """The prompt of an iteration; the brief stands in front of it."""
    settings, number = record.settings, record.iterations + 1
    tasks, log = (_inside(path, settings.folder) for path in (settings.tasks, settings.log))
    return f"""\
This is run {number} of at most {settings.max_runs} on the specification above. You begin afresh: \
of earlier runs you know what stands above, and no more.

- Work on the open tasks in {tasks}: as many as you can do well, each completely. Tick what is \
done (- [x]).
- Before you end, add an entry to {log}: what you did, what you learnt, what comes next. It is \
all that the next run will know.
- Leave the specification as it is. Take no task off the list.

End your last answer with one line of JSON, and nothing behind it:
{{"status": "continue", "summary": "…"}} if there is more to do,
{{"status": "done", "summary": "…"}} if no task is open and the checks pass,
{{"status": "needs_feedback", "question": "…"}} if a person has to decide something.
(Or write that object to the file that the variable PERDURE_RUN_RECORD names.)"""


def facts_for(record: RunRecord, iterations: Sequence[RunIteration]) -> str:
    """What the harness found out, for the brief."""
    settings, lines = record.settings, list[str]()
    spent = f"{dollars(record.cost)} of {dollars(settings.max_cost)} spent"
    if record.unknown_costs:
        spent += f" (the costs of {plural(record.unknown_costs, 'run')} are not known)"
    hours = f"{record.active / 3600:.1f} of {settings.max_seconds / 3600:.1f} hours"
    lines.append(f"So far: {plural(record.iterations, 'run')}, {spent}, {hours}.")
    if iterations:
        lines += _told(iterations[-1])
    if record.advice:
        lines.append(f"Somebody looked into it and advises: {record.advice}")
    if record.feedback:
        lines.append(f"A person answered: {record.feedback}")
    return "\n".join(lines)


def _told(last: RunIteration) -> list[str]:
    lines = [f"Run {last.number} {ENDINGS[last.ending]}."]
    if last.exit is None:
        lines.append("It did not say how it ended: end with the line of JSON.")
    elif last.exit.status == "done" and (missing := unfinished(last)):
        lines.append(f"It said that all is done, but {missing}.")
    elif last.exit.question:
        lines.append(f"It asked: {last.exit.question}")
    elif last.exit.summary:
        lines.append(f"It said: {last.exit.summary}")
    if last.error and not any(last.error.startswith(f"`{each.command}`") for each in last.checks):
        lines.append(f"What went wrong: {last.error}")
    if last.refused:
        lines.append(f"It was refused: {last.refused}. Find a way without.")
    tasks = last.after.tasks
    lines.append(f"Tasks: {tasks.open} open, {tasks.done} done.")
    changed = last.changes if last.changed else ""
    lines.append(f"What it changed:\n{changed}" if changed else "It changed nothing.")
    lines += [_check(check) for check in last.checks]
    return lines


def _check(check: CheckResult) -> str:
    if check.passed:
        return f"The check `{check.command}` passes."
    return f"The check `{check.command}` fails with {check.code}:\n{check.tail}"


def log_entry(last: RunIteration) -> list[str]:
    """What the harness writes to the log if the agent wrote nothing."""
    return ["(The agent wrote nothing.)", *_told(last)]


def investigation(record: RunRecord, iterations: Sequence[RunIteration], reason: str) -> str:
    settings = record.settings
    last = "\n\n".join("\n".join(_told(each)) for each in iterations[-3:])
    return f"""\
An agent is woken again and again to work on a specification. Look into what happens, and decide \
how it goes on. Change nothing.

Why you are asked: {reason}

The folder: {settings.folder}
The specification: {_inside(settings.spec, settings.folder)}
The tasks: {_inside(settings.tasks, settings.folder)}
The log: {_inside(settings.log, settings.folder)}

The last runs:

{last}

End with one line of JSON, and nothing behind it:
{{"verdict": "continue", "advice": "…"}} if another run can get on with it: say how,
{{"verdict": "done"}} if the work is complete,
{{"verdict": "needs_feedback", "question": "…"}} if a person has to decide something,
{{"verdict": "stop", "advice": "…"}} if going on is of no use."""


def as_text(messages: Sequence[Message]) -> str:
    """A context as one text, for a command."""
    parts = (part for message in messages for part in message.parts)
    return "\n\n".join(part.text for part in parts if isinstance(part, Text))


def _inside(path: str, folder: str) -> str:
    pure = PurePath(path)
    return str(pure.relative_to(folder)) if pure.is_relative_to(folder) else path
