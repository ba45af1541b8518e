"""What each feature weighs. Made by `python -m benchmarks.fit_recall`."""

from __future__ import annotations

from collections.abc import Mapping

#: By the name of the feature: see `perdure.recall.searching.features`.
WEIGHTS: Mapping[str, float] = {
    "own": 0.20,
    "cover": 0.20,
    "rarest": 0.22,
    "phrase": 0.44,
    "pair": 0.69,
    "next": 0.30,
    "around": 0.95,
    "wider": 1.59,
    "stretch": 0.41,
    "cover_pair": 1.41,
    "cover_around": 0.89,
    "cover_stretch": 0.85,
    "alike": 0.92,
    "alike_near": 1.52,
    "alike_stretch": 0.80,
    "speaker": 0.55,
    "on_day": 1.15,
    "in_month": 2.77,
    "tells_when": 1.72,
    "length": 0.46,
    "asks": -0.76,
    "answers": 0.58,
    "answers_own": 0.68,
    "opens": 0.66,
}
#: How likely a candidate is: times how far its sum is behind the largest, the largest share of the
#: question that stands in one candidate and the turn before it, the largest cosine; a constant.
LIKELY: tuple[float, float, float, float] = (0.99, 2.10, 3.34, -4.02)
