"""``perdure sessions`` and ``perdure fork``: which conversations there are, and another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import terminal
from perdure.cli.names import SessionArgument
from perdure.cli.options import Settings, common_options
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.bank import SessionInfo
    from perdure.session import Session


@common_options()
def sessions(
    settings: Settings,
    *,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Only those of this agent.")
    ] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Archived ones, too.")] = False,
    tree: Annotated[
        bool, typer.Option("--tree", help="Forks and sub-agents below what they came from.")
    ] = False,
) -> None:
    """List the sessions, the most recently used first."""
    import asyncio

    found = asyncio.run(_sessions(settings, agent, archived=archived))
    if settings.json:
        terminal.emit({"sessions": found})
    elif found:
        _show(found, tree=tree)
    else:
        terminal.say(
            f"There are no sessions{f' of {agent}' if agent else ''} yet."
            " `perdure import claude-code` brings some in."
        )


@common_options()
def fork(
    settings: Settings,
    session: SessionArgument,
    new: Annotated[
        str,
        typer.Argument(metavar="NEW", help="The fork's name; without an agent, of the same one."),
    ],
    *,
    at: Annotated[
        str | None, typer.Option("--at", metavar="T-50", help="Its last turn; else the newest.")
    ] = None,
) -> None:
    """Make a session that goes on from a turn of another.

    It shares the turns up to there: nothing is copied. Its next turn has the next number.
    """
    import asyncio

    made = asyncio.run(_fork(settings, session, new, at))
    record = made.record
    if settings.json:
        terminal.emit({"name": made.name, "parent": record.parent, "forked_at": record.forked_at})
    else:
        terminal.say(
            f"Forked {record.parent} behind T-{record.forked_at}:"
            f" {made.name} goes on at T-{record.forked_at + 1}."
        )


async def _sessions(settings: Settings, agent: str | None, *, archived: bool) -> list[SessionInfo]:
    from perdure.cli import places
    from perdure.cli.progress import Bar

    with Bar("looking at the sessions"):
        async with places.existing_bank(settings, settings.load()) as bank:
            return await bank.sessions(agent=agent, archived=archived)


async def _fork(settings: Settings, session: str, new: str, at: str | None) -> Session:
    from perdure.cli import names, places
    from perdure.history.records import SessionRecord, agent_of

    async with places.existing_bank(settings, settings.load()) as bank:
        parent = await names.find(bank, session)
        name = new if "/" in new else f"{parent.agent}/{new}"
        agent_of(name)
        if await bank.collection(SessionRecord).get(name) is not None:
            raise InvalidInput(f"There is a session {name} already.", hint="Choose another name.")
        return await parent.fork(name, at)


def _show(found: list[SessionInfo], *, tree: bool) -> None:
    from perdure.core import clock

    now = clock.now()
    terminal.listing(
        ("Session", "Newest", "", "Turns", "Rounds", "Tokens"),
        [
            (
                f"{branch}{info.name}",
                _age(info, now),
                _about(info),
                f"{info.turns:,}",
                f"{info.rounds:,}",
                f"{info.tokens:,}",
            )
            for branch, info in (_branches(found) if tree else [("", info) for info in found])
        ],
        right=3,
    )


def _age(info: SessionInfo, now: int) -> str:
    from perdure.cli import moments

    newest = info.newest or info.active
    return "archived" if info.archived or newest is None else moments.relative(newest, now)


def _about(info: SessionInfo) -> str:
    """What a session came from or is about, in short."""
    if info.parent is not None:
        return f"fork of {info.parent} at T-{info.forked_at}"
    if info.link is not None:
        above = info.link.session
        return "sub-agent" if info.name.startswith(above) else f"sub-agent of {above}"
    return str(info.state.get("title") or info.state.get("cwd") or "")


def _branches(found: list[SessionInfo]) -> list[tuple[str, SessionInfo]]:
    """The sessions in the order of a tree, each with the lines in front of its name."""
    known = {info.name for info in found}
    children: dict[str, list[SessionInfo]] = {}
    roots: list[SessionInfo] = []
    for info in found:
        above = info.parent or (info.link.session if info.link is not None else None)
        if above in known and above is not None:
            children.setdefault(above, []).append(info)
        else:
            roots.append(info)
    rows: list[tuple[str, SessionInfo]] = []
    # Depth first, without recursion: forks of forks can be many.
    waiting = [(info, "", "") for info in reversed(roots)]
    while waiting:
        info, branch, below = waiting.pop()
        rows.append((branch, info))
        inner = children.pop(info.name, [])
        for number, child in enumerate(reversed(inner)):
            fork, trunk = ("└─ ", "   ") if number == 0 else ("├─ ", "│  ")
            waiting.append((child, below + fork, below + trunk))
    return rows
