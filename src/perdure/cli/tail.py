"""``perdure tail``: a conversation as it goes on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import terminal
from perdure.cli.names import SessionArgument
from perdure.cli.options import Settings, common_options

if TYPE_CHECKING:
    from perdure.core.clock import Clock
    from perdure.session import Said

JsonLinesOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object a line for each message.")
]


@common_options(json=JsonLinesOption)
def tail(
    settings: Settings,
    session: SessionArgument,
    *,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="T-3", help="Begin with this turn; else with what is new."),
    ] = None,
) -> None:
    """Follow a session: print messages as they are written.

    By whatever process. Goes on until it is interrupted.
    """
    import asyncio

    asyncio.run(_tail(settings, session, since))


async def _tail(settings: Settings, name: str, since: str | None) -> None:
    from perdure.cli import names, places
    from perdure.cli.show import position
    from perdure.core.turns import Position

    after = None if since is None else Position.parse(position(since)).turn - 1
    async with places.existing_bank(settings, settings.load()) as bank:
        session = await names.find(bank, name)
        if not settings.json:
            newest = (await session.head()).turn
            stands = f"its newest turn is T-{newest}" if newest else "it has no turns yet"
            terminal.note(f"Following {session.name}; {stands}. Ctrl-C ends.")
        show = _emit if settings.json else _Shown(bank.store.now)
        async for said in session.tail(after=after):
            show(said)


def _emit(said: Said) -> None:
    import json

    import msgspec

    from perdure.history import leaks

    plain = msgspec.to_builtins(said, str_keys=True)
    _, leaked = leaks.hidden_tags((said.message,))
    print(json.dumps({"id": said.id, **plain, "leaked": leaked}), flush=True)


class _Shown:
    """Prints messages for people, with a heading where a turn begins or is gone back to."""

    def __init__(self, now: Clock) -> None:
        from perdure.cli import conversation

        self._now = now
        self._page = conversation.Page(conversation.PAGE, now())
        self._turn = 0

    def __call__(self, said: Said) -> None:
        if said.turn != self._turn:
            self._turn = said.turn
            time = said.message.time
            self._page.announce(said.turn, self._now() if time is None else time)
        self._page.message(said.message)
        sys.stdout.flush()
