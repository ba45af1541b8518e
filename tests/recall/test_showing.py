"""A pipeline on a real bank and index: what hits say, at which level, as whose line has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.bank import Bank
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.history.turn_reader import TurnReader
from perdure.recall.indexing.index import RecallIndex
from perdure.recall.places import INDEX, Spot
from perdure.recall.scoping.scope import Scopes
from perdure.recall.searching.searcher import Searcher
from perdure.recall.searching.turn_scan import Scan
from perdure.recall.steps.fetchers import Kept
from perdure.recall.steps.hit_texts import SHORT, Showing, excerpt, looked_for
from perdure.recall.steps.pipeline import Pipeline
from perdure.recall.values import Candidate, Filters, Question, Recalled
from perdure.sessions.session import Session
from tests.patience import patient
from tests.recall.asked import candidate
from tests.recall.indexed import indexed

WORDS = "The build failed in src/auth/login.py at line 42 with KeyError: 'token'. "


class Desk:
    """A bank, its index, and a pipeline over both."""

    def __init__(self, bank: Bank, index: RecallIndex, **further: Any) -> None:
        self.bank, self.index = bank, index
        reader = TurnReader(bank.store)
        scopes = Scopes(bank.store, index)
        self.showing = Showing(bank.services.renditions, reader)
        self.pipeline = Pipeline(
            Searcher(bank.store, index.embedder),
            scopes.of,
            self.showing,
            patient(),
            scan=Scan(reader),
            covers=index.covers,
            catch_up=index.catch_up,
            **further,
        )

    async def question(self, session: Session, text: str, **changes: Any) -> Question:
        head = await session.head()
        now = self.bank.store.now()
        return Question(text=text, record=session.record, head=head, moment=now, **changes)

    async def recall(self, session: Session, text: str, **changes: Any) -> Recalled:
        asked = await self.question(session, text, **changes)
        return await self.pipeline.recall(asked, judged=False)


@pytest.fixture(params=["memory", "sqlite"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'bank.db'}"
    async with indexed(url, tmp_path) as (bank, index):
        desk = Desk(bank, index)
        yield desk
        await desk.pipeline.close()


async def test_a_short_round_is_shown_as_it_was_said(desk: Desk) -> None:
    session = await desk.bank.session("planner/auth")
    await session.append([user("We rotate tokens every hour."), assistant("Noted.")])
    await session.append([user("The weather is fine."), assistant("It is.")])
    await desk.index.settle()
    found = await desk.recall(session, "How often do we rotate tokens?")
    assert found.stage == "vector"
    hit = found.hits[0]
    assert (hit.key, hit.turn, hit.level, hit.kind) == ("T-1.1", "T-1.1", "R", "turn")
    assert "We rotate tokens every hour." in hit.text
    assert hit.why
    assert hit.time
    assert 0 < hit.tokens < SHORT


async def test_a_long_round_is_shown_where_the_words_are(desk: Desk) -> None:
    session = await desk.bank.session("planner/auth")
    long = "\n".join(f"{number}: {WORDS * 3}" for number in range(20))
    await session.append([user(f"{long}\nThe zanzibar flag was off.\n{long}"), assistant("Ok.")])
    found = await desk.recall(session, "zanzibar")
    (hit,) = [hit for hit in found.hits if not hit.neighbour]
    assert (hit.level, "zanzibar" in hit.text) == ("R", True), "what is compressed lost the word"
    assert hit.tokens < 500
    found = await desk.recall(session, "In which line did src/auth/login.py fail?")
    assert found.hits[0].level == "C", "it is enough"


async def test_what_was_taken_back_or_forgotten_is_not_shown(desk: Desk) -> None:
    session = await desk.bank.session("planner/auth")
    for number in range(1, 4):
        await session.append([user(f"The parrot number {number} sings."), assistant("Nice.")])
    asked = await desk.question(session, "parrot")
    await desk.bank.forget("planner/auth", turns=["T-2"])
    await session.undo()
    candidates = [
        candidate(n, session=session.name, key=f"{session.name}#T-{n}.1") for n in (1, 2, 3)
    ]
    now = await desk.question(session, "parrot")
    texts = await desk.showing.full(now, candidates)
    assert list(texts) == [candidates[0].place]
    assert list(await desk.showing.tiny(now, candidates)) == [candidates[0].place]
    assert "T-2.1" not in [hit.key for hit in (await desk.pipeline.recall(asked)).hits]


async def test_a_fork_reads_shared_turns_as_it_left_them(desk: Desk) -> None:
    session = await desk.bank.session("planner/auth")
    await session.append([user("The parrot sings."), assistant("It does.")])
    await session.append([user("The parrot sleeps."), assistant("Yes.")])
    fork = await session.fork("planner/other", at="T-2")
    await session.append([user("The parrot flies."), assistant("Up.")])
    await fork.append([user("What does the cat do?"), assistant("It naps.")])
    found = await desk.recall(fork, "parrot")
    hits = {hit.key: hit.text for hit in found.hits}
    assert set(hits) >= {"T-1.1", "T-2.1"}
    assert not any("flies" in text for text in hits.values())
    found = await desk.recall(session, "parrot")
    assert any("flies" in hit.text for hit in found.hits)


async def test_another_session_of_the_agent(desk: Desk) -> None:
    first = await desk.bank.session("planner/auth")
    await first.append([user("The parrot sings."), assistant("It does.")])
    second = await desk.bank.session("planner/birds")
    await second.append([user("Hello."), assistant("Hi.")])
    found = await desk.recall(second, "parrot")
    assert found.hits[0].key == found.hits[0].turn == "planner/auth#T-1.1"
    assert "sings" in found.hits[0].text


async def test_what_was_left_out_elsewhere_is_pointed_to_there(desk: Desk) -> None:
    """In another session, a bare ``T-1.1`` would be one of that session's own."""
    there = await desk.bank.session("planner/there")
    call = ToolCall("c1", "Bash", '{"command": "make check"}')
    lines = "\n".join(f"module {number} is fine" for number in range(60))
    result = ToolResult("c1", (Text(lines),))
    await there.append(
        [
            user("Check."),
            Message("assistant", (call,)),
            Message("tool", (result,)),
            assistant("So."),
        ]
    )
    await desk.index.settle()
    here = await desk.bank.session("planner/here")
    await here.append([user("Hello."), assistant("Hello.")])
    own = (await desk.recall(there, "make check")).hits[0].text
    assert "the whole result: T-1.1" in own
    elsewhere = (await desk.recall(here, "make check")).hits[0].text
    assert "the whole result: planner/there#T-1.1" in elsewhere


