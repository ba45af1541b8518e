"""What each feature weighs. Made by `python -m benchmarks.fit_recall`; nothing is tuned by hand."""

from __future__ import annotations

from collections.abc import Mapping

WEIGHTS: Mapping[str, float] = {
    "own": 0.53,
    "cover": -0.02,
    "rarest": 0.17,
    "phrase": 0.31,
    "pair": 1.00,
    "next": 1.07,
    "around": 1.01,
    "wider": 1.26,
    "stretch": 0.20,
    "cover_pair": 1.81,
    "cover_around": 1.02,
    "cover_stretch": 1.38,
    "alike": 0.35,
    "alike_near": 1.58,
    "alike_stretch": 0.96,
    "speaker": 0.85,
    "on_day": 1.17,
    "in_month": 2.75,
    "tells_when": 1.79,
    "length": 1.62,
    "asks": -0.63,
    "answers": 0.53,
    "answers_own": 1.06,
}


#: From a score to how likely it is: of the score, of how much of the question was found at all, of
#: the largest cosine, and a constant.
LIKELY: tuple[float, float, float, float] = (1.0, 2.0, 0.0, -10.0)
