"""What is written about a message while it is done: each step is one transaction, under the lease.

The prompt is written together with the number of its turn, each reply together with what it took,
each result together with the end of its intent, the last reply together with the message's end.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from perdure.agents import questions
from perdure.agents.agent_lease import HeldLease
from perdure.agents.agent_records import (
    AgentMessage,
    AgentQuestion,
    Cap,
    PlacedCall,
    ToolIntent,
    call_key,
    no_message,
)
from perdure.agents.interaction import Interaction
from perdure.agents.mailbox import changed_in, tell
from perdure.context.injection_records import Injection
from perdure.core.messages import Message, Text, ToolResult, Usage
from perdure.gateway.calls import Reply
from perdure.history.log_records import turn_key
from perdure.history.turn_log import AppendHook, Written
from perdure.sessions.session import Session
from perdure.storage.options import STRONG
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction


class TurnEnded(Exception):  # no error
    """Nothing is left to be done now: the turn has ended, or waits for a person."""


class AgentVariant(Protocol):
    """What an experiment changes for a session. Empty, 0 and None: nothing."""

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def prompt_version(self) -> int: ...
    @property
    def budget(self) -> int: ...
    @property
    def recall(self) -> bool | None: ...


class AgentSeams:
    """What others put into the loop: the bank's wiring fills it."""

    def __init__(self) -> None:
        #: Inside the transaction that ends a message, perhaps more than once.
        self.record: list[Callable[[Transaction, Interaction], Awaitable[object]]] = []
        #: With agent and session, before the first context is composed.
        self.variant: Callable[[str, str], Awaitable[AgentVariant | None]] | None = None


