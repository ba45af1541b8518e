"""How full a window is planned: profiles, own marks, settings."""

from __future__ import annotations

from pathlib import Path

import pytest

import perdure
from examples.made_up_project import fill_project
from perdure.config import load
from perdure.core.band_marks import FULL, BandMarks, marks_of
from perdure.core.errors import InvalidConfig, InvalidInput

BUDGET = 8_000


async def fill_of(session: perdure.Session, prompt: str = "Where were we?") -> float:
    context = await session.context(prompt, budget=BUDGET, keep=False, recall=False)
    return sum(band.tokens for band in context.bands) / BUDGET


async def test_a_session_chooses_how_full_its_window_is_planned() -> None:
    async with perdure.open("memory://") as bank:
        session = await bank.session("planner/auth")
        await fill_project(session, 80, seed=5)
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
        ({"full": 0.5}, "unknown mark 'full'; known are fill, slack, keep, high, raw"),
        ({"fill": 0.9, "keep": 0.5}, "in force are fill 0.9, slack 0.035, keep 0.5, high 0.94"),
        ({"raw": 0.6, "tiny": 0.6}, "in force are raw 0.6, smooth 0, compact 0, tiny 0.6"),
        ({"drift": 1.5}, "marks are shares"),
        ({"fill": "much"}, "Expected `float`"),
        (7, "7 is no profile"),
    ],
)
async def test_a_profile_that_is_none_is_refused(profile: object, told: str) -> None:
    async with perdure.open("memory://") as bank:
        with pytest.raises(InvalidInput, match=told):
            await bank.session("planner/auth", profile=profile)  # type: ignore[arg-type]
        assert await bank.sessions() == []


@pytest.mark.parametrize("name", BandMarks.__struct_fields__)
@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9, 1.0])
def test_each_mark_can_be_set_alone(name: str, share: float) -> None:
    if (name, share) == ("slack", 1.0):
        return  # nothing would be left to plan
    assert getattr(marks_of({name: share}), name) == share


def test_marks_that_are_not_given_move_only_as_far_as_they_must() -> None:
    assert marks_of({}) == FULL
    fuller = marks_of({"fill": 0.92})
    assert fuller.keep == fuller.high == pytest.approx(0.92 + FULL.slack)
    assert fuller.smooth == FULL.smooth
    raw = marks_of({"raw": 0.5})
    assert raw.raw + raw.smooth + raw.compact + raw.tiny == pytest.approx(1)
    assert raw.smooth / raw.tiny == pytest.approx(FULL.smooth / FULL.tiny)
    assert (raw.drift, raw.fill, raw.keep) == (FULL.drift, FULL.fill, FULL.keep)


def test_the_documentation_lists_every_mark_with_its_default() -> None:
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    for name in BandMarks.__struct_fields__:
        assert f"| `{name}` | {getattr(FULL, name):.4g} |" in text


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
        await fill_project(session, 80, seed=5)
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
