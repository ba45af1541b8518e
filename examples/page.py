"""The web page over a made-up bank: ``make page``.

A few agents with some months of work, one of which goes on with it while you look; and a model that
follows a script, so that you can talk to them. It needs no key, listens on loopback, works in a
temporary folder, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
from pathlib import Path

import msgspec

import perdure
from examples.made_up_calls import BUDGETS, MODELS, fill_calls
from examples.made_up_memory import fill_learning, fill_memories, fill_project_memory
from examples.made_up_project import fill_project, project_turn
from perdure.bank import Bank
from perdure.config import Config, GatewayConfig, ModelsConfig, ServerConfig
from perdure.core.actors import system_user
from perdure.core.errors import Unavailable
from perdure.server.http_server import HttpServer, serving
from perdure.server.server_app import make_app
from perdure.sessions.session import Session
from perdure.testing import ReceivedRequest, ScriptedAnswer, ScriptedModel

#: Sessions, with their turns.
SESSIONS = {
    "coder/release": 240,
    "coder/flaky-tests": 36,
    "coder/docs": 24,
    "planner/roadmap": 48,
    "planner/hiring": 9,
    "router/inbox": 24,
}
TOKENS = 900
#: The session of the agent that works. All its prompts are composed, in a small budget.
_WORK, _BUDGET, _SEED = "coder/docs", 8_000, 2
#: Seconds between two messages of the agent that works.
_PACE = 4.0
_REPLY = """Here is what I found, in short:

1. **Every turn** of this session is behind it.
2. The window holds every turn; the oldest at `T`.

```python
def window(turns: list[Turn], budget: int) -> str:
    # Newest first, until nothing fits any more.
    return "\\n".join(turn.text for turn in turns[-budget:])
```

| level | what it is |
|---|---|
| R | as it was said |
| T | a line of it |
"""


def answer(_request: ReceivedRequest) -> ScriptedAnswer:
    """The script: the same words each time, slowly enough to be seen."""
    return ScriptedAnswer(
        _REPLY,
        reasoning="The question is short. What was said before is in the window, so I look there.",
        chunk=6,
        chunk_delay=0.03,
    )


def made_up_gateway(model: ScriptedModel) -> GatewayConfig:
    """The models that made-up calls name; what is asked now is answered by the script."""
    providers = ("anthropic", "openai", "ollama")
    return GatewayConfig(
        providers=dict.fromkeys(providers, model.provider_config()),
        models=ModelsConfig(chat=MODELS),
        budgets=BUDGETS,
    )


async def fill(bank: Bank, folder: Path) -> None:
    """Sessions, calls, memories; and a project in a folder of its own there."""
    for number, (name, turns) in enumerate(SESSIONS.items()):
        if name != _WORK:
            await fill_project(await bank.session(name), turns, seed=number, tokens_per_turn=TOKENS)
    session = await bank.session(_WORK, budget=_BUDGET)
    for number in range(1, SESSIONS[_WORK] + 1):
        prompt, *rest = project_turn(number, _SEED, TOKENS)
        await session.append(rest, context=await session.context(prompt))
    await fill_calls(bank)
    await fill_memories(bank)
    await fill_learning(bank)
    project = folder / "thumbnails"
    project.mkdir()
    await fill_project_memory(bank, project)


async def work(session: Session, first: int) -> None:
    """An agent at work: each message of a turn a while after the one before."""
    for number in itertools.count(first):
        for at, message in enumerate(project_turn(number, _SEED, TOKENS)):
            await asyncio.sleep(_PACE)
            said = msgspec.structs.replace(message, time=None, ended=None)
            if at == 0:
                await session.context(said)  # as an agent asks its model
            await session.append([said])


async def serve(bank: Bank, port: int) -> None:
    config = msgspec.structs.replace(bank.config.server, port=port)
    bank.config = msgspec.structs.replace(bank.config, server=config)
    async with serving(make_app(bank)) as server:
        announce(server)
        working = asyncio.create_task(work(await bank.session(_WORK), SESSIONS[_WORK] + 1))
        try:
            server.listen_to_signals()
            await server.asked_to_stop()
        finally:
            working.cancel()


def announce(server: HttpServer) -> None:
    code = server.app.run_tokens.login_code(system_user())
    print(
        f"The page, once, within a minute:\n\n  {server.url}/#code={code}\n\n^C ends it.",
        flush=True,
    )


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with ScriptedModel(answer) as model:
            url = f"sqlite:///{Path(folder) / 'bank.db'}"
            config = Config(bank=url, gateway=made_up_gateway(model))
            async with perdure.open(config=config) as bank:
                print("Making up some months of work ...", flush=True)
                await fill(bank, Path(folder))
                try:
                    await serve(bank, ServerConfig().port)
                except Unavailable:  # somebody else has that port
                    await serve(bank, 0)


if __name__ == "__main__":
    if sys.platform == "win32":
        sys.exit("This example needs signals as Linux and macOS have them.")
    asyncio.run(main())
