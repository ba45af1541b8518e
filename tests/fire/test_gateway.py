"""Models that misbehave in every way, many calls at once, and death in the middle of a call."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perdure.bank import Bank
from perdure.config import ProviderConfig
from perdure.core.errors import (
    BadAnswer,
    BudgetReached,
    GatewayError,
    ProviderDown,
    RateLimited,
    StreamBroken,
)
from perdure.core.messages import ToolCall, Usage
from perdure.gateway.calls import CallOptions
from perdure.gateway.gateway import Gateway
from perdure.gateway.outcomes import Outcome
from perdure.testing import ReceivedRequest, ScriptedFault, ScriptedModel
from perdure.testing import ScriptedAnswer as Said
from tests.fire import caller
from tests.gateway.bodies import chat_body, chat_events, message_body, message_events
from tests.gateway.faulty import (
    Answer,
    FaultyServer,
    failing,
    garbage,
    hang,
    large,
    message_stream,
    overloaded,
    page,
    partial,
    rate_limited,
    reset,
    reset_inside,
    respond,
    slow,
    slow_headers,
    stream,
    truncated_json,
    wrong_length,
)
from tests.gateway.opened import (
    ONCE,
    QUICK,
    TOUGH,
    assert_nothing_left,
    opened,
    outcomes_of,
    provider,
)


class Trouble(NamedTuple):
    """A fault, and what a caller learns who has no other model."""

    answer: Callable[[], Answer]
    error: type[GatewayError]
    says: str
    #: Seconds until the gateway gives up: short where it is to, so long that no machine needs them
    #: where an answer arrives.
    timeout: float = 60.0


def empty_choices() -> Answer:
    return respond({**chat_body(), "choices": []})


def empty_content() -> Answer:
    return respond({**message_body(), "content": "nothing"})


#: Answers at once, of Chat Completions.
WHOLE = {
    "429": Trouble(rate_limited, RateLimited, "wants no more requests"),
    "429 with Retry-After": Trouble(lambda: rate_limited(9), RateLimited, "for 9 s"),
    "500": Trouble(lambda: failing(500), ProviderDown, "status 500"),
    "529": Trouble(overloaded, ProviderDown, "status 529"),
    "hang": Trouble(hang, ProviderDown, "did not begin to answer within 0.6 s", 0.6),
    "hang in the body": Trouble(
        lambda: partial(b'{"id"', ending="hang"), ProviderDown, "did not finish", 2.0
    ),
    "truncated JSON": Trouble(truncated_json, BadAnswer, "broken JSON"),
    "shorter than it says": Trouble(wrong_length, ProviderDown, "broke off"),
    "wrong content type": Trouble(page, BadAnswer, "text/html instead of JSON"),
    "empty choices": Trouble(empty_choices, BadAnswer, "cannot be read|no choice|none of"),
    "reset": Trouble(reset, ProviderDown, "broke"),
    "reset in the body": Trouble(reset_inside, ProviderDown, "broke"),
    "slow headers": Trouble(slow_headers, ProviderDown, "did not begin to answer", 0.6),
    "no HTTP": Trouble(garbage, ProviderDown, "does not speak HTTP"),
    "empty": Trouble(lambda: respond(b""), BadAnswer, "nothing"),
    "too large": Trouble(lambda: large(70), BadAnswer, "more than 64 MB"),
}
SSE = {"content-type": "text/event-stream"}
CUT = chat_events("One two three four.")
#: Streams that fail before anything was passed on.
EARLY = {
    **{
        name: WHOLE[name]
        for name in ("429", "429 with Retry-After", "500", "529", "hang", "reset", "slow headers")
    },
    "wrong content type": Trouble(page, BadAnswer, "instead of a stream"),
    "an answer at once": Trouble(lambda: respond(chat_body()), BadAnswer, "instead of a stream"),
    "no event": Trouble(lambda: stream(b""), BadAnswer, "has no end"),
    "hang after the headers": Trouble(
        lambda: stream(b"", ending="hang"), ProviderDown, "did not begin to answer", 0.6
    ),
    "broken event": Trouble(lambda: stream(b"data: {\n\n"), BadAnswer, "cannot be read"),
    "only its beginning": Trouble(lambda: stream(CUT, after=1), BadAnswer, "has no end"),
}
#: Streams that fail after something was.
LATE = {
    "hang": lambda: stream(CUT, after=3, ending="hang"),
    "cut": lambda: stream(CUT, after=3, ending="cut"),
    "reset": lambda: stream(CUT, after=3, ending="reset"),
    "no end": lambda: stream(CUT, after=3),
    "broken event": lambda: stream(b"\n\n".join(CUT.split(b"\n\n")[:3]) + b"\n\ndata: {]\n\n"),
    "error event": lambda: stream(
        b"\n\n".join(CUT.split(b"\n\n")[:3]) + b'\n\ndata: {"error": {"message": "Lost."}}\n\n'
    ),
}


async def ask(gateway: Gateway, *, streamed: bool) -> str:
    if not streamed:
        return (await gateway.complete("x")).text
    async with gateway.stream("x") as answer:
        return (await answer.finish()).text


@pytest.mark.parametrize("name", WHOLE)
async def test_what_a_caller_learns(name: str) -> None:
    trouble = WHOLE[name]
    async with FaultyServer() as server:
        server.script(always=trouble.answer())
        async with opened(server, timeout=trouble.timeout, backoff=ONCE) as gate:
            with pytest.raises(trouble.error, match=trouble.says) as caught:
                await ask(gate, streamed=False)
            assert type(caught.value) is trouble.error
            assert caught.value.hint
            (noted,) = await outcomes_of(gate)
            assert (noted.success, noted.error) == (False, caught.value.kind)
            assert_nothing_left(gate)


@pytest.mark.parametrize("name", EARLY)
async def test_what_the_caller_of_a_stream_learns(name: str) -> None:
    trouble = EARLY[name]
    async with FaultyServer() as server:
        server.script(always=trouble.answer())
        async with opened(server, timeout=trouble.timeout, backoff=ONCE) as gateway:
            with pytest.raises(trouble.error, match=trouble.says) as caught:
                await ask(gateway, streamed=True)
            assert type(caught.value) is trouble.error
            assert_nothing_left(gateway)


@pytest.mark.parametrize("streamed", [False, True])
async def test_another_model_answers_whatever_happens(streamed: bool) -> None:
    """One call for every fault, all at the same time, with one server that is well."""
    table = EARLY if streamed else WHOLE
    async with FaultyServer() as bad, ScriptedModel("Well.") as good:
        bad.script(*[trouble.answer() for trouble in table.values()])
        async with opened(bad, good, timeout=2.0, backoff=ONCE, tripping=TOUGH) as gateway:
            said = await asyncio.gather(*(ask(gateway, streamed=streamed) for _ in table))
            assert said == ["Well."] * len(table)
            assert bad.count == len(table)
            assert_nothing_left(gateway)


@pytest.mark.parametrize("name", LATE)
async def test_a_stream_that_fails_halfway_whatever_happens(name: str) -> None:
    async with FaultyServer() as bad, ScriptedModel() as good:
        bad.script(always=LATE[name]())
        async with opened(bad, good, timeout=2.0 if name == "hang" else 60.0) as gateway:
            with pytest.raises(StreamBroken) as caught:
                await ask(gateway, streamed=True)
            assert caught.value.partial.text == "One two"  # type: ignore[attr-defined]
            assert (bad.count, len(good.requests)) == (1, 0)
            assert_nothing_left(gateway)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (overloaded, ProviderDown),
        (lambda: failing(429, type="rate_limit_error"), RateLimited),
        (truncated_json, BadAnswer),
        (empty_content, BadAnswer),
        (lambda: respond(chat_body()), BadAnswer),
        (lambda: message_stream(after=1), BadAnswer),
    ],
)
async def test_the_messages_format_too(answer: Any, error: Any) -> None:
    async with FaultyServer() as bad, ScriptedModel("Well.") as good:
        bad.script(always=answer())
        for backoff in (ONCE, QUICK):
            async with opened(provider(bad, "messages"), backoff=backoff) as gateway:
                with pytest.raises(error):
                    await ask(gateway, streamed=False)
        async with opened(provider(bad, "messages"), provider(good, "messages")) as gateway:
            assert await ask(gateway, streamed=False) == "Well."


async def test_a_messages_stream_that_breaks_off() -> None:
    async with FaultyServer() as bad:
        bad.script(always=stream(message_events("One two three."), after=5, ending="cut"))
        async with opened(provider(bad, "messages")) as gateway:
            with pytest.raises(StreamBroken) as caught:
                await ask(gateway, streamed=True)
            assert caught.value.partial.text == "One two"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["127.0.0.1", "somebody-else.example"])
async def test_bad_tls(name: str) -> None:
    async with FaultyServer(tls=True, name=name) as untrusted, ScriptedModel("Well.") as good:
        async with opened(untrusted, backoff=ONCE) as gateway:
            with pytest.raises(ProviderDown, match="cannot be trusted"):
                await ask(gateway, streamed=False)
        async with opened(untrusted, good) as gateway:
            assert await ask(gateway, streamed=False) == "Well."
        assert untrusted.count == 0


async def test_tls_where_there_is_none() -> None:
    async with FaultyServer() as plain:
        config = ProviderConfig(base_url=plain.url.replace("http:", "https:") + "/v1")
        async with opened(config, backoff=ONCE) as gateway:
            with pytest.raises(ProviderDown, match="no TLS"):
                await ask(gateway, streamed=False)


async def test_an_answer_of_50_MB() -> None:  # noqa: N802
    async with FaultyServer() as server:
        server.script(always=large(50))
        async with opened(server, timeout=120.0, deadline=200.0) as gateway:
            assert len(await ask(gateway, streamed=False)) == 50_000_000


async def test_a_tool_call_split_over_many_chunks() -> None:
    arguments = json.dumps({"text": "äöü🙂" * 200})
    answer = Said(calls=(ToolCall("call_1", "write", arguments),), chunk=1)
    for wire in ("chat", "responses", "messages"):
        async with ScriptedModel(answer) as model, opened(provider(model, wire)) as gateway:
            async with gateway.stream("x") as answered:
                (call,) = (await answered.finish()).message.calls
            assert json.loads(call.arguments) == json.loads(arguments)


# Many -----------------------------------------------------------------------------------------


async def test_1000_calls_with_30_percent_faults_and_one_healthy_provider() -> None:
    dice = random.Random(4)
    faults = [
        ScriptedFault(status=429),
        ScriptedFault(status=429, headers={"retry-after": "0.2"}),
        ScriptedFault(status=500),
        ScriptedFault(status=529),
        ScriptedFault(how="reset"),
        ScriptedFault(how="truncated"),
        ScriptedFault(how="hang"),
        ScriptedFault(how="truncated", after=1),
        ScriptedFault(how="status", after=1, status=529),
    ]

    def flaky(request: ReceivedRequest) -> Said | ScriptedFault:
        return dice.choice(faults) if dice.random() < 0.3 else Said("Well.")

    async with ScriptedModel(flaky) as one, ScriptedModel(flaky) as two, ScriptedModel() as good:
        third = provider(good, "messages", concurrency=16)
        async with opened(one, provider(two, "responses"), third, timeout=5.0) as gateway:
            said = await asyncio.gather(
                *(ask(gateway, streamed=number % 2 == 0) for number in range(1_000))
            )
            assert set(said) <= {"Well.", "Hello."}
            assert len(said) == 1_000
            assert_nothing_left_open(gateway)
            noted = await outcomes_of(gateway)
            assert sum(each.success for each in noted) == 1_000
            assert {each.error for each in noted} >= {"", "down", "rate_limited"}
            by = Counter(each.provider for each in noted if not each.success)
            assert by["p2"] == 0


def assert_nothing_left_open(gateway: Gateway) -> None:
    for target in gateway.targets.values():
        view = target.gate.view()
        assert (view.active, view.waiting) == (0, 0)


async def test_1000_calls_with_a_dead_and_a_healthy_provider() -> None:
    """Whoever queues for the dead one does not wait for its timeout, one after another."""
    async with FaultyServer() as dead, ScriptedModel("Well.") as good:
        dead.script(always=hang())
        few = provider(good, concurrency=16)  # this loop serves all, and may be slow
        async with opened(dead, few, timeout=5.0) as gateway:
            said = await asyncio.gather(*(ask(gateway, streamed=False) for _ in range(1_000)))
            assert said == ["Well."] * 1_000
            assert dead.count < 300
            assert_nothing_left_open(gateway)


@pytest.mark.slow
async def test_a_thousand_cancelled_calls_leave_nothing_behind() -> None:
    dice = random.Random(5)
    async with FaultyServer() as server:
        server.script(always=slow(0.05, respond(chat_body())))
        # Three of four are given up by whoever asked, none by the gateway.
        async with opened(server, timeout=200.0, connect_timeout=200.0, deadline=200.0) as gateway:

            async def call(number: int) -> None:
                async with asyncio.timeout(dice.random() * 0.5 if number % 4 else None):
                    await ask(gateway, streamed=False)

            results = await asyncio.gather(*map(call, range(1_000)), return_exceptions=True)
            kinds = Counter(type(result) for result in results)
            assert set(kinds) == {TimeoutError, type(None)}
            assert_nothing_left(gateway)
            assert await ask(gateway, streamed=False) == "Hello."


# Death ----------------------------------------------------------------------------------------


async def test_calls_of_a_process_that_was_killed_count_as_spent(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"

    def script(request: ReceivedRequest) -> Said | ScriptedFault:
        if request.number == 0:
            return Said("Answered.", usage=Usage(input=7, output=3))
        return ScriptedFault(how="hang")

    async with ScriptedModel(script) as model:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.fire.caller", url, model.url
        )
        try:
            async with asyncio.timeout(20):
                while len(model.requests) < 4:
                    assert process.returncode is None
                    await asyncio.sleep(0.01)
        finally:
            process.kill()
            await process.wait()

    async with ScriptedModel() as model, Bank(url, config=caller.config_for(model.url)) as bank:
        (standing,) = await bank.gateway.budgets()
        pot = standing.spending
        assert (pot.calls, pot.tokens) == (1, 10)
        assert (pot.held, pot.held_tokens) == (3, 3 * caller.RESERVED)
        left = caller.LIMIT - 10 - 3 * caller.RESERVED
        assert standing.tokens_left == left
        # What is left can be spent, to the last token, and nothing more.
        taken = 0
        reached = None
        while reached is None:
            try:
                reply = await bank.gateway.complete(caller.ASKED, CallOptions(task="after"))
            except BudgetReached as exc:
                reached = exc
            else:
                assert reply.usage is not None
                taken += (reply.usage.input or 0) + (reply.usage.output or 0)
        await bank.settle()
        (standing,) = await bank.gateway.budgets()
        assert standing.spending.tokens == 10 + taken
        assert standing.tokens_left is not None
        assert standing.tokens_left < caller.RESERVED
        tasks = Counter(o.task for o in await bank.store.collection(Outcome).query().values())
        assert tasks["answered"] == 1
