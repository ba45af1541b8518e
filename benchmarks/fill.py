"""How full a window is, from 4k to 500k tokens, with a made-up project behind it, and how often
every level has its share of it right after an epoch; that on transcripts, too.

At each budget a history of eight times as many tokens, but of no more than a million and a half, is
appended to a session. A prompt is composed, with recall, whenever a hundredth of the budget was
said; the first epoch is made when the history no longer fits. docs/simulate.md defines the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

from benchmarks import transcripts
from benchmarks.harness import Report
from examples.made_up_project import project_turn
from perdure.core.messages import Message
from perdure.core.turns import Position, rounds
from perdure.simulation import History, ReplaySetting, simulate
from perdure.simulation.gradient_policy import GradientPolicy
from perdure.simulation.window_figures import WindowFigures, WindowTally

BUDGETS = (4_000, 20_000, 60_000, 120_000, 200_000, 500_000)
TRANSCRIPTS = (30_000, 60_000)
_BEHIND, _MOST = 8, 1_500_000
_REQUESTS = 100  # For each budget of tokens.
_TURN = 500  # Tokens of a turn.


async def run(report: Report, *, quick: bool) -> None:
    report.say("     budget   mean  after  least      R      S      C      T  in range  kept")
    for budget in BUDGETS:
        start = perf_counter()
        # A quick one only shows that it works.
        limit, tokens = (2_000, 6_000) if quick else (budget, min(_BEHIND * budget, _MOST))
        found = await _measure(limit, tokens)
        report.figures[str(budget)] = _figures(found)
        _say(report, budget, found, f"{tokens:,} tokens, {perf_counter() - start:.0f} s")
    for budget in TRANSCRIPTS:
        report.figures[f"transcripts_{budget}"] = dict.fromkeys(("bands_in_range", "bands_kept"))
    history = await transcripts.joined(report, quick=quick)
    if history is None:
        return
    for budget in TRANSCRIPTS:
        compared = await simulate(history, budget=budget, policies=["gradient"])
        ours = compared.policies["gradient"]
        report.figures[f"transcripts_{budget}"] = _figures(ours)
        _say(report, budget, ours, "transcripts")


def _say(report: Report, budget: int, found: WindowFigures, what: str) -> None:
    shares = "".join(f"  {band.mean:5.2f}" for band in found.bands.values())
    report.say(
        f"  {budget:9,}  {found.fill_mean or 0:5.2f}  {found.fill_after_epoch or 0:5.2f}"
        f"  {found.fill_after_epoch_least or 0:5.2f}{shares}  {found.bands_in_range or 0:8.2f}"
        f"  {found.bands_kept or 0:4.2f}  ({what})"
    )


def _figures(found: WindowFigures) -> dict[str, Any]:
    bands = {level: band.mean for level, band in found.bands.items()}
    return {
        "fill_mean": found.fill_mean,
        "fill_after_epoch": found.fill_after_epoch,
        "fill_after_epoch_least": found.fill_after_epoch_least,
        "bands": bands,
        "bands_in_range": found.bands_in_range,
        "bands_possible": found.bands_possible,
        "bands_kept": found.bands_kept,
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
