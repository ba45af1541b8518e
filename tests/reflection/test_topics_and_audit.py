from __future__ import annotations

from msgspec.structs import replace

import perdure
from perdure.bank import Bank
from perdure.core.clock import SECOND
from perdure.core.messages import assistant, user
from perdure.recall.memory_records import Memory, person
from perdure.reflection import topic_weights
from perdure.reflection.memory_audit import MemoryAudit
from perdure.testing.manual_clock import ManualClock
from tests.reflection.oracle import answering, opened, talk


def test_a_weight_is_halved_and_grows_with_evidence() -> None:
    assert topic_weights.moved(0.8, 30, 30, 0) == 0.4
    assert topic_weights.moved(0.8, 60, 30, 0) == 0.2
    assert topic_weights.moved(0.3, 0, 30, 5) == 0.5
    assert topic_weights.moved(0.9, 0, 30, 50) == topic_weights.MOST
    assert topic_weights.moved(0.1, 3_000, 30, 0) == topic_weights.LEAST


def test_what_speaks_of_a_topic() -> None:
    texts = ["The billing jobs fail.", "A job for billing.", "Cats."]
    assert topic_weights.mentions(["Billing job", "cats"], texts) == {"billing job": 2, "cats": 1}


async def test_topics_that_nobody_speaks_of_fade() -> None:
    named = [
        {
            "op": "topic",
            "text": topic,
            "evidence": [{"turn": "s1#T-1", "quote": "we have billing and login"}],
        }
        for topic in ("billing", "login")
    ]
    async with opened(answering(named)) as (bank, _):
        await talk(bank, "planner/a", "Today we have billing and login to do.")
        await bank.reflect()
        before = await bank.memories.topic_weights("planner")
        assert before == {"billing": 0.3, "login": 0.3}
        await talk(bank, "planner/a", *("More about billing now." for _ in range(5)))
        (run,) = await bank.reflect()
        after = await bank.memories.topic_weights("planner")
        assert after["billing"] == 0.5
        assert after["login"] <= 0.3
        await bank.reflection.undo(run.name)
        assert await bank.memories.topic_weights("planner") == before


async def test_a_topic_fades_as_if_what_is_undone_had_never_been() -> None:
    clock = ManualClock(1_770_000_000_000_000)

    async def weight(*, undo: bool) -> float:
        async with Bank("memory://", clock=clock) as bank:
            await talk(bank, "planner/a", "Good morning.")
            await bank.memories.add("planner", "billing", kind="topic", weight=0.8)
            await bank.reflect()
            for _ in range(2):
                clock.advance("30d")
                await talk(bank, "planner/a", "Good morning.")
                (run,) = await bank.reflect()
                if undo:
                    await bank.reflection.undo(run.name)
            clock.advance("30d")
            await talk(bank, "planner/a", "Good morning.")
            await bank.reflect()
            return (await bank.memories.topic_weights("planner"))["billing"]

    assert await weight(undo=False) == await weight(undo=True) == 0.1


async def test_recall_puts_what_belongs_to_a_heavy_topic_first() -> None:
    """Two memories fit alike; the weight of their topics says which one a small layer has."""

    async def shown(heavy: str) -> str:
        async with perdure.open("memory://") as bank:
            session = await bank.session("planner/a")
            await session.append([user("Hello."), assistant("Hello.")])
            for topic in ("billing", "login"):
                weight = 1.0 if topic == heavy else 0.0
                await bank.memories.add("planner", topic, kind="topic", weight=weight)
                text = f"The nightly import of {topic} runs at noon."
                await bank.memories.add("planner", text, tags=[topic])
            await bank.settle()
            context = await session.context("When does the nightly import run?", budget=4_000)
            return context.injection.text if context.injection else ""

    for heavy, light in (("billing", "login"), ("login", "billing")):
        text = await shown(heavy)
        assert text.index(f"import of {heavy}") < text.index(f"import of {light}")


