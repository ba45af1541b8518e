"""``perdure agent stats`` and ``episodes``: what agents did, and learnt from it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings, LimitOption
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    import msgspec

    from perdure.agents.agent_stats import AgentMemoryRow, AgentStats
    from perdure.agents.episodes import Episode
    from perdure.bank import Bank

AgentArgument = Annotated[str, typer.Argument(metavar="AGENT", help="Its name.")]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="WHEN", help="Only from then on: 30d, 2026-02-12.")
]


async def stats(
    settings: CommandSettings,
    agent: Annotated[
        str | None, typer.Argument(metavar="[AGENT]", help="All agents, if none is named.")
    ] = None,
    *,
    table: Annotated[
        str | None,
        typer.Option(
            "--table", metavar="NAME", help="The table agent_memory or agent_performance."
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="FIELDS",
            help="Add up calls by agent, task, provider, model, purpose, day: task,provider.",
        ),
    ] = None,
    since: SinceOption = None,
    limit: LimitOption = 1_000,
) -> None:
    """Show what agents did, how well, at what cost, and what they learnt from it.

    With --by, calls of models are added up by these fields together, over 30 days or --since.

    With --table, one of two tables with fixed columns: a row for each agent, or for each
    interaction, which --since and --limit select. Money is in dollars.
    """
    from perdure.agents.agent_stats import require_known_agent

    async with existing_bank(settings) as bank:
        if agent is not None and by is None:
            await require_known_agent(bank.services, agent)
        if by is not None:
            from perdure.cli.usage_report import show_usage

            await show_usage(settings, bank, by, agent, since or "30d")
        elif table is not None:
            await _show_table(settings, bank, table, agent, since=since, limit=limit)
        elif since is not None:
            raise InvalidInput(
                "Statistics are of all time.",
                hint="Use --since with --by, or with --table agent_performance.",
            )
        elif agent is not None:
            _show_stats(settings, await bank.agent_memory(agent).stats())
        else:
            await _show_all(settings, bank)


async def episodes(
    settings: CommandSettings,
    agent: AgentArgument,
    episode: Annotated[
        str | None,
        typer.Argument(metavar="[EPISODE]", help="Show this one: its path, or its interaction."),
    ] = None,
    *,
    session: Annotated[str, typer.Option("--session", help="Only of this session.")] = "",
    task: Annotated[str, typer.Option("--task", help="Only of this task.")] = "",
    failed: Annotated[bool, typer.Option("--failed", help="Only those that failed.")] = False,
    since: SinceOption = None,
    limit: LimitOption = 50,
) -> None:
    """List an agent's episodes, the newest first, or show one in full.

    An episode is all that is known of one interaction: request, response, messages, context,
    performance, learnings. It is kept for 90 days (agents.episode_days).
    """
    from perdure.agents.agent_stats import require_known_agent

    async with existing_bank(settings) as bank:
        archive = bank.agent_memory(agent).episodes
        if episode is not None:
            key = episode if "/" in episode else f"{agent}/{episode}"
            _show_episode(settings, await archive.read(key, agent=agent))
            return
        found = await archive.list(
            agent,
            session=session,
            task=task,
            success=False if failed else None,
            since=since,
            limit=limit or 1_000_000,
        )
        if not found:
            await require_known_agent(bank.services, agent)
    _list_episodes(settings, found)


# Statistics -------------------------------------------------------------------------------------


async def _show_all(settings: CommandSettings, bank: Bank) -> None:
    from perdure.agents.agent_stats import agent_memory_table

    rows = await agent_memory_table(bank.services)
    if settings.json:
        terminal.emit({"agents": [_brief(row) for row in rows]})
        return
    if not rows:
        terminal.say("No agent has done anything yet.")
        return
    shown = [
        (
            row.agent_id,
            ", ".join(each.model for each in row.preferred_models[:2]),
            _percent(row.success_rate),
            _dollars(row.average_cost),
            f"{row.total_interactions:,}",
        )
        for row in rows
    ]
    terminal.table(("Agent", "Models", "Success", "Cost", "Interactions"), shown, right=3)


def _brief(row: AgentMemoryRow) -> dict[str, Any]:
    return {
        "agent": row.agent_id,
        "interactions": row.total_interactions,
        "success_rate": row.success_rate,
        "average_cost": row.average_cost,
    }


def _show_stats(settings: CommandSettings, stats: AgentStats) -> None:
    if settings.json:
        terminal.emit(stats)
        return
    terminal.say(
        f"{stats.agent}: {terminal.plural(stats.interactions, 'interaction')},"
        f" {_percent(stats.success_rate)} succeeded, {_dollars(stats.average_cost)} each,"
        f" quality {_number(stats.quality)} of {stats.rated:,} rated."
    )
    if stats.tasks:
        terminal.table(
            ("Task", "Success", "Cost", "Seconds", "Quality", "Interactions"),
            [
                (
                    each.task or "-",
                    _percent(each.success_rate),
                    _dollars(each.average_cost),
                    _number(each.average_latency),
                    _number(each.quality),
                    f"{each.interactions:,}",
                )
                for each in stats.tasks
            ],
            right=5,
        )
    if stats.learned_patterns:
        terminal.table(
            ("Task", "With", "", "Lift", "Quality", "Success", "Interactions"),
            [
                (
                    each.task or "-",
                    each.kind,
                    each.with_,
                    "-" if each.lift is None else f"{each.lift:+.0%}",
                    _number(each.quality),
                    _percent(each.success_rate),
                    f"{each.interactions:,}",
                )
                for each in stats.learned_patterns
            ],
            right=4,
        )
    for entry in stats.evolution_history:
        terminal.say(f"{readable.absolute_time(entry.time)}  {entry.change}")


async def _show_table(
    settings: CommandSettings,
    bank: Bank,
    name: str,
    agent: str | None,
    *,
    since: str | None,
    limit: int,
) -> None:
    from perdure.agents.agent_stats import TABLES, read_table

    rows: list[Any] = [
        *await read_table(bank.services, name, agent, since=since, limit=limit or 10_000_000)
    ]
    if settings.json:
        terminal.emit({"table": name, "rows": rows})
        return
    columns = next(cls for table, cls in TABLES.items() if table == name).__struct_fields__
    terminal.table(columns, [_cells(row) for row in rows])


def _cells(row: msgspec.Struct) -> tuple[str, ...]:
    import msgspec

    values = msgspec.to_builtins(row)
    return tuple(
        value if isinstance(value, str) else json.dumps(value) for value in values.values()
    )


# Episodes ---------------------------------------------------------------------------------------


def _list_episodes(settings: CommandSettings, found: list[Episode]) -> None:
    if settings.json:
        terminal.emit({"episodes": [_episode_json(each) for each in found]})
        return
    rows = [
        (
            readable.absolute_time(each.ended),
            each.task or "-",
            "succeeded" if each.success else "failed",
            each.path,
        )
        for each in found
    ]
    if rows:
        terminal.table(("Ended", "Task", "How", "Episode"), rows)
    terminal.note(f"{terminal.plural(len(found), 'episode')}.")


def _episode_json(episode: Episode) -> dict[str, Any]:
    return {
        "episode": episode.path,
        "interaction": episode.interaction,
        "session": episode.session,
        "turn": episode.turn,
        "task": episode.task,
        "success": episode.success,
        "ended": episode.ended,
        "artifact": None if episode.artifact is None else episode.artifact.hash,
    }


def _show_episode(settings: CommandSettings, content: dict[str, Any]) -> None:
    if settings.json:
        terminal.emit(content)
        return
    for name, value in content.items():
        if name in {"request", "response"}:
            terminal.say(f"{name}:", style="bold")
            terminal.verbatim(f"  {line}" for line in terminal.lines(value))
        elif isinstance(value, str | int):
            terminal.say(f"{name}: {value}")
        elif value:
            terminal.say(f"{name}:", style="bold")
            terminal.verbatim(
                f"  {line}" for line in json.dumps(value, indent=2, ensure_ascii=False).split("\n")
            )


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0%}"


def _dollars(amount: float | None) -> str:
    return "-" if amount is None else readable.cost_in_words(round(amount * 1e12))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
