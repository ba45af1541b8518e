"""Schedules and cron: when messages are sent, also over restarts and clocks that jump."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from perdure.agents.agent_records import AgentLease, AgentVersion
from perdure.agents.agent_registry import AgentRegistry
from perdure.agents.cron import parse_cron
from perdure.agents.mailbox import Mailboxes
from perdure.agents.schedules import Schedules, moment_in
from perdure.bank import Bank
from perdure.core.clock import from_datetime
from perdure.core.errors import InvalidInput, NotFound
from perdure.testing import ManualClock
from perdure.testing.model import ScriptedModel
from tests.agents.loop.conftest import OpenBank, config_for
from tests.waiting import until

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("0 9 * * 1-5", "2026-02-13 09:00", "2026-02-16 09:00"),
        ("*/15 * * * *", "2026-02-13 09:01", "2026-02-13 09:15"),
        ("30 4 1,15 * *", "2026-02-15 05:00", "2026-03-01 04:30"),
        ("0 0 13 * fri", "2026-02-01 00:00", "2026-02-06 00:00"),
        ("0 0 * * 7", "2026-02-13 00:00", "2026-02-15 00:00"),
        ("@yearly", "2026-02-13 00:00", "2027-01-01 00:00"),
        ("0 12 29 feb *", "2026-02-13 00:00", "2028-02-29 12:00"),
        ("5/20 8-10/2 * * *", "2026-02-13 08:46", "2026-02-13 10:05"),
    ],
)
def test_cron_finds_the_next_time(text: str, after: str, expected: str) -> None:
    moment = datetime.fromisoformat(after).replace(tzinfo=UTC)
    found = parse_cron(text).next(moment, UTC)
    assert found == datetime.fromisoformat(expected).replace(tzinfo=UTC)


def test_cron_follows_the_clock_on_the_wall() -> None:
    """In Berlin 2026, 02:30 does not exist on March 29, and comes twice on October 25."""
    cron = parse_cron("30 2 * * *")
    spring = cron.next(datetime(2026, 3, 28, 12, tzinfo=BERLIN), BERLIN)
    assert spring.astimezone(BERLIN).date().isoformat() == "2026-03-29"
    first = cron.next(datetime(2026, 10, 24, 12, tzinfo=BERLIN), BERLIN)
    second = cron.next(first, BERLIN)
    assert second - first > timedelta(hours=20), "once a day"


@pytest.mark.parametrize(
    "text", ["", "* * * *", "60 * * * *", "* * 0 * *", "5-1 * * * *", "x * * * *", "0 0 31 2 *"]
)
def test_bad_expressions_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_cron(text)


def test_a_command_line_says_when() -> None:
    assert moment_in("every 1h") == (None, "1h")
    assert moment_in("10m") == ("10m", None)
    assert moment_in("2999-12-24 18:00") == ("2999-12-24 18:00", None)  # `add` reads it


async def test_what_was_missed_is_sent_once() -> None:
    clock = ManualClock()
    store = Bank("memory://", clock=clock).store
    async with store:
        await AgentRegistry(store).define("r", AgentVersion(id="", number=0, prompt="x"))
        boxes = Mailboxes(store)
        schedules = Schedules(store, boxes)
        await schedules.add("r", None, "each hour", every="1h")
        await schedules.add("r", "10m", "once")
        at = datetime.fromtimestamp(clock() / 1e6, UTC) + timedelta(hours=3)
        await schedules.add("r", at, "at a time")
        assert await schedules.send_due({"r"}) == 0
        clock.advance(11 * 60)
        assert await schedules.send_due({"other"}) == 0
        assert await schedules.send_due({"r"}) == 1
        clock.advance(5 * 86_400)  # nobody looked for days, or the clock was set forward
        assert await schedules.send_due({"r"}) == 2
        assert await schedules.send_due({"r"}) == 0
        (left,) = await schedules.list("r")
        assert clock() < left.next <= clock() + 3_600 * 10**6
        clock.tick(-30 * 86_400 * 10**6)  # and back: nothing is sent twice
        assert await schedules.send_due({"r"}) == 0
        assert sorted(each.body for each in await boxes.list("r")) == [
            "at a time",
            "each hour",
            "once",
        ]
        await schedules.cancel(left.id)
        with pytest.raises(NotFound):
            await schedules.cancel(left.id)


async def test_schedules_survive_restarts(open_bank: OpenBank, model: ScriptedModel) -> None:
    bank = await open_bank()
    agent = await bank.agent("router", prompt="You route.")
    await agent.schedule(0.2, "Wake up.")
    await agent.schedule("1d", "Tomorrow.")
    with pytest.raises(InvalidInput):
        await agent.schedule(None, "When?")
    with pytest.raises(InvalidInput, match="no time zone"):
        await agent.schedule("0 9 * * *", "x", timezone="Nowhere/Land")
    await bank.close()
    again = await open_bank()
    await again.agent("router")
    await until(lambda: any("Wake up." in each.prompt for each in model.requests))
    (left,) = await again.agents.schedules.list("router")
    assert left.body == "Tomorrow."


async def test_clocks_that_jump_lose_and_repeat_nothing(model: ScriptedModel, url: str) -> None:
    """A clock that is put forward, and far back, while an agent works."""
    clock = ManualClock()
    async with Bank(url, config=config_for(model, lease=0.3), clock=clock) as bank:
        agent = await bank.agent("router", prompt="You route.")
        for jump in (86_400, -7 * 86_400, 0, 3_600, -86_400):
            clock.tick(jump * 10**6)
            assert (await agent.ask(f"Jump {jump}.", deadline=30)).text == "Hello."
        assert len(model.requests) == 5
        await bank.agents.pause("router")
        sent = await agent.send("Before the clock is put back.")
        clock.tick(-30 * 86_400 * 10**6)
        await bank.agents.resume("router")
        assert (await agent.result(sent.id, deadline=30)).text == "Hello."
        # The lease of a process that is gone, by a clock that was far ahead.
        far = from_datetime(datetime(2199, 1, 1, tzinfo=UTC))
        dead = AgentLease(agent="router", token=99, owner="x", until=far, host="elsewhere")
        await bank.agents.stop(5)
        await bank.collection(AgentLease).put(dead)
    async with Bank(url, config=config_for(model, lease=0.3), clock=clock) as bank:
        agent = await bank.agent("router")
        assert (await agent.ask("Still there?", deadline=30)).text == "Hello."
