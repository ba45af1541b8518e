"""``perdure worker`` and ``perdure jobs``: background work of a bank that many hosts share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings, LimitOption
from perdure.core.display import did_you_mean
from perdure.core.errors import InvalidInput, Unsupported

if TYPE_CHECKING:
    from perdure.bank import Bank
    from perdure.config import Config

#: Messages of agents. They are in mailboxes and no jobs, but somebody has to work for them, too.
AGENTS = "agents"


def worker(
    settings: CommandSettings,
    *,
    queues: Annotated[
        str | None,
        typer.Option(
            "--queues",
            metavar="NAMES",
            help="Only these, with commas between them: renditions, batches, judge,"
            " agent_episode, agents.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, max=256, help="Jobs that run at the same time."),
    ] = None,
) -> None:
    """Do the background work of a bank on PostgreSQL that hosts share.

    Runs jobs, idle and periodic work, and agents, until SIGTERM or SIGINT; what is under way then
    gets the seconds of jobs.grace, and goes on elsewhere if it needs more. Any number of workers
    may run on any number of hosts.
    """
    from perdure.cli.serve_commands import run_server, with_changes

    config = settings.load()
    if not config.bank_url().startswith(("postgresql:", "postgres:")):
        raise Unsupported(
            "A worker shares the work of a bank on PostgreSQL, and this bank is not.",
            hint="On one machine `perdure serve` does the work itself. To move a bank:"
            " `perdure bank copy postgresql://…`.",
        )
    given = None if queues is None else _queue_names(queues)
    changes = {"concurrency": concurrency, "queues": given}
    run_server(_work(settings, with_changes(config, jobs=changes)))


def _queue_names(text: str) -> tuple[str, ...]:
    from perdure.agents.episodes import EPISODE_JOB
    from perdure.gateway.batches import BATCHES
    from perdure.history.renditions.rendition_records import TASK
    from perdure.learning.judging import KIND

    known = {TASK, BATCHES, KIND, EPISODE_JOB, AGENTS}
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in known:
            hint = f"{did_you_mean(name, known)} There are {', '.join(sorted(known))}.".lstrip()
            raise InvalidInput(f"There is no queue {name!r}.", hint=hint)
    if not names:
        raise InvalidInput("--queues names none.", hint="Leave it out for all.")
    return names


async def _work(settings: CommandSettings, config: Config) -> None:
    from perdure.bank import Bank
    from perdure.server.stop_signals import StopSignals

    async with Bank(config=config) as bank:
        await _serve_all(bank)
        signals = StopSignals()
        signals.listen()
        _announce(bank, as_json=settings.json)
        await signals.wait()
        if not settings.json:
            grace = f"{config.jobs.grace:g} seconds"
            terminal.note(f"Stopping. What is under way has {grace} to end; ^C again ends it now.")
    counts = bank.jobs.counts
    if settings.json:
        terminal.emit({"ended": counts})
    else:
        terminal.say(
            f"Jobs done: {counts.done}; to be tried again: {counts.retried};"
            f" failed: {counts.failed}; given back: {counts.withdrawn + counts.lost}."
        )


async def _serve_all(bank: Bank) -> None:
    """Take jobs also of those kinds that other processes register when they first need them."""
    from perdure.agents.episodes import Episodes

    await Episodes(bank.services).tend()
    if bank.config.gateway.models.judge:
        _ = bank.learning  # it takes the jobs of judging
    if not bank.config.jobs.queues or AGENTS in bank.config.jobs.queues:
        bank.agents.streams = True
        bank.agents.serve_all()


def _announce(bank: Bank, *, as_json: bool) -> None:
    from perdure.storage import registry

    where, jobs = registry.shown(bank.url), bank.config.jobs
    if as_json:
        terminal.emit({"bank": where, "queues": jobs.queues, "concurrency": jobs.concurrency})
        return
    named = ", ".join(jobs.queues) or "everything"
    terminal.say(f"Working for {where}: {named}, {jobs.concurrency} jobs at a time.")


async def list_(settings: CommandSettings, *, limit: LimitOption = 50) -> None:
    """Show jobs that failed, that run and that wait.

    Jobs that are done are not kept. The limit is for each of the three.
    """
    from perdure.jobs.job_list import list_jobs

    async with existing_bank(settings) as bank:
        sums, found = await list_jobs(bank.store, limit)
        now = bank.store.now()
    if settings.json:
        terminal.emit({"sums": sums, "jobs": found})
        return
    if not found:
        terminal.say("There are no jobs.")
        return
    rows = [
        (
            job.id,
            job.state.value,
            readable.relative_time(job.due, now),
            str(job.attempts),
            job.error,
        )
        for job in found
    ]
    terminal.listing(("Job", "State", "Due", "Begun", "What went wrong"), rows)
    hidden = sum(each.count for each in sums) - len(found)
    if hidden > 0:
        terminal.note(f"{terminal.plural(hidden, 'more job')} not shown; --limit 0 shows all.")


async def retry(
    settings: CommandSettings,
    job: Annotated[
        str, typer.Argument(metavar="[JOB]", help="Its id; without one, all that failed.")
    ] = "",
) -> None:
    """Try failed jobs again, with all their attempts.

    A server or worker that runs does them.
    """
    async with existing_bank(settings) as bank:
        found = [job] if job else [each.id for each in await bank.jobs.failed(limit=100_000)]
        for each in found:
            await bank.jobs.retry(each)
    if settings.json:
        terminal.emit({"retried": found})
    else:
        terminal.say(f"{terminal.plural(len(found), 'job')} to be tried again.")
