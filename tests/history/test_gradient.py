"""The planner: budgets, order, levels, ranges."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.core.band_marks import FULL
from perdure.core.errors import BudgetTooSmall
from perdure.core.levels import RANK
from perdure.history.gradient_planner import PlannerInput, Sized, plan, total
from perdure.history.manifest import Element, EpochManifest, RoundId, bands
from perdure.history.range_merging import FAN


def rounds_of(sizes: list[list[tuple[int, int, int]]]) -> list[Sized]:
    """Turns given as lists of raw, smooth and compact sizes. Those of many rounds are told together
    at C.
    """
    return [
        Sized(RoundId(turn, number), *size, together=len(of) > 3)
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
    under_way = plan(EpochManifest(), window(rounds, 3_000, turn=3))
    assert max(e.last.turn for e in under_way.elements if e.level == "T") == 2
    later = [*rounds, *(Sized(RoundId(4, n), 400, 200, 50) for n in range(1, 31))]
    done = plan(under_way, window(live(under_way, later), 3_000, turn=4))
    assert max(e.last.turn for e in done.elements if e.level == "T") == 3


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


#: Rounds told together stand in front of a range that is made in the same epoch.
_MIXED = rounds_of(
    [
        [(1, 1, 1), (32, 22, 14), (1, 1, 1), (2, 1, 1)],
        [(357, 180, 180)],
        [(1061, 880, 880), (129, 58, 58), (4, 1, 1), (184, 84, 4), (2619, 1491, 1491), (2, 1, 1)],
        [(2620, 1109, 1109)],
    ]
)


@given(histories, budgets)
@example(_MIXED, 500)
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


def talk(turns: int, rounds: int = 1, raw: int = 100) -> list[Sized]:
    """Much is said in small pieces; S, C and T are what they should be."""
    return rounds_of([[(raw, raw * 9 // 10, raw * 35 // 100)] * rounds for _ in range(turns)])


def shares(manifest: EpochManifest, rounds: list[Sized]) -> dict[str, float]:
    taken = dict.fromkeys("RSCT", 0)
    for element in manifest.elements:
        taken[element.level] += element.tokens
    taken["R"] = sum(each.raw for each in rounds if manifest.is_native(each.place))
    return {level: size / sum(taken.values()) for level, size in taken.items()}


@pytest.mark.parametrize("budget", [4_000, 20_000, 100_000, 500_000])
@pytest.mark.parametrize("rounds", [1, 7])
def test_a_window_is_full_and_its_bands_have_their_shares(budget: int, rounds: int) -> None:
    raw = budget // (100 * rounds)  # a turn is a hundredth of the budget
    history = talk(1_600, rounds, raw=raw)
    manifest, fills = EpochManifest(), list[float]()
    for end in range(1, len(history) + 1):
        if history[end - 1].place.round != rounds:
            continue  # Turns are added whole.
        said = live(manifest, history[:end])
        tiny = {each.place.turn: max(raw * rounds // 25, 3) for each in said}
        told = replace(window(said, budget), tiny=tiny)
        planned = plan(manifest, told) if overflows(manifest, told) else manifest
        shown = total(planned, said)
        fills.append(shown / (budget - 50))
        late = end > len(history) // 2
        if planned is not manifest and late:
            assert shown >= 0.65 * (budget - 50)
            found = shares(planned, said)
            more = 0.005 if budget > 4_000 else 0.15  # there, tags are much of what is shown
            assert 0.095 <= found["R"] <= 0.205
            assert 0.495 <= found["R"] + found["S"] <= 0.6 + more
            assert 0.695 <= 1 - found["T"] <= 0.8 + more
        manifest = planned
    assert sum(fills[len(fills) // 2 :]) / (len(fills) - len(fills) // 2) >= 0.75


def test_after_one_large_round_the_window_is_soon_full_again() -> None:
    history = talk(600, raw=100)
    manifest = replay(history, 20_000)
    large = Sized(RoundId(601), 118_000, 40_000, 3_000)
    more = [*history, large, *(Sized(RoundId(n), 100, 90, 35) for n in range(602, 606))]
    for end in range(601, len(more) + 1):
        told = window(live(manifest, more[:end]), 20_000)
        if overflows(manifest, told):
            manifest = plan(manifest, told)
        assert total(manifest, live(manifest, more[:end])) >= 0.6 * 20_000


def test_where_the_old_have_little_to_say_the_fresh_take_their_room() -> None:
    rounds = rounds_of([[(400, 130, 20)] * 20 for _ in range(30)])  # tools: nothing is left at T
    manifest = replay(rounds, 20_000)
    said = live(manifest, rounds)
    assert total(manifest, said) >= 0.65 * 20_000
    assert shares(manifest, said)["T"] < 0.2


def test_long_turns_of_tools_have_a_share_of_t_once_enough_lies_behind() -> None:
    """Their words alone would take a hundredth of the window."""
    turn = [(400, 130, 40)] * 20
    manifest = replay(rounds_of([turn] * 30), 20_000)  # twelve windows of it
    rich = [e for e in manifest.elements if e.level == "T" and e.generation]
    assert rich
    assert all(e.tokens <= e.raw * 0.05 + 1 for e in rich)
    assert 0.18 <= shares(manifest, live(manifest, rounds_of([turn] * 30)))["T"] <= 0.32


def test_what_went_down_for_want_of_room_comes_up_again() -> None:
    rounds = talk(300)
    before = plan(EpochManifest(), window(rounds, 8_000, fixed=4_000))  # much is injected
    said = live(before, rounds)
    after = plan(before, window(said, 8_000))
    assert total(after, said) > total(before, said) * 1.2
    assert after.native < before.native
    tiny = [e for e in before.elements if e.level == "T"]
    assert list(after.elements[: len(tiny)]) == tiny


def test_what_was_injected_may_be_all_that_goes() -> None:
    rounds = talk(600)
    before = plan(EpochManifest(), window(rounds, 20_000))
    more = [*rounds, Sized(RoundId(601), 100, 90, 35)]
    after = plan(before, window(live(before, more), 20_000, fixed=60))
    assert after.elements == before.elements


def test_ranges_of_turns_stand_at_c_between_t_and_single_turns() -> None:
    manifest = replay(talk(800, raw=400), 40_000)
    merged = [e for e in manifest.elements if e.level == "C" and e.generation]
    assert any(e.whole and e.last.turn > e.first.turn for e in merged)
    assert "-through-" in merged[0].name
    levels = [e.level for e in manifest.elements]
    assert levels == sorted(levels, key=RANK.__getitem__, reverse=True)


def test_a_huge_round_leaves_room_for_others_once_it_is_not_raw() -> None:
    rounds = [*even(30), Sized(RoundId(31), 35_000, 12_000, 900), *_later(32, 36)]
    manifest = plan(EpochManifest(), window(rounds, 10_000))
    assert total(manifest, live(manifest, rounds)) >= 0.6 * 10_000
    holder = next(e for e in manifest.elements if e.covers(31))
    assert holder.tokens <= 10_000 / 8 + 30
    assert holder.cap or holder.level == "C"


def _later(first: int, last: int) -> list[Sized]:
    return [Sized(RoundId(turn), 400, 200, 50) for turn in range(first, last + 1)]


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
    assert cap <= 0.3 * FULL.fill * (10_000 - 50)  # of what is shown
    assert len(manifest.elements) == 0 or total(manifest, live(manifest, rounds)) > cap
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
