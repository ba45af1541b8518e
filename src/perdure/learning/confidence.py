"""The difference of two means, with bounds that hold at every moment, however often one looks.

Robbins' normal mixture: the bounds hold for all sample sizes at once with probability 1 - ALPHA, as
far as means of this many sessions are normal. So a test may be looked at after each session, and
stopped at any time. The unit is the session: calls of one session are alike, and counting them one
by one would make chance look like evidence.
"""

from __future__ import annotations

import math

import msgspec

ALPHA = 0.05
#: Sessions in both samples at which the bounds are tightest.
_TIGHTEST = 200.0
_RHO2 = (-2 * math.log(ALPHA) + math.log(-2 * math.log(ALPHA)) + 1) / _TIGHTEST
#: The least standard deviation that is believed.
_LEAST_DEVIATION = 0.01


class SessionSample(msgspec.Struct, frozen=True):
    """Sessions, and the sums of their scores and of the squares of these."""

    sessions: int = 0
    total: float = 0.0
    squares: float = 0.0

    def adding(self, score: float) -> SessionSample:
        return SessionSample(self.sessions + 1, self.total + score, self.squares + score * score)

    @property
    def mean(self) -> float:
        return self.total / self.sessions if self.sessions else 0.0

    @property
    def variance(self) -> float:
        if self.sessions < 2:
            return 1.0
        found = (self.squares - self.total * self.mean) / (self.sessions - 1)
        return max(found, _LEAST_DEVIATION**2)


class MeanDifference(msgspec.Struct, frozen=True):
    """The mean of the second sample minus that of the first, and its bounds."""

    mean: float
    low: float
    high: float


def difference(first: SessionSample, second: SessionSample, alpha: float = ALPHA) -> MeanDifference:
    """Without two sessions in each, the bounds are infinite."""
    mean = second.mean - first.mean
    if min(first.sessions, second.sessions) < 2:
        return MeanDifference(mean, -math.inf, math.inf)
    error = math.sqrt(first.variance / first.sessions + second.variance / second.sessions)
    # Variances of small samples are uncertain themselves.
    fewest = min(first.sessions, second.sessions)
    error *= math.sqrt(fewest / (fewest - 2)) if fewest > 2 else math.inf
    grown = (first.sessions + second.sessions) * _RHO2 + 1
    radius = error * math.sqrt(grown / (grown - 1) * math.log(grown / alpha**2))
    return MeanDifference(mean, mean - radius, mean + radius)
