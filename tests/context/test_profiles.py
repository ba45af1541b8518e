"""How full a window is planned: profiles, own marks, settings."""

from __future__ import annotations

from pathlib import Path

import pytest

import perdure
from examples.made_up_project import fill_project
from perdure.config import load
from perdure.core.band_marks import BandMarks
from perdure.core.errors import InvalidConfig, InvalidInput

BUDGET = 8_000


async def fill_of(session: perdure.Session, prompt: str = "Where were we?") -> float:
    context = await session.context(prompt, budget=BUDGET, keep=False, recall=False)
    return sum(band.tokens for band in context.bands) / BUDGET


async def test_a_session_chooses_how_full_its_window_is_planned() -> None:
    async with perdure.open("memory://") as bank:
        session = await bank.session("planner/auth")
        await fill_project(session, 80, seed=3)
        await bank.settle()
        full = await fill_of(session)
        assert full >= 0.65
        session = await bank.session("planner/auth", profile="thrifty")
        assert await fill_of(session) <= 0.45
        session = await bank.session("planner/auth", profile={"fill": 0.5, "slack": 0.02})
        assert 0.42 <= await fill_of(session) <= 0.6
        await session.change_strategy(profile=BandMarks())
        assert await fill_of(session) == full


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ("huge", "'huge' is no profile"),
        ({"full": 0.5}, "unknown field `full`"),
        ({"fill": 0.99}, "fill . slack ≤ keep ≤ high"),
        ({"raw": 0.9}, "more than 1 together"),
        ({"fill": "much"}, "Expected `float`"),
        (7, "7 is no profile"),
    ],
)
async def test_a_profile_that_is_none_is_refused(profile: object, told: str) -> None:
    async with perdure.open("memory://") as bank:
        with pytest.raises(InvalidInput, match=told):
            await bank.session("planner/auth", profile=profile)  # type: ignore[arg-type]
        assert await bank.sessions() == []


@pytest.mark.parametrize(
    ("written", "low", "high"),
    [
        ('[history]\nprofile = "thrifty"', 0.25, 0.45),
        ("[history.marks]\nfill = 0.5\nslack = 0.02", 0.42, 0.6),
    ],
)
async def test_the_configuration_sets_it_for_all_sessions(
    tmp_path: Path, written: str, low: float, high: float
) -> None:
    file = tmp_path / "perdure.toml"
    file.write_text(written)
    async with perdure.open("memory://", config=load(file)) as bank:
        session = await bank.session("planner/auth")
        await fill_project(session, 80, seed=3)
        await bank.settle()
        assert low <= await fill_of(session) <= high
        session = await bank.session("planner/auth", profile="full")
        assert await fill_of(session) >= 0.65


def test_marks_that_are_none_are_refused_by_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "perdure.toml"
    file.write_text("[history.marks]\nfill = 2\n")
    with pytest.raises(InvalidConfig, match=r"history\.marks"):
        load(file)


async def test_old_turns_stand_in_ranges_at_c_that_name_them() -> None:
    async with perdure.open("memory://") as bank:
        session = await bank.session("planner/auth")
        await fill_project(session, 150, seed=3)
        await bank.settle()
        context = await session.context("Where were we?", budget=20_000, recall=False)
        ranges = [b for b in context.explain() if "-through-" in b.name and b.level == "C"]
        assert ranges
        text = str(context.to_messages())
        first = ranges[0].name
        assert f"<{first}-C>" in text
        begin = int(first.split("-")[1])
        assert f"T-{begin}" in text.split(f"<{first}-C>")[1].split("</", maxsplit=1)[0]
        again = await session.context("Where were we?", budget=20_000, recall=False)
        assert f"<{first}-C>" in str(again.to_messages())
