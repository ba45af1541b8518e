"""Tests of variants under peeking, and alarms about trends: the shipped `judge_samples` and
`TrendMarks`.

`false_positives` is the share of tests between two equal sides that end with any verdict, if one
looks after each session; calls of a session are alike. `power` is the share that finds a
difference of 0.05 within 400 sessions a side, `harm_stopped` of -0.10 that is stopped. `naive` is
what a t-test on calls under the same peeking calls significant. `trend.false_alarms` are per
10,000 labels without a change; `trend.found` is the share of falls by 0.20 that are found within
200 labels, `trend.delay` the median number of labels until then.
"""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

from benchmarks.harness import Report
from perdure.learning.confidence import SessionSample
from perdure.learning.experiment_verdict import judge_samples
from perdure.learning.trends import LEAST, TrendMarks

_SESSIONS = 400


async def run(report: Report, *, quick: bool) -> None:
    trials = 20 if quick else 1_000
    report.figures.update(
        false_positives=_rate(trials, 0.0, "any"),
        power=_rate(trials // 5, 0.05, "better"),
        harm_stopped=_rate(trials // 5, -0.10, "harm"),
        naive=_naive(trials // 5),
        trend=_trends(4 if quick else 60),
    )
    for name, figure in report.figures.items():
        report.say(f"  {name}: {figure}")


def _scores(rng: random.Random, mean: float) -> list[float]:
    """The calls of one session: alike, since the session has a level of its own."""
    level = rng.gauss(mean, 0.12)
    return [
        min(1.0, max(0.0, rng.gauss(level, 0.15))) for _ in range(1 + int(rng.expovariate(0.25)))
    ]


def _rate(trials: int, gain: float, wanted: str) -> float:
    found = 0
    for trial in range(trials):
        rng = random.Random(f"ab {gain} {trial}")
        samples = [SessionSample(), SessionSample()]
        for _ in range(2 * _SESSIONS):
            side = rng.randrange(2)
            samples[side] = samples[side].adding(statistics.fmean(_scores(rng, 0.7 + gain * side)))
            verdict = judge_samples(samples[0], samples[1], least=20)
            if verdict.state != "open":
                found += wanted in (verdict.state, "any")
                break
    return round(found / trials, 4)


def _naive(trials: int) -> float:
    """A t-test on calls, looked at after each session from the twentieth of a side on."""
    found = 0
    for trial in range(trials):
        rng = random.Random(f"ab 0.0 {trial}")
        sums = [[0, 0.0, 0.0], [0, 0.0, 0.0]]
        for session in range(2 * _SESSIONS):
            side = rng.randrange(2)
            for score in _scores(rng, 0.7):
                sums[side][0] += 1
                sums[side][1] += score
                sums[side][2] += score * score
            if session < 40:
                continue
            means = [total / count for count, total, _ in sums]
            spread = sum((sq / n - m * m) / n for (n, _, sq), m in zip(sums, means, strict=True))
            if abs(means[1] - means[0]) > 1.96 * math.sqrt(spread):
                found += 1
                break
    return round(found / trials, 4)


def _trends(runs: int) -> dict[str, Any]:
    length, alarms, labels = 2_000, 0, 0
    for number in range(runs):
        rng = random.Random(f"trend {number}")
        marks, mean = TrendMarks(), rng.uniform(0.5, 0.9)
        for _ in range(length):
            labels += 1
            marks.observe(min(1.0, max(0.0, rng.gauss(mean, 0.2))), "down")
            if marks.alarm:
                alarms += 1
                marks.reset()
    delays = list[int]()
    falls = runs * 5
    for number in range(falls):
        rng = random.Random(f"fall {number}")
        marks, mean = TrendMarks(), rng.uniform(0.5, 0.9)
        for _ in range(LEAST + rng.randint(20, 400)):
            marks.observe(min(1.0, max(0.0, rng.gauss(mean, 0.2))), "down")
        marks.alarm = False
        for delay in range(1, 201):
            marks.observe(min(1.0, max(0.0, rng.gauss(mean - 0.2, 0.2))), "down")
            if marks.alarm:
                delays.append(delay)
                break
    return {
        "false_alarms": round(alarms / labels * 10_000, 2),
        "found": round(len(delays) / falls, 4),
        "delay": statistics.median(delays) if delays else None,
    }
