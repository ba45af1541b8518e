"""What each feature weighs. Made by `python -m benchmarks.fit_recall`."""

from __future__ import annotations

from collections.abc import Mapping

#: By the name of the feature: see `perdure.recall.searching.features`.
WEIGHTS: Mapping[str, float] = {
    "own": 1.64,
    "phrase": 0.68,
    "around": 1.07,
    "wider": 1.08,
    "cover_pair": 1.05,
    "cover_around": 1.03,
    "cover_stretch": 1.04,
    "alike": 1.08,
    "alike_near": 1.04,
    "speaker": 0.79,
    "in_time": 1.54,
    "tells_when": 1.03,
    "asks": -0.57,
    "answers": 0.57,
    "opens": 0.54,
    "binds": 0.59,
}
#: How likely a candidate is: times how far its sum is behind the largest, the largest share of the
#: question that stands in one candidate and the turn before it, the largest cosine; a constant.
LIKELY: tuple[float, float, float, float] = (0.99, 2.10, 3.34, -4.02)
