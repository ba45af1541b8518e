"""An agent without a program: a model through the gateway, with tools for the three files and the
checks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from perdure.agents.one_shot.exit_records import AgentReport, find_record
from perdure.agents.one_shot.run_records import CheckResult, RunSettings
from perdure.agents.one_shot.work_files import read_text
from perdure.core.errors import PerdureError
from perdure.core.messages import Message, Text, ToolCall, ToolResult
from perdure.gateway.calls import CallOptions, Reply, Request, Tool
from perdure.gateway.gateway import Gateway
from perdure.gateway.quality import is_refusal
from perdure.history.turn_log import AppendHook
from perdure.sessions.session import Session

MOST_STEPS = 50  # Model calls in one run; the last may call no tool.
SYSTEM = "You work on a specification, alone, with the tools that you are given."
_FILES = ("spec", "tasks", "log")
_NAMED = {"file": {"type": "string", "enum": list(_FILES)}}
TOOLS = (
    Tool(
        "read_file",
        "Read one of the three files.",
        {
            "type": "object",
            "properties": _NAMED,
            "required": ["file"],
        },
    ),
    Tool(
        "write_file",
        "Replace the text of one of the three files.",
        {
            "type": "object",
            "properties": {**_NAMED, "text": {"type": "string"}},
            "required": ["file", "text"],
        },
    ),
    Tool("run_checks", "Run the checks; tells which fail, and how."),
)


class ModelAgent:
    """One run of a model."""

    def __init__(
        self,
        gateway: Gateway,
        session: Session,
        settings: RunSettings,
        check: Callable[[], Awaitable[tuple[CheckResult, ...]]],
        within: AppendHook,
    ) -> None:
        self._gateway = gateway
        self._session = session
        self._settings = settings
        self._check = check
        self._within = within
        self._options = CallOptions(
            purpose="chat",
            task="one-shot",
            agent=session.agent,
            session=session.name,
            model=settings.model,
        )
        self.cost: int | None = 0  # Picodollars so far; None if a call did not tell.

    async def run(self, left: int) -> AgentReport:
        """Until the model calls no more tools, or this much money (picodollars) is spent. Whatever
        goes wrong with the model is in the report.
        """
        for step in range(1, MOST_STEPS + 1):
            is_last = step == MOST_STEPS or (self.cost or 0) >= left
            try:
                reply = await self._ask(is_last=is_last)
            except PerdureError as exc:
                await self._session.close_turn()
                return AgentReport(text="", cost=self.cost, error=str(exc))
            calls = reply.message.calls
            await self._session.append(reply.message, within=self._within)
            if not calls or is_last:
                text = reply.message.text
                refused = reply.finish == "filter" or is_refusal(reply.message)
                return AgentReport(
                    text=text,
                    record=find_record(text),
                    cost=self.cost,
                    refused=(text[:200] or "by the provider's filter") if refused else "",
                )
            results = tuple([await self._run_tool(call) for call in calls])
            await self._session.append(Message("tool", results), within=self._within)
        raise AssertionError("unreachable")

    async def _ask(self, *, is_last: bool) -> Reply:
        context = await self._session.context(system=SYSTEM, tools=TOOLS)
        request = Request(
            messages=(Message("system", (Text(context.system),)), *context.messages),
            tools=context.tools,
            tool_choice="none" if is_last else "auto",
            prompt_cache_key=context.cache_key,
        )
        reply = await self._gateway.complete(request, self._options)
        self.cost = None if self.cost is None or reply.cost is None else self.cost + reply.cost
        return reply

    async def _run_tool(self, call: ToolCall) -> ToolResult:
        """Never raises for what the model wrote."""
        try:
            given = json.loads(call.arguments or "{}")
            text, failed = await self._answer(call.name, given if isinstance(given, dict) else {})
        except (ValueError, OSError, PerdureError) as exc:
            text, failed = f"That did not work: {exc}", True
        return ToolResult(call.id, (Text(text),), name=call.name, is_error=failed)

    async def _answer(self, name: str, given: dict[str, Any]) -> tuple[str, bool]:
        if name == "run_checks":
            checks = await self._check()
            return msgspec.json.encode(checks).decode() if checks else "There are none.", False
        if name not in {"read_file", "write_file"}:
            return f"There is no tool {name}.", True
        file = given.get("file")
        if file not in _FILES:
            return f"file is one of {', '.join(_FILES)}.", True
        path: str = getattr(self._settings, file)
        if name == "read_file":
            return read_text(path, tail=file == "log") or "(It is empty.)", False
        text = given.get("text")
        if not isinstance(text, str):
            return "text is missing.", True
        await asyncio.to_thread(Path(path).write_text, text, "utf-8")
        return "Written.", False
