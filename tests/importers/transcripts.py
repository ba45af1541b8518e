"""Transcripts as Claude Code and Codex write them, made up."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perdure.core.client_agents import session_of_client

SESSION = "11111111-2222-4333-8444-555555555555"
THREAD = "0199a213-81c0-7800-8aa1-bbab2a035a53"
#: Where they were held.
CLAUDE_FOLDER, CODEX_FOLDER = "/home/ada/engine", "/home/ada"

Record = dict[str, Any]


def claude_session(name: str = SESSION, agent: str = "") -> str:
    """The session that a conversation of Claude Code is imported to."""
    return session_of_client("claude-code", CLAUDE_FOLDER, name, agent)


def codex_session(name: str = THREAD) -> str:
    return session_of_client("codex", CODEX_FOLDER, name)


def lines(records: Iterable[Record | str | bytes]) -> bytes:
    """The records as a file, one a line; text and bytes go in as they are."""
    return b"".join(_line(record) + b"\n" for record in records)


def _line(record: Record | str | bytes) -> bytes:
    if isinstance(record, bytes):
        return record
    return record.encode() if isinstance(record, str) else json.dumps(record).encode()


def write(path: Path, records: Iterable[Record | str | bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lines(records))
    return path


class Claude:
    """Writes the records of a Claude Code session; each hangs on the one before."""

    def __init__(self, session: str = SESSION, agent: str = "") -> None:
        self._session = session
        self._agent = agent
        self._numbers = itertools.count(1)
        self._calls = itertools.count(1)
        self.last: str | None = None

    def record(self, type: str, parent: str | None = "", **fields: Any) -> Record:
        number = next(self._numbers)
        uuid = f"{self._agent or 'main'}-{number:04d}"
        record: Record = {
            "parentUuid": self.last if parent == "" else parent,
            "isSidechain": bool(self._agent),
            "userType": "external",
            "cwd": CLAUDE_FOLDER,
            "sessionId": self._session,
            "version": "2.1.39",
            "gitBranch": "main",
            "type": type,
            "uuid": uuid,
            "timestamp": f"2026-02-12T16:{number // 60 % 60:02d}:{number % 60:02d}.000Z",
        }
        if self._agent:
            record["agentId"] = self._agent
        self.last = uuid
        return record | fields

    def prompt(self, text: str, parent: str | None = "", **fields: Any) -> Record:
        message = {"role": "user", "content": text}
        return self.record("user", parent, message=message, **fields)

    def block(self, id: str, block: Record, output: int = 1, **fields: Any) -> Record:
        message = {
            "model": "claude-opus-4-6",
            "id": id,
            "type": "message",
            "role": "assistant",
            "content": [block],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 5, "cache_read_input_tokens": 100, "output_tokens": output},
        }
        return self.record("assistant", message=message, requestId=f"req_{id}", **fields)

    def text(self, id: str, text: str, output: int = 1, **fields: Any) -> Record:
        return self.block(id, {"type": "text", "text": text}, output, **fields)

    def thinking(self, id: str, text: str) -> Record:
        return self.block(id, {"type": "thinking", "thinking": text, "signature": "c2ln"})

    def call(self, id: str, call: str, name: str = "Bash", output: int = 9, **given: Any) -> Record:
        block = {"type": "tool_use", "id": call, "name": name, "input": given or {"command": "ls"}}
        return self.block(id, block, output)

    def result(self, call: str, text: Any = "a.py", **fields: Any) -> Record:
        block: Record = {"type": "tool_result", "tool_use_id": call, "content": text}
        if "is_error" in fields:
            block["is_error"] = fields.pop("is_error")
        duplicate = {"stdout": text, "originalFile": "the whole file"}
        message = {"role": "user", "content": [block]}
        return self.record(
            "user", message=message, toolUseResult=fields.pop("toolUseResult", duplicate), **fields
        )

    def progress(self, **data: Any) -> Record:
        call = data.pop("call", "toolu_x")
        return self.record(
            "progress", data={"type": "hook_progress"} | data, parentToolUseID=call, toolUseID=call
        )

    def boundary(self) -> Record:
        return self.record(
            "system",
            None,
            subtype="compact_boundary",
            content="Conversation compacted",
            compactMetadata={"trigger": "auto", "preTokens": 167_117},
            logicalParentUuid="nowhere",
        )

    def summary(self, text: str) -> Record:
        return self.prompt(text, isCompactSummary=True, isVisibleInTranscriptOnly=True)

    def turn(self, prompt: str, reply: str, calls: int = 1) -> list[Record]:
        """A prompt, a round with tool calls, and an answer."""
        number = next(self._calls)
        records = [self.prompt(prompt)]
        names = [f"toolu_{self._agent}{number}_{at}" for at in range(calls)]
        records += [self.thinking(f"msg_{self._agent}{number}a", "Let me see.")]
        records += [self.call(f"msg_{self._agent}{number}a", name) for name in names]
        records += [self.progress()]
        records += [self.result(name) for name in names]
        records += [self.text(f"msg_{self._agent}{number}b", reply, 20)]
        return records


class Codex:
    """Writes the lines of a Codex rollout."""

    def __init__(self, *, flat: bool = False) -> None:
        self.flat = flat
        self._seconds = itertools.count(1)
        self._total = 0

    def _stamp(self) -> str:
        second = next(self._seconds)
        return f"2025-11-01T01:{second // 60 % 60:02d}:{second % 60:02d}.000Z"

    def line(self, type: str, payload: Record) -> Record:
        return {"timestamp": self._stamp(), "type": type, "payload": payload}

    def item(self, **item: Any) -> Record:
        return item if self.flat else self.line("response_item", item)

    def event(self, type: str, **payload: Any) -> Record:
        return self.line("event_msg", {"type": type} | payload)

    def meta(self, id: str = THREAD, **fields: Any) -> Record:
        git = {"commit_hash": "2da7505", "branch": "main"}
        stamp = "2025-11-01T01:00:00.000Z"
        if self.flat:
            return {"id": id, "timestamp": stamp, "instructions": None, "git": git}
        meta = {"id": id, "timestamp": stamp, "cwd": CODEX_FOLDER, "cli_version": "0.34.0"}
        return self.line("session_meta", meta | {"git": git} | fields)

    def said(self, role: str, text: str) -> Record:
        kind = "output_text" if role == "assistant" else "input_text"
        return self.item(type="message", role=role, content=[{"type": kind, "text": text}])

    def prompt(self, text: str) -> list[Record]:
        said = self.said("user", text)
        return [said] if self.flat else [said, self.event("user_message", message=text)]

    def environment(self) -> Record:
        return self.said("user", "<environment_context>\n  <cwd>/</cwd>\n</environment_context>")

    def reasoning(self) -> Record:
        return self.item(type="reasoning", summary=[], content=None, encrypted_content="gAAAA")

    def call(self, call: str, name: str = "shell", arguments: str = '{"command":["ls"]}') -> Record:
        return self.item(type="function_call", name=name, arguments=arguments, call_id=call)

    def output(self, call: str, text: str = "a.py", code: int = 0) -> Record:
        output = json.dumps({"output": text, "metadata": {"exit_code": code}})
        return self.item(type="function_call_output", call_id=call, output=output)

    def tokens(self, output: int = 10) -> Record:
        self._total += output
        usage = {"input_tokens": 100, "cached_input_tokens": 60, "output_tokens": output}
        info = {"last_token_usage": usage, "total_token_usage": {"total_tokens": self._total}}
        return self.event("token_count", info=info)

    def turn(self, prompt: str, reply: str, call: str) -> list[Record]:
        """A prompt, a round with a tool call, and an answer."""
        counted = [] if self.flat else [self.tokens()]
        again = [] if self.flat else [self.tokens(20)]
        return [
            *self.prompt(prompt),
            *counted,
            self.reasoning(),
            self.call(call),
            self.output(call),
            *again,
            self.reasoning(),
            self.said("assistant", reply),
        ]
