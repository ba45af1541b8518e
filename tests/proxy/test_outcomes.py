"""What calls through the proxy took is in `perdure costs`, once."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.gateway.outcomes import CANCELLED, Outcome, summary
from perdure.testing.model import ScriptedAnswer, ScriptedFault, ScriptedModel
from tests.proxy.proxy_setup import RunningProxy, proxied
from tests.proxy.test_recording import WIRES, SdkClient, Wire, settled
from tests.proxy.test_via_gateway import served_by_gateway


async def outcomes(running: RunningProxy) -> list[Outcome]:
    await settled(running)
    await running.bank.gateway.recorder.flush()
    return await running.bank.collection(Outcome).query().order_by("started").values()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_call_is_an_outcome(wire: Wire, stream: bool) -> None:
    async with ScriptedModel(["One.", "Two."]) as model, proxied(model.url) as running:
        client = SdkClient(running, wire, stream=stream, **{"x-perdure-session": "planner/a"})
        for words in ("1?", "2?"):
            await client.say(words)
        await client.close()
        found = await outcomes(running)
        provider = "anthropic" if wire == "messages" else "openai"
        assert [(each.provider, each.model, each.agent) for each in found] == [
            (provider, "m", "planner")
        ] * 2
        for each in found:
            assert (each.session, each.purpose, each.task) == ("planner/a", "proxy", "main")
            assert (each.success, each.error, each.streamed) == (True, "", stream)
            assert each.latency >= (each.first_token or 0) > 0
        figures = running.proxy.report.figures
        assert sum(each.input or 0 for each in found) == figures.input > 0
        (row,) = await summary(running.bank.store, "agent")
        assert (row.of, row.calls, row.failures, row.input) == ("planner", 2, 0, figures.input)


async def test_costs_are_those_of_the_list() -> None:
    async with ScriptedModel("One.") as model, proxied(model.url) as running:
        body = {"model": "claude-sonnet-4-5", "max_tokens": 9}
        said = [{"role": "user", "content": "Hi."}]
        await running.client.post("/v1/messages", json={**body, "messages": said})
        (found,) = await outcomes(running)
        assert found.cost == running.proxy.report.figures.cost != 0


async def test_what_fails_and_what_is_beside_a_conversation_is_one_too() -> None:
    script: list[Any] = [
        ScriptedFault(status=429),
        ScriptedAnswer("A title."),
        ScriptedFault(how="hang", after=6, answer=ScriptedAnswer("Never ends at all", chunk=2)),
    ]
    said = [{"role": "user", "content": "Hi."}]
    headers = {"x-claude-code-session-id": "c1", "x-perdure-project": "/w/demo"}
    async with ScriptedModel(script) as model, proxied(model.url) as running:
        body: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": said}
        await running.client.post("/v1/messages", json=body, headers=headers)
        title = {**headers, "x-claude-code-request-class": "auxiliary"}
        await running.client.post("/v1/messages", json=body, headers=title)
        body["stream"] = True
        async with running.client.stream(
            "POST", "/v1/messages", json=body, headers=headers
        ) as answer:
            async for chunk in answer.aiter_raw():
                if b"Ne" in chunk:
                    break
        found = await outcomes(running)
        assert [(each.task, each.error, each.cost) for each in found] == [
            *(("main", "rate_limited", 0), ("title", "", None), ("main", CANCELLED, None)),
        ]
        assert len({each.agent for each in found}) == 1
        assert [each.session.endswith("/c1") for each in found] == [True, False, True]


async def test_the_gateway_counts_its_own_calls() -> None:
    async with served_by_gateway("chat", "Fine.") as (running, _):
        said = [{"role": "user", "content": "Hi."}]
        await running.client.post("/v1/chat/completions", json={"model": "m", "messages": said})
        (found,) = await outcomes(running)
        assert (found.purpose, found.provider) == ("chat", "mine")