async def test_an_audit_finds_what_is_wrong_and_proposes_mends() -> None:
    clock = ManualClock(1_770_000_000_000_000)
    bank = Bank("memory://", clock=clock)
    async with bank:
        await talk(bank, "planner/a", "Deploys to staging run every night.")
        source = ["planner/a#T-1"]

        async def add(text: str, **more: object) -> str:
            made = await bank.memories.add("planner", text, provenance=source, **more)  # type: ignore[arg-type]
            return made.name

        same = [await add("Deploys to staging run every night.")]
        same.append(await add("Every night, deploys run to staging!"))
        rivals = [await add("The port of billing is 80."), await add("The port of billing is 90.")]
        without = (await bank.memories.add("planner", "Cats like boxes.")).name
        long = await add("A long story about rabbits. " * 40)
        await bank.memories.add("planner", "Dogs like bones.", by=person("ada"))
        audit = MemoryAudit(bank.services)
        report = await audit.run("planner")
        found = {finding.kind: finding.keys for finding in report.findings}
        assert set(found["duplicate"]) == set(same)
        assert set(found["contradiction"]) == set(rivals)
        assert found["without evidence"] == (without,)
        assert found["too long"] == (long,)
        assert report.latest.memories == 7
        assert report.latest.score == round(100 * (1 - 6 / 7))
        proposed = await audit.propose(report)
        assert {message.kind for message in proposed} == {"proposal", "contradiction"}
        again = await audit.propose(report)
        assert [m.name for m in again] == [m.name for m in proposed]
        for message in proposed:
            await bank.inbox.accept(message.name, by=person("ada"))
        better = await audit.run("planner")
        assert better.latest.score == 33
        assert [score.memories for score in better.scores] == [7, 6]
        clock.advance("200d")
        stale = [f.keys[0] for f in (await audit.run("planner")).findings if f.kind == "stale"]
        assert without in stale


async def test_what_was_just_learnt_from_an_old_history_is_not_stale() -> None:
    clock = ManualClock(1_770_000_000_000_000)
    async with Bank("memory://", clock=clock) as bank:
        made = await bank.memories.add("planner", "Deploys to staging run every night.")
        long_ago = made.last - 400 * 86_400 * SECOND
        await bank.collection(Memory).put(replace(made, first=long_ago, last=long_ago))
        audit, kinds = MemoryAudit(bank.services), list[list[str]]()
        for days in ("1d", "30d"):
            clock.advance(days)
            found = (await audit.run("planner")).findings
            kinds.append([each.kind for each in found if each.kind in {"stale", "never used"}])
        assert kinds == [[], ["stale"]]


async def test_a_topic_covers_what_speaks_of_it_in_other_forms() -> None:
    async with perdure.open("memory://") as bank:
        await bank.memories.add("planner", "Ports", kind="topic")
        await bank.memories.add("planner", "art", kind="topic")
        await bank.memories.add("planner", "Staging listens on port 8123.")
        start = await bank.memories.add("planner", "Deploys start at night.")
        report = await MemoryAudit(bank.services).run("planner")
        uncovered = [each.keys for each in report.findings if each.kind == "without topic"]
        assert uncovered == [(start.name,)]
        assert report.latest.coverage == 0.5


async def test_duplicates_are_found_among_many_that_share_their_words() -> None:
    texts = [f"The nightly deploy of staging host {number} runs." for number in range(420)]
    texts[210:210] = same = (
        "Deploys of staging hosts run nightly.",
        "Nightly, the staging hosts run deploys.",
    )
    async with perdure.open("memory://") as bank:
        for text in texts:
            await bank.memories.add("planner", text)
        report = await MemoryAudit(bank.services).run("planner")
        twice = [each.what for each in report.findings if each.kind == "duplicate"]
        assert len(twice) == 1
        assert all(text in twice[0] for text in same)
