"""Banks of a few turns: what is right is put beside a prompt, what is something else is not.

With so little to compare with, the best of nothing is still nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from perdure.bank import Bank
from perdure.config import Config
from perdure.core.messages import assistant, user
from perdure.recall.values import Hit
from tests.patience import patient
from tests.recall.tied import bank_with

SAID = (
    ("The staging server listens on port 8443.", "Noted."),
    ("My sister Clara lives in Lisbon.", "How nice!"),
    ("We decided to keep the invoices in PostgreSQL, not in MongoDB.", "I will keep that in mind."),
    ("tests/billing/test_totals.py fails with KeyError: 'vat'", "The rate is missing there."),
    ("I am allergic to peanuts.", "I will remember that."),
    ("Deploys happen on Fridays at noon, never later.", "Understood."),
    ("Please use tabs for indentation in the Makefile.", "Done."),
    ("The logo should be dark green.", "I changed the colour."),
    ("Our customer Nordwind wants the report every month.", "I scheduled it."),
    ("The nightly backup goes to the second disk.", "Good."),
)
RIGHT = (
    ("Which port does the staging server use?", 1),
    ("Where does Clara live?", 2),
    ("Which database did we choose for invoices?", 3),
    ("What was the KeyError in the billing tests?", 4),
    ("Can I eat peanuts?", 5),
    ("When do deploys happen?", 6),
    ("Which colour should the logo have?", 8),
    ("How often does Nordwind want its report?", 9),
    ("Where does the backup go?", 10),
)
WRONG = (
    "What is the capital of Mongolia?",
    "Write a haiku about autumn leaves",
    "Explain how a violin is tuned",
    "yes please",
    "OK, thanks!",
    "And now?",
    "continue",
)


async def _beside(asked: str, turns: int) -> Sequence[Hit]:
    """What would stand beside a prompt, in a bank of so many turns."""
    async with bank_with() as bank:
        session = await bank.session("planner/tiny")
        for said, answered in SAID[:turns]:
            await session.append([user(said), assistant(answered)])
        await bank.settle()
        recalled = await session.recall(asked, judged=True, deadline=60)
        return [hit for hit in recalled.hits if not hit.neighbour]


@pytest.mark.parametrize("spare", [0, 2, 9])
@pytest.mark.parametrize(("asked", "turn"), RIGHT)
async def test_what_is_right_comes_first(asked: str, turn: int, spare: int) -> None:
    hits = await _beside(asked, turn + spare)
    assert hits, "nothing was recalled"
    assert hits[0].turn == f"T-{turn}.1"
    assert hits[0].full
    assert len(hits) <= 4


@pytest.mark.parametrize("turns", [3, 10])
@pytest.mark.parametrize("asked", WRONG)
async def test_what_is_something_else_stays_away(asked: str, turns: int) -> None:
    assert [(hit.turn, hit.score) for hit in await _beside(asked, turns)] == []


async def test_who_searches_is_not_given_what_is_merely_nearest() -> None:
    async with bank_with() as bank:
        session = await bank.session("planner/tiny")
        await session.append([user(SAID[0][0]), assistant(SAID[0][1])])
        await bank.settle()
        recalled = await session.recall("the capital of Mongolia", deadline=60)
        assert recalled.hits == ()
        for query in ("zxqv blorf", "recipe for rhubarb cake"):
            assert (await session.recall(query, deadline=60)).hits == (), query


async def test_a_question_about_a_time_is_met_by_what_was_said_then() -> None:
    now = datetime.now(UTC)
    async with bank_with() as bank:
        session = await bank.session("planner/tiny")
        for days, (said, answered) in zip((9, 1), SAID, strict=False):
            then = int((now - timedelta(days=days)).timestamp() * 1e6)
            words = msgspec.structs.replace(user(said), time=then)
            await session.append([words, assistant(answered)])
        await bank.settle()
        found = await session.recall("What did we do yesterday?", deadline=60)
        assert found.hits[0].turn == "T-2.1"
        assert "said yesterday" in found.hits[0].why
        assert (await session.recall("What did we do 3 years ago?", deadline=60)).hits == ()


@pytest.mark.parametrize("others", [0, 1, 3, 40])
async def test_most_of_a_question_is_enough_however_few_turns_there_are(others: int) -> None:
    """In a bank of one turn, a word that stands nowhere was all that its question was about."""
    async with Bank("memory://", config=Config(recall=patient(vectors=0.0))) as bank:
        session = await bank.session("planner/auth")
        await session.append(
            [
                user("Why do logins fail after an hour?"),
                assistant("The refresh token is not rotated."),
            ]
        )
        for number in range(others):
            await session.append([user(f"Rename the column c{number}."), assistant("Done.")])
        found = await session.recall("token refresh bug")
        assert [hit.turn for hit in found.hits][:1] == ["T-1.1"]
        assert not (await session.recall("zebra crossing bug")).hits