class MessageProgress:
    """One message, as this process last wrote it."""

    def __init__(
        self,
        store: Store,
        session: Session,
        lease: HeldLease,
        message: AgentMessage,
        seams: AgentSeams,
    ) -> None:
        self.store = store
        self.lease = lease
        self.message = message
        self._session = session
        self._seams = seams
        self._recalled = message.recalled
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Of work on it so far."""
        return self.message.seconds + time.monotonic() - self._began

    def call_key(self, placed: PlacedCall) -> str:
        """Of the newest reply: models use the ids of their calls again."""
        return call_key(self.message.id, self.message.steps, placed)

    async def refresh(self) -> AgentMessage:
        """As it is in the store. Raises `NotFound`."""
        found = await self.store.collection(AgentMessage).get(self.message.id, STRONG)
        if found is None:
            raise no_message(self.message.id)
        self.message = found
        return found

    async def note_recalled(self) -> None:
        """What stands beside the prompt of its turn."""
        rows = self.store.collection(Injection)
        found = await rows.get(turn_key(self.message.session, self.message.turn))
        self._recalled = () if found is None else (*found.full, *found.ticklers)

    def begun(self, version: int, variant: str) -> AppendHook:
        """With the prompt. Raises `TurnEnded`, and writes nothing, if the message was taken back
        meanwhile.
        """
        started = self.store.now()

        async def within(transaction: Transaction, written: Written) -> None:
            await self.lease.check(transaction)

            def begin(found: AgentMessage) -> AgentMessage:
                if found.is_over:
                    self.message = found
                    raise TurnEnded
                return msgspec.structs.replace(
                    found,
                    state="working",
                    turn=written.last,
                    started=found.started or started,
                    agent_version=version,
                    variant=variant,
                )

            await self._change(transaction, begin)

        return within

    def replied(self, reply: Reply) -> AppendHook:
        """With a reply; with the last one, the message is over."""
        usage = reply.usage or Usage()

        def counted(found: AgentMessage) -> AgentMessage:
            cost = found.cost if reply.cost is None else (found.cost or 0) + reply.cost
            return msgspec.structs.replace(
                found,
                state="working",
                steps=found.steps + 1,
                input=found.input + (usage.input or 0),
                output=found.output + (usage.output or 0),
                cost=cost,
                outcomes=(*found.outcomes, reply.outcome) if reply.outcome else found.outcomes,
                provider=reply.provider,
                model=reply.model,
                deaths=0,
                outages=0,
            )

        async def within(transaction: Transaction, _: Written) -> None:
            await self._change(transaction, counted)
            if not reply.message.calls:
                await self._end(transaction, reply.message.text)

        return within

    # Tools ------------------------------------------------------------------------------------

    async def has_begun(self, placed: PlacedCall) -> bool:
        intents = self.store.collection(ToolIntent)
        return await intents.get(self.call_key(placed), STRONG) is not None

    async def intend(self, placed: PlacedCall) -> None:
        """Before a tool runs."""

        async def body(transaction: Transaction) -> None:
            await self.lease.check(transaction)
            intent = ToolIntent(
                id=self.call_key(placed),
                message=self.message.id,
                tool=placed.call.name,
                started=transaction.now(),
            )
            await transaction.collection(ToolIntent).put(intent)

        await self.store.transact(body)

    async def result(
        self, placed: PlacedCall, text: str, *, error: bool = False, unknown: bool = False
    ) -> ToolResult:
        """Write what a call gave; `unknown` if nobody knows."""
        call = placed.call
        result = ToolResult(call.id, (Text(text),), is_error=error or unknown, name=call.name)

        def counted(found: AgentMessage) -> AgentMessage:
            return msgspec.structs.replace(
                found,
                state="working",
                tool_calls=found.tool_calls + 1,
                interrupted=(*found.interrupted, call.name) if unknown else found.interrupted,
                deaths=0,
            )

        async def within(transaction: Transaction, _: Written) -> None:
            await self.lease.check(transaction)
            await transaction.collection(ToolIntent).delete(self.call_key(placed))
            await self._change(transaction, counted)

        await self._session.append(Message("tool", (result,)), within=within)
        return result

    async def question(self, placed: PlacedCall) -> AgentQuestion | None:
        return await self.store.collection(AgentQuestion).get(self.call_key(placed), STRONG)

    async def park(self, calls: Sequence[tuple[PlacedCall, bool]]) -> None:
        """Wait for people to answer these calls; whether each one asks for their approval. They
        hold no secrets.
        """

        async def body(transaction: Transaction) -> None:
            await self.lease.check(transaction)
            for placed, approval in calls:
                id = self.call_key(placed)
                await questions.put(transaction, id, self.message, placed.call, approval=approval)
            seconds = self.seconds
            await self._change(
                transaction,
                lambda found: msgspec.structs.replace(found, state="asking", seconds=seconds),
            )
            tell(transaction, "agent.asked", self.message)

        await self.store.transact(body)

    # The end ----------------------------------------------------------------------------------

    async def stop(self, cap: Cap, text: str, said: str, calls: Sequence[PlacedCall]) -> None:
        """End the turn with words of ours: calls that wait are told that they were not run, or that
        nobody knows.
        """
        begun = [placed for placed in calls if await self.has_begun(placed)]
        keys = [self.call_key(placed) for placed in begun]
        results = [
            Message("tool", (ToolResult(call.id, (Text(told),), is_error=True, name=call.name),))
            for place, call in calls
            for told in (UNKNOWN if (place, call) in begun else f"Not run: {text}",)
        ]
        last = Message("assistant", (Text(text),))

        async def within(transaction: Transaction, _: Written) -> None:
            await self.lease.check(transaction)
            await transaction.collection(ToolIntent).delete_many(keys)
            names = tuple(each.call.name for each in begun)
            await self._change(
                transaction,
                lambda found: msgspec.structs.replace(
                    found, interrupted=(*found.interrupted, *names)
                ),
            )
            whole = f"{said}\n\n{text}" if said.strip() else text
            await self._end(transaction, whole, cap)

        await self._session.append([*results, last], within=within)

    async def _end(self, transaction: Transaction, text: str, stopped: Cap = "") -> None:
        now, seconds = self.store.now(), self.seconds
        await self._change(
            transaction,
            lambda found: msgspec.structs.replace(
                found,
                state="done",
                reply=text,
                error="",
                ended=now,
                stopped=stopped,
                recalled=self._recalled,
                seconds=seconds,
            ),
        )
        tell(transaction, "agent.replied", self.message)
        interaction = interaction_of(self.message)
        for record in self._seams.record:
            await record(transaction, interaction)

    async def _change(
        self, transaction: Transaction, change: Callable[[AgentMessage], AgentMessage]
    ) -> None:
        self.message = await changed_in(transaction, self.message.id, change)


UNKNOWN = (
    "Interrupted, outcome unknown: the process that ran this tool ended before it did. It may have"
    " done its work, a part of it, or nothing. Find out before you call it again."
)


def interaction_of(message: AgentMessage) -> Interaction:
    return Interaction(
        id=message.id,
        agent=message.agent,
        agent_version=message.agent_version,
        session=message.session,
        turn=message.turn,
        task=message.task,
        request=message.body,
        response=message.reply,
        context=message.context,
        recalled=message.recalled,
        outcomes=message.outcomes,
        provider=message.provider,
        model=message.model,
        success=message.state == "done",
        error=message.error,
        cost=message.cost,
        latency=max(0.0, message.seconds),
        tokens=Usage(input=message.input, output=message.output),
        steps=message.steps,
        tool_calls=message.tool_calls,
        variant=message.variant,
        started=message.started,
        ended=message.ended,
    )
