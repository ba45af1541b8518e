"""``perdure sessions``, ``fork`` and ``share``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import SessionArgument, existing_bank, find_session
from perdure.cli.command_options import CommandSettings
from perdure.cli.terminal import ProgressBar
from perdure.core import clock
from perdure.core.display import did_you_mean
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.bank import Bank
    from perdure.sessions.session_info import SessionInfo


async def sessions(
    settings: CommandSettings,
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
    async with ProgressBar("looking at the sessions"), existing_bank(settings) as bank:
        found = await bank.sessions(agent=agent, archived=archived)
    if settings.json:
        terminal.emit({"sessions": found})
    elif found:
        _show(found, tree=tree)
    else:
        terminal.say(
            f"There are no sessions{f' of {agent}' if agent else ''} yet."
            " `perdure import claude-code` brings some in."
        )


async def fork(
    settings: CommandSettings,
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
    from perdure.history.log_records import SessionRecord, agent_of

    async with existing_bank(settings) as bank:
        parent = await find_session(bank, session)
        name = new if "/" in new else f"{parent.agent}/{new}"
        agent_of(name)
        if await bank.collection(SessionRecord).get(name) is not None:
            raise InvalidInput(f"There is a session {name} already.", hint="Choose another name.")
        made = await parent.fork(name, at)
    record = made.record
    if settings.json:
        terminal.emit({"name": made.name, "parent": record.parent, "forked_at": record.forked_at})
    else:
        terminal.say(
            f"Forked {record.parent} behind T-{record.forked_at}:"
            f" {made.name} goes on at T-{record.forked_at + 1}."
        )


def _show(found: list[SessionInfo], *, tree: bool) -> None:
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
    newest = info.newest or info.active
    return "archived" if info.archived or newest is None else readable.relative_time(newest, now)


def _about(info: SessionInfo) -> str:
    if info.parent is not None:
        return f"fork of {info.parent} at T-{info.forked_at}"
    if info.link is not None:
        above = info.link.session
        return "sub-agent" if info.name.startswith(above) else f"sub-agent of {above}"
    return str(info.state.get("title") or info.state.get("cwd") or "")


def _branches(found: list[SessionInfo]) -> list[tuple[str, SessionInfo]]:
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


async def share(
    settings: CommandSettings,
    session: SessionArgument,
    agents: Annotated[
        list[str] | None, typer.Argument(metavar="[AGENT]...", help="Who may recall it.")
    ] = None,
    *,
    with_all: Annotated[
        bool, typer.Option("--with-all", help="Everybody may, now and later.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="They may not any more.")] = False,
    stop_all: Annotated[bool, typer.Option("--stop-all", help="Nobody else may any more.")] = False,
) -> None:
    """Let other agents recall a session, or show who may.

    A session is its agent's own until it is shared; what a fork has from its parent is shared with
    the parent. Stopping holds at once, everywhere.
    """
    named = list(agents or [])
    if with_all and named:
        raise InvalidInput("With all, or with some?", hint="Name agents, or give --with-all.")
    if stop_all and (named or with_all or stop):
        raise InvalidInput("All, or some?", hint="Give --stop-all alone, or --stop with agents.")
    if with_all:
        named = ["*"]
    if stop and not named:
        raise InvalidInput(
            "No agent is named, and nothing was changed.",
            hint="Name those who may not recall it any more; for all of them, use --stop-all.",
        )
    async with existing_bank(settings) as bank:
        found = await find_session(bank, session)
        if stop_all:
            await found.unshare_all()
        elif stop:
            await found.unshare(*named)
        elif named:
            await found.share(*named)
        name, shared = found.name, await found.shared_with()
        for note in await _unknown(bank, named):
            terminal.note(note)
    if settings.json:
        terminal.emit({"session": name, "shared_with": shared})
    elif shared:
        everybody = "*" in shared
        terminal.say(f"{name} is shared with {'everybody' if everybody else ', '.join(shared)}.")
    else:
        terminal.say(f"{name} is not shared.")


async def _unknown(bank: Bank, agents: list[str]) -> list[str]:
    """A note for each agent that has no session: perhaps a typing error."""
    from perdure.history.log_records import SessionRecord

    found = await bank.collection(SessionRecord).query().group_by("agent").aggregate(all="count")
    known = {str(row["agent"]) for row in found}
    return [
        f"There is no agent {each!r} yet. {did_you_mean(each, known)}".rstrip()
        for each in agents
        if each != "*" and each not in known
    ]
