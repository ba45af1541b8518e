"""How full a window is, from 4k to 500k tokens, with a made-up project behind it.

At each budget a history of eight times as many tokens, but of no more than a million and a half, is
appended to a session. A prompt is composed, with recall, whenever a hundredth of the budget was
said; the first epoch is made when the history no longer fits. docs/simulate.md defines the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

from benchmarks.harness import Report
from examples.made_up_project import project_turn
from perdure.core.messages import Message
from perdure.core.turns import Position, rounds
from perdure.simulation import History, ReplaySetting
from perdure.simulation.gradient_policy import GradientPolicy
from perdure.simulation.window_figures import WindowFigures, WindowTally

BUDGETS = (4_000, 20_000, 60_000, 120_000, 200_000, 500_000)
_BEHIND, _MOST = 8, 1_500_000
_REQUESTS = 100  # For each budget of tokens.
_TURN = 500  # Tokens of a turn.


async def run(report: Report, *, quick: bool) -> None:
    report.say("     budget   mean  after  least      R      S      C      T  in range")
    for budget in BUDGETS:
        start = perf_counter()
        # A quick one only shows that it works.
        limit, tokens = (2_000, 6_000) if quick else (budget, min(_BEHIND * budget, _MOST))
        found = await _measure(limit, tokens)
        bands = {level: band.mean for level, band in found.bands.items()}
        report.figures[str(budget)] = _figures(found, bands)
        shares = "".join(f"  {share:5.2f}" for share in bands.values())
        report.say(
            f"  {budget:9,}  {found.fill_mean or 0:5.2f}  {found.fill_after_epoch or 0:5.2f}"
            f"  {found.fill_after_epoch_least or 0:5.2f}{shares}  {found.bands_in_range or 0:8.2f}"
            f"  ({tokens:,} tokens, {perf_counter() - start:.0f} s)"
        )


def _figures(found: WindowFigures, bands: dict[Any, float]) -> dict[str, Any]:
    return {
        "fill_mean": found.fill_mean,
        "fill_after_epoch": found.fill_after_epoch,
        "fill_after_epoch_least": found.fill_after_epoch_least,
        "bands": bands,
        "bands_in_range": found.bands_in_range,
    }


async def _measure(budget: int, tokens: int) -> WindowFigures:
    history = History.of(_told(tokens))
    setting = ReplaySetting(calls=history.calls, budget=budget)
    tally, policy = WindowTally(setting), GradientPolicy(setting)
    said = 0
    try:
        for number, call in enumerate(history.calls):
            if call.position.round == 1 and said >= budget / _REQUESTS:
                tally.add(number, await policy.request(number))
                said = 0
            said += call.tokens
    finally:
        await policy.close()
    return tally.figures()


def _told(tokens: int) -> Iterator[tuple[Position, list[Message]]]:
    for turn in range(1, tokens // _TURN + 1):
        for _, number, messages in rounds(project_turn(turn, tokens_per_turn=_TURN)):
            yield Position(turn, number), messages
