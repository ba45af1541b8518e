"""Requests as real clients send them, trimmed, with invented words.

Recorded from Claude Code 2.1.325, Codex 0.166.0 and opencode 1.18.33.
"""

from __future__ import annotations

import json
from typing import Any

Item = dict[str, Any]

FOLDER = "/home/ada/attic"
REMINDER = "<system-reminder>\nAttribution for commits: none.\n</system-reminder>\n"
CLAUDE_SESSION = "c029ce5e-8c9d-480c-ab1a-f630987d80d5"
CODEX_THREAD = "01a1ee2f-1f7a-72f2-8f5c-202a144839dd"
OPENCODE_SESSION = "ses_e11cdff89ffe04DeSp6IeygZ4e"
_CACHED = {"cache_control": {"type": "ephemeral"}}


class ClaudeShape:
    """The messages of a session of Claude Code, and the requests it makes of them."""

    def __init__(self, agent: str = "") -> None:
        self.agent = agent
        self.messages: list[Item] = []

    def prompt(self, text: str) -> None:
        blocks = [{"type": "text", "text": text}]
        if not self.messages:
            blocks.insert(0, {"type": "text", "text": REMINDER})
        self.messages.append({"role": "user", "content": blocks})
        if len(self.messages) == 1:
            said = f"# Environment\n - Primary working directory: {FOLDER}\n - Platform: linux"
            self.messages.append({"role": "system", "content": said})

    def call(self, id: str, command: str) -> None:
        block = {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": command}}
        self.messages.append({"role": "assistant", "content": [block]})

    def result(self, id: str, text: str) -> None:
        block = {"tool_use_id": id, "type": "tool_result", "content": text, "is_error": False}
        self.messages.append({"role": "user", "content": [block]})

    def reply(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": [{"type": "text", "text": text}]})

    def compact(self, summary: str, newest: str) -> None:
        """What is left after a compaction: a summary in place of all but the newest reply."""
        begins = "This session is being continued from a previous conversation that ran out of"
        self.messages = [
            {"role": "user", "content": f"{begins} context.\n\n{summary}"},
            {"role": "system", "content": [], "output_config": {"effort": "medium"}},
            {"role": "assistant", "content": [{"type": "text", "text": newest}]},
        ]

    @property
    def headers(self) -> dict[str, str]:
        found = {
            "user-agent": "claude-cli/2.1.325 (external, sdk-cli)",
            "x-claude-code-session-id": CLAUDE_SESSION,
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
            "x-claude-code-request-class": "subagent" if self.agent else "main",
            "x-api-key": "not-a-key",
        }
        return found | ({"x-claude-code-agent-id": self.agent} if self.agent else {})

    def body(self, billing: str = "382", **changes: Any) -> Item:
        """The last block carries a cache marker, and a system message that is last is a list."""
        messages = [dict(message) for message in self.messages]
        last = messages[-1]
        content = last["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if content:
            last["content"] = [*content[:-1], content[-1] | _CACHED]
        user = {"device_id": "d", "account_uuid": "", "session_id": CLAUDE_SESSION}
        return {
            "model": "claude-opus-5-5",
            "messages": messages,
            "system": [
                {
                    "type": "text",
                    "text": f"x-anthropic-billing-header: cc_version=2.1.325.{billing};",
                },
                {"type": "text", "text": "You are an agent.", **_CACHED},
            ],
            "tools": [{"name": "Bash", "input_schema": {"type": "object"}}],
            "metadata": {"user_id": json.dumps(user)},
            "max_tokens": 128_000,
            "thinking": {"type": "adaptive", "display": "omitted"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "medium"},
            **changes,
        }

    def compaction(self) -> tuple[Item, dict[str, str]]:
        asks = {"type": "text", "text": "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools."}
        messages = [*self.messages, {"role": "user", "content": [asks]}]
        headers = self.headers | {"x-claude-code-request-class": "compaction"}
        return self.body(messages=messages), headers

    def title(self) -> tuple[Item, dict[str, str]]:
        form = {"type": "json_schema", "schema": {"type": "object"}}
        body = self.body(tools=[], output_config={"format": form})
        headers = dict(self.headers)
        del headers["x-claude-code-request-class"]
        return body, headers


class CodexShape:
    """The items of a thread of Codex, or of one that it started."""

    def __init__(self, thread: str = CODEX_THREAD) -> None:
        self.thread = thread
        self.items: list[Item] = [
            {
                "type": "additional_tools",
                "id": "at_1",
                "role": "developer",
                "tools": [{"type": "namespace", "name": "functions", "tools": []}],
            },
            self._message("developer", "You are Codex."),
            self._message("developer", "<skills_instructions>None.</skills_instructions>"),
            self._message(
                "user",
                f"<environment_context>\n  <cwd>{FOLDER}</cwd>\n  <shell>bash</shell>\n"
                "</environment_context>",
            ),
        ]

    def _message(self, role: str, text: str) -> Item:
        kind = "output_text" if role == "assistant" else "input_text"
        content = [{"type": kind, "text": text}]
        return {"type": "message", "id": f"msg_{hash(text):x}", "role": role, "content": content}

    def prompt(self, text: str) -> None:
        self.items.append(self._message("user", text))

    def task(self, text: str) -> None:
        """What another agent asks of this one."""
        head = "Message Type: NEW_TASK\nTask name: /root/cellar\nSender: /root\nPayload:\n"
        content = [
            {"type": "input_text", "text": head},
            {"type": "encrypted_content", "encrypted_content": text},
        ]
        names = {"author": "/root", "recipient": "/root/cellar"}
        self.items.append({"type": "agent_message", "id": "amsg_1", **names, "content": content})

    def reply(self, text: str) -> None:
        self.items.append(self._message("assistant", text))

    def call(self, id: str, command: str) -> None:
        arguments = json.dumps({"cmd": command})
        call = {"type": "function_call", "id": f"fc_{id}", "name": "exec_command", "call_id": id}
        self.items.append({**call, "arguments": arguments, "status": "completed"})

    def result(self, id: str, text: str) -> None:
        output = {"type": "function_call_output", "id": f"fco_{id}", "call_id": id}
        self.items.append({**output, "output": f"Process exited with code 0\nOutput:\n{text}\n"})

    def headers(self, kind: str = "turn") -> dict[str, str]:
        facts = {"thread_id": self.thread, "request_kind": kind, "thread_source": "user"}
        below = {"x-codex-parent-thread-id": CODEX_THREAD, "x-openai-subagent": "collab_spawn"}
        return (below if self.thread != CODEX_THREAD else {}) | {
            "user-agent": "codex_exec/0.166.0 (Debian 12.0.0; x86_64)",
            "originator": "codex_exec",
            "session-id": CODEX_THREAD,
            "thread-id": self.thread,
            "x-codex-window-id": f"{self.thread}:0",
            "x-codex-turn-metadata": json.dumps(facts),
            "authorization": "Bearer not-a-key",
        }

    def body(self, *more: Item) -> Item:
        return {
            "model": "gpt-6.1-sol",
            "input": [*self.items, *more],
            "tool_choice": "auto",
            "reasoning": {"effort": "low", "context": "all_turns"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": CODEX_THREAD,
        }

    def compaction(self) -> tuple[Item, dict[str, str]]:
        return self.body({"type": "compaction_trigger"}), self.headers("compaction")


class OpencodeShape:
    """The messages of a session of opencode, to Anthropic."""

    def __init__(self) -> None:
        self.messages: list[Item] = []
        self.headers = {
            "user-agent": "opencode/1.18.33 ai-sdk/provider-utils/4.0.46 runtime/bun/1.3.14",
            "x-session-affinity": OPENCODE_SESSION,
            "x-session-id": OPENCODE_SESSION,
            "anthropic-version": "2023-06-01",
            "x-api-key": "not-a-key",
        }

    def prompt(self, text: str) -> None:
        self.messages.append({"role": "user", "content": [{"type": "text", "text": f'"{text}"'}]})

    def call(self, id: str, command: str) -> None:
        given = {"command": command, "description": "a test"}
        block = {"type": "tool_use", "id": id, "name": "bash", "input": given}
        self.messages.append({"role": "assistant", "content": [block | _CACHED]})

    def result(self, id: str, text: str) -> None:
        block = {"type": "tool_result", "tool_use_id": id, "content": text}
        self.messages.append({"role": "user", "content": [block]})

    def reply(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": [{"type": "text", "text": text}]})

    def body(self) -> Item:
        env = f"<env>\n  Working directory: {FOLDER}\n  Is directory a git repo: no\n</env>"
        last = self.messages[-1]
        marked = {**last, "content": [*last["content"][:-1], last["content"][-1] | _CACHED]}
        return {
            "model": "claude-sonnet-4-5",
            "max_tokens": 32_000,
            "system": [{"type": "text", "text": f"You are OpenCode.\n{env}"}],
            "messages": [*self.messages[:-1], marked],
            "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto"},
        }

    def title(self, text: str) -> Item:
        blocks = [
            {"type": "text", "text": "Generate a title for this conversation:\n", **_CACHED},
            {"type": "text", "text": f'"{text}"', **_CACHED},
        ]
        return {
            "model": "claude-haiku-4-5",
            "max_tokens": 48_000,
            "thinking": {"type": "enabled", "budget_tokens": 16_000},
            "system": [{"type": "text", "text": "You are a title generator."}],
            "messages": [{"role": "user", "content": blocks}],
        }