async def test_what_the_first_hits_mention_is_found_too(desk: Desk) -> None:
    session = await desk.bank.session("planner/people")
    await session.append([user("My sister is called Vera."), assistant("A nice name.")])
    for number in range(120):
        await session.append([user(f"Ticket {number} is done."), assistant("Good.")])
    await session.append([user("We saw Vera, she lives in Lisbon."), assistant("Lovely.")])
    asked = await desk.question(session, "How is my sister called, and where is she?", limit=20)
    with_it = await desk.pipeline.recall(asked)
    desk.pipeline._hops = False
    without = await desk.pipeline.recall(asked)
    assert "T-1.1" == with_it.hits[0].key == without.hits[0].key
    assert "T-122.1" in [hit.key for hit in with_it.hits], "where Vera lives"
    assert "T-122.1" not in [hit.key for hit in without.hits]
    assert "hops" not in [step.name for step in without.steps]


async def test_reminders_and_what_happened_lately(desk: Desk) -> None:
    session = await desk.bank.session("planner/auth")
    for number in range(1, 12):
        await session.append([user(f"Parrot {number} sings."), assistant("Nice.")])
    asked = await desk.question(session, "parrot")
    tiny = await desk.showing.tiny(asked, [candidate(n, session=session.name) for n in (3, 5)])
    assert all(shown.level == "T" and "Parrot" in shown.text for shown in tiny.values())
    lately = await desk.showing.lately(asked, 1_000)
    assert [line.partition(":")[0] for line in lately] == [f"T-{n}" for n in range(1, 12)]


