"""What each feature weighs. Made by `python -m benchmarks.fit_recall`."""

from __future__ import annotations

from collections.abc import Mapping

#: By the name of the feature: see `perdure.recall.features`.
WEIGHTS: Mapping[str, float] = {
    "own": 0.39,
    "cover": 0.31,
    "rarest": 0.27,
    "phrase": 0.42,
    "pair": 0.59,
    "next": 0.46,
    "around": 0.96,
    "wider": 1.50,
    "stretch": 0.47,
    "cover_pair": 1.45,
    "cover_around": 0.80,
    "cover_stretch": 0.90,
    "alike": 0.33,
    "alike_near": 1.69,
    "alike_stretch": 0.88,
    "speaker": 0.61,
    "on_day": 1.13,
    "in_month": 2.80,
    "tells_when": 1.86,
    "length": 0.54,
    "asks": -0.58,
    "answers": 0.58,
    "answers_own": 0.60,
}
#: How likely a candidate is: times how far its sum is behind the largest, the largest share of the
#: question that stands in one candidate and the turn before it, the largest cosine; a constant.
LIKELY: tuple[float, float, float, float] = (0.9, 2.0, 3.0, -3.0)
