"""What an agent does with one message: context → model → tools → again, until the turn closes.

The session's log says where a message stands (`message_progress` writes it). So whoever goes on
after a crash reads the open turn, and continues behind the last thing in it. What can happen twice
is a model call whose answer had not been written yet; a tool cannot, unless it said that it may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from perdure.agents.agent_lease import HeldLease
from perdure.agents.agent_records import AgentMessage, AgentVersion, Cap, PlacedCall
from perdure.agents.agent_tools import (
    ASK_PERSON,
    ASK_PERSON_TOOL,
    AgentTool,
    ToolContext,
    ToolRun,
    failure,
)
from perdure.agents.message_progress import (
    UNKNOWN,
    AgentSeams,
    AgentVariant,
    MessageProgress,
    TurnEnded,
)
from perdure.context.context import Context
from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, ToolCall
from perdure.gateway.calls import CallOptions, Delta
from perdure.history.intake import resolved
from perdure.services import Services
from perdure.sessions.model_conversation import (
    HISTORY_NAMES,
    ConversationOptions,
    ModelConversation,
)
from perdure.sessions.session import Session

_DOLLAR = 10**12  # Picodollars.
_SAID: dict[Cap, str] = {
    "steps": "the limit of {0.steps:,} model calls",
    "tokens": "the limit of {0.tokens:,} tokens",
    "dollars": "the limit of ${0.dollars:,.2f}",
    "seconds": "the limit of {0.seconds:,.0f} seconds",
}


class MessageRun:
    """The work on one message, by one process, under one lease. `heard` gets what arrives."""

    def __init__(  # noqa: PLR0917  # what a run is made of
        self,
        services: Services,
        session: Session,
        lease: HeldLease,
        message: AgentMessage,
        version: AgentVersion,
        tools: dict[str, AgentTool[..., Any]],
        *,
        seams: AgentSeams,
        heard: Callable[[object], None] | None = None,
        variant: AgentVariant | None = None,
    ) -> None:
        self._progress = MessageProgress(services.store, session, lease, message, seams)
        self._services = services
        self._session = session
        self.version = version
        self._limits = version.limits
        self._heard = heard
        self._tools = {name: each for name, each in tools.items() if is_offered(version, name)}
        self._variant = message.variant or ("" if variant is None else variant.name)
        self._conversation = ModelConversation(
            session,
            services.gateway,
            self._options(variant),
            CallOptions(
                purpose="chat",
                agent=message.agent,
                session=message.session,
                task=message.task,
                model=(variant.model if variant is not None else "") or version.candidate,
            ),
            heard=self._hear,
            guard=lease.check,
            wrote=self._progress.replied,
        )

    @property
    def message(self) -> AgentMessage:
        return self._progress.message

    def _options(self, variant: AgentVariant | None) -> ConversationOptions:
        version = self.version
        asks = (ASK_PERSON_TOOL,) if is_offered(version, ASK_PERSON) else ()
        recalls = None if variant is None else variant.recall
        budget = (0 if variant is None else variant.budget) or version.budget
        return ConversationOptions(
            system=version.prompt,
            tools=(*(each.tool for each in self._tools.values()), *asks),
            history_tools=version.history_tools,
            recall=version.recall if recalls is None else recalls,
            budget=budget or None,
            drafts=self._heard is not None,
        )

    async def run(self) -> AgentMessage:
        """Until it is done, or waits for a person. Raises what models and the store raise: then the
        message stays as it is, to be tried again.
        """
        limit = asyncio.timeout(self._limits.seconds - self.message.seconds)
        try:
            async with limit:
                await self._run()
        except TurnEnded:
            pass
        except TimeoutError:
            if not limit.expired():
                raise
            # The last thing that it wrote may have been committed all the same.
            if (await self._progress.refresh()).state in {"accepted", "working"}:
                await self._conversation.end_partial(self.message.turn, keep=False)
                await self._stop("seconds")
        return self.message

    async def _run(self) -> None:
        context = await (self._resumed() if self.message.turn else self._opened())
        steps = max(self._limits.steps - self.message.steps, 1)
        replies = self._conversation.replies(context, steps=steps)
        async with aclosing(replies):
            async for reply in replies:
                if reply.message.calls:
                    await self._answer(placed_calls(reply.message))
                    await self._check_caps(*_CAPS)

    async def _opened(self) -> Context:
        await self._session.leave_turn()
        context = await self._conversation.context(prompt_of(self.message))
        begun = self._progress.begun(self.version.number, self._variant)
        await self._session.append([], context=context, within=begun)
        await self._progress.note_recalled()
        return context

    async def _resumed(self) -> Context:
        """What another process, or an earlier attempt, left."""
        turn = self.message.turn
        await self._session.resume(turn)
        await self._conversation.end_partial(turn, keep=False)
        await self._progress.note_recalled()
        if waiting := waiting_calls((await self._session.turn(turn)).messages):
            await self._answer(waiting)
        await self._check_caps(*_CAPS)
        return await self._conversation.context()

    def _hear(self, delta: Delta) -> None:
        if self._heard is not None:
            self._heard(delta)

    # Tools ------------------------------------------------------------------------------------

    async def _answer(self, calls: Sequence[PlacedCall]) -> None:
        """One after the other, each result written when it is there. Calls that people have to
        answer come last: then the turn waits for them.
        """
        asks = list[tuple[PlacedCall, bool]]()
        for placed in calls:
            call = placed.call
            await self._check_caps("tokens", "dollars", "seconds")
            tool = self._tools.get(call.name)
            needs = self._asks(call) or (tool is not None and tool.declaration.approval)
            asked = await self._progress.question(placed) if needs else None
            if needs and (asked is None or not asked.answered):
                asks.append((placed, tool is not None))
            elif asked is not None and tool is None:
                await self._result(placed, asked.answer)
            elif asked is not None and not asked.approved:
                why = f" They say: {asked.answer}" if asked.answer else ""
                await self._result(placed, f"A person did not allow this call.{why}", error=True)
            elif asked is not None and asked.arguments != await self._arguments(call):
                # Never run what nobody has seen, however it came about.
                await self._result(placed, "A person allowed another call, not this.", error=True)
            elif tool is not None:
                await self._run_tool(placed, tool)
            else:
                await self._run_other(placed)
        if asks:
            await self._progress.park(
                [(PlacedCall(at, self._masked(call)), allow) for (at, call), allow in asks]
            )
            raise TurnEnded

    def _masked(self, call: ToolCall) -> ToolCall:
        """As it is in the log."""
        (said,) = self._services.mask_messages((Message("assistant", (call,)),))
        return said.calls[0]

    def _asks(self, call: ToolCall) -> bool:
        return call.name == ASK_PERSON and is_offered(self.version, ASK_PERSON)

    async def _run_other(self, placed: PlacedCall) -> None:
        call = placed.call
        if call.name in HISTORY_NAMES and self.version.history_tools:
            result = await self._conversation.run_history_tool(call)
            await self._result(placed, result.text)
        else:
            names = ", ".join([*self._tools, ASK_PERSON])
            text = f"There is no tool {call.name!r}. There are: {names}."
            await self._result(placed, text, error=True)

    async def _run_tool(self, placed: PlacedCall, tool: AgentTool[..., Any]) -> None:
        progress, message, call = self._progress, self.message, placed.call
        if await progress.has_begun(placed) and not tool.declaration.idempotent:
            await self._result(placed, UNKNOWN, unknown=True)
            return
        try:
            given = tool.read_arguments(await self._arguments(call))
        except InvalidInput as exc:
            await self._result(placed, str(exc), error=True)
            return
        await progress.intend(placed)
        context = ToolContext(
            agent=message.agent,
            message=message.id,
            context=message.context,
            session=message.session,
            task=message.task,
            call=call.id,
            key=progress.call_key(placed),
        )
        try:
            text = await tool.run(given, ToolRun(context, message.chain, progress.lease))
        except Exception as exc:  # noqa: BLE001  # it is the user's function: the model is told
            await self._result(placed, failure(exc), error=True)
        else:
            await self._result(placed, text)

    async def _arguments(self, call: ToolCall) -> str:
        """Large ones were moved out of the log."""
        if call.reference is None:
            return call.arguments
        (whole,) = await resolved((Message("assistant", (call,)),), self._services.artifacts)
        return whole.calls[0].arguments

    async def _result(
        self, placed: PlacedCall, text: str, *, error: bool = False, unknown: bool = False
    ) -> None:
        result = await self._progress.result(placed, text, error=error, unknown=unknown)
        if self._heard is not None:
            self._heard(result)

    # Caps -------------------------------------------------------------------------------------

    async def _check_caps(self, *caps: Cap) -> None:
        """End the turn if one of these is reached."""
        message, limits = self.message, self._limits
        reached = {
            "steps": message.steps >= limits.steps,
            "tokens": message.input + message.output >= limits.tokens,
            "dollars": (message.cost or 0) >= limits.dollars * _DOLLAR,
            "seconds": self._progress.seconds >= limits.seconds,
        }
        for cap in caps:
            if reached[cap]:
                await self._stop(cap)
                raise TurnEnded

    async def _stop(self, cap: Cap) -> None:
        what = _SAID[cap].format(self._limits)
        if not self.message.turn:
            raise InvalidInput(f"Nothing was done within {what}.", hint="Give it more time.")
        messages = (await self._session.turn(self.message.turn)).messages
        said = next((each.text for each in reversed(messages) if each.role == "assistant"), "")
        text = f"I stopped here: {what} was reached."
        await self._progress.stop(cap, text, said, waiting_calls(messages))


_CAPS: tuple[Cap, ...] = ("steps", "tokens", "dollars", "seconds")


def placed_calls(reply: Message) -> list[PlacedCall]:
    return [PlacedCall(place, call) for place, call in enumerate(reply.calls)]


def waiting_calls(messages: Sequence[Message]) -> list[PlacedCall]:
    """Those of the newest reply that have no result. Ids may repeat, from reply to reply and in
    one: calls of one tool get their results in their order.
    """
    waiting = list[PlacedCall]()
    for message in messages:
        if message.role == "assistant":
            waiting = placed_calls(message)
        for result in message.results:
            own = [each for each in waiting if each.call.id == result.call]
            named = [each for each in own if each.call.name == result.name]
            for each in (named or own)[:1]:
                waiting.remove(each)
    return waiting


def is_offered(version: AgentVersion, name: str) -> bool:
    if name in version.disallowed_tools:
        return False
    return name == ASK_PERSON or version.allowed_tools is None or name in version.allowed_tools


def prompt_of(message: AgentMessage) -> str:
    """What the model reads: the message, and what its sender gave with it."""
    if not message.context:
        return message.body
    given = msgspec.json.format(msgspec.json.encode(message.context, enc_hook=str)).decode()
    return f"{message.body}\n\n<context>\n{given}\n</context>"
