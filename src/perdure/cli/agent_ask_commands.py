"""``perdure agent ask``: send a message, and show its answer as it arrives."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import agent_display, terminal
from perdure.cli.agent_commands import (
    ContextOption,
    KeyOption,
    MessageArgument,
    NameArgument,
    SessionOption,
    TaskOption,
    parse_data,
    typed_text,
)
from perdure.cli.bank_access import working_bank
from perdure.cli.command_options import CommandSettings
from perdure.core.errors import PerdureError

if TYPE_CHECKING:
    from perdure.agents.agent import Agent, AgentReply
    from perdure.agents.agent_records import AgentMessage

#: Seconds after which whoever asked is told what their message waits for; looked at so often.
_MOMENT = 2.0


async def ask(
    settings: CommandSettings,
    name: NameArgument,
    message: MessageArgument,
    *,
    task: TaskOption = "",
    session: SessionOption = "",
    context: ContextOption = "",
    key: KeyOption = None,
    wait: Annotated[
        float | None,
        typer.Option("--wait", min=0.1, metavar="SECONDS", help="Wait no longer for its answer."),
    ] = None,
) -> None:
    """Ask an agent, and show its answer as it arrives.

    If no other process works for the agent, this one does. An agent with Python tools needs a
    process that has them: the message waits for it. Interrupted, the message is done all the same,
    when somebody works for the agent; `perdure agent cancel` takes it back.
    """
    import asyncio

    async with working_bank(settings) as bank:
        agent = await bank.agent(name)
        sent = await agent.send(
            typed_text(message), task=task, context=parse_data(context), session=session, key=key
        )
        said = False

        def tell(what: object) -> None:
            from perdure.gateway.calls import TextDelta

            nonlocal said
            if isinstance(what, TextDelta) and not settings.json:
                said = True
                sys.stdout.write(terminal.printable(what.text))
                sys.stdout.flush()

        leave = bank.agents.hear(sent.id, tell)
        try:
            async with _telling_reasons(agent, sent.id):
                reply = await agent.result(sent.id, deadline=wait)
        except asyncio.CancelledError:
            terminal.note(
                f"{sent.id} is kept, and done when a process works for {name}."
                f" `perdure agent cancel {sent.id}` takes it back."
            )
            raise
        finally:
            leave()
        if settings.json:
            terminal.emit(_reply(reply))
            return
        if said:
            terminal.say()
        _tell_reply(reply, said=said)


@asynccontextmanager
async def _telling_reasons(agent: Agent, id: str) -> AsyncIterator[None]:
    """Meanwhile say on stderr what the message waits for, each reason once."""
    import asyncio

    async def look() -> None:
        told = ""
        while True:
            await asyncio.sleep(_MOMENT)
            reason = ""
            with suppress(PerdureError):  # whoever waits for the answer is told of it
                reason = await _reason(agent, await agent.agents.mailboxes.get(id))
            if reason and reason != told:
                terminal.note(f"queued as {id}: waits for {reason}")
                told = reason

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.wait({looking})


async def _reason(agent: Agent, message: AgentMessage) -> str:
    """Empty if it is being done."""
    from perdure.agents.agent_records import AgentLease

    store = agent.agents.services.store
    lease = await store.collection(AgentLease).get(agent.name)
    is_held = lease is not None and bool(lease.owner) and lease.until > store.now()
    if message.state not in {"accepted", "working"} or (message.state == "working" and is_held):
        return ""
    record = await agent.agents.registry.get(agent.name)
    if record.status == "paused":
        return f"the agent: it is paused (`perdure agent resume {agent.name}`)."
    if message.error:
        return f"another attempt: {message.error}"
    if is_held:
        return f"earlier messages of {agent.name}."
    if agent.version.tools:
        names = ", ".join(each.name for each in agent.version.tools)
        return f"a process that has its tools, which are missing here: {names}."
    return ""


def _reply(reply: AgentReply) -> dict[str, Any]:
    asked = [agent_display.plain(each) for each in reply.questions]
    return {**agent_display.plain(reply.message), "questions": asked}


def _tell_reply(reply: AgentReply, *, said: bool) -> None:
    found: AgentMessage = reply.message
    if reply.state == "asking":
        agent_display.show_questions(reply.questions)
        terminal.note("It goes on when they are answered: `perdure agent answer QUESTION TEXT`.")
        return
    # What was shown as it arrived is not shown twice; of a turn that was stopped, the end was not.
    if not said or reply.stopped:
        terminal.prose(reply.text)
    if reply.interrupted:
        names = ", ".join(reply.interrupted)
        terminal.note(f"Interrupted, outcome unknown: {names}.")
    calls = terminal.plural(found.steps, "model call")
    model = f"{found.provider}/{found.model}"
    rated = f"perdure agent rate {found.id} SCORE"
    terminal.murmur(f"{found.id} · {model} · {calls} · rate it: {rated}\n")
