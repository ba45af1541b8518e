"""The planner: budgets, order, levels, ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.core.errors import BudgetTooSmall
from perdure.core.levels import RANK
from perdure.history.gradient_planner import FAN, PlannerInput, Sized, plan, total
from perdure.history.manifest import Element, EpochManifest, RoundId, bands


def rounds_of(sizes: list[list[tuple[int, int, int]]]) -> list[Sized]:
    """Turns given as lists of raw, smooth and compact sizes."""
    return [
        Sized(RoundId(turn, number), *size)
        for turn, of in enumerate(sizes, 1)
        for number, size in enumerate(of, 1)
    ]


def even(turns: int, rounds: int = 1, raw: int = 400) -> list[Sized]:
    return rounds_of([[(raw, raw // 2, raw // 8)] * rounds for _ in range(turns)])


def window(rounds: list[Sized], budget: int, *, fixed: int = 50, turn: int = 0) -> PlannerInput:
    newest = rounds[-1].place.turn if rounds else 0
    tiny = {each.place.turn: min(20, each.compact) for each in rounds}
    return PlannerInput(
        budget=budget, fixed=fixed, turn=turn or newest + 1, rounds=rounds, tiny=tiny
    )


def overflows(manifest: EpochManifest, told: PlannerInput) -> bool:
    return total(manifest, told.rounds) + told.fixed > told.budget


def live(manifest: EpochManifest, rounds: list[Sized]) -> list[Sized]:
    """The rounds that are not at T: what a planner is told of next time."""
    covered = [e.last for e in manifest.elements if e.level == "T"]
    last = max([manifest.hidden, *covered])
    return [each for each in rounds if each.place > last]


def level_of(manifest: EpochManifest, place: RoundId) -> int:
    if place <= manifest.hidden:
        return len(RANK)
    for element in manifest.elements:
        if element.first <= place <= element.last:
            return RANK[element.level]
    return RANK["R"] if place >= manifest.native else len(RANK)


def replay(rounds: list[Sized], budget: int, fixed: int = 50) -> EpochManifest:
    """A session that made an epoch whenever it had to."""
    manifest = EpochManifest()
    for end in range(1, len(rounds) + 1):
        turn = rounds[end].place.turn if end < len(rounds) else rounds[-1].place.turn + 1
        told = window(live(manifest, rounds[:end]), budget, fixed=fixed, turn=turn)
        if overflows(manifest, told):
            manifest = plan(manifest, told)
            assert total(manifest, told.rounds) + fixed <= budget
    return manifest


size = st.tuples(st.integers(1, 3_000), st.floats(0.2, 1), st.floats(0.05, 1)).map(
    lambda s: (s[0], max(1, int(s[0] * s[1])), max(1, int(s[0] * s[1] * s[2])))
)
histories = st.lists(st.lists(size, min_size=1, max_size=8), min_size=1, max_size=40).map(rounds_of)
budgets = st.integers(500, 40_000)


def test_nothing_is_demoted_while_the_whole_history_fits_raw() -> None:
    rounds = even(10)
    assert plan(EpochManifest(), window(rounds, 10 * 400 + 50)) == EpochManifest()
    assert plan(EpochManifest(), window(rounds, 10 * 400 + 49)).elements


def test_the_oldest_are_shortest() -> None:
    manifest = plan(EpochManifest(), window(even(200), 10_000))
    levels = [element.level for element in manifest.elements]
    assert levels == sorted(levels, key=RANK.__getitem__, reverse=True)
    assert set(levels) == {"T", "C", "S"}
    assert manifest.native.turn < 201


def test_turns_are_named_after_themselves_and_long_turns_by_their_rounds() -> None:
    chats = plan(EpochManifest(), window(even(30), 4_000))
    assert {"T-29", "T-28"} <= {element.name for element in chats.elements}
    long = plan(EpochManifest(), window(even(1, rounds=60), 4_000, turn=1))
    assert all(element.level in "SC" for element in long.elements)
    assert all(element.name.startswith("T-1.") for element in long.elements)
    assert any(element.generation for element in long.elements)


def test_a_turn_under_way_never_goes_to_tiny_but_does_when_it_is_done() -> None:
    rounds = even(3, rounds=30)
    under_way = plan(EpochManifest(), window(rounds, 6_000, turn=3))
    assert {e.last.turn for e in under_way.elements if e.level == "T"} == {1, 2}
    later = [*rounds, *(Sized(RoundId(4, n), 400, 200, 50) for n in range(1, 31))]
    done = plan(under_way, window(live(under_way, later), 6_000, turn=4))
    assert {e.last.turn for e in done.elements if e.level == "T"} == {1, 2, 3}


def test_ranges_merge_into_wider_ranges() -> None:
    manifest = replay(even(3_000), 4_000)
    ranges = [element for element in manifest.elements if element.generation]
    assert ranges[0].first == RoundId(1)
    widths = [each.last.turn - each.first.turn for each in ranges]
    assert widths[0] > FAN**2
    assert len(manifest.elements) < 60


@pytest.mark.slow
def test_a_hundred_thousand_turns_are_planned_from_nothing() -> None:
    rounds = even(100_000)
    manifest = plan(EpochManifest(), window(rounds, 100_000))
    shown = total(manifest, live(manifest, rounds)) + 50
    assert shown <= 100_000
    assert manifest.elements[0].first == RoundId(1)


@given(histories, budgets)
def test_every_round_stands_somewhere_in_order_and_the_budget_holds(
    rounds: list[Sized], budget: int
) -> None:
    manifest = replay(rounds, budget)
    places = [each.place for each in rounds if each.place > manifest.hidden]
    covered = list[RoundId]()
    for element in manifest.elements:
        inside = [place for place in places if element.first <= place <= element.last]
        assert inside, "an element that stands for nothing"
        covered += inside
        assert element.raw == sum(e.raw for e in rounds if e.place in set(inside))
    covered += [place for place in places if place >= manifest.native]
    assert covered == places
    if rounds[-1].raw < budget / 10 and budget > 2_000:
        assert level_of(manifest, rounds[-1].place) == RANK["R"]


@given(histories, budgets, budgets, st.integers(0, 300))
def test_a_larger_budget_never_lowers_a_level(
    rounds: list[Sized], one: int, other: int, fixed: int
) -> None:
    small, large = sorted((one, other))
    state = replay(rounds[: len(rounds) // 2], small, fixed)
    told = live(state, rounds)
    turn = rounds[-1].place.turn + 1
    low = plan(state, window(told, small, fixed=fixed, turn=turn))
    high = plan(state, window(told, large, fixed=fixed, turn=turn))
    for each in rounds:
        assert level_of(high, each.place) <= level_of(low, each.place)


@given(histories, budgets)
def test_what_is_not_changed_stays_the_same_object(rounds: list[Sized], budget: int) -> None:
    before = replay(rounds[:-1], budget) if len(rounds) > 1 else EpochManifest()
    after = plan(before, window(live(before, rounds), budget))
    kept = {id(element) for element in before.elements}
    same = [e for e in after.elements if e in before.elements]
    assert all(id(element) in kept for element in same)


def test_an_oversized_round_is_reduced_inside() -> None:
    rounds = [*even(5), Sized(RoundId(6), 50_000, 20_000, 2_000)]
    manifest = plan(EpochManifest(), window(rounds, 10_000, turn=6))
    cap = manifest.cap(RoundId(6))
    assert cap is not None
    assert 5_000 < cap < 10_000
    assert total(manifest, live(manifest, rounds)) + 50 <= 10_000


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(BudgetTooSmall, match="1,000 tokens is too small: 1,120"):
        plan(EpochManifest(), window(even(2), 1_000, fixed=1_000, turn=2))


def test_a_pinned_turn_stands_at_its_level_wherever_the_gradient_has_it() -> None:
    rounds = even(300)
    base = plan(EpochManifest(), window(rounds, 10_000))
    pins = tuple(
        Element("S", RoundId(turn), RoundId(turn), whole=True, tokens=200, raw=400)
        for turn in (2, 290, 300)
    )
    manifest = replace(base, pins=pins)
    shown = list(manifest.shown())
    for pin in pins:
        assert shown.count(pin) == 1
    names = [element.name for element in shown]
    assert names.index("T-2") == 1  # behind the range that covers it
    assert names.index("T-290") < names.index("T-300")
    assert not manifest.is_native(RoundId(300))
    assert sum(e.name == "T-290" for e in shown) == 1


def test_bands_join_neighbours_of_one_level() -> None:
    joined = bands(
        [
            ("T", RoundId(1), RoundId(4), 10, 100),
            ("T", RoundId(5), RoundId(5), 10, 100),
            ("R", RoundId(6), RoundId(6, 2), 50, 50),
        ]
    )
    assert [(b.level, b.first, b.last, b.tokens, b.raw) for b in joined] == [
        ("T", "T-1.1", "T-5.1", 20, 200),
        ("R", "T-6.1", "T-6.2", 50, 50),
    ]
