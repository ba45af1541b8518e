"""An agent without a program: a model through the gateway, with tools for the files of the working
folder and the checks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from perdure.agents.one_shot.exit_records import AgentReport, find_record
from perdure.agents.one_shot.model_files import FILE_TOOL_NAMES, FILE_TOOLS, ModelFiles
from perdure.agents.one_shot.run_records import CheckResult, RunSettings
from perdure.core.errors import InvalidInput, PerdureError
from perdure.core.messages import Message, Text, ToolCall, ToolResult
from perdure.gateway.calls import CallOptions, Reply, Tool
from perdure.gateway.gateway import Gateway
from perdure.gateway.quality import is_refusal
from perdure.history.turn_log import AppendHook
from perdure.sessions.model_conversation import ConversationOptions, ModelConversation
from perdure.sessions.session import Session

replace = msgspec.structs.replace
MOST_STEPS = 50  # Model calls in one run; the last may call no tool.
SYSTEM = "You work on a specification, alone, with the tools that you are given."
TOOLS = (*FILE_TOOLS, Tool("run_checks", "Run the checks; tells which fail, and how."))


class ModelAgent:
    """One run of a model."""

    def __init__(
        self,
        gateway: Gateway,
        session: Session,
        settings: RunSettings,
        files: ModelFiles,
        *,
        check: Callable[[], Awaitable[tuple[CheckResult, ...]]],
        within: AppendHook,
    ) -> None:
        self._session = session
        self._files = files
        self._check = check
        self._within = within
        self._conversation = ModelConversation(
            session,
            gateway,
            ConversationOptions(
                system=SYSTEM,
                tools=TOOLS,
                history_tools=False,
                recall=settings.recall,
                drafts=False,
            ),
            CallOptions(
                purpose="chat",
                task="one-shot",
                agent=session.agent,
                session=session.name,
                model=settings.model,
            ),
            wrote=lambda _: within,
        )
        self._known = 0  # Picodollars, of the calls that told.
        #: Tokens of the calls whose price is not known; None if all are.
        self._unpriced: int | None = None

    @property
    def spent(self) -> AgentReport:
        """What it cost so far."""
        unpriced = self._unpriced
        cost = self._known if unpriced is None else None
        return AgentReport(text="", cost=cost, known_cost=self._known, tokens=unpriced or 0)

    async def run(self, left: int) -> AgentReport:
        """Until the model calls no more tools, or this much money (picodollars) is spent, as far as
        it is known. Whatever goes wrong with the model is in the report.
        """
        for step in range(1, MOST_STEPS + 1):
            is_last = step == MOST_STEPS or self._known >= left
            try:
                context = await self._conversation.context()
                reply = await self._conversation.ask(context, last=is_last)
            except PerdureError as exc:
                await self._session.close_turn()
                return replace(self.spent, error=str(exc))
            self._count(reply)
            calls = reply.message.calls
            if not calls or is_last:
                text = reply.message.text
                refused = reply.finish == "filter" or is_refusal(reply.message)
                return replace(
                    self.spent,
                    text=text,
                    record=find_record(text),
                    refused=(text[:200] or "by the provider's filter") if refused else "",
                )
            results = tuple([await self._run_tool(call) for call in calls])
            await self._session.append(Message("tool", results), within=self._within)
        raise AssertionError("unreachable")

    def _count(self, reply: Reply) -> None:
        if reply.cost is not None:
            self._known += reply.cost
            return
        usage = reply.usage
        tokens = 0 if usage is None else (usage.input or 0) + (usage.output or 0)
        self._unpriced = (self._unpriced or 0) + tokens

    async def _run_tool(self, call: ToolCall) -> ToolResult:
        """Never raises for what the model wrote."""
        failed = False
        try:
            given = json.loads(call.arguments or "{}")
            text = await self._answer(call.name, given if isinstance(given, dict) else {})
        except (ValueError, OSError, PerdureError) as exc:
            text, failed = f"That did not work: {exc}", True
        return ToolResult(call.id, (Text(text),), name=call.name, is_error=failed)

    async def _answer(self, name: str, given: dict[str, Any]) -> str:
        if name in FILE_TOOL_NAMES:
            return await asyncio.to_thread(self._files.answer, name, given)
        if name != "run_checks":
            raise InvalidInput(f"There is no tool {name}.", hint="Use one of those you are given.")
        checks = await self._check()
        return msgspec.json.encode(checks).decode() if checks else "There are none."
