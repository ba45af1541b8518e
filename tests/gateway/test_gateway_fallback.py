"""When models fail: retries, fallbacks, one deadline, circuits, rate limits, preferences."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from typing import Any, Self

import pytest

from perdure.config import BudgetConfig, ProviderConfig
from perdure.core.errors import (
    AllFailed,
    BadAnswer,
    BudgetReached,
    DeadlineExceeded,
    ProviderDown,
    RateLimited,
    StreamBroken,
    Unauthorized,
)
from perdure.core.messages import Message, ToolCall, user
from perdure.gateway import fallback, model_status
from perdure.gateway.breaker import BreakerPolicy
from perdure.gateway.calls import CallOptions, Request, TextDelta
from perdure.gateway.fallback import Backoff
from perdure.gateway.gateway import Gateway
from perdure.gateway.model_selection import ModelHealth
from perdure.storage.middleware import Call, Commit, Handler
from perdure.testing import ReceivedRequest, ScriptedAnswer, ScriptedFault, ScriptedModel
from tests.gateway.faulty import (
    FaultyServer,
    chat,
    chat_stream,
    failing,
    hang,
    overloaded,
    rate_limited,
    reset,
    slow,
    truncated_json,
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
from tests.waiting import until

WIRES = ("chat", "responses", "messages")
wires = pytest.mark.parametrize("wire", WIRES)


class Watch:
    """How long a block took."""

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.took = time.perf_counter() - self._start


# Retries --------------------------------------------------------------------------------------


async def test_what_may_pass_is_tried_again_at_the_same_model() -> None:
    async with FaultyServer() as server, ScriptedModel() as other:
        server.script(failing(500), overloaded(), always=chat("At last."))
        async with opened(server, other) as gateway:
            reply = await gateway.complete("x")
            assert (reply.text, reply.provider, reply.fallback) == ("At last.", "p0", 0)
            assert (server.count, len(other.requests)) == (3, 0)
            noted = await outcomes_of(gateway)
            assert [each.error for each in noted] == ["down", "down", ""]


async def test_retries_end() -> None:
    async with FaultyServer() as server:
        server.script(always=failing(500, "no luck"))
        async with opened(server) as gateway:
            with pytest.raises(ProviderDown, match="no luck"):
                await gateway.complete("x")
            assert server.count == 3


async def test_retry_after_is_waited_out() -> None:
    async with FaultyServer() as server:
        server.script(rate_limited(retry_after=0.3), always=chat())
        async with opened(server) as gateway:
            with Watch() as watch:
                await gateway.complete("x")
            assert watch.took >= 0.3
            assert server.count == 2


async def test_others_wait_too_while_a_provider_wants_to_be_left_alone() -> None:
    moments = list[float]()

    async def answer(exchange: Any) -> None:
        moments.append(time.perf_counter())
        await (rate_limited(retry_after=0.3) if len(moments) == 1 else chat())(exchange)

    async with FaultyServer() as server:
        server.script(always=answer)
        async with opened(provider(server, concurrency=1)) as gateway:
            await asyncio.gather(*(gateway.complete("x") for _ in range(4)))
        assert min(moments[1:]) - moments[0] >= 0.3
        assert len(moments) == 5


async def test_a_long_pause_is_not_waited_for_where_another_model_is_left() -> None:
    async with FaultyServer() as server, ScriptedModel("Here.") as other:
        server.script(always=rate_limited(retry_after=3_600))
        async with opened(server, other) as gateway:
            replies = [await gateway.complete("x") for _ in range(3)]
            assert {reply.text for reply in replies} == {"Here."}
            assert server.count == 1  # its gate is shut since


async def test_who_queues_at_a_gate_that_is_shut_goes_elsewhere() -> None:
    async with FaultyServer() as server, ScriptedModel("Here.") as other:
        server.script(always=slow(0.1, rate_limited(retry_after=3_600)))
        async with opened(provider(server, concurrency=2), other) as gateway:
            replies = await asyncio.gather(*(gateway.complete("x") for _ in range(20)))
            assert {reply.text for reply in replies} == {"Here."}
            assert server.count == 2
            assert_nothing_left(gateway)


async def test_a_pause_beyond_the_deadline_is_told_at_once() -> None:
    async with FaultyServer() as server:
        server.script(always=rate_limited(retry_after=300))
        async with opened(server) as gateway:
            with pytest.raises(RateLimited) as first:
                await gateway.complete("x", CallOptions(deadline=100))
            with pytest.raises(RateLimited, match="no room") as second:
                await gateway.complete("x", CallOptions(deadline=100))
            assert first.value.retry_after == 300
            assert second.value.retry_after is not None
            assert 200 < second.value.retry_after < 300
            assert server.count == 1


# Fallbacks ------------------------------------------------------------------------------------


@wires
async def test_another_provider_in_another_format_answers(wire: Any) -> None:
    async with FaultyServer() as dead, ScriptedModel("From the other.") as alive:
        dead.script(always=reset())
        async with opened(dead, provider(alive, wire)) as gateway:
            reply = await gateway.complete("x")
            assert (reply.text, reply.provider, reply.fallback) == ("From the other.", "p1", 1)
            async with gateway.stream("x") as stream:
                assert (await stream.finish()).text == "From the other."


async def test_all_fail() -> None:
    async with FaultyServer() as one, FaultyServer() as other:
        one.script(always=failing(500, "trouble"))
        other.script(always=failing(401, "who are you", type="invalid_api_key"))
        async with opened(one, other, backoff=QUICK) as gateway:
            with pytest.raises(AllFailed) as caught:
                await gateway.complete("x")
            kinds = [type(error) for error in caught.value.errors]
            assert kinds == [ProviderDown] * 3 + [Unauthorized]
            assert caught.value.message == (
                "None of 2 models for chat answered, in 4 tries. p0/m is in trouble (status 500):"
                " trouble. p1/m wants a key, and none was sent (status 401): who are you."
            )
            noted = await outcomes_of(gateway)
            assert [(each.provider, each.fallback) for each in noted] == [("p0", 0)] * 3 + [
                ("p1", 1)
            ]


async def test_of_many_that_fail_some_are_named() -> None:
    async with FaultyServer() as server:
        server.script(always=failing(400, "no " * 90))
        async with opened(*[server] * 7, backoff=ONCE) as gateway:
            with pytest.raises(AllFailed, match=r"7 models.*in 7 tries") as caught:
                await gateway.complete("x")
            assert [f"p{at}/m" in caught.value.message for at in range(7)] == [True] * 5 + [
                False
            ] * 2
            assert caught.value.message.endswith("… And 2 more.")
            assert len(caught.value.message) < 1_000
            assert len(caught.value.errors) == 7


async def test_where_nothing_listens_the_next_is_asked_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        away = ProviderConfig(base_url=f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
        nameless = ProviderConfig(base_url="http://nobody.invalid/v1")
        async with FaultyServer() as plain, ScriptedModel("Here.") as model:
            plain.script(always=chat())
            tls = ProviderConfig(base_url=plain.url.replace("http:", "https:"))
            patient = Backoff(attempts=3, base=3_600, cap=3_600)
            async with opened(away, nameless, tls, model, backoff=patient) as gateway:
                assert (await gateway.complete("x")).fallback == 3
                noted = await outcomes_of(gateway)
                assert [(each.error, each.cost) for each in noted[:3]] == [("down", 0)] * 3
        async with opened(away) as gateway:  # there is no other
            with pytest.raises(ProviderDown, match="nothing listens"):
                await gateway.complete("x")
            assert len(await outcomes_of(gateway)) == 3


async def test_a_provider_without_its_key_is_passed_over() -> None:
    async with ScriptedModel("With.") as model:
        keyless = provider(model, key_variable="NOT_SET_ANYWHERE", needs_key=True)
        patient = Backoff(attempts=3, base=3_600, cap=3_600)
        async with opened(keyless, model, backoff=patient) as gateway:
            assert (await gateway.complete("x")).fallback == 1
            assert len(await outcomes_of(gateway)) == 1
        async with opened(keyless) as gateway:
            with pytest.raises(Unauthorized, match="NOT_SET_ANYWHERE"):
                await gateway.complete("x")
            assert_nothing_left(gateway)


async def test_a_model_that_took_long_to_fail_is_not_asked_again_if_another_is_left() -> None:
    async with FaultyServer() as slowly, ScriptedModel("Quick.") as other:
        slowly.script(always=hang())
        async with opened(slowly, other, timeout=2.0, backoff=Backoff(patience=0.2)) as gateway:
            assert (await gateway.complete("x")).text == "Quick."
            assert slowly.count == 1


# The deadline ---------------------------------------------------------------------------------


async def test_one_deadline_for_all_tries() -> None:
    async with FaultyServer() as one, FaultyServer() as other:
        one.script(always=slow(0.15, failing(500, "slow trouble")))
        other.script(always=hang())
        async with opened(one, other) as gateway:
            with Watch() as watch, pytest.raises(DeadlineExceeded, match=r"within 0\.6 s"):
                await gateway.complete("x", CallOptions(deadline=0.6))
            assert watch.took >= 0.55
            assert_nothing_left(gateway)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_silent_server_leaves_time_for_the_next(streamed: bool) -> None:
    async with FaultyServer() as silent, ScriptedModel("Here.") as other:
        silent.script(always=hang())
        async with opened(
            silent, other, timeout=60.0, tripping=BreakerPolicy(failures=1)
        ) as gateway:
            with Watch() as watch:
                if streamed:
                    async with gateway.stream("x", CallOptions(deadline=5)) as stream:
                        reply = await stream.finish()
                else:
                    reply = await gateway.complete("x", CallOptions(deadline=5))
            assert (reply.text, reply.fallback) == ("Here.", 1)
            assert watch.took > 2.4
            assert silent.count == 1
            first, _ = await outcomes_of(gateway)
            assert (first.error, first.cost) == ("down", None)  # it may be at work still
            # It was the caller who had no more time.
            assert gateway.targets["p0/m"].breaker.state == "closed"


async def test_the_last_model_gets_the_rest_of_the_time() -> None:
    async with FaultyServer() as one, FaultyServer() as other, FaultyServer() as last:
        one.script(always=hang())
        other.script(always=failing(400))
        last.script(always=slow(2.0, chat("At last.")))  # its share is 1.7 s
        async with opened(one, other, last, timeout=60.0) as gateway:
            reply = await gateway.complete("x", CallOptions(deadline=5))
            assert (reply.text, reply.fallback) == ("At last.", 2)


async def test_a_stream_that_has_begun_may_take_longer_than_its_share() -> None:
    answer = ScriptedAnswer("Slow but sure, word by word.", chunk=14, chunk_delay=0.7)
    async with (
        ScriptedModel(answer) as model,
        ScriptedModel() as other,
        opened(model, other, timeout=60.0) as gateway,
    ):
        with Watch() as watch:
            async with gateway.stream("x", CallOptions(deadline=6)) as stream:
                assert (await stream.finish()).text == "Slow but sure, word by word."
        assert watch.took > 3.0  # its share, until it began
        assert not other.requests


async def test_the_deadline_holds_at_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "_GRACE", 30.0)  # the gate says why, however late the loop is
    async with FaultyServer() as server:
        done = asyncio.Event()

        async def answer(exchange: Any) -> None:
            await done.wait()
            await chat()(exchange)

        server.script(always=answer)
        async with opened(provider(server, concurrency=1)) as gateway:
            first = asyncio.create_task(gateway.complete("x"))
            await until(lambda: server.count)
            with pytest.raises(DeadlineExceeded, match="is busy"):
                await gateway.complete("x", CallOptions(deadline=0.2))
            done.set()
            await first
            assert server.count == 1
            assert_nothing_left(gateway)


async def test_the_deadline_holds_between_tries() -> None:
    async with FaultyServer() as server:
        server.script(always=failing(500))
        patient = Backoff(attempts=100_000, base=0.05, cap=0.05)
        async with opened(server, backoff=patient, tripping=TOUGH) as gateway:
            with pytest.raises((DeadlineExceeded, ProviderDown)):
                await gateway.complete("x", CallOptions(deadline=0.4))


async def test_the_deadline_holds_while_the_bank_hangs() -> None:
    stuck = asyncio.Event()

    async def middleware(call: Call, handler: Handler) -> Any:
        if isinstance(call, Commit):
            await stuck.wait()
        return await handler(call)

    async with ScriptedModel() as model:
        budgets = (BudgetConfig(name="all", tokens=1_000_000),)
        async with opened(model, budgets=budgets, middleware=(middleware,)) as gateway:
            with pytest.raises(DeadlineExceeded):
                await gateway.complete("x", CallOptions(deadline=0.3))
            assert not model.requests
            stuck.set()
            await gateway.settle()
            (standing,) = await gateway.budgets()
            assert (standing.spending.tokens, standing.spending.held) == (0, 0)
            assert_nothing_left(gateway)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_impatient_caller_is_no_mark_against_a_provider(streamed: bool) -> None:
    late = 3_600.0

    def answer(_: ReceivedRequest) -> ScriptedAnswer:
        before = 0.0 if streamed else late
        return ScriptedAnswer("Slow but sure.", delay=before, chunk=1, chunk_delay=late)

    async with (
        ScriptedModel(answer) as model,
        opened(model, tripping=BreakerPolicy(failures=2)) as gateway,
    ):
        for _ in range(4):
            with pytest.raises((DeadlineExceeded, StreamBroken)):
                async with gateway.stream("x", CallOptions(deadline=0.1)) as stream:
                    await stream.finish()
        target = gateway.targets["p0/m"]
        assert (target.breaker.state, target.breaker.view().failures) == ("closed", 0)
        assert gateway.health.view("chat", "p0/m").preference == 1.0
        late = 0.0
        assert (await gateway.complete("x")).text == "Slow but sure."


async def test_all_the_time_in_the_world() -> None:
    async with ScriptedModel() as model, opened(model) as gateway:
        ask = CallOptions(deadline=float("inf"))
        assert (await gateway.complete("x", ask)).text == "Hello."
        async with gateway.stream("x", ask) as stream:
            assert (await stream.finish()).text == "Hello."


async def test_no_time_at_all() -> None:
    async with ScriptedModel() as model, opened(model) as gateway:
        with pytest.raises(DeadlineExceeded):
            await gateway.complete("x", CallOptions(deadline=1e-9))
        assert not model.requests


async def test_a_stream_that_goes_on_beyond_the_deadline_is_broken() -> None:
    answer = ScriptedAnswer("word " * 20_000, chunk=5, chunk_delay=0.02)
    async with ScriptedModel(answer) as model, opened(model) as gateway:
        with pytest.raises(StreamBroken, match="did not finish"):
            async with gateway.stream("x", CallOptions(deadline=3)) as stream:
                await stream.finish()
        assert_nothing_left(gateway)


# Streams that break ---------------------------------------------------------------------------

BREAKS = {
    "reset": ScriptedFault(how="reset", after=4),
    "truncated": ScriptedFault(how="truncated", after=4),
    "hang": ScriptedFault(how="hang", after=4),
    "status": ScriptedFault(how="status", after=4, status=529, message="Overloaded."),
}


@wires
@pytest.mark.parametrize("how", BREAKS)
async def test_a_stream_that_broke_halfway_is_told_and_not_begun_again(wire: Any, how: str) -> None:
    fault = BREAKS[how]
    script: list[ScriptedFault | str] = [
        ScriptedFault(
            how=fault.how,
            after=6,
            status=fault.status,
            answer=ScriptedAnswer("Once upon a time there was a king.", chunk=5),
        ),
        "Another answer.",
    ]
    async with (
        ScriptedModel(script) as model,
        ScriptedModel() as other,
        opened(provider(model, wire), other, timeout=2.0 if how == "hang" else 60.0) as gateway,
    ):
        seen = list[str]()

        async def read() -> None:
            async with gateway.stream("x") as stream:
                async for delta in stream:
                    if isinstance(delta, TextDelta):
                        seen.append(delta.text)

        with pytest.raises(StreamBroken) as caught:
            await read()
        partial = caught.value.partial
        assert isinstance(partial, Message)
        assert partial.partial
        assert seen
        assert partial.text == "".join(seen)
        assert partial.text.startswith("Once")
        assert caught.value.message.count("The answer of") == 1
        assert (len(model.requests), len(other.requests)) == (1, 0)
        (noted,) = await outcomes_of(gateway)
        assert (noted.success, noted.error, noted.streamed) == (False, "broken", True)
        assert noted.first_token is not None
        assert noted.cost is None  # it may have been charged for
        assert_nothing_left(gateway)


@wires
@pytest.mark.parametrize(
    "fault",
    [
        ScriptedFault(how="reset"),
        ScriptedFault(how="truncated"),
        ScriptedFault(how="hang"),
        ScriptedFault(status=500),
        ScriptedFault(how="status", after=1, status=529),
        ScriptedFault(how="truncated", after=1),
        ScriptedFault(how="hang", after=1),
    ],
    ids=lambda f: f"{f.how}-{f.after}",
)
async def test_a_stream_that_broke_before_anything_arrived_goes_to_the_next(
    wire: Any, fault: ScriptedFault
) -> None:
    limit = 2.0 if fault.how == "hang" else 60.0
    async with (
        ScriptedModel(fault) as bad,
        ScriptedModel("Whole.") as good,
        opened(provider(bad, wire), good, timeout=limit, backoff=ONCE) as gateway,
    ):
        async with gateway.stream("x") as stream:
            text = "".join([d.text async for d in stream if isinstance(d, TextDelta)])
        assert text == stream.reply.text == "Whole."
        assert stream.reply.fallback == 1
        assert [each.success for each in await outcomes_of(gateway)] == [False, True]
        assert_nothing_left(gateway)


async def test_a_broken_stream_has_no_reply() -> None:
    async with (
        ScriptedModel(ScriptedFault(how="reset", after=4)) as model,
        opened(model) as gateway,
        gateway.stream("x") as stream,
    ):
        with pytest.raises(StreamBroken):
            await stream.finish()
        assert [delta async for delta in stream] == []
        with pytest.raises(Exception, match="not complete"):
            _ = stream.reply


# Circuits -------------------------------------------------------------------------------------


async def test_a_circuit_opens_is_probed_and_closes() -> None:
    now = 0.0

    def clock() -> float:
        return now

    tripping, health = BreakerPolicy(failures=3, rest=60), ModelHealth(half_life=1, clock=clock)
    async with FaultyServer() as server, ScriptedModel("Other.") as other:
        server.script(always=failing(500))

        async def back(exchange: Any) -> None:
            await until(lambda: len(other.requests) == 5 + 7)
            await chat("Back.")(exchange)

        async with opened(server, other, backoff=ONCE, tripping=tripping, health=health) as gateway:
            for _ in range(5):
                assert (await gateway.complete("x")).text == "Other."
                gateway.targets["p0/m"].breaker._clock = clock
                now += 10  # health fades, so that the first one is asked first
            assert server.count == 3
            assert (await model_status.models(gateway))[0].breaker is not None
            shown = await model_status.models(gateway)
            assert shown[0].breaker is not None
            assert shown[0].breaker.state == "open"
            server.script(always=back)
            now += 60
            replies = await asyncio.gather(*(gateway.complete("x") for _ in range(8)))
            # One probes; the others do not wait for it.
            assert sorted(reply.text for reply in replies) == ["Back."] + ["Other."] * 7
            assert server.count == 4
            assert (await gateway.complete("x")).text == "Back."
            assert gateway.targets["p0/m"].breaker.state == "closed"


async def test_an_open_circuit_says_so_at_once_if_there_is_no_other() -> None:
    async with FaultyServer() as server:
        server.script(always=failing(500))
        tripping = BreakerPolicy(failures=3, rest=3_600)
        async with opened(server, backoff=ONCE, tripping=tripping) as gateway:
            for _ in range(3):
                with pytest.raises(ProviderDown, match="status 500"):
                    await gateway.complete("x")
            with pytest.raises(ProviderDown, match="tried again in") as caught:
                await gateway.complete("x")
            assert caught.value.retry_after is not None
            assert server.count == 3


async def test_an_open_circuit_says_so_before_a_gate_that_is_shut() -> None:
    async with FaultyServer() as server:
        server.script(always=failing(503, retry_after="100"))
        tripping = BreakerPolicy(failures=1, rest=3_600)
        async with opened(server, backoff=ONCE, tripping=tripping) as gateway:
            with pytest.raises(ProviderDown, match="status 503"):
                await gateway.complete("x")
            with pytest.raises(ProviderDown, match="tried again in"):
                await gateway.complete("x")
            assert server.count == 1


async def test_calls_that_fail_together_do_not_end_each_other() -> None:
    """Their failures open the circuit, in which each of them would run with its next try."""
    async with FaultyServer() as server:
        server.script(*[failing(500)] * 8, always=chat("Recovered."))
        tripping = BreakerPolicy(failures=5, rest=0.3)
        async with opened(server, tripping=tripping) as gateway:
            replies = await asyncio.gather(*(gateway.complete("x") for _ in range(8)))
            assert {reply.text for reply in replies} == {"Recovered."}


async def test_who_queued_before_the_circuit_opened_is_not_sent() -> None:
    async with FaultyServer() as server, ScriptedModel("Other.") as other:
        server.script(always=slow(0.05, failing(500)))
        tripping = BreakerPolicy(failures=1, rest=3_600)
        first = provider(server, concurrency=1)
        async with opened(first, other, backoff=ONCE, tripping=tripping) as gateway:
            replies = await asyncio.gather(*(gateway.complete("x") for _ in range(30)))
            assert {reply.text for reply in replies} == {"Other."}
            assert server.count == 1


async def test_a_cancelled_probe_makes_room_for_the_next() -> None:
    async with FaultyServer() as server:
        server.script(failing(500), hang(), always=chat("Back."))
        tripping = BreakerPolicy(failures=1, rest=0.05)
        async with opened(server, backoff=ONCE, tripping=tripping) as gateway:
            with pytest.raises(ProviderDown):
                await gateway.complete("x")
            await asyncio.sleep(0.06)
            probe = asyncio.create_task(gateway.complete("x"))
            await until(lambda: server.count == 2)
            probe.cancel()
            await asyncio.wait([probe])
            assert (await gateway.complete("x")).text == "Back."


async def test_a_probe_that_the_budget_forbids_makes_room_for_the_next() -> None:
    async with FaultyServer() as server:
        server.script(failing(500), always=chat("Back."))
        budgets = (BudgetConfig(name="all", tokens=1_000),)
        tripping = BreakerPolicy(failures=1, rest=0.05)
        async with opened(server, backoff=ONCE, tripping=tripping, budgets=budgets) as gateway:
            small = Request(messages=(user("x"),), max_tokens=10)
            large = Request(messages=(user("x"),), max_tokens=10_000)
            with pytest.raises(ProviderDown):
                await gateway.complete(small)
            await asyncio.sleep(0.06)
            with pytest.raises(BudgetReached):
                await gateway.complete(large)
            assert (await gateway.complete(small)).text == "Back."


# Concurrency ----------------------------------------------------------------------------------


async def test_each_model_has_its_own_number_of_calls_at_the_same_time() -> None:
    running = Counter[str]()
    most = Counter[str]()
    together = {"a": asyncio.Barrier(3), "b": asyncio.Barrier(3)}

    async def answer(request: ReceivedRequest) -> str:
        running[request.model] += 1
        most[request.model] = max(most[request.model], running[request.model])
        await together[request.model].wait()
        await asyncio.sleep(0.02)  # time for a fourth to come
        running[request.model] -= 1
        return "x"

    async with (
        ScriptedModel(answer) as model,
        opened(provider(model, concurrency=3)) as gateway,
    ):
        asks = [CallOptions(model=f"p0/{name}") for name in "ab" for _ in range(12)]
        await asyncio.gather(*(gateway.complete("x", ask) for ask in asks))
    assert most == {"a": 3, "b": 3}


# Rate limits ----------------------------------------------------------------------------------


async def test_rate_limits_are_kept_before_they_bite() -> None:
    """A server that allows three requests in 0.3 s, and refuses more."""
    window, allowed = 0.3, 3
    granted = list[float]()
    refused = 0

    async def answer(exchange: Any) -> None:
        nonlocal refused
        now = time.perf_counter()
        while granted and granted[0] <= now - window:
            granted.pop(0)
        if len(granted) >= allowed:
            refused += 1
            await rate_limited()(exchange)
            return
        granted.append(now)
        left = {
            "x-ratelimit-remaining-requests": str(allowed - len(granted)),
            "x-ratelimit-reset-requests": f"{int((granted[0] + window - now) * 1000) + 20}ms",
        }
        await chat(headers=left)(exchange)

    async with FaultyServer() as server:
        server.script(always=answer)
        async with opened(provider(server, concurrency=1)) as gateway:
            await asyncio.gather(*(gateway.complete("x") for _ in range(9)))
            assert refused == 0
            assert server.count == 9


async def test_tokens_that_are_used_up_keep_only_calls_that_need_them() -> None:
    left = {"x-ratelimit-remaining-tokens": "500", "x-ratelimit-reset-tokens": "30s"}
    async with FaultyServer() as server, ScriptedModel("Other.") as other:
        server.script(always=chat("First.", headers=left))
        async with opened(server, other) as gateway:
            assert (await gateway.complete("x")).text == "First."
            assert (await gateway.complete("x")).text == "First."
            large = Request(messages=(user("x"),), max_tokens=10_000)
            assert (await gateway.complete(large)).text == "Other."
            assert (await gateway.complete("x")).text == "First."


# Preferences ----------------------------------------------------------------------------------


async def preference(gateway: Gateway, task: str) -> float:
    return (await model_status.models(gateway))[0].health[task].preference


async def test_preferences_shift_on_failure_and_recovery_and_are_seen() -> None:
    now = 0.0
    health = ModelHealth(half_life=60, clock=lambda: now)
    async with FaultyServer() as first, ScriptedModel("Second.") as second:
        first.script(failing(500), always=chat("First."))
        async with opened(first, second, backoff=ONCE, health=health, tripping=TOUGH) as gateway:
            review, title = CallOptions(task="code-review"), CallOptions(task="title")
            assert (await gateway.complete("x", review)).text == "Second."  # it failed
            assert await preference(gateway, "code-review") < 0.7
            reply = await gateway.complete("x", review)
            assert (reply.text, reply.fallback) == ("Second.", 0)  # it comes first now
            assert first.count == 1
            # Other kinds of work are not concerned.
            assert (await gateway.complete("x", title)).text == "First."
            assert await preference(gateway, "title") == 1.0
            # The failure fades.
            now = 300.0
            assert await preference(gateway, "code-review") > 0.9
            assert (await gateway.complete("x", review)).text == "First."
            assert await preference(gateway, "code-review") > 0.95


async def test_a_selector_can_be_plugged_in() -> None:
    seen = list[Any]()

    class Backwards:
        def order(self, ask: Any, candidates: Any, standings: Any) -> Any:
            seen.append((ask.task, [each.name for each in candidates], dict(standings)))
            return candidates[::-1]

    async with (
        ScriptedModel("0") as zero,
        ScriptedModel("1") as one,
        opened(zero, one, selector=Backwards()) as gateway,
    ):
        assert (await gateway.complete("x", CallOptions(task="t"))).text == "1"
        assert (await gateway.complete("x", CallOptions(task="t"))).text == "1"
    assert seen[0] == ("t", ["p0/m", "p1/m"], {})
    assert list(seen[1][2]) == ["p1/m"]


async def test_the_default_provider_comes_first_without_data() -> None:
    async with (
        ScriptedModel("0") as zero,
        ScriptedModel("1") as one,
        opened(zero, one, default="p1") as gateway,
    ):
        assert (await gateway.complete("x")).text == "1"


# Cancelled calls ------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_cancelled_call_leaves_nothing_behind(streamed: bool) -> None:
    budgets = (BudgetConfig(name="all", tokens=10**6, per="ever"),)
    script = ScriptedFault(how="hang", after=5 if streamed else 0)
    async with ScriptedModel(script) as model:
        first = provider(model, concurrency=2)
        async with opened(first, budgets=budgets) as gateway:
            before = asyncio.all_tasks()

            async def call() -> None:
                if streamed:
                    async with gateway.stream("x") as stream:
                        await stream.finish()
                else:
                    await gateway.complete("x")

            calls = [asyncio.create_task(call()) for _ in range(5)]  # two inside, three queue
            await until(lambda: len(model.requests) == 2)
            assert gateway.targets["p0/m"].gate.view().waiting == 3
            for task in calls:
                task.cancel()
            done, _ = await asyncio.wait(calls, timeout=60)
            assert len(done) == 5
            assert all(task.cancelled() for task in calls)
            assert_nothing_left(gateway)
            noted = await outcomes_of(gateway)
            assert [each.error for each in noted] == ["cancelled"] * 2
            (standing,) = await gateway.budgets()
            assert (standing.spending.held, standing.spending.held_tokens) == (0, 0)
            # What was sent may have been charged for; if all was to come at once, all of it.
            assert 0 < standing.spending.tokens < (200 if streamed else 2 * 8_300)
            await until(lambda: model.open_connections == 0)
            await until(lambda: asyncio.all_tasks() <= before)  # the recorder lingers for a moment


async def test_leaving_a_stream_early_ends_the_call() -> None:
    answer = ScriptedAnswer("word " * 1_000, chunk=5, chunk_delay=0.01)
    async with ScriptedModel(answer) as model, opened(model) as gateway:
        async with gateway.stream("x") as stream:
            async for delta in stream:
                if isinstance(delta, TextDelta):
                    break
        await until(lambda: model.open_connections == 0)
        assert_nothing_left(gateway)
        (noted,) = await outcomes_of(gateway)
        assert (noted.success, noted.error, noted.cost) == (False, "cancelled", None)
        assert gateway.targets["p0/m"].breaker.view().failures == 0
        with pytest.raises(Exception, match="not complete"):
            _ = stream.reply


async def test_an_error_of_the_reader_is_not_the_providers() -> None:
    async with ScriptedModel(ScriptedAnswer("a b c d", chunk=2)) as model, opened(model) as gateway:

        async def read() -> None:
            async with gateway.stream("x") as stream:
                async for _ in stream:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await read()
        assert_nothing_left(gateway)
        assert gateway.targets["p0/m"].breaker.view().failures == 0


async def test_tool_calls_in_many_pieces() -> None:
    arguments = '{"path": "/srv/data/файл.txt", "lines": [1, 2, 3]}'
    answer = ScriptedAnswer(calls=(ToolCall("c1", "read", arguments),), chunk=1)
    for wire in WIRES:
        async with ScriptedModel(answer) as model, opened(provider(model, wire)) as gateway:
            async with gateway.stream("x") as stream:
                (call,) = (await stream.finish()).message.calls
            assert (call.id, call.name) == ("c1", "read")
            assert call.arguments.replace(" ", "") == arguments.replace(" ", "")


async def test_bytes_in_pieces_of_any_size() -> None:
    async with FaultyServer() as server:
        text = "Wörter 🙂 und mehr"
        server.script(*[chat_stream(text, sizes=sizes) for sizes in ((1,), (7, 3), (4_096,))])
        async with opened(server) as gateway:
            for _ in range(3):
                async with gateway.stream("x") as stream:
                    assert (await stream.finish()).text == text


async def test_bad_answers_are_tried_again() -> None:
    async with FaultyServer() as server:
        server.script(truncated_json(), always=chat("Good."))
        async with opened(server) as gateway:
            assert (await gateway.complete("x")).text == "Good."
        server.script(always=truncated_json())
        async with opened(server) as gateway:
            with pytest.raises(BadAnswer):
                await gateway.complete("x")
