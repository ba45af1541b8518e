"""``perdure recall``: search a session's past."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import SessionArgument, find_session, searched_bank
from perdure.cli.command_options import CommandSettings
from perdure.cli.terminal import ProgressBar
from perdure.core import clock
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.bank import Bank
    from perdure.config import Config
    from perdure.recall.values import Hit, Recalled
    from perdure.sessions.session import Session

#: Lines of a hit that are shown, and characters of each.
_LINES, _LINE = 4, 400
#: Least seconds for all of it, and for search by meaning: a command has to load its model first,
#: which takes a second or two, and no prompt waits for the answer.
_DEADLINE, _LOADING = 4.0, 3.0
#: With fewer seconds than this the model is not loaded at all.
_LEAST = 1.0
#: Scores below this are not told apart: “0.00” would say that nothing fits.
_LEAST_SCORE = 0.01
_HURRIED = "that takes longer than the deadline"


async def recall(
    settings: CommandSettings,
    session: SessionArgument,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for.")],
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-k", min=1, max=1_000, metavar="N", help="Hits at most.")
    ] = 10,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Only turn, memory or reference. Repeatable."),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option("--agent", metavar="NAME", help="Only what is this agent's. Repeatable."),
    ] = None,
    of: Annotated[
        list[str] | None,
        typer.Option("--session", metavar="NAME", help="Only turns of this session. Repeatable."),
    ] = None,
    line: Annotated[
        bool, typer.Option("--line", help="Only turns of the session's own line.")
    ] = False,
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--role",
            metavar="ROLE",
            help="Whose words have to match: user, assistant or tool. Repeatable.",
        ),
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option("--tool", metavar="NAME", help="Only rounds that called it. Repeatable."),
    ] = None,
    branch: Annotated[
        str,
        typer.Option(
            "--branch", metavar="NAME", help="Only turns of this branch, as tagged or imported."
        ),
    ] = "",
    task: Annotated[
        str, typer.Option("--task", metavar="TYPE", help="Only turns tagged task=TYPE.")
    ] = "",
    outcome: Annotated[
        str, typer.Option("--outcome", metavar="NAME", help="Only turns tagged outcome=NAME.")
    ] = "",
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="NAME=VALUE", help="Only turns tagged so. Repeatable."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="From then on: 2026-02-12, yesterday, 3d for 3 days ago.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Up to then; a date: all of that day."),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            "--deadline",
            metavar="SECONDS",
            help="Answer by then. Below 1, by words alone: the embedding model takes as long to"
            " load.  [default: 4]",
        ),
    ] = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="Also forks that left the session's line.")
    ] = False,
    judged: Annotated[
        bool, typer.Option("--judged", help="Let filters and judge choose, as for a prompt.")
    ] = False,
) -> None:
    """Find what a session knew: turns, memories, reference layers, best first.

    Looks at the session's own turns, at other sessions of its agent, and at what is shared with the
    agent. Options narrow that; what is given twice may be either. Memories of an agent that has no
    session: perdure memory list AGENT --words WORDS.
    """
    from perdure.cli.show_commands import tags_in

    config = settings.load()
    asked: dict[str, Any] = {
        "limit": limit,
        "kinds": kind or None,
        "agents": agent or None,
        "sessions": of or None,
        "line": line,
        "roles": role or None,
        "tools": tool or None,
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
    timed = _timed(config, asked)
    async with searched_bank(settings, timed) as bank:
        searched = await _session(bank, session)
        if of:
            asked["sessions"] = [(await find_session(bank, each)).name for each in of]
        _load_search()
        async with ProgressBar("searching; by meaning once the model is loaded"):
            found = await searched.recall(query, **asked)
        # Here: a model that is still being loaded keeps the process from ending, not the answer.
        if settings.json:
            terminal.emit(recalled_json(found))
            return
        hurried = bool(config.recall.vectors) and not timed.recall.vectors
        _print(found, query, searched.agent, clock.now(), _HURRIED if hurried else _unmeant(found))
        if not bank.index.is_on:
            terminal.note(
                "The newest turns were read one by one: `perdure index check` says why.", "dim"
            )


def recalled_json(found: Recalled) -> dict[str, Any]:
    names = ("kind", "turn", "key", "level", "score", "why", "text")
    hits = [{name: getattr(hit, name) for name in names} for hit in found.hits]
    notes = {"notes": list(found.notes)} if found.notes else {}
    return {"stage": found.stage, "took_ms": found.took_ms, "hits": hits, **notes}


async def _session(bank: Bank, name: str) -> Session:
    """Raises `InvalidInput`, which mentions memories that can be listed."""
    try:
        return await find_session(bank, name)
    except InvalidInput as exc:
        agent = name.partition("/")[0]
        if any(memory.agent == agent for memory in await bank.memories.list()):
            hint = f'{exc.hint} `perdure memory list {agent} --words "…"` finds its memories.'
            raise InvalidInput(exc.message, hint=hint) from exc
        raise


def _timed(config: Config, asked: dict[str, Any]) -> Config:
    """The configuration with time to load the model, or without a model if it cannot be ready."""
    from msgspec.structs import replace

    vectors = config.recall.vectors
    if asked["deadline"] is None:
        asked["deadline"] = max(config.recall.deadline, _DEADLINE)
        vectors = max(vectors, _LOADING)
    elif asked["deadline"] < _LEAST:
        vectors = 0.0
    return replace(config, recall=replace(config.recall, vectors=vectors))


def _load_search() -> None:
    """Import the search modules before the deadline's clock runs."""
    import perdure.history.renditions.algorithm
    import perdure.recall.searching.ranking  # noqa: F401 (it is loaded for others)


