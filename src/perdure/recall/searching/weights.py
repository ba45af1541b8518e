"""What each feature weighs. Made by `python -m benchmarks.fit_recall`."""

from __future__ import annotations

from collections.abc import Mapping

#: By the name of the feature: see `perdure.recall.features`.
WEIGHTS: Mapping[str, float] = {
    "own": 0.39,
    "cover": 0.32,
    "rarest": 0.28,
    "phrase": 0.40,
    "pair": 0.58,
    "next": 0.47,
    "around": 0.95,
    "wider": 1.50,
    "stretch": 0.46,
    "cover_pair": 1.46,
    "cover_around": 0.81,
    "cover_stretch": 0.88,
    "alike": 0.33,
    "alike_near": 1.62,
    "alike_stretch": 0.86,
    "speaker": 0.61,
    "on_day": 1.14,
    "in_month": 2.80,
    "tells_when": 1.86,
    "length": 0.52,
    "asks": -0.58,
    "answers": 0.57,
    "answers_own": 0.61,
}
#: How likely a candidate is: times how far its sum is behind the largest, the largest share of the
#: question that stands in one candidate and the turn before it, the largest cosine; a constant.
LIKELY: tuple[float, float, float, float] = (1.00, 2.13, 3.33, -4.02)
