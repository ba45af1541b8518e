"""``perdure agent``: make agents, talk to them, look after what they wait for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from perdure.cli import agent_display, terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings, LimitOption, YesOption
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.agents.agent import Agent

NameArgument = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")]
OptionalName = Annotated[
    str | None, typer.Argument(metavar="AGENT", help="The agent's name; all if left out.")
]
MessageArgument = Annotated[
    str, typer.Argument(metavar="MESSAGE", help="What it is to do; - reads what is typed.")
]
TaskOption = Annotated[
    str, typer.Option("--task", metavar="NAME", help="The kind of work, such as email_routing.")
]
SessionOption = Annotated[
    str, typer.Option("--session", metavar="NAME", help="The conversation; main by default.")
]
ContextOption = Annotated[
    str, typer.Option("--context", metavar="JSON", help="Data that is shown with the message.")
]
KeyOption = Annotated[
    str | None, typer.Option("--key", help="Sent again with the same key, it is done once.")
]
#: As in `perdure.agents.agent_records`, which takes time to load.
Status: TypeAlias = Literal["active", "paused", "retired"]
State: TypeAlias = Literal["accepted", "working", "asking", "done", "parked", "cancelled"]


async def add(
    settings: CommandSettings,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Claude Code agent file.")],
    *,
    name: Annotated[
        str, typer.Option("--name", help="What it is called, if the file does not say so.")
    ] = "",
    reason: Annotated[str, typer.Option("--reason", help="Why, for the list of versions.")] = "",
) -> None:
    """Make an agent from a file; again, to renew it.

    A Claude Code agent file is Markdown: its text is the prompt; its front matter may have name,
    description, tools, disallowedTools, model, maxTurns, skills, and of Perdure's own tasks,
    limits, strategy, budget, recall and tiers. Further fields are kept. A file that says something
    else than the current version makes a new one.
    """
    async with existing_bank(settings) as bank:
        before = {each.name: each.version for each in await bank.agents.find()}
        agent = await bank.agent(name, file=file, serve=False, reason=reason)
        same = before.get(agent.name) == agent.version.number
        if settings.json:
            terminal.emit(_whole(agent.record, agent.version))
        else:
            how = "unchanged" if same else "kept"
            terminal.say(f"{agent.name} is {how}: version {agent.version.number}, {agent.id}.")
        if absent := _absent_tools(agent):
            terminal.note(
                f"Its file names tools that do not exist here: {', '.join(absent)}. Its model is"
                " not offered them, unless a program brings them:"
                f' bank.agent("{agent.name}", tools=[…]).'
            )


async def list_(
    settings: CommandSettings,
    *,
    skill: Annotated[str, typer.Option("--skill", help="Only those that have it.")] = "",
    task: Annotated[str, typer.Option("--task", help="Only those that do it.")] = "",
    status: Annotated[Status | None, typer.Option("--status", help="Only these.")] = None,
) -> None:
    """Show the agents."""
    async with existing_bank(settings) as bank:
        found = await bank.agents.find(skill=skill, task=task, status=status)
    if settings.json:
        terminal.emit({"agents": [agent_display.plain(each) for each in found]})
    else:
        agent_display.show_agents(found)


async def show(settings: CommandSettings, name: NameArgument) -> None:
    """Show what an agent is, and what it has to do."""
    async with existing_bank(settings) as bank:
        agent = await bank.agents.get(name)
        messages = await agent.messages(limit=10_000)
    waiting = dict(Counter[str](each.state for each in messages))
    if settings.json:
        terminal.emit({**_whole(agent.record, agent.version), "messages": waiting})
    else:
        agent_display.show_agent(agent.record, agent.version, waiting)


async def send(
    settings: CommandSettings,
    name: NameArgument,
    message: MessageArgument,
    *,
    task: TaskOption = "",
    session: SessionOption = "",
    context: ContextOption = "",
    key: KeyOption = None,
) -> None:
    """Send a message and do not wait: whoever works for the agent does it."""
    async with existing_bank(settings) as bank:
        agent = await bank.agents.get(name)
        sent = await agent.send(
            typed_text(message), task=task, context=parse_data(context), session=session, key=key
        )
    _tell(settings, sent, f"Accepted as {sent.id}.")


async def pause(settings: CommandSettings, name: NameArgument) -> None:
    """Let an agent begin no more messages; they are accepted and wait."""
    async with existing_bank(settings) as bank:
        record = await bank.agents.pause(name)
    _tell(settings, record, f"{name} is paused.")


async def resume(settings: CommandSettings, name: NameArgument) -> None:
    """Let an agent that was paused or retired go on."""
    async with existing_bank(settings) as bank:
        record = await bank.agents.resume(name)
    _tell(settings, record, f"{name} is active.")


async def remove(
    settings: CommandSettings,
    name: NameArgument,
    *,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Forget it for good: sessions, messages, memories, all."),
    ] = False,
    yes: YesOption = False,
) -> None:
    """Take an agent out of use; with --forget, erase all that it left."""
    async with existing_bank(settings) as bank:
        await bank.agents.get(name)
        if not forget:
            record = await bank.agents.retire(name)
            _tell(settings, record, f"{name} is retired. Everything is kept.")
            return
        settings.confirm(f"Forget {name} and all that it said?", done="forgotten", yes=yes)
        gone = await bank.forget_agent(name)
        if settings.json:
            terminal.emit({"forgotten": name, "sessions": gone.sessions, "turns": gone.turns})
        else:
            terminal.say(
                f"{name} is forgotten, with {terminal.plural(len(gone.sessions), 'session')}."
            )


async def versions(
    settings: CommandSettings,
    name: NameArgument,
    *,
    use: Annotated[
        int | None,
        typer.Option("--use", metavar="N", min=1, help="Say again what version N says."),
    ] = None,
) -> None:
    """Show what an agent was and is, the newest first."""
    async with existing_bank(settings) as bank:
        if use is not None:
            await bank.agents.registry.use_version(name, use)
        found = await bank.agents.versions(name)
    if settings.json:
        terminal.emit({"versions": [agent_display.plain(each) for each in found]})
    else:
        agent_display.show_versions(found)


async def messages(
    settings: CommandSettings,
    name: NameArgument,
    *,
    state: Annotated[State | None, typer.Option("--state", help="Only these.")] = None,
    limit: LimitOption = 20,
) -> None:
    """Show the messages of an agent, the newest first."""
    async with existing_bank(settings) as bank:
        await bank.agents.get(name)
        found = await bank.agents.mailboxes.list(
            name, states=(state,) if state else (), limit=limit or 10**9
        )
    if settings.json:
        terminal.emit({"messages": [agent_display.plain(each) for each in found]})
    else:
        agent_display.show_messages(found)


async def retry(
    settings: CommandSettings,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="Its id: router/00000012.")],
) -> None:
    """Have a parked message done after all."""
    async with existing_bank(settings) as bank:
        found = await bank.agents.mailboxes.retry(message)
    _tell(settings, found, f"{message} is accepted again.")


async def cancel(
    settings: CommandSettings,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="Its id: router/00000012.")],
) -> None:
    """Take back a message that has not begun, or that was parked."""
    async with existing_bank(settings) as bank:
        found = await bank.agents.mailboxes.cancel(message)
    _tell(settings, found, f"{message} is taken back.")


async def questions(settings: CommandSettings, name: OptionalName = None) -> None:
    """Show what agents ask people: questions, and calls that need approval."""
    async with existing_bank(settings) as bank:
        found = await bank.agents.questions(name)
    if settings.json:
        terminal.emit({"questions": [agent_display.plain(each) for each in found]})
    else:
        agent_display.show_questions(found)


async def answer(
    settings: CommandSettings,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="Its id.")],
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help="The answer.")] = "",
    *,
    deny: Annotated[bool, typer.Option("--deny", help="Do not allow the call.")] = False,
) -> None:
    """Answer a question, or allow a call; the turn that waits goes on."""
    from perdure.agents.agent_records import AgentLease

    async with existing_bank(settings) as bank:
        found = await bank.agents.answer(question, text, approve=not deny)
        lease = await bank.collection(AgentLease).get(found.agent)
        is_free = lease is None or not lease.owner or lease.until <= bank.store.now()
    _tell(settings, found, "Answered.")
    if is_free:
        terminal.note(
            f"The turn goes on when a process works for {found.agent}: `perdure serve`, a program"
            f" that has its tools, or `perdure agent ask {found.agent} …`."
        )


async def schedule(
    settings: CommandSettings,
    name: NameArgument,
    when: Annotated[
        str,
        typer.Argument(
            metavar="WHEN",
            help='10m, "2026-12-24 18:00", a cron expression such as "0 9 * * 1-5", or every 1h.',
        ),
    ],
    message: MessageArgument,
    *,
    task: TaskOption = "",
    session: SessionOption = "",
    timezone: Annotated[
        str, typer.Option("--timezone", metavar="ZONE", help="Of a cron expression.")
    ] = "",
) -> None:
    """Send a message later, or again and again."""
    from perdure.agents.schedules import moment_in

    async with existing_bank(settings) as bank:
        agent = await bank.agents.get(name)
        given, every = moment_in(when)
        made = await agent.schedule(
            given,
            typed_text(message),
            every=every,
            task=task,
            session=session,
            timezone=timezone,
        )
        now = bank.store.now()
    if settings.json:
        terminal.emit(agent_display.plain(made))
    else:
        agent_display.show_schedules([made], now)


async def schedules(settings: CommandSettings, name: OptionalName = None) -> None:
    """Show what will be sent, the next first."""
    async with existing_bank(settings) as bank:
        found = await bank.agents.schedules.list(name)
        now = bank.store.now()
    if settings.json:
        terminal.emit({"schedules": [agent_display.plain(each) for each in found]})
    else:
        agent_display.show_schedules(found, now)


async def unschedule(
    settings: CommandSettings,
    schedule: Annotated[str, typer.Argument(metavar="SCHEDULE", help="Its id.")],
) -> None:
    """Do not send it any more."""
    async with existing_bank(settings) as bank:
        await bank.agents.schedules.cancel(schedule)
    if settings.json:
        terminal.emit({"cancelled": schedule})
    else:
        terminal.say(f"{schedule} is cancelled.")


def typed_text(message: str) -> str:
    return typer.get_text_stream("stdin").read() if message == "-" else message


def parse_data(text: str) -> dict[str, Any] | None:
    import json

    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise InvalidInput(f"--context is no JSON: {exc}.", hint='Write {"name": …}.') from exc
    if not isinstance(found, dict):
        raise InvalidInput("--context is no object.", hint='Write {"name": …}.')
    return found


def _absent_tools(agent: Agent) -> list[str]:
    """Names in its file that are no tool of Perdure, and none that a program brought."""
    from perdure.agents.agent_tools import ASK_PERSON
    from perdure.context.history_tools import HISTORY_TOOLS

    there = {ASK_PERSON, *(each.name for each in HISTORY_TOOLS)}
    there |= {each.name for each in agent.version.tools}
    return [each for each in agent.version.allowed_tools or () if each not in there]


def _whole(record: Any, version: Any) -> dict[str, Any]:
    return {**agent_display.plain(record), "definition": agent_display.plain(version)}


def _tell(settings: CommandSettings, record: Any, words: str) -> None:
    if settings.json:
        terminal.emit(agent_display.plain(record))
    else:
        terminal.say(words)
