"""``perdure share``: who else may recall a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import terminal
from perdure.cli.options import Settings, common_options
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.bank import Bank


@common_options()
def share(
    settings: Settings,
    session: Annotated[
        str,
        typer.Argument(metavar="SESSION", help="Its name, or a unique beginning or end of it."),
    ],
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
    import asyncio

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
    name, shared, notes = asyncio.run(
        _shared(settings, session, named, stop=stop, stop_all=stop_all)
    )
    for note in notes:
        terminal.note(note)
    if settings.json:
        terminal.emit({"session": name, "shared_with": shared})
    elif shared:
        everybody = "*" in shared
        terminal.say(f"{name} is shared with {'everybody' if everybody else ', '.join(shared)}.")
    else:
        terminal.say(f"{name} is not shared.")


async def _shared(
    settings: Settings, name: str, agents: list[str], *, stop: bool, stop_all: bool
) -> tuple[str, list[str], list[str]]:
    """The session's name and who may recall it, after what was asked for was done.

    And which of the agents there are not, or not yet.
    """
    from perdure.cli import names, places

    async with places.existing_bank(settings, settings.load()) as bank:
        session = await names.find(bank, name)
        if stop_all:
            await session.unshare_all()
        elif stop:
            await session.unshare(*agents)
        elif agents:
            await session.share(*agents)
        return session.name, await session.shared_with(), await _unknown(bank, agents)


async def _unknown(bank: Bank, agents: list[str]) -> list[str]:
    """A note for each agent that has no session. That is no mistake, but it may be one."""
    from perdure.core.display import did_you_mean
    from perdure.history.records import SessionRecord

    found = await bank.collection(SessionRecord).query().group_by("agent").aggregate(all="count")
    known = {str(row["agent"]) for row in found}
    return [
        f"There is no agent {each!r} yet. {did_you_mean(each, known)}".rstrip()
        for each in agents
        if each != "*" and each not in known
    ]
