"""What each feature weighs. Made by `python -m benchmarks.fit_recall`; nothing is tuned by hand."""

from __future__ import annotations

from collections.abc import Mapping

WEIGHTS: Mapping[str, float] = {
    "own": 0.74,
    "cover": 0.19,
    "rarest": 0.15,
    "phrase": 0.36,
    "pair": 0.32,
    "next": 0.44,
    "around": 0.97,
    "wider": 1.43,
    "stretch": 0.55,
    "cover_pair": 1.51,
    "cover_around": 0.80,
    "cover_stretch": 0.85,
    "alike": 0.36,
    "alike_near": 1.61,
    "alike_stretch": 0.88,
    "speaker": 0.62,
    "on_day": 1.12,
    "in_month": 2.81,
    "tells_when": 1.81,
    "length": 1.81,
    "asks": -0.64,
    "answers": 0.52,
    "answers_own": 1.00,
}


#: From a score to how likely it is: of the score, of how much of the question was found at all, of
#: the largest cosine, and a constant.
LIKELY: tuple[float, float, float, float] = (1.0, 2.0, 0.0, -10.0)
