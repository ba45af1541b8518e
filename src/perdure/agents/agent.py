"""One agent: what `bank.agent("email-router", file="router.md")` returns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Self

import msgspec

from perdure.agents import questions
from perdure.agents.agent_memory import AgentMemory
from perdure.agents.agent_records import (
    AgentMessage,
    AgentQuestion,
    AgentRecord,
    AgentSchedule,
    AgentVersion,
    Cap,
    MessageState,
)
from perdure.agents.agent_state import AgentState
from perdure.agents.agent_tools import AgentTool, tools_in
from perdure.agents.agent_worker import AgentWorker, session_of
from perdure.core.errors import InvalidInput, MessageParked
from perdure.core.input_types import require_mapping, require_text
from perdure.core.messages import Usage
from perdure.storage.subscriptions import EventReceived

#: What `Agent.on` may be asked to tell.
EVENTS = ("replied", "parked", "asked", "answered", "rated", "state")


class AgentReply:
    """What became of a message: its answer, or what a person is asked before it goes on."""

    def __init__(
        self, agents: AgentWorker, message: AgentMessage, questions: tuple[AgentQuestion, ...] = ()
    ) -> None:
        self._agents = agents
        self.message = message
        #: Open ones; the turn goes on when they are answered.
        self.questions = questions

    def __repr__(self) -> str:
        return f"<AgentReply {self.id} {self.state}: {self.text[:60]!r}>"

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def text(self) -> str:
        return self.message.reply

    @property
    def state(self) -> MessageState:
        """``done``, or ``asking`` while a person is asked."""
        return self.message.state

    @property
    def session(self) -> str:
        return self.message.session

    @property
    def turn(self) -> int:
        return self.message.turn

    @property
    def model(self) -> str:
        return f"{self.message.provider}/{self.message.model}"

    @property
    def cost(self) -> int | None:
        """Picodollars of all calls; None if unknown."""
        return self.message.cost

    @property
    def usage(self) -> Usage:
        return Usage(input=self.message.input, output=self.message.output)

    @property
    def stopped(self) -> Cap:
        """The limit that ended the turn; empty if the model did."""
        return self.message.stopped

    @property
    def interrupted(self) -> tuple[str, ...]:
        """Tools that had begun when their process ended: nobody knows what they did."""
        return self.message.interrupted

    async def feedback(self, score: float, note: str = "") -> None:
        """Rate the answer from 0 to 1. Raises `InvalidInput`."""
        if not self.message.outcomes:
            raise InvalidInput("No model answered this.", hint="There is nothing to rate.")
        await self._agents.services.gateway.feedback(
            self.message.outcomes[-1], score, require_text(note, "note")
        )
        await self._agents.mailboxes.change(self.id, lambda found: found, topic="agent.rated")


class AgentStream:
    """An answer as it arrives: an async context manager, to be iterated over once.

    Yields the gateway's deltas and a `ToolResult` for each tool that ended. If another process does
    the message, nothing is yielded until it is over. `reply` is there at the end.
    """

    def __init__(self, agent: Agent, send: Callable[[], Awaitable[AgentMessage]]) -> None:
        self._agent = agent
        self._send = send
        self._heard: asyncio.Queue[object] = asyncio.Queue()
        self._waiting: asyncio.Task[AgentReply] | None = None
        self._message: AgentMessage | None = None
        self._leave: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        agents = self._agent.agents
        self._message = message = await self._send()
        # Nothing of it has been done yet, unless another process is very quick.
        self._leave = agents.hear(message.id, self._heard.put_nowait)
        self._waiting = asyncio.create_task(self._agent.result(message.id))
        self._waiting.add_done_callback(lambda _: self._heard.put_nowait(None))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._leave()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.cancel()  # the message goes on
            await asyncio.wait({self._waiting})

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> object:
        if self._waiting is None:
            raise InvalidInput(
                "This stream has not begun.", hint="Read it inside `async with … as stream`."
            )
        if self._waiting.done() and self._heard.empty():
            raise StopAsyncIteration
        found = await self._heard.get()
        if found is None:
            self._waiting.result()  # raises what the message failed with
            raise StopAsyncIteration
        return found

    @property
    def message(self) -> AgentMessage:
        """As it was accepted. Raises `InvalidInput` before that."""
        if self._message is None:
            raise InvalidInput("This stream has not begun.", hint="Enter it with `async with`.")
        return self._message

    @property
    def reply(self) -> AgentReply:
        """Raises `InvalidInput` before the end."""
        if self._waiting is None or not self._waiting.done():
            raise InvalidInput("The answer is not complete yet.", hint="Read it to its end first.")
        return self._waiting.result()


class Agent:
    """A durable single writer with a mailbox. Made by `Bank.agent`.

    A message that was accepted is done once, whatever happens to processes; where a tool had begun
    when its process ended, its outcome is told as unknown.
    """

    def __init__(
        self,
        agents: AgentWorker,
        record: AgentRecord,
        version: AgentVersion,
        *,
        tools: Mapping[str, AgentTool[..., Any]] | None = None,
        state: type[Any] = dict,
    ) -> None:
        self.agents = agents
        self.record = record
        self.version = version
        #: The functions that its model may call, by name, as far as this process has them.
        self.tools: dict[str, AgentTool[..., Any]] = dict(tools or {})
        #: What its program keeps: see `AgentState`.
        self.state: AgentState[Any] = AgentState(agents.services.store, record.name, state)

    def __repr__(self) -> str:
        return f"<Agent {self.name} v{self.version.number} {self.id}>"

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def id(self) -> str:
        """Durable: another agent that gets the name later has another."""
        return self.record.id

    @property
    def memory(self) -> AgentMemory:
        """What it learned from its interactions: four tiers."""
        return AgentMemory(self.agents.services, self.name, tiers=self.version.tiers or None)

    # Messages ---------------------------------------------------------------------------------

    async def ask(
        self,
        message: str,
        *,
        task: str = "",
        context: Mapping[str, Any] | None = None,
        session: str = "",
        key: str | None = None,
        deadline: float | None = None,
    ) -> AgentReply:
        """Send a message and wait for what becomes of it.

        `context` is plain data that is shown to the model with the message. Messages of one
        `session` (by default ``main``) are one conversation. `key` makes it idempotent: sent again,
        the first one's reply is returned. If a person has to be asked, returns with
        ``state == "asking"`` and the `questions`; `result` waits for the rest.

        Raises `MessageParked` if it failed too often, `DeadlineExceeded` after `deadline` seconds
        (it is done all the same), `InvalidInput`.
        """
        sent = await self.send(message, task=task, context=context, session=session, key=key)
        return await self.result(sent.id, deadline=deadline)

    async def send(
        self,
        message: str,
        *,
        task: str = "",
        context: Mapping[str, Any] | None = None,
        session: str = "",
        key: str | None = None,
    ) -> AgentMessage:
        """The same without waiting: when this returns, the message is accepted."""
        return await self.agents.send(
            self.name,
            require_text(message, "message"),
            task=require_text(task, "task"),
            context=None if context is None else require_mapping(context, "context"),
            session=require_text(session, "session"),
            key=None if key is None else require_text(key, "key"),
        )

    def stream(
        self,
        message: str,
        *,
        task: str = "",
        context: Mapping[str, Any] | None = None,
        session: str = "",
        key: str | None = None,
    ) -> AgentStream:
        """Ask, and read the answer as it arrives: see `AgentStream`."""
        return AgentStream(
            self,
            lambda: self.send(message, task=task, context=context, session=session, key=key),
        )

    async def result(self, id: str, *, deadline: float | None = None) -> AgentReply:
        """Wait until a message is done, or until a person is asked. Raises as `ask` does."""
        found = await self.agents.wait(id, deadline=deadline)
        if found.state == "done":
            return AgentReply(self.agents, found)
        if found.state == "asking":
            asked = await questions.open_questions(self.agents.services.store, found.agent)
            own = tuple(each for each in asked if each.message == id)
            return AgentReply(self.agents, found, own)
        raise MessageParked(
            f"The message {id} was {found.state}: {found.error or 'it was taken back'}",
            hint=f"`perdure agent retry {id}` has it done after all.",
        )

    async def messages(self, *, limit: int = 100) -> list[AgentMessage]:
        """The newest first."""
        return await self.agents.mailboxes.list(self.name, limit=limit)

    async def retry(self, id: str) -> AgentMessage:
        """Have a parked message done after all. Raises `NotFound`, `InvalidInput`."""
        found = await self.agents.mailboxes.retry(id)
        self.agents.wake(self.name)
        return found

    async def questions(self) -> list[AgentQuestion]:
        """Those that wait for a person, the oldest first."""
        return await questions.open_questions(self.agents.services.store, self.name)

    async def answer(
        self, question: str, text: str = "", *, approve: bool = True, by: str = ""
    ) -> AgentQuestion:
        """Answer a question, or allow a call or not (`approve`); its turn goes on."""
        return await self.agents.answer_question(question, text, approve=approve, by=by)

    # Schedules --------------------------------------------------------------------------------

    async def schedule(
        self,
        when: str | float | timedelta | datetime | None = None,
        message: str = "",
        *,
        every: str | float | timedelta | None = None,
        timezone: str = "",
        task: str = "",
        context: Mapping[str, Any] | None = None,
        session: str = "",
    ) -> AgentSchedule:
        """Send a message later: after a delay (seconds, ``"10m"``, a timedelta), at a datetime or
        its ISO text, by a cron expression (``"0 9 * * 1-5"``, in the local time zone or
        `timezone`), or again and again (`every`, from `when` on if both are given). Survives
        restarts; what was missed meanwhile is sent once. Raises `InvalidInput`.
        """
        plain = self.agents.services.mask_data({"body": message, "context": dict(context or {})})
        return await self.agents.schedules.add(
            self.name,
            when,
            plain["body"],
            every=every,
            timezone=timezone,
            task=task,
            context=plain["context"],
            session=session_of(self.name, session),
        )

    async def schedules(self) -> list[AgentSchedule]:
        """The next one first."""
        return await self.agents.schedules.list(self.name)

    async def cancel_schedule(self, id: str) -> None:
        """Raises `NotFound`."""
        await self.agents.schedules.cancel(id)

    # What it is -------------------------------------------------------------------------------

    async def versions(self) -> list[AgentVersion]:
        """The newest first."""
        return await self.agents.registry.versions(self.name)

    async def add_tools(self, *functions: Callable[..., Any]) -> None:
        """Let its model call these, too; a version says so. Raises `InvalidInput`."""
        found = tools_in([*self.tools.values(), *functions])
        said = msgspec.structs.replace(
            self.version, tools=tuple(each.declaration for each in found.values())
        )
        self.record, self.version = await self.agents.registry.define(
            self.name, said, reason="its tools"
        )
        self.tools = found
        self.agents.serve(self.name, found)

    async def on(
        self,
        event: str,
        handler: Callable[[EventReceived], Awaitable[None]],
        *,
        name: str = "",
    ) -> None:
        """Call a handler when something happens: ``replied``, ``parked``, ``asked``, ``answered``,
        ``rated``, ``state``; ``*`` for all. At least once and in order, also what happened while no
        process listened: the handler is known by its name. The event's payload names the message.
        """
        if event not in {*EVENTS, "*"}:
            raise InvalidInput(
                f"There is no event {event!r}.", hint=f"Use one of {', '.join(EVENTS)}, or *."
            )
        known = name or f"{handler.__module__}.{getattr(handler, '__qualname__', 'handler')}"

        async def passed(received: EventReceived) -> None:
            if received.key == self.name:
                await handler(received)

        subscriber = f"agent {self.name} {event} {known}".replace("/", ".")[:200]
        await self.agents.services.subscriptions.subscribe(subscriber, passed, [f"agent.{event}"])
