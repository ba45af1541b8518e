"""``perdure inbox``: what reflection has to tell, and what is to be decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import changed_bank, existing_bank, require_agent
from perdure.cli.command_options import CommandSettings
from perdure.cli.memory_display import person_here
from perdure.core.display import plural

if TYPE_CHECKING:
    from perdure.reflection.inbox import InboxMessage

MessageArgument = Annotated[str, typer.Argument(metavar="MESSAGE", help="Its key: planner/I-2.")]
_KINDS = "proposal, layer, contradiction, candidate, note, junk, spend, trouble"


def _as_json(message: InboxMessage) -> dict[str, Any]:
    from msgspec import to_builtins

    return {"message": message.name, "status": message.status, **to_builtins(message)}


async def list_(
    settings: CommandSettings,
    agent: Annotated[
        str | None, typer.Argument(metavar="AGENT", help="About whom; all if left out.")
    ] = None,
    *,
    kind: Annotated[str | None, typer.Option("--kind", help=f"Only of these: {_KINDS}.")] = None,
    status: Annotated[
        str, typer.Option("--status", help="Only open, accepted or dismissed ones; or any.")
    ] = "open",
) -> None:
    """List messages, the newest first."""
    async with existing_bank(settings) as bank:
        if agent is not None:
            await require_agent(bank, agent)
        wanted = None if status == "any" else status
        found = await bank.inbox.list(agent, kind=kind, status=wanted)
        now = bank.store.now()
    if settings.json:
        terminal.emit({"messages": [_as_json(each) for each in found]})
        return
    if not found:
        which = "messages" if wanted is None else f"{status} messages"
        terminal.say(f"There are no {which}.")
        return
    rows = [
        (each.name, each.kind, readable.relative_time(each.created, now), each.title)
        for each in found
    ]
    terminal.table(("Message", "Kind", "When", "About"), rows)
    terminal.note(f"{plural(len(found), 'message')}. `perdure inbox show MESSAGE` shows one.")


async def show(settings: CommandSettings, key: MessageArgument) -> None:
    """Show a message, with what accepting it would do."""
    async with existing_bank(settings) as bank:
        message = await bank.inbox.get(key)
    if settings.json:
        terminal.emit(_as_json(message))
        return
    terminal.say(f"{message.name} ({message.kind}, {message.status}): {message.title}")
    terminal.verbatim(terminal.lines(message.text))
    if message.status == "open" and (message.operation is not None or message.keys):
        does = "contradict" if message.operation is None else message.operation.op
        terminal.note(f"`perdure inbox accept {message.name}` does it: {does}.")


async def accept(settings: CommandSettings, key: MessageArgument) -> None:
    """Carry out what a message proposes, in your name."""
    async with changed_bank(settings) as bank:
        message = await bank.inbox.accept(key, by=person_here(bank))
        if settings.json:
            terminal.emit(_as_json(message))
        else:
            terminal.say(f"{message.name} is accepted: {message.title}")
            if message.memory:
                terminal.say(f"The memory is {message.memory}.")


async def dismiss(settings: CommandSettings, key: MessageArgument) -> None:
    """Put a message away; nothing is changed."""
    async with existing_bank(settings) as bank:
        message = await bank.inbox.dismiss(key, by=person_here(bank))
    if settings.json:
        terminal.emit(_as_json(message))
    else:
        terminal.say(f"{message.name} is dismissed: {message.title}")
