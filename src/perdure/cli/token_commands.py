"""``perdure token``: who may call the server."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings
from perdure.core import clock
from perdure.core.errors import InvalidInput


async def make(
    settings: CommandSettings,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who will use it.")],
    *,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help="read, write, proxy or admin (everything); may be repeated. Default: read.",
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="AGENT", help="Only what belongs to this agent."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="For so long: 12h, 30d. Default: for good."),
    ] = None,
) -> None:
    """Make a token, and print it once.

    It cannot be shown again: the bank keeps only its hash.
    """
    from perdure.server.access_tokens import AccessTokens
    from perdure.server.operations import TokenScope

    try:
        scopes = tuple(TokenScope(each) for each in scope or ["read"])
    except ValueError as exc:
        raise typer.BadParameter("Use read, write, proxy or admin.", param_hint="--scope") from exc
    lasts = None if expires is None else _lasts(expires)
    async with existing_bank(settings) as bank:
        tokens = AccessTokens(bank.store)
        secret, token = await tokens.make(name, scopes=scopes, agent=agent, lasts=lasts)
    if settings.json:
        terminal.emit({"token": secret, "id": token.short, "expires": token.expires})
        return
    print(secret)
    terminal.note("Keep it: it cannot be shown again.")


async def list_(settings: CommandSettings) -> None:
    """Show the tokens there are, and when they were last used."""
    from perdure.server.access_tokens import AccessTokens

    async with existing_bank(settings) as bank:
        found = await AccessTokens(bank.store).describe()
        now = bank.store.now()
    if settings.json:
        terminal.emit({"tokens": found})
        return
    if not found:
        terminal.say("There are no tokens.")
        return
    headings = ("Id", "Name", "Agent", "Scopes", "Expires", "Last used")
    rows = [
        (
            token.id,
            token.name,
            token.agent or "all",
            ", ".join(token.scopes),
            _expiry(token.expires, now),
            "never" if token.used is None else readable.relative_time(token.used, now),
        )
        for token in found
    ]
    terminal.listing(headings, rows)


async def revoke(
    settings: CommandSettings,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Its name, or its id.")],
) -> None:
    """Revoke a token. A server that runs refuses it within a second."""
    from perdure.server.access_tokens import AccessTokens

    async with existing_bank(settings) as bank:
        revoked = await AccessTokens(bank.store).revoke(token)
    if settings.json:
        terminal.emit({"id": revoked.short, "name": revoked.name, "revoked": True})
    else:
        terminal.say(f"Revoked {revoked.name} ({revoked.short}).")


def _lasts(text: str) -> int:
    try:
        lasts = clock.duration(text)
    except InvalidInput as exc:
        raise typer.BadParameter(str(exc), param_hint="--expires") from exc
    if lasts <= 0:
        raise typer.BadParameter("It would have expired at once.", param_hint="--expires")
    return lasts


def _expiry(expires: datetime | None, now: int) -> str:
    if expires is None:
        return "never"
    expired = clock.from_datetime(expires) <= now
    return f"{expires.astimezone():%Y-%m-%d %H:%M}{' (expired)' if expired else ''}"
