"""A client that does what clients do, behind a small budget: its model gets only what is valid."""

from __future__ import annotations

import os
import random
from typing import Any

import msgspec
import pytest

from perdure.core.messages import ToolCall
from perdure.core.tokens import count_messages, o200k
from perdure.gateway.providers import CallWire
from perdure.testing.model import ScriptedAnswer, ScriptedModel
from perdure.testing.model.script import ReceivedRequest
from perdure.wire import codec
from tests.proxy.proxy_setup import RunningProxy, proxied
from tests.proxy.simulated_client import WIRES, SimulatedClient

SEEDS = 60 if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else 3
_PATHS = {"messages": "/messages", "chat": "/chat/completions", "responses": "/responses"}
_LOOK_UPS = (
    ("history_get_turn", '{"id":"T-1","level":"S"}'),
    ("history_search", '{"query":"alpha"}'),
    ("board_post", '{"text":"The port is 8123."}'),
)


class Story:
    """One conversation with random turns, edits, rewinds, compactions and retries."""

    def __init__(self, running: RunningProxy, wire: CallWire, seed: int) -> None:
        self.running, self.wire = running, wire
        self.client = SimulatedClient(wire, seed)
        self.random = random.Random(seed)
        self.path = f"/v1{_PATHS[wire]}"
        self.headers = {"x-perdure-session": "client@demo/one"}
        self.prompts: list[int] = []  # where turns begin

    async def turn(self) -> None:
        self.prompts.append(len(self.client.items))
        self.client.prompt()
        for _ in range(8):
            calls = await self.ask()
            if not calls:
                return
            self.client.results(calls)

    async def ask(self) -> list[str]:
        """The calls that the client has to answer. Its history has the answer then."""
        body = self.client.body()
        answer = await self.running.client.post(self.path, content=body, headers=self.headers)
        assert answer.status_code == 200, answer.text
        said = answer.json()
        assert not any(f'"{name}"' in answer.text for name, _ in _LOOK_UPS)
        if self.wire == "messages":
            self.client.items.append({"role": "assistant", "content": said["content"]})
            return [block["id"] for block in said["content"] if block["type"] == "tool_use"]
        if self.wire == "chat":
            message = said["choices"][0]["message"]
            kept = {n: v for n, v in message.items() if v is not None or n == "content"}
            self.client.items.append(kept)
            return [call["id"] for call in message.get("tool_calls") or ()]
        self.client.items += said["output"]
        return [each["call_id"] for each in said["output"] if each["type"] == "function_call"]

    async def meddle(self) -> None:
        """Something that clients do between two turns."""
        client, what = self.client, self.random.random()
        if what < 0.15 and len(self.prompts) > 2:  # back to an earlier prompt, which is edited
            at = self.random.choice(self.prompts[-3:])
            del client.items[at:]
            self.prompts = [each for each in self.prompts if each < at]
        elif what < 0.3 and len(self.prompts) > 3:  # it compacts
            first = 0 if self.wire == "messages" else 1
            kept = client.items[self.prompts[-1] :] if self.random.random() < 0.5 else []
            words = "This session is being continued from a previous conversation. Well."
            client.items[first:] = [{"role": "user", "content": words}, *kept]
            self.prompts = []
        elif what < 0.4:  # its newest answer got lost: it asks again
            side = "assistant"
            while client.items and (
                client.items[-1].get("role") == side or "role" not in client.items[-1]
            ):
                client.items.pop()
            if client.items and "role" in client.items[-1] and client.items[-1]["role"] == "user":
                calls = await self.ask()
                while calls:
                    client.results(calls)
                    calls = await self.ask()


def _script(seed: int) -> Any:
    chosen = random.Random(seed)

    def answer(request: ReceivedRequest) -> ScriptedAnswer:
        calls = list[ToolCall]()
        for number in range(chosen.choice((0, 0, 0, 1, 2))):
            calls.append(ToolCall(f"c{request.number}x{number}", "shell", '{"command":"ls"}'))
        name, given = chosen.choice(_LOOK_UPS)
        offered = name in msgspec.json.encode(request.body.get("tools", ())).decode()
        if offered and chosen.random() < 0.3:
            calls.insert(0, ToolCall(f"h{request.number}", name, given))
        words = " ".join(chosen.choice(("so", "well", "then", "42")) for _ in range(200))
        return ScriptedAnswer(f"{request.number}: {words}", tuple(calls), "Hm.")

    return answer


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_what_a_model_gets_is_valid(wire: CallWire, seed: int) -> None:
    chosen = random.Random(seed)
    tools, recall = chosen.random() < 0.7, chosen.random() < 0.5
    budget = chosen.choice((2_000, 3_000, 5_000))
    async with (
        ScriptedModel(_script(seed)) as model,
        proxied(model.url, budget=budget, tools=tools, recall=recall) as running,
    ):
        story = Story(running, wire, seed)
        for _ in range(10):
            await story.turn()
            await story.meddle()
        assert running.proxy.report.figures.failures == 0, running.proxy.report.figures.failure
        for request in model.requests:
            items = request.body["input" if wire == "responses" else "messages"]
            assert codec(wire).violations(items) == []
            first = not any("h" in str(item.get("call_id", "")) for item in items)
            # What was looked up within one answer comes on top.
            if first and not tools:
                assert count_messages(o200k(), codec(wire).decode(items)) <= budget
