"""``perdure forget``: delete for good, after a question."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import existing_bank, find_session
from perdure.cli.command_options import CommandSettings, YesOption
from perdure.cli.terminal import ProgressBar
from perdure.core.display import one_line
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.bank import Bank
    from perdure.core.messages import Part
    from perdure.core.turns import Turn
    from perdure.history.forget_sessions import Forgotten
    from perdure.sessions.session import Session
    from perdure.sessions.session_info import SessionInfo

#: Sessions and turns that are listed one by one.
_LISTED = 20


async def forget(
    settings: CommandSettings,
    session: Annotated[
        str | None,
        typer.Argument(metavar="SESSION", help="Its name, or a unique beginning or end of it."),
    ] = None,
    *,
    turn: Annotated[
        list[str] | None,
        typer.Option("--turn", metavar="T-3", help="Only what was said in it. Repeatable."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="All sessions of this agent.")
    ] = None,
    reroot: Annotated[
        bool, typer.Option("--reroot", help="Give forks the turns that they share, as their own.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Forget a session, turns, or an agent, for good.

    A session takes the sub-agents that it started with it. Of a turn, its number, its times and the
    hash that proves the rest stay. Memories that machines made of it go, too, and with an agent all
    that it has. Shows what would go, and asks.
    """
    turns = turn or []
    if (session is None) == (agent is None):
        raise InvalidInput("Name a session, or an agent with --agent.", hint="One of them.")
    if agent is not None and turns:
        raise InvalidInput("An agent is forgotten whole.", hint="Leave --turn out.")
    async with existing_bank(settings) as bank:
        if session is not None and turns:
            found = await find_session(bank, session)
            gone = await _forget_turns(settings, bank, found, turns, yes=yes)
        else:
            named = None if session is None else (await find_session(bank, session)).name
            gone = await _forget_sessions(settings, bank, named, agent, reroot=reroot, yes=yes)
    if settings.json:
        terminal.emit(gone)
        return
    if turns and not (gone.turns or gone.memories or gone.artifacts):
        terminal.say("That was forgotten already.")
    else:
        terminal.say(_in_words(gone))
    if not gone.erased:
        terminal.note(
            "Others have the bank open: bytes of it may still lie in its files. Forget something"
            " again when they are gone."
        )


def _in_words(gone: Forgotten) -> str:
    sessions = terminal.plural(len(gone.sessions), "session")
    what = f"{terminal.plural(gone.turns, 'turn')} of {sessions}"
    memories = f"{gone.memories:,} {'memory' if gone.memories == 1 else 'memories'}"
    artifacts = terminal.plural(gone.artifacts, "artifact")
    return f"Forgot {what}, {memories}, and {artifacts}."


async def _forget_turns(
    settings: CommandSettings, bank: Bank, session: Session, turns: list[str], *, yes: bool
) -> Forgotten:
    from perdure.cli.show_commands import position
    from perdure.sessions.session_info import turn_numbers

    numbers = turn_numbers(map(position, turns), session.record)
    found = [await session.turn(number) for number in numbers]
    settings.confirm("Forget it?", *_turns_in_words(session, found), done="forgotten", yes=yes)
    async with ProgressBar("forgetting"):
        return await bank.forget(session.name, turns=numbers)


async def _forget_sessions(
    settings: CommandSettings,
    bank: Bank,
    session: str | None,
    agent: str | None,
    *,
    reroot: bool,
    yes: bool,
) -> Forgotten:
    going = await _going(bank, session, agent, reroot=reroot)
    memories = [] if agent is None else await bank.memories.list(agent, status=None)
    if agent is not None and not going and not memories:
        raise InvalidInput(
            f"There are no sessions or memories of {agent}.",
            hint="`perdure sessions` and `perdure memory list` show those there are.",
        )
    words = _sessions_in_words(going, len(memories))
    settings.confirm("Forget it?", *words, done="forgotten", yes=yes)
    async with ProgressBar("forgetting"):
        if session is not None:
            return await bank.forget(session, reroot=reroot)
        return await bank.forget_agent(str(agent), reroot=reroot)


async def _going(
    bank: Bank, session: str | None, agent: str | None, *, reroot: bool
) -> list[SessionInfo]:
    """The sessions that would go, with those of sub-agents. Raises `InvalidInput` if one that
    stays shares their turns.
    """
    infos = await bank.sessions(archived=True)
    going = {
        info.name: info
        for info in infos
        if (info.name == session if session is not None else info.agent == agent)
    }
    while started := [
        info
        for info in infos
        if info.name not in going and info.link is not None and info.link.session in going
    ]:
        going |= {info.name: info for info in started}
    forks = [info for info in infos if info.parent in going and info.name not in going]
    if forks and not reroot:
        named = ", ".join(info.name for info in forks[:_LISTED])
        raise InvalidInput(
            f"{terminal.plural(len(forks), 'fork')} would lose the turns they share: {named}.",
            hint="Forget them first, or add --reroot to give them these turns as their own.",
        )
    return list(going.values())


def _sessions_in_words(going: list[SessionInfo], memories: int) -> list[str]:
    lines = [
        f"  {info.name}: {terminal.plural(info.turns - (info.forked_at or 0), 'turn')},"
        f" {terminal.plural(info.tokens, 'token')}"
        for info in going[:_LISTED]
    ]
    if len(going) > _LISTED:
        lines.append(f"  and {len(going) - _LISTED:,} more")
    if memories:
        lines.append(f"  and {memories:,} {'memory' if memories == 1 else 'memories'} of the agent")
    return [f"This forgets {terminal.plural(len(going), 'session')} for good:", *lines]


def _turns_in_words(session: Session, turns: list[Turn]) -> list[str]:
    lines = [
        f"  {turn.id}, {readable.absolute_time(turn.started)}: {_gist(turn)}"
        for turn in turns[:_LISTED]
    ]
    if len(turns) > _LISTED:
        lines.append(f"  and {len(turns) - _LISTED:,} more")
    what = terminal.plural(len(turns), "turn")
    return [f"This forgets for good what was said in {what} of {session.name}:", *lines]


def _gist(turn: Turn) -> str:
    if turn.status == "forgotten":
        return "forgotten already"
    parts = (part for message in turn.messages for part in message.parts)
    said = (one_line(words, 60) for words in chain([turn.prompt], map(_words, parts)))
    return next(filter(None, said), "no words")


def _words(part: Part) -> str:
    from perdure.core.messages import Media, ToolCall, ToolResult, words_of
    from perdure.history import gist

    match part:
        case ToolCall():
            return f"{part.name}: {gist.asked(part)}"
        case ToolResult():
            return gist.came(part).words
        case Media():
            return gist.described(part)
        case _:
            return words_of(part)
