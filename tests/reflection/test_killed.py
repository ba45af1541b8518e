"""kill -9 at every step of runs, live and by batch modes that err; two processes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure.bank import Bank
from perdure.reflection.reflection import Reflection
from perdure.reflection.reflection_records import RunAnswer
from perdure.testing import BatchFaults, ScriptedModel
from tests.fire.zygote import Worker, Zygote
from tests.reflection.oracle import all_memories, answering
from tests.reflection.reflect_worker import config, hasten, until_nothing_is_new
from tests.reflection.test_runs import LEARNT, TOPIC, by_session, texts, two_sessions

#: Lanes of a batch mode share its places: those just before a write, with all behind them that the
#: provider did. Live, those just after it, too.
LANES = 12
PLACES: dict[str, tuple[str, range]] = {
    "live-before": ("live", range(1, 100, 2)),
    "live-after": ("live", range(2, 100, 2)),
    **{
        f"{wire}-{lane}": (wire, range(2 * lane - 1, 1_000, 2 * LANES))
        for wire in ("messages", "responses")
        for lane in range(1, LANES + 1)
    },
}


def make_trouble(model: ScriptedModel) -> None:
    """Let batch modes err in all ways, one after another, until they do everything right: the first
    batch expires in part; the second is refused late, by OpenAI as a whole, by Anthropic item by
    item.
    """
    batches = model.batches
    batches.hosted.clear()
    batches.paid.clear()
    batches.faults = faults = BatchFaults(busy=1, cut=1, lists_late=1, not_yet=1, lossy=1)

    async def prepare(step: str, when: str) -> None:
        if (step, when) == ("create", "after"):
            made = len(batches.hosted)
            faults.expired, faults.refused_late = int(made == 1), int(made == 2)

    batches.hook = prepare


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as made:
        yield made


async def ended(worker: Worker) -> bool:
    """Whether a worker came to its end; else it was killed."""
    over = not await asyncio.to_thread(worker.listen, 100.0)
    told = worker.kill()
    assert over
    assert told in ([], ["done"]), "\n".join(told)
    return bool(told)


async def spent(bank: Bank) -> int:
    """Tokens of the day's budget; nothing of it is held any more."""
    (status,) = await bank.gateway.budgets()
    assert status.spending.held_tokens == 0
    return status.spending.tokens


@pytest.mark.slow
@pytest.mark.parametrize(("wire", "places"), PLACES.values(), ids=PLACES.keys())
async def test_killed_at_every_step_nothing_is_lost_or_doubled(
    tmp_path: Path, zygote: Zygote, wire: str, places: range
) -> None:
    """A process is killed by SIGKILL at its nth write; another one goes on."""
    async with ScriptedModel(answering(by_session, [TOPIC])) as model:
        settings = config(model.url, wire)
        for place in places:
            make_trouble(model)
            url = f"sqlite:///{tmp_path}/{place}.db"
            async with perdure.open(url, config=settings) as bank:
                await two_sessions(bank)
                await bank.settle()
            asked = len(model.requests)
            is_done = await ended(
                zygote.start("reflect", url, server=model.url, wire=wire, place=place)
            )
            async with perdure.open(url, config=settings) as bank:
                hasten(bank)
                await asyncio.sleep(0.06)  # the lease of the killed one was as short
                await until_nothing_is_new(Reflection(bank.services))
                assert await texts(bank) == LEARNT, place
                runs = await bank.reflection.list()
                assert {run.state for run in runs} <= {"done", "stopped"}, place
                memories, versions = await all_memories(bank)
                assert (len(memories), versions) == (3, {}), place
                assert await bank.collection(RunAnswer).query().count() == 0
                if wire != "live":
                    assert set(model.batches.paid.values()) == {1}
                    assert await spent(bank) == sum(run.tokens for run in runs), place
            # A live question whose answer was not written down may be asked twice; no other is.
            if wire == "live":
                assert len(model.requests) - asked <= 3 + 2
            if is_done:
                assert place > (20 if wire == "live" else 150)
                return
    pytest.fail("It never ended.")


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["live", "messages", "responses"])
async def test_two_processes_reflect_at_once(tmp_path: Path, zygote: Zygote, wire: str) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    async with ScriptedModel(answering(by_session, [TOPIC])) as model:
        settings = config(model.url, wire)
        async with perdure.open(url, config=settings) as bank:
            await two_sessions(bank)
            await bank.settle()
        started = [
            zygote.start("reflect", url, server=model.url, wire=wire, place=0) for _ in range(2)
        ]
        assert await asyncio.gather(*map(ended, started)) == [True, True]
        async with perdure.open(url, config=settings) as bank:
            assert await texts(bank) == LEARNT
            assert [run.state for run in await bank.reflection.list()] == ["done"]
        assert len(model.requests) == 3
