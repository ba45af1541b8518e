"""``perdure run`` and ``runs``: an agent that is woken again and again until its tasks are done."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings
from perdure.core import clock
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from perdure.agents.one_shot.run_records import RunIteration, RunRecord
    from perdure.agents.one_shot.run_state import RunEvent
    from perdure.bank import Bank

#: What the command exits with.
CODES = {"done": 0, "needs_feedback": 3, "stuck": 4, "capped": 5, "stopped": 130}
_MAX_RUNS, _MAX_COST, _MAX_HOURS = 20, 5.0, 8.0


async def run(
    settings: CommandSettings,
    spec: Annotated[
        str | None,
        typer.Argument(metavar="SPEC", help="The specification; with --resume, the run."),
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND…",
            help="The agent and its arguments; without it, a configured model.",
        ),
    ] = None,
    *,
    tasks: Annotated[
        str, typer.Option("--tasks", metavar="FILE", help="The tasks, as check boxes.")
    ] = "TASKS.md",
    log: Annotated[
        str, typer.Option("--log", metavar="FILE", help="The log that the agent keeps.")
    ] = "LOG.md",
    check: Annotated[
        list[str] | None,
        typer.Option("--check", metavar="COMMAND", help="Must succeed; may be repeated."),
    ] = None,
    max_runs: Annotated[
        int | None, typer.Option("--max-runs", metavar="N", help=f"Default {_MAX_RUNS}.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", metavar="DOLLARS", help=f"Default {_MAX_COST:g}.")
    ] = None,
    max_hours: Annotated[
        float | None, typer.Option("--max-hours", metavar="H", help=f"Default {_MAX_HOURS:g}.")
    ] = None,
    silence: Annotated[
        float,
        typer.Option(
            "--silence", metavar="SECONDS", help="End an agent that gives no sign of life so long."
        ),
    ] = 1800.0,
    pause: Annotated[
        float,
        typer.Option("--pause", metavar="SECONDS", help="Wait after a failure; then twice that."),
    ] = 5.0,
    investigator: Annotated[
        str,
        typer.Option(
            "--investigator",
            metavar="COMMAND",
            help="Asked once if the run seems stuck; else a model, if one is configured.",
        ),
    ] = "",
    prompt_to: Annotated[
        Literal["stdin", "argument"] | None,
        typer.Option(
            "--prompt-to", help="How the agent takes its prompt; else as its client does."
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", metavar="PROVIDER/MODEL", help="Without a command: this one."
        ),
    ] = "",
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="AGENT/NAME", help="Where the transcripts are kept."),
    ] = None,
    recall: Annotated[
        bool, typer.Option("--recall", help="Put what is recalled beside the prompt.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with a run: the newest of this folder, or SPEC's."),
    ] = False,
    feedback: Annotated[
        str, typer.Option("--feedback", metavar="TEXT", help="Answers what the agent asked.")
    ] = "",
) -> None:
    """Wake an agent for one run at a time until its tasks are done.

    Each run begins fresh: with the specification, the tasks, the last entries of the log, and what
    was found out (changes, checks). It is done if the agent says so, no task is open, and the
    checks pass. Runs, money and hours are limited, always. Whatever ends it, --resume goes on.

    Exits with 0 if it is done, 3 if a person has to answer, 4 if it is stuck, 5 if a limit is
    reached, 130 if it was interrupted.
    """
    from perdure.bank import Bank

    if resume and command:
        raise InvalidInput(
            "A run is resumed with its own command.", hint="Leave out what stands behind --."
        )
    if not resume and spec is None:
        raise typer.BadParameter("Name a specification, or --resume a run.", param_hint="SPEC")
    if feedback and not resume:
        raise InvalidInput("Only a run that has begun can be answered.", hint="Add --resume.")
    caps = {"max_runs": max_runs, "max_cost": max_cost, "max_hours": max_hours}
    given = {name: value for name, value in caps.items() if value is not None}
    async with Bank(config=settings.load()) as bank:
        if resume:
            working = bank.one_shot.resume(spec, feedback=feedback, progress=_told, **given)  # type: ignore[arg-type]  # each has its type
        else:
            working = bank.one_shot.run(
                str(spec),
                tasks=tasks,
                log=log,
                checks=check or (),
                command=command or (),
                session=session,
                silence=silence,
                pause=pause,
                investigator=investigator,
                model=model,
                prompt_to=prompt_to,
                recall=recall,
                progress=_told,
                **given,  # type: ignore[arg-type]  # each has its type
            )
        record = await _until_stopped(bank, working)
    if settings.json:
        terminal.emit({"run": record})
    else:
        _say_end(record)
    raise typer.Exit(CODES[record.status])


async def _until_stopped(bank: Bank, working: Coroutine[Any, Any, RunRecord]) -> RunRecord:
    """Ctrl-C and SIGTERM end the agent; the run is written down as stopped."""
    import asyncio
    import signal

    task = asyncio.ensure_future(working)
    loop, caught = asyncio.get_running_loop(), list[signal.Signals]()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not outside the main thread
            loop.add_signal_handler(number, task.cancel)
            caught.append(number)
    try:
        return await task
    except asyncio.CancelledError:
        (newest, *_) = sorted(await bank.one_shot.all(), key=lambda each: -each.updated)
        return newest
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


def _told(event: RunEvent) -> None:
    terminal.note(f"{event.run} {event.iteration}: {event.text}")


def _say_end(record: RunRecord) -> None:
    status = record.status.replace("_", " ")
    terminal.say(f"{record.id}: {status}. {record.reason}".rstrip(), "bold")
    if record.question:
        terminal.prose(record.question)
    terminal.say(_figures(record))
    if record.status == "needs_feedback":
        terminal.say(f'Answer with: perdure run --resume {record.id} --feedback "…"')
    elif record.status != "done":
        terminal.say(f"Go on with: perdure run --resume {record.id}{_larger_cap(record)}")


def _cost(record: RunRecord) -> str:
    """What is not known is said, not taken for nothing."""
    if not record.cost and not record.unknown_costs and record.status in {"stopped", "running"}:
        return "costs not known yet" if record.iterations else "no costs yet"
    told = readable.cost_in_words(record.cost) if record.cost or not record.unknown_costs else ""
    unknown = f"unknown costs of {record.unknown_costs}" if record.unknown_costs else ""
    if record.unpriced_tokens:
        unknown += f" ({record.unpriced_tokens:,} tokens)"
    return " and ".join(filter(None, (told, unknown)))


def _larger_cap(record: RunRecord) -> str:
    """The options without which a run that is capped would stop again at once."""
    settings = record.settings
    if record.status != "capped":
        return ""
    options = list[str]()
    if record.iterations >= settings.max_runs:
        options.append(f"--max-runs {2 * settings.max_runs}")
    if record.cost >= settings.max_cost:
        options.append(f"--max-cost {max(2 * record.cost / 10**12, 0.01):.2f}")
    if record.active >= settings.max_seconds:
        options.append(f"--max-hours {math.ceil(2 * record.active / 3600)}")
    return "".join(f" {each}" for each in options)


def _figures(record: RunRecord) -> str:
    return (
        f"{record.iterations} of {record.settings.max_runs} runs, {_cost(record)},"
        f" {record.active / 3600:.2f} hours; transcripts in {record.session}"
    )


async def runs(
    settings: CommandSettings,
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Show this one: its id, or the end of it."),
    ] = None,
) -> None:
    """List one-shot runs, the newest first, or show one of them."""
    async with existing_bank(settings) as bank:
        if run is not None:
            record = await bank.one_shot.get(run)
            _show(settings, record, await bank.one_shot.iterations(record.id))
            return
        found = await bank.one_shot.all()
    if settings.json:
        terminal.emit({"runs": found})
        return
    if not found:
        terminal.say("There are no runs yet. `perdure run SPEC.md -- claude -p` begins one.")
        return
    now = clock.now()
    terminal.table(
        ("Run", "Status", "Why", "Session", "Last", "Runs", "Cost"),
        [
            (
                each.id,
                each.status.replace("_", " "),
                each.reason,
                each.session,
                readable.relative_time(each.updated, now),
                f"{each.iterations} of {each.settings.max_runs}",
                _cost(each),
            )
            for each in found
        ],
        right=2,
    )


def _show(settings: CommandSettings, record: RunRecord, iterations: list[RunIteration]) -> None:
    if settings.json:
        terminal.emit({"run": record, "iterations": iterations})
        return
    _say_end(record)
    terminal.say()
    terminal.table(
        ("Turn", "Ended", "Says", "Changed", "Tasks", "Checks", "Then", "Cost"),
        [
            (
                f"T-{each.turn}",
                each.ending if each.phase != "running" else "running",
                each.exit.status.replace("_", " ") if each.exit is not None else "–",
                "yes" if each.changed else "no",
                f"{each.after.tasks.done} of {each.after.tasks.all}",
                each.checks_passed or "–",
                (each.decision or each.phase).replace("_", " "),
                readable.cost_in_words(each.cost),
            )
            for each in iterations
        ],
        right=1,
    )
