"""``perdure share``: who else may recall a session."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli import terminal
from perdure.cli.options import (
    BankOption,
    ConfigOption,
    DebugOption,
    JsonOption,
    Settings,
    refine,
)
from perdure.core.errors import InvalidInput


def share(
    ctx: typer.Context,
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
    stop: Annotated[
        bool, typer.Option("--stop", help="They may not any more; without agents, nobody else.")
    ] = False,
    bank: BankOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Let other agents recall a session, or show who may.

    A session is its agent's own until it is shared; what a fork has from its parent is shared with
    the parent. Stopping holds at once, everywhere.
    """
    import asyncio

    settings = refine(ctx, bank=bank, config=config, json=json, debug=debug)
    named = list(agents or [])
    if with_all and named:
        raise InvalidInput("With all, or with some?", hint="Name agents, or give --with-all.")
    if with_all:
        named = ["*"]
    name, shared = asyncio.run(_shared(settings, session, named, stop=stop))
    if settings.json:
        terminal.emit({"session": name, "shared_with": shared})
    elif shared:
        everybody = "*" in shared
        terminal.say(f"{name} is shared with {'everybody' if everybody else ', '.join(shared)}.")
    else:
        terminal.say(f"{name} is not shared.")


async def _shared(
    settings: Settings, name: str, agents: list[str], *, stop: bool
) -> tuple[str, list[str]]:
    """The session's name and who may recall it, after what was asked for was done."""
    from perdure.cli import names, places

    async with places.existing_bank(settings, settings.load()) as bank:
        session = await names.find(bank, name)
        if stop:
            await session.unshare(*agents)
        elif agents:
            await session.share(*agents)
        return session.name, await session.shared_with()
