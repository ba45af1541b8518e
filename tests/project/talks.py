"""Conversations of clients, as their transcripts and the proxy leave them in a bank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perdure.bank import Bank
from perdure.core.client_agents import session_of_client
from perdure.sessions.session import Session


async def conversation(
    bank: Bank, folder: Path, client: str = "claude-code", id: str = "8ffd1234"
) -> Session:
    session = await bank.session(session_of_client(client, str(folder), id))
    await session.describe({"cwd": str(folder)})
    return session


def prompt(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(id: str, name: str, **given: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": id, "name": name, "input": given}
    return {"role": "assistant", "content": [block]}


def result(id: str, text: str = "ok", *, failed: bool = False) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": id, "content": text, "is_error": failed}
    return {"role": "user", "content": [block]}