async def test_a_bank_without_an_index_is_read(tmp_path: Path) -> None:
    async with indexed("memory://", tmp_path, on=False) as (bank, index):
        desk = Desk(bank, index)
        session = await bank.session("planner/auth")
        await session.append([user("The parrot sings."), assistant("It does.")])
        await session.append([user("Hello."), assistant("Hi.")])
        found = await desk.recall(session, "parrot sings")
        assert (found.stage, [hit.key for hit in found.hits]) == ("keyword", ["T-1.1"])
        assert "The parrot sings." in found.hits[0].text
        found = await desk.recall(session, "parrot", filters=Filters(kinds=("memory",)))
        assert not found.hits
        found = await desk.recall(session, "parrot", filters=Filters(tools=("shell",)))
        assert not found.hits
        assert "has no index" in found.steps[-1].failed
        await desk.pipeline.close()


async def test_an_index_that_is_gone_under_a_running_process(tmp_path: Path) -> None:
    file = tmp_path / "bank.db"
    async with indexed(f"sqlite:///{file}", tmp_path) as (bank, index):
        desk = Desk(bank, index)
        session = await bank.session("planner/auth")
        await session.append([user("The parrot sings."), assistant("It does.")])
        assert (await desk.recall(session, "parrot")).hits
        with closing(apsw.Connection(str(file))) as other:
            other.set_busy_timeout(5_000)
            other.execute(f"DROP TABLE {INDEX.name}__documents")
        found = await desk.recall(session, "parrot sings")
        assert (found.stage, [hit.key for hit in found.hits]) == ("keyword", ["T-1.1"])
        assert "damaged" in found.steps[0].failed
        await desk.pipeline.close()


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "the of and",
        '"" OR NOT (a AND b) NEAR/3 -x* ^',
        "パスワード тест 🦜",
        "\x00\ud800",
        "word " * 10_000,
    ],
)
async def test_odd_questions(tmp_path: Path, text: str) -> None:
    async with indexed("memory://", tmp_path) as (bank, index):
        desk = Desk(bank, index)
        session = await bank.session("planner/auth")
        found = await desk.recall(session, text)
        assert found.hits == (), "the bank is empty"
        await session.append([user("The parrot sings."), assistant("A word.")])
        found = await desk.recall(session, text)
        assert found.stage in {"none", "keyword", "vector"}
        await desk.pipeline.close()


def cabinet(texts: dict[str, str]) -> Callable[[Question, Sequence[Candidate]], Any]:
    async def fetch(_: Question, candidates: Sequence[Candidate]) -> dict[int, Kept]:
        return {
            each.place: Kept(f"named-{each.key}", texts[each.key], 77)
            for each in candidates
            if each.key in texts
        }

    return fetch


async def test_layers_have_the_name_that_they_are_fetched_by(tmp_path: Path) -> None:
    async with indexed("memory://", tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await session.append([user("The parrot sings."), assistant("A word.")])
        desk = Desk(bank, index)
        layers = [candidate(n, 0.9, kind="reference", key=str(n)) for n in (1, 2)]
        showing = Showing(
            bank.services.renditions,
            TurnReader(bank.store),
            references=cabinet({"1": "All about parrots. " * 20}),
        )

        async def triggered(_: Question) -> Sequence[Candidate]:
            return layers

        desk.pipeline._texts, desk.pipeline._triggered = showing, triggered
        asked = await desk.question(session, "parrot")
        found = await desk.pipeline.recall(asked, prompt=[user("parrot?")])
        (layer,) = [hit for hit in found.hits if hit.kind == "reference"]
        assert (layer.key, layer.time, layer.full) == ("named-1", 77, True)
        found = await desk.pipeline.recall(asked, shown=frozenset({"named-1"}))
        assert not [hit for hit in found.hits if hit.kind == "reference"]
        gist = (await showing.tiny(asked, layers))[Spot(3, 1).place]
        assert gist.level == "T"
        assert len(gist.text) <= 160
        await desk.pipeline.close()


def test_an_excerpt_has_the_words() -> None:
    text = f"{'x ' * 2_000}here the parrot sings loudly{' y' * 2_000}"
    cut = excerpt(text, looked_for("Does the parrot sing loudly?"), 400)
    assert "parrot sings loudly" in cut
    assert len(cut) <= 410
    assert cut.startswith("… ")
    assert cut.endswith(" …")
    assert excerpt("short", ["x"], 400) == "short"
    assert excerpt("z" * 1_000, ["parrot"], 400).startswith("zzz")
    assert looked_for("Is it the WHO?") == ()
    assert looked_for("Wo sind die Dateien?") == ("dateien",)