def _print(found: Recalled, query: str, agent: str, now: int, unmeant: str) -> None:
    """`unmeant` is why search by meaning did not take part, if so."""
    if not found.hits:
        terminal.say(f"Nothing was found for {query!r}.")
        _print_notes(found)
        terminal.note(_advice(found), "dim")
        return
    for number, hit in enumerate(found.hits):
        if number:
            terminal.say()
        terminal.say(_title(hit, agent, now), "bold")
        lines = [line for line in terminal.lines(hit.text) if line.strip()]
        for line in lines[:_LINES]:
            terminal.prose(f"  {line if len(line) <= _LINE else f'{line[:_LINE]}…'}")
        if len(lines) > _LINES:
            terminal.say(f"  … {terminal.plural(len(lines) - _LINES, 'more line')}", "dim")
        if hit.why:
            terminal.say(f"  {hit.why}", "dim")
    count = terminal.plural(len(found.hits), "hit")
    why = f"; not by meaning: {unmeant}" if unmeant else ""
    terminal.note(f"{count} by {_BY[found.stage]} in {found.took_ms:,.0f} ms{why}", "dim")
    _print_notes(found)


def _print_notes(found: Recalled) -> None:
    for note in found.notes:
        terminal.note(note)


def _unmeant(found: Recalled) -> str:
    return next((s.failed for s in found.steps if s.name == "vector" and s.failed), "")


def _advice(found: Recalled) -> str:
    if any(step.failed == "deadline" for step in found.steps):
        return "Give it more time: --deadline SECONDS."
    return (
        "Try other words or options."
        if found.notes
        else "Try fewer or other words, or fewer options."
    )


_BY = {
    "none": "nothing",
    "keyword": "words",
    "vector": "words and meaning",
    "filters": "words, meaning and filters",
    "judge": "words, meaning and a judge",
}


def _title(hit: Hit, agent: str, now: int) -> str:
    """The hit's name for other commands, its age and its score."""
    name = hit.turn or hit.key
    if hit.kind != "turn":
        owned = hit.kind == "memory" and "/" not in name
        name = f"{hit.kind} {agent}/{name}" if owned else f"{hit.kind} {name}"
    when = f", {readable.relative_time(hit.time, now)}" if hit.time else ""
    score = f"{hit.score:.2f}" if hit.score >= _LEAST_SCORE else f"below {_LEAST_SCORE}"
    return f"{name}{when}, {'comes along' if hit.neighbour else score}"
