"""``perdure recall``: what the past of a session has to say to a question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import terminal
from perdure.cli.names import SessionArgument
from perdure.cli.options import (
    BankOption,
    ConfigOption,
    DebugOption,
    JsonOption,
    Settings,
    refine,
)

if TYPE_CHECKING:
    from perdure.recall.values import Hit, Recalled

#: Lines of a hit that are shown.
_LINES = 4
#: Seconds for all of it, and for what is found by meaning, at least. A command asks once: its model
#: has to be loaded first, which takes about a second, and no prompt waits for the answer.
_DEADLINE, _LOADING = 4.0, 3.0


def recall(
    ctx: typer.Context,
    session: SessionArgument,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for.")],
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-k", min=1, max=1_000, metavar="N", help="Hits at most.")
    ] = 10,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="turn, memory or reference. Repeatable."),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option("--agent", metavar="NAME", help="Only what is this agent's. Repeatable."),
    ] = None,
    of: Annotated[
        list[str] | None,
        typer.Option("--session", metavar="NAME", help="Turns of this session. Repeatable."),
    ] = None,
    line: Annotated[
        bool, typer.Option("--line", help="Only turns of the session's own line.")
    ] = False,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", metavar="ROLE", help="Words of user, assistant, tool. Repeatable."),
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option("--tool", metavar="NAME", help="Rounds that called this tool. Repeatable."),
    ] = None,
    branch: Annotated[str, typer.Option("--branch", metavar="NAME", help="On this branch.")] = "",
    task: Annotated[str, typer.Option("--task", metavar="TYPE", help="Tasks of this type.")] = "",
    outcome: Annotated[
        str, typer.Option("--outcome", metavar="NAME", help="With this outcome.")
    ] = "",
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="NAME=VALUE", help="With this tag. Repeatable."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From then on: 2026-02-12, 3d.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Up to then.")
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option("--deadline", metavar="SECONDS", help="Answer by then; else in some seconds."),
    ] = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="Also forks that left the session's line.")
    ] = False,
    judged: Annotated[
        bool, typer.Option("--judged", help="Let filters and judge choose, as for a prompt.")
    ] = False,
    bank: BankOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Find what a session knew: turns, memories, reference layers, best first."""
    import asyncio

    from perdure.cli.show import tags_in
    from perdure.core import clock

    settings = refine(ctx, bank=bank, config=config, json=json, debug=debug)
    now = clock.now()
    asked: dict[str, Any] = {
        "limit": limit,
        "kinds": kind or (),
        "agents": agent or (),
        "sessions": of or (),
        "line": line,
        "roles": role or (),
        "tools": tool or (),
        "branch": branch,
        "task": task,
        "outcome": outcome,
        "tags": tags_in(tag or []),
        "since": since,
        "until": until,
        "deadline": deadline,
        "wide": wide,
        "judged": judged,
    }
    found = asyncio.run(_recall(settings, session, query, asked))
    if settings.json:
        terminal.emit(described(found))
    else:
        _print(found, query, now)


def described(found: Recalled) -> dict[str, Any]:
    """What was recalled, as a JSON object."""
    return {
        "stage": found.stage,
        "took_ms": found.took_ms,
        "hits": [
            {
                "kind": hit.kind,
                "turn": hit.turn,
                "key": hit.key,
                "level": hit.level,
                "score": hit.score,
                "why": hit.why,
                "text": hit.text,
            }
            for hit in found.hits
        ],
    }


async def _recall(settings: Settings, name: str, query: str, asked: dict[str, Any]) -> Recalled:
    from msgspec.structs import replace

    from perdure.cli import names, places

    config = settings.load()
    if asked["deadline"] is None:
        recall = config.recall
        asked["deadline"] = max(recall.deadline, _DEADLINE)
        config = replace(config, recall=replace(recall, vectors=max(recall.vectors, _LOADING)))
    async with places.existing_bank(settings, config) as bank:
        session = await names.find(bank, name)
        return await session.recall(query, **asked)


def _print(found: Recalled, query: str, now: int) -> None:
    if not found.hits:
        if any(step.failed == "deadline" for step in found.steps):
            terminal.say(f"Nothing was found for {query!r} before the deadline.")
            terminal.aside("Give it more time: --deadline SECONDS.")
            return
        terminal.say(f"Nothing was found for {query!r}.")
        terminal.aside("Try fewer or other words, or fewer options.")
        return
    for number, hit in enumerate(found.hits):
        if number:
            terminal.say()
        terminal.say(_title(hit, now), "bold")
        lines = [line for line in terminal.lines(hit.text) if line.strip()]
        for line in lines[:_LINES]:
            terminal.prose(f"  {line}")
        if len(lines) > _LINES:
            terminal.say(f"  … {terminal.plural(len(lines) - _LINES, 'more line')}", "dim")
        if hit.why:
            terminal.say(f"  {hit.why}", "dim")
    terminal.aside(
        f"{terminal.plural(len(found.hits), 'hit')} by {_BY[found.stage]}"
        f" in {found.took_ms:,.0f} ms"
    )


_BY = {
    "none": "nothing",
    "keyword": "words",
    "vector": "words and meaning",
    "filters": "words, meaning and filters",
    "judge": "words, meaning and a judge",
}


def _title(hit: Hit, now: int) -> str:
    from perdure.cli import moments

    when = f", {moments.relative(hit.time, now)}" if hit.time else ""
    what = "" if hit.kind == "turn" else f"{hit.kind} "
    beside = ", comes along" if hit.neighbour else f", {hit.score:.2f}"
    return f"{what}{hit.turn or hit.key}{when}{beside}"
