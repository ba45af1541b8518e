"""A turn with a model: the session's context goes out, the answer is written as it arrives, tools
are answered, and again until the model has done.

    conversation = ModelConversation(session, gateway, options, call)
    context = await conversation.context("What did we decide?")
    async for reply in conversation.replies(context, steps=20):
        …answer reply.message.calls with session.append(…)

What a server's chat and an agent's loop have in common. What they answer calls with, and what they
tell whom meanwhile, is theirs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

import msgspec

from perdure.context.context import Context
from perdure.context.history_tools import HISTORY_TOOLS
from perdure.core.errors import PerdureError
from perdure.core.messages import Message, Text, ToolCall, ToolResult
from perdure.gateway.calls import (
    CallBegan,
    CallDelta,
    CallOptions,
    Delta,
    ReasoningDelta,
    Reply,
    Request,
    TextDelta,
    Tool,
)
from perdure.gateway.gateway import Gateway
from perdure.history.answer_drafts import DraftGuard
from perdure.history.streamed_answers import StreamedAnswer
from perdure.history.turn_log import AppendHook
from perdure.sessions.session import Session
from perdure.wire import codec

HISTORY_NAMES = frozenset(tool.name for tool in HISTORY_TOOLS)


class ConversationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is asked."""

    system: str = ""
    #: The caller's own, beside those of the history.
    tools: tuple[Tool, ...] = ()
    history_tools: bool = True
    recall: bool = True
    budget: int | None = None
    max_tokens: int | None = None
    reasoning: Any = None
    #: Whether the answer is kept as a draft while it arrives: for those who watch it.
    drafts: bool = True


class ModelConversation:
    """Asks a model on behalf of a session. Making one raises `NoModel` if there is none to ask.

    `heard` is told each delta. `guard` runs in each transaction that writes an answer, and `wrote`
    in that which completes it; both may run more than once.
    """

    def __init__(
        self,
        session: Session,
        gateway: Gateway,
        options: ConversationOptions,
        call: CallOptions,
        *,
        heard: Callable[[Delta], None] | None = None,
        guard: DraftGuard | None = None,
        wrote: Callable[[Reply], AppendHook] | None = None,
    ) -> None:
        self.session = session
        self._gateway = gateway
        self._options = options
        self._call = call
        self._heard = heard
        self._guard = guard
        self._wrote = wrote
        candidate = gateway.catalog.candidates(call)[0]
        self._wire, self._model = candidate.provider.wire, candidate.model
        self._tools = (*(HISTORY_TOOLS if options.history_tools else ()), *options.tools)

    async def context(self, prompt: Any = None) -> Context:
        """Raises what `Session.context` raises."""
        options = self._options
        return await self.session.context(
            prompt,
            system=options.system,
            tools=self._tools,
            model=self._model,
            budget=options.budget,
            recall=options.recall,
        )

    async def replies(
        self,
        context: Context,
        *,
        steps: int,
        told: Callable[[Context], None] = lambda _: None,
    ) -> AsyncGenerator[Reply, None]:
        """Ask, and again with what was appended meanwhile, until a reply calls no tool. The reader
        answers all calls of a reply before it asks for the next; in the last step no tool can be
        called. `told` gets each context before it is sent.
        """
        for step in range(1, steps + 1):
            told(context)
            reply = await self.ask(context, last=step == steps)
            yield reply
            if not reply.message.calls:
                return
            context = await self.context()

    async def ask(self, context: Context, *, last: bool = False) -> Reply:
        """One model call; its answer is in the log when this returns. Raises what the gateway
        raises; what arrived by then is a draft of the turn.
        """
        options = self._options
        request = Request(
            messages=_messages(context, self._wire),
            tools=context.tools,
            tool_choice="none" if last and context.tools else "auto",
            max_tokens=options.max_tokens,
            reasoning=options.reasoning,
            prompt_cache_key=context.cache_key,
        )
        if not options.drafts:
            reply = await self._gateway.complete(request, self._call)
            message = msgspec.structs.replace(
                reply.message, model=reply.model or reply.message.model
            )
            await self.session.append(message, within=self._within(reply))
            return reply
        async with (
            self._gateway.stream(request, self._call) as arriving,
            self.session.answer(model=self._model, guard=self._guard) as answer,
        ):
            calls: dict[int, str] = {}
            async for delta in arriving:
                if self._heard is not None:
                    self._heard(delta)
                await _take(delta, calls, answer)
            reply = arriving.reply
            within = None if self._wrote is None else self._wrote(reply)
            await answer.finish(message=reply.message, model=reply.model, within=within)
        return reply

    async def run_history_tool(self, call: ToolCall) -> ToolResult:
        """Never raises for what the model wrote."""
        text = await self.session.run_tool(call.name, call.arguments)
        return ToolResult(call.id, (Text(text),), name=call.name)

    async def end_partial(self, turn: int, *, keep: bool) -> None:
        """What arrived of an answer that will not go on becomes part of the turn, or is dropped."""
        with suppress(PerdureError):  # then it stays a draft, or is gone
            for partial in await self.session.partials():
                if partial.turn == turn:
                    if keep and partial.message.parts:
                        await self.session.close_partial(partial)
                    else:
                        await self.session.drop_partial(partial)

    def _within(self, reply: Reply) -> AppendHook | None:
        guard, wrote = self._guard, None if self._wrote is None else self._wrote(reply)
        if guard is None:
            return wrote

        async def both(transaction: Any, written: Any) -> None:
            await guard(transaction)
            if wrote is not None:
                await wrote(transaction, written)

        return both


async def _take(delta: Delta, calls: dict[int, str], answer: StreamedAnswer) -> None:
    if isinstance(delta, TextDelta):
        await answer.text(delta.text)
    elif isinstance(delta, ReasoningDelta):
        await answer.reasoning(delta.text)
    elif isinstance(delta, CallBegan):
        calls[delta.index] = delta.id
        await answer.call(delta.id, delta.name)
    elif isinstance(delta, CallDelta) and delta.index == len(calls) - 1:
        # The draft of others is complete at their end.
        await answer.arguments(delta.arguments)


def _messages(context: Context, wire: str) -> tuple[Message, ...]:
    """With the marks of what the provider may cache, where the wire format has such."""
    if wire == "messages":
        body = context.to_messages()
        return codec("messages").decode({name: body[name] for name in body if name != "tools"})
    system = (Message("system", (Text(context.system),)),) if context.system.strip() else ()
    return (*system, *context.messages)
