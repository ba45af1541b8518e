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
#: From the sum to how likely a candidate is: times the sum, the largest coverage of the question by
#: any candidate's surroundings, the largest cosine, and a constant.
LIKELY: tuple[float, float, float, float] = (0.89, 0.04, -3.03, -8.93)
