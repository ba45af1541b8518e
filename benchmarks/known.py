"""Whether what a model names again after a while stood in its window, on transcripts, by policy.

`gap_closed` is how much of what the best of the others does not hold the gradient holds:
(gradient - best) / (1 - best). docs/simulate.md defines what is known; nothing is labelled, and
nothing called.
"""

from __future__ import annotations

from benchmarks import transcripts
from benchmarks.harness import Report
from perdure.simulation import simulate

BUDGETS = (15_000, 30_000)
_OTHERS = ("drop_oldest", "drop_half", "rolling_summary", "masking")
_POLICIES = (*_OTHERS, "gradient")


async def run(report: Report, *, quick: bool) -> None:
    for budget in BUDGETS:
        report.figures[str(budget)] = dict.fromkeys(("gap_closed", *_POLICIES))
    history = await transcripts.joined(report, quick=quick)
    if history is None:
        return
    for budget in BUDGETS:
        compared = await simulate(history, budget=budget, policies=_POLICIES)
        known = {name: found.known for name, found in compared.policies.items()}
        report.figures[str(budget)] = {"gap_closed": _gap_closed(known), **known}
        shares = ", ".join(f"{name} {share}" for name, share in known.items())
        report.say(f"  {budget:,} tokens, {compared.old_uses:,} old uses: {shares}")


def _gap_closed(known: dict[str, float | None]) -> float | None:
    ours, others = known["gradient"], [known[name] or 0.0 for name in _OTHERS]
    best = max(others)
    return None if ours is None or best >= 1 else round((ours - best) / (1 - best), 4)
