"""Real transcripts, counted in two ways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.core.client_agents import session_of_client
from perdure.core.messages import Text
from perdure.history.log_records import Link
from perdure.importers import import_files
from tests.importers.outcomes import everything, names, output_tokens

DATA = Path(__file__).parents[3] / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="there are no transcripts beside us")


def records(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text("utf-8").splitlines():
        yield json.loads(line)


class Naive:
    """What a Claude Code file holds, counted without any of our code."""

    def __init__(self, path: Path) -> None:
        self.calls: list[str] = []
        self.results: dict[str, bool] = {}
        self.replies: dict[str, int] = {}
        self.texts: set[str] = set()
        self.agents: dict[str, str] = {}
        self.compactions = 0
        self.folder = ""
        for record in records(path):
            data = record.get("data", {})
            if data.get("type") == "agent_progress":
                self.agents[data["agentId"]] = record["parentToolUseID"]
            self.compactions += record.get("subtype") == "compact_boundary"
            message = record.get("message")
            self.folder = self.folder or (record["cwd"] if message else "")
            if record["type"] == "assistant" and message:
                self.replies[message["id"]] = message["usage"]["output_tokens"]
            content = message["content"] if message else []
            for block in (
                content if isinstance(content, list) else [{"type": "text", "text": content}]
            ):
                if block["type"] == "tool_use":
                    self.calls.append(block["id"])
                elif block["type"] == "tool_result":
                    self.results[block["tool_use_id"]] = bool(block.get("is_error"))
                elif block["type"] == "text" and block["text"]:
                    self.texts.add(block["text"])


CLAUDE = sorted((DATA / "claude_code").glob("*.jsonl")) if DATA.exists() else []


@pytest.mark.parametrize("path", CLAUDE, ids=lambda path: path.stem[:8])
async def test_claude_code(path: Path) -> None:
    naive = Naive(path)
    name = session_of_client("claude-code", naive.folder, path.stem)
    async with perdure.open("memory://") as bank:
        imported = await import_files(bank, "claude-code", [path])
        found = imported.of(name)
        assert found.tool_calls == len(naive.calls)
        assert found.rounds == len(naive.replies)
        assert found.undone == 0
        assert found.read == sum(1 for _ in records(path))
        assert await output_tokens(bank, name) == sum(naive.replies.values())
        session = await bank.session(name)
        messages = [m async for turn in session.read() for m in turn.messages]
        assert found.messages == len(messages)
        assert found.turns == len([m async for turn in session.read() if (m := turn.prompt)])
        calls = [call.id for message in messages for call in message.calls]
        results = {r.call: r.is_error for message in messages for r in message.results}
        assert calls == naive.calls
        assert results == naive.results
        texts = {p.text for m in messages for p in m.parts if isinstance(p, Text)}
        assert naive.texts <= texts | {
            p.head for m in messages for p in m.parts if hasattr(p, "head")
        }
        assert sum(message.name == "compaction" for message in messages) == naive.compactions
        for agent, call in naive.agents.items():
            child = await bank.session(f"{name}.{agent}")
            assert child.record.link == Link(name, call)
        again = await import_files(bank, "claude-code", [path])
        assert not any(session.messages for session in again.sessions)


async def test_codex() -> None:
    path = max((DATA / "codex").glob("*.jsonl"), key=lambda path: path.stat().st_size)
    items = [r["payload"] for r in records(path) if r["type"] == "response_item"]
    prompts = [r for r in records(path) if r["payload"].get("type") == "user_message"]
    counts = [r for r in records(path) if r["payload"].get("type") == "token_count"]
    outputs = {i["call_id"]: i["output"] for i in items if i["type"] == "function_call_output"}
    async with perdure.open("memory://") as bank:
        imported = await import_files(bank, "codex", [path])
        (found,) = imported.sessions
        session = await bank.session(found.name)
        messages = [m async for turn in session.read() for m in turn.messages]
        assert found.tool_calls == len(outputs)
        assert {r.call: r.text for m in messages for r in m.results} == outputs
        typed = [m for m in messages if m.role == "user" and not m.injected]
        assert [m.text for m in typed] == [r["payload"]["message"] for r in prompts]
        assert len([m for m in messages if m.usage is not None]) == len(counts)
        spent = sum(r["payload"]["info"]["last_token_usage"]["output_tokens"] for r in counts)
        assert await output_tokens(bank, found.name) == spent
        failed = [m for m in messages if any(r.is_error for r in m.results)]
        assert 0 < len(failed) < len(outputs) / 4
        assert found.skipped.keys() == {"event_msg: agent_message"}


@pytest.mark.repeated
@pytest.mark.parametrize("kind", ["claude-code", "codex"])
async def test_pieces_of_a_file_come_to_the_same(kind: str, tmp_path: Path) -> None:
    source = max((DATA / kind.replace("-", "_")).glob("*.jsonl"), key=lambda p: p.stat().st_size)
    content = source.read_bytes()
    path = tmp_path / source.name
    async with perdure.open("memory://") as whole, perdure.open("memory://") as pieces:
        path.write_bytes(content)
        await import_files(whole, kind, [path])
        size = len(content) // 7
        for end in [*range(size, len(content), size), len(content)]:
            path.write_bytes(content[:end])
            await import_files(pieces, kind, [path])
        assert await names(pieces) == await names(whole)
        assert await everything(pieces) == await everything(whole)
