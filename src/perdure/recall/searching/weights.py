"""What each feature weighs. Made by `python -m benchmarks.fit_recall`."""

from __future__ import annotations

from collections.abc import Mapping

#: Candidates that are answered with at most.
MOST = 200

#: By the name of the feature: see `perdure.recall.searching.features`.
WEIGHTS: Mapping[str, float] = {
    "own": 0.39,
    "cover": 0.14,
    "rarest": 0.23,
    "phrase": 0.46,
    "pair": 0.68,
    "next": 0.36,
    "around": 1.08,
    "wider": 1.67,
    "stretch": 0.42,
    "cover_pair": 1.49,
    "cover_around": 0.92,
    "cover_stretch": 0.88,
    "alike": 0.67,
    "alike_near": 1.37,
    "alike_stretch": 0.65,
    "speaker": 0.55,
    "on_day": 1.17,
    "in_month": 2.84,
    "tells_when": 1.72,
    "length": 0.46,
    "asks": -0.75,
    "answers": 0.60,
    "answers_own": 0.74,
    "opens": 0.68,
}
#: How likely a candidate is: times how far its sum is behind the largest, the largest share of the
#: question that stands in one candidate and the turn before it, the largest cosine; a constant.
LIKELY: tuple[float, float, float, float] = (0.99, 2.10, 3.34, -4.02)
