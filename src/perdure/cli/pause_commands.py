"""``perdure pause`` and ``perdure resume``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import terminal
from perdure.cli.command_options import CommandSettings

if TYPE_CHECKING:
    from perdure.config.pauses import Pause


def pause(
    settings: CommandSettings,
    *,
    lasts: Annotated[
        str, typer.Option("--for", metavar="TIME", help="End by itself: 30m, 2h.")
    ] = "",
    status: Annotated[
        bool, typer.Option("--status", help="Only tell whether there is a pause.")
    ] = False,
) -> None:
    """Record nothing by itself until `perdure resume`: hooks, proxy, importers, MCP.

    Holds for you on this machine, over restarts. Requests pass the proxy unrecorded, and what was
    said meanwhile is not taken in later either. What you order, you get: commands, agents, the
    library and the API write as before.
    """
    from perdure.config.pauses import Pauses
    from perdure.core import clock

    pauses = Pauses()
    if status:
        found = pauses.current()
    else:
        found = pauses.begin(int(clock.duration(lasts) // clock.SECOND) if lasts else None)
    if settings.json:
        terminal.emit(_described(found))
    else:
        terminal.say(described(found) if found else "There is no pause: Perdure records.")


def resume(settings: CommandSettings) -> None:
    """End a pause: Perdure records again, from the next prompt on."""
    from perdure.config.pauses import Pauses

    ended = Pauses().end()
    if settings.json:
        terminal.emit(_described(None))
    elif ended is None:
        terminal.say("There was no pause: Perdure records.")
    else:
        terminal.say("Perdure records again. What was said in the pause stays out.")


def described(pause: Pause) -> str:
    """One sentence about a pause that holds."""
    since = _clock_time(pause.since)
    if pause.until is None:
        return f"Paused since {since}: nothing is recorded until `perdure resume`."
    until = _clock_time(pause.until)
    return f"Paused since {since}: nothing is recorded until {until}, or `perdure resume`."


def _described(pause: Pause | None) -> dict[str, Any]:
    if pause is None:
        return {"paused": False}
    return {"paused": True, "since": pause.since, "until": pause.until}


def _clock_time(seconds: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(seconds, UTC).astimezone():%Y-%m-%d %H:%M}"
