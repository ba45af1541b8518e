"""A scripted model that reflects: it answers each phase with the operations a test wrote down."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import perdure
from perdure.bank import Bank
from perdure.config import Config, GatewayConfig, ModelsConfig, ReflectionConfig
from perdure.core.messages import assistant, user
from perdure.recall.memory_records import FormerMemory, Memory
from perdure.sessions.session import Session
from perdure.testing import ReceivedRequest, ScriptedModel

Operations = list[dict[str, Any]]


def add(text: str, turn: str, quote: str, kind: str = "fact", **more: Any) -> dict[str, Any]:
    return {
        "op": "add",
        "kind": kind,
        "text": text,
        "evidence": [{"turn": turn, "quote": quote}],
        **more,
    }


def on(op: str, keys: Sequence[str], turn: str, quote: str, **more: Any) -> dict[str, Any]:
    cited = [{"turn": turn, "quote": quote}] if turn else []
    return {"op": op, "keys": list(keys), "evidence": cited, **more}


def answering(
    extract: Operations | Callable[[str], Operations], consolidate: Operations | None = None
) -> Callable[[ReceivedRequest], str]:
    """A script: these operations for each phase. Strict schemas name all fields, so does it."""

    def script(request: ReceivedRequest) -> str:
        if "Consolidate:" in request.prompt:
            found = consolidate or []
        else:
            found = extract(request.prompt) if callable(extract) else extract
        return json.dumps({"operations": found})

    return script


def config(model: ScriptedModel, *, batch: bool = False, **settings: Any) -> Config:
    provider = model.provider_config("messages" if batch else "chat", batch=batch)
    return Config(
        gateway=GatewayConfig(
            providers={"scripted": provider},
            models=ModelsConfig(reflect="scripted/oracle"),
            retries=0,
            batch_poll=0.02,
        ),
        reflection=ReflectionConfig(**settings),
    )


@asynccontextmanager
async def opened(
    script: Any, url: str = "memory://", **settings: Any
) -> AsyncIterator[tuple[Bank, ScriptedModel]]:
    async with (
        ScriptedModel(script) as model,
        perdure.open(url, config=config(model, **settings)) as bank,
    ):
        yield bank, model


async def talk(bank: Bank, name: str, *prompts: str) -> Session:
    session = await bank.session(name)
    for prompt in prompts:
        await session.append([user(prompt), assistant("All right.")])
    return session


async def all_memories(bank: Bank) -> tuple[dict[str, Memory], dict[str, FormerMemory]]:
    """Every memory, and every former version, by id."""
    memories = {each.id: each async for each in bank.collection(Memory).walk()}
    return memories, {each.id: each async for each in bank.collection(FormerMemory).walk()}
