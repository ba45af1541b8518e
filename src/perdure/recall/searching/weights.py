"""What each feature weighs. Made by `python -m benchmarks.fit_recall`."""

from __future__ import annotations

from collections.abc import Mapping

#: By the name of the feature: see `perdure.recall.searching.features`.
WEIGHTS: Mapping[str, float] = {
    "own": 0.33,
    "cover": 0.23,
    "rarest": 0.36,
    "phrase": 0.44,
    "pair": 0.60,
    "next": 0.40,
    "around": 1.01,
    "wider": 1.66,
    "stretch": 0.48,
    "cover_pair": 1.52,
    "cover_around": 0.83,
    "cover_stretch": 0.77,
    "alike": 0.38,
    "alike_near": 1.78,
    "alike_stretch": 0.90,
    "speaker": 0.61,
    "on_day": 1.17,
    "in_month": 2.80,
    "tells_when": 1.81,
    "length": 0.50,
    "asks": -0.77,
    "answers": 0.54,
    "answers_own": 0.71,
}
#: How likely a candidate is: times how far its sum is behind the largest, the largest share of the
#: question that stands in one candidate and the turn before it, the largest cosine; a constant.
LIKELY: tuple[float, float, float, float] = (0.99, 2.10, 3.34, -4.02)
