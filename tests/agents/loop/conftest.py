"""Banks with a scripted model that agents ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from perdure.bank import Bank
from perdure.config import (
    AgentsConfig,
    Config,
    GatewayConfig,
    MetricsConfig,
    ModelsConfig,
    PriceConfig,
    ProviderConfig,
    RecallConfig,
)
from perdure.core.messages import ToolCall
from perdure.testing.model import ReceivedRequest, ScriptedAnswer, ScriptedModel

#: Opens a bank at the test's address whose models are the scripted one.
OpenBank: TypeAlias = Callable[..., Awaitable[Bank]]


def config_for(model: ScriptedModel, **agents: Any) -> Config:
    return config_at(model.url, **agents)


def config_at(model_url: str, **agents: Any) -> Config:
    settings = {"lease": 5.0, "poll": 0.05, "attempts": 2, **agents}
    return Config(
        gateway=GatewayConfig(
            providers={"scripted": ProviderConfig(wire="chat", base_url=model_url)},
            models=ModelsConfig(chat="scripted/any"),
            prices={"scripted/any": PriceConfig(input=1.0, output=1.0)},
            retries=0,
        ),
        agents=AgentsConfig(**settings),
        recall=RecallConfig(on=False),
        metrics=MetricsConfig(publish_every=0),
    )


class Brain:
    """A model's script by rules: the first rule whose words are in the newest message answers."""

    def __init__(self) -> None:
        self.rules: list[tuple[str, Any]] = []
        self.default: Any = "Hello."

    def on(self, words: str, answer: Any) -> None:
        """`answer` is a line, or a function of the request."""
        self.rules.insert(0, (words, answer))

    def __call__(self, request: ReceivedRequest) -> Any:
        last = request.messages[-1]
        text = last.results[-1].text if last.results else last.text
        for words, answer in self.rules:
            if words in text:
                return answer(request) if callable(answer) else answer
        return self.default(request) if callable(self.default) else self.default


def calls(*wanted: tuple[str, str], text: str = "") -> ScriptedAnswer:
    """A reply that calls tools: names and arguments."""
    made = tuple(ToolCall(f"c{at}", name, given) for at, (name, given) in enumerate(wanted))
    return ScriptedAnswer(text, made)


@pytest.fixture
def brain() -> Brain:
    return Brain()


@pytest.fixture
async def model(brain: Brain) -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel(brain) as model:
        yield model


@pytest.fixture
def model_url() -> Iterator[str]:
    """The address of a model beside the test, which has no event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    model = ScriptedModel("Hello.")
    asyncio.run_coroutine_threadsafe(model.__aenter__(), loop).result(30)
    yield model.url
    asyncio.run_coroutine_threadsafe(model.__aexit__(None, None, None), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'bank.db'}"


@pytest.fixture
async def open_bank(model: ScriptedModel, url: str) -> AsyncIterator[OpenBank]:
    opened = list[Bank]()

    async def make(**agents: Any) -> Bank:
        bank = Bank(url, config=config_for(model, **agents))
        await bank.open()
        opened.append(bank)
        return bank

    yield make
    for bank in reversed(opened):
        await bank.close()


@pytest.fixture
async def bank(open_bank: OpenBank) -> Bank:
    return await open_bank()
