"""``perdure show``, ``turn`` and ``tail``: what was said."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from perdure.cli import terminal
from perdure.cli.bank_access import SessionArgument, existing_bank, find_session
from perdure.cli.command_options import CommandSettings
from perdure.cli.terminal import ProgressBar
from perdure.core import clock
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.context.session_tools import Rendering
    from perdure.core.clock import Clock
    from perdure.core.turns import Turn
    from perdure.history.log_records import Head
    from perdure.sessions.session import Session
    from perdure.sessions.session_reader import TailMessage


PAGE_SIZE = 20


class PageRequest(NamedTuple):
    """Which turns are asked for."""

    page: int
    size: int
    since: str | None
    until: str | None
    tags: dict[str, str]
    undone: bool
    full: bool

    @property
    def flags(self) -> list[str]:
        given = ["--size", str(self.size)] if self.size != PAGE_SIZE else []
        given += ["--since", self.since] if self.since is not None else []
        given += ["--until", self.until] if self.until is not None else []
        given += [
            word for name, value in self.tags.items() for word in ("--tag", f"{name}={value}")
        ]
        given += ["--full"] if self.full else []
        return given + (["--undone"] if self.undone else [])

    @property
    def filtered(self) -> bool:
        return self.since is not None or self.until is not None or bool(self.tags)


class SessionPage(NamedTuple):
    """A page of a session."""

    session: str
    newest: int
    folder: str
    turns: list[Turn]
    older: bool


async def show(
    settings: CommandSettings,
    session: SessionArgument,
    *,
    page: Annotated[
        int, typer.Option("--page", min=1, metavar="N", help="1 holds the newest turns.")
    ] = 1,
    size: Annotated[
        int, typer.Option("--size", min=1, max=10_000, metavar="N", help="Turns on a page.")
    ] = PAGE_SIZE,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From then on: 2026-02-12, 3d.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Before then.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="NAME=VALUE", help="Turns with this tag. Repeatable."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Everything that was said, tool results included.")
    ] = False,
    undone: Annotated[bool, typer.Option("--undone", help="Turns that were undone, too.")] = False,
) -> None:
    """Show a page of a session: its newest turns, or older."""
    wanted = PageRequest(page, size, since, until, tags_in(tag or []), undone, full)
    async with ProgressBar("reading"), existing_bank(settings) as bank:
        found = await _page(await find_session(bank, session), wanted)
    if settings.json:
        turns = [turn_json(turn) for turn in found.turns]
        terminal.emit(
            {"session": found.session, "page": page, "older": found.older, "turns": turns}
        )
    else:
        _print(found, wanted)


async def turn(
    settings: CommandSettings,
    session: SessionArgument,
    id: Annotated[
        str, typer.Argument(metavar="TURN", help="T-12, or T-12.3 for one of its rounds.")
    ],
    *,
    level: Annotated[
        str | None,
        typer.Option(
            "--level",
            metavar="LEVEL",
            help="As prompts hold it: R raw, S smoothed, C compressed, T tiny.",
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Everything that was said, fetched if need be.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Tool results shortened by the rules for them.")
    ] = False,
    resolve: Annotated[
        bool, typer.Option("--resolve", help="Fetch what lies in the artifact store.")
    ] = False,
) -> None:
    """Show one turn or round, with what its tools answered."""
    if full and prune:
        raise InvalidInput("A turn is shown in full or pruned.", hint="Choose one of them.")
    if level is not None and (full or prune or resolve):
        raise InvalidInput(
            "A rendition is shown as it is.", hint="Leave out --full, --prune and --resolve."
        )
    async with existing_bank(settings) as bank:
        read = await find_session(bank, session)
        if level is not None:
            _show_rendition(settings, await read.turn(position(id), level=level))
            return
        whole = resolve or full or (prune and not settings.json)
        found = await read.turn(position(id), resolve=whole, prune=prune)
    if settings.json:
        terminal.emit(turn_json(found))
        return
    from perdure.cli import conversation_page

    detail = conversation_page.FULL if full or prune else conversation_page.TURN
    conversation_page.ConversationPage(detail, clock.now(), _folder(read)).turn(found)


def turn_json(turn: Turn) -> dict[str, Any]:
    import msgspec

    from perdure.history import turn_tags

    fields = msgspec.to_builtins(turn, str_keys=True)
    _, leaked = turn_tags.hidden_in(turn)
    return {"id": turn.id, **fields, "tokens": turn.tokens, "leaked": leaked}


async def _page(session: Session, wanted: PageRequest) -> SessionPage:
    head = await session.head()

    async def turns(before: int | None = None) -> list[Turn]:
        return await session.turns(
            wanted.size + 1,
            before=before,
            since=wanted.since,
            until=wanted.until,
            tags=wanted.tags,
            undone=wanted.undone,
            resolve=wanted.full,
        )

    if wanted.filtered:  # which turns fit is not known without a look
        found = await turns()
        for _ in range(wanted.page - 1):
            found = await turns(found[1].number) if len(found) > wanted.size else []
    else:
        found = await turns(_first_behind(head, wanted))
    if not found and wanted.page > 1:
        raise InvalidInput(
            f"{session.name} has no page {wanted.page}.", hint="Ask for one with a lower number."
        )
    shown = found[-wanted.size :]
    return SessionPage(session.name, head.newest, _folder(session), shown, len(found) > len(shown))


def _first_behind(head: Head, wanted: PageRequest) -> int:
    number, left = head.newest + 1, (wanted.page - 1) * wanted.size
    while left and number > 1:
        number -= 1
        if wanted.undone or not head.is_undone(number):
            left -= 1
    return number


def _show_rendition(settings: CommandSettings, found: Rendering) -> None:
    if settings.json:
        terminal.emit(found)
        return
    terminal.say(f"{found.id}-{found.level}: {terminal.plural(found.tokens, 'token')}", "bold")
    terminal.verbatim(terminal.lines(found.text))


def _folder(session: Session) -> str:
    return str(session.state.get("cwd", ""))


def position(text: str) -> str:
    """Accepts T-12, t-12 and 12."""
    return f"T-{text}" if text[:1].isdigit() else text.replace("t-", "T-")


def tags_in(given: list[str]) -> dict[str, str]:
    """The tags of ``--tag NAME=VALUE``. Raises `InvalidInput`."""
    found = dict[str, str]()
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InvalidInput(f"{each!r} is no tag.", hint="Write it like topic=auth.")
        found[name] = value
    return found


def _print(found: SessionPage, wanted: PageRequest) -> None:
    from perdure.cli import conversation_page

    if not found.turns:
        what = "no such turns" if wanted.filtered else "no turns yet"
        terminal.say(f"{found.session} has {what}.")
        return
    detail = conversation_page.FULL if wanted.full else conversation_page.PAGE
    page = conversation_page.ConversationPage(detail, clock.now(), found.folder)
    for turn in found.turns:
        page.turn(turn)
    page.footer(_ways_on(found, wanted))


def _ways_on(found: SessionPage, wanted: PageRequest) -> list[str]:
    """Which turns were shown, and the commands for the others."""
    name = shlex.quote(found.session)
    first, last = found.turns[0].id, found.turns[-1].id
    facts = [f"{first if first == last else f'{first} to {last}'} of {found.newest}"]
    command = shlex.join(["perdure", "show", found.session, *wanted.flags, "--page"])
    if found.older:
        facts.append(f"older: {command} {wanted.page + 1}")
    if wanted.page > 1:
        way = "--page" if found.older else command
        facts.append(f"newer: {way} {wanted.page - 1}")
    if len(facts) == 1:
        facts.append(f"one of them: perdure turn {name} {last}")
    return facts


async def tail(
    settings: CommandSettings,
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
    from perdure.core.turns import Position

    after = None if since is None else Position.parse(position(since)).turn - 1
    async with existing_bank(settings) as bank:
        followed = await find_session(bank, session)
        if not settings.json:
            newest = (await followed.head()).turn
            stands = f"its newest turn is T-{newest}" if newest else "it has no turns yet"
            terminal.note(f"Following {followed.name}; {stands}. Ctrl-C ends.")
        show = _emit_message if settings.json else _MessagePrinter(bank.store.now)
        async for said in followed.tail(after=after):
            show(said)


def _emit_message(said: TailMessage) -> None:
    import json

    import msgspec

    from perdure.history import turn_tags

    plain = msgspec.to_builtins(said, str_keys=True)
    _, leaked = turn_tags.hidden_tags((said.message,))
    print(json.dumps({"id": said.id, **plain, "leaked": leaked}), flush=True)


class _MessagePrinter:
    """Prints messages with a heading where a turn begins or is resumed."""

    def __init__(self, now: Clock) -> None:
        from perdure.cli import conversation_page

        self._now = now
        self._page = conversation_page.ConversationPage(conversation_page.PAGE, now())
        self._turn = 0

    def __call__(self, said: TailMessage) -> None:
        if said.turn != self._turn:
            self._turn = said.turn
            time = said.message.time
            self._page.announce(said.turn, self._now() if time is None else time)
        self._page.message(said.message)
        sys.stdout.flush()
