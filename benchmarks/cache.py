"""What a provider's prompt cache serves of a long session: transcripts joined and replayed.

Deterministic, so nothing is repeated. Token counts are real, the gradient is the product's own, and
nothing is called; docs/simulate.md says how a request is charged, and how full a window is. The
gradient is a session with recall, at the default profile.
"""

from __future__ import annotations

from typing import Any

from benchmarks import transcripts
from benchmarks.harness import Report
from perdure.simulation import PolicyFigures, simulate

BUDGETS = (60_000, 120_000)
_POLICIES = ("drop_oldest", "rolling_summary", "gradient")
_METRICS = (
    *("hit_ratio", "cost_vs_drop_oldest", "cost_vs_rolling_summary", "prefix_violations"),
    *("fill_after_epoch", "fill_mean", "bands_in_range", "bands_kept"),
)


async def run(report: Report, *, quick: bool) -> None:
    for budget in BUDGETS:
        report.figures[str(budget)] = dict.fromkeys(_METRICS)
    history = await transcripts.joined(report, quick=quick)
    if history is None:
        return
    for budget in BUDGETS:
        compared = await simulate(history, budget=budget, policies=_POLICIES)
        policies = compared.policies
        report.figures[str(budget)] = _figures(policies)
        report.say(f"  {budget:,} tokens        hits      cost  rewrites    span   largest  fill")
        for name, found in policies.items():
            report.say(
                f"    {name:15} {found.hit_ratio:8.4f} {found.cost:9,.0f} {found.rewrites:9}"
                f" {found.span:7.1f} {found.max_tokens:9,} {found.fill_mean or 0:5.2f}"
            )


def _figures(policies: dict[str, PolicyFigures]) -> dict[str, Any]:
    ours = policies["gradient"]
    return {
        "hit_ratio": round(ours.hit_ratio, 4),
        "cost_vs_drop_oldest": round(ours.cost / policies["drop_oldest"].cost, 3),
        "cost_vs_rolling_summary": round(ours.cost / policies["rolling_summary"].cost, 3),
        "prefix_violations": ours.prefix_violations,
        "fill_after_epoch": ours.fill_after_epoch,
        "fill_mean": ours.fill_mean,
        "bands": {level: band.mean for level, band in ours.bands.items()},
        "bands_in_range": ours.bands_in_range,
        "bands_possible": ours.bands_possible,
        "bands_kept": ours.bands_kept,
        "rewrites": ours.rewrites,
        "span": round(ours.span, 1),
        "max_tokens": ours.max_tokens,
        "rolling_summary_hit_ratio": round(policies["rolling_summary"].hit_ratio, 4),
    }
