"""50 million tokens behind a window of 100k: what it shows, and whether every turn can be fetched.

`span` is the raw tokens of the history for each token that is shown for it, the prompt and what is
injected with it aside; of turns that are not shown in any form nothing is counted. Turns are chosen
at random, and fetched by id: they must be what was written, message by message, and stand in the
window under their own name or that of a range.
"""

from __future__ import annotations

import random
from pathlib import Path
from time import perf_counter

from benchmarks import long_project, ours
from benchmarks.harness import Report, millis, percentile, work_folder
from examples.made_up_project import project_turn
from perdure.context.context import Context
from perdure.core.messages import Message
from perdure.core.turns import Turn
from perdure.history.manifest import RoundId
from perdure.sessions.session import Session

PROMPT = "What did we decide about the tokens, and where is it written down?"
_LEVELS = ("R", "S", "C", "T")


async def run(report: Report, *, quick: bool) -> None:
    turns, sampled, budget = (300, 5, 10_000) if quick else (100_000, 200, long_project.BUDGET)
    figures = report.figures
    with work_folder() as name:
        file = await long_project.copied(turns, Path(name), report)
        async with ours.open_bank(file) as bank:
            session = await bank.session(long_project.SESSION, budget=budget)
            start = perf_counter()
            context = await session.context(PROMPT)
            figures["first_epoch_s"] = round(perf_counter() - start, 2)
            (info,) = [each for each in await bank.sessions() if each.name == session.name]
            chosen = sorted(random.Random(0).sample(range(1, turns + 1), sampled))
            start = perf_counter()
            found = [await session.turn(f"T-{number}") for number in chosen]
            figures["fetch_ms"] = millis((perf_counter() - start) / sampled)
            good = sum(_is_whole(turn) and _stands(turn, context) for turn in found)
            took = [await _rendered(session, number) for number in chosen[: sampled // 4]]
            figures["fetch_ms_p95_levels"] = millis(percentile(took, 0.95))
    shown = context.tokens - context.prompt_tokens
    if context.injection is not None:
        shown -= context.injection.tokens
    figures["raw_tokens"] = min(info.tokens, context.shown.raw)
    figures["span"] = round(figures["raw_tokens"] / shown, 1)
    # An epoch leaves room for what comes: this is what a full window would come to.
    figures["span_if_full"] = round(figures["raw_tokens"] / budget, 1)
    figures["filled"] = round(context.tokens / budget, 3)
    figures["reachable"] = round(good / sampled, 4)
    report.say(
        f"  {info.tokens:,} tokens in {info.turns:,} turns, of {figures['raw_tokens']:,} something"
        f" is shown in {shown:,}; the first epoch took {figures['first_epoch_s']} s"
    )
    for band in context.bands:
        tokens, raw = f"{band.tokens:,}", f"{band.raw:,}"
        report.say(f"    {band.level} {band.first} to {band.last}: {tokens} tokens for {raw}")


def _is_whole(turn: Turn) -> bool:
    return list(turn.messages) == list[Message](project_turn(turn.number))


def _stands(turn: Turn, context: Context) -> bool:
    """Whether the window shows it in some form."""
    place, shown = RoundId(turn.number), context.shown
    return any(
        b.element.first.turn <= turn.number <= b.element.last.turn for b in shown.blocks
    ) or (any(native.place.turn == place.turn for native in shown.rounds))


async def _rendered(session: Session, number: int) -> float:
    """Seconds to fetch a turn at each level."""
    start = perf_counter()
    for level in _LEVELS:
        assert (await session.turn(f"T-{number}", level=level)).text
    return perf_counter() - start
