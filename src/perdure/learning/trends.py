"""Whether a figure has changed for the worse: an e-detector.

Observations are from 0 to 1. Each bets against the assumption that their mean is still what it was,
give or take `MARGIN`; bets of several sizes are averaged. A CUSUM of such e-values raises an alarm
when it reaches `THRESHOLD`. If the mean does not change, an alarm comes at most once in `THRESHOLD`
observations on average, however often one looks, for any distribution (Shin, Ramdas, Rinaldo:
E-detectors). What it was is the mean of the observations before, `LEAST` of them at least.

An alarm starts a test (`learning.experiments`). It never changes a model by itself.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Direction: TypeAlias = Literal["down", "up"]

#: Observations from which the mean is taken before anything is compared with it.
LEAST = 50
#: A change of the mean that is not worth an alarm.
MARGIN = 0.05
THRESHOLD = 10_000.0
#: Sizes of bets, as shares of the largest one that cannot lose everything.
_BETS = (0.2, 0.4, 0.8)
#: Evidence above which what comes is not taken for what is usual.
_DOUBT = 5.0
_CEILING = 1e12


class TrendMarks(msgspec.Struct, array_like=True):
    """What an e-detector remembers. An alarm stays until `reset`."""

    count: int = 0
    total: float = 0.0
    evidence: tuple[float, ...] = (0.0,) * len(_BETS)
    alarm: bool = False
    #: What the observations are relative to, if to anything.
    scale: float = 0.0

    def observe(self, value: float, direction: Direction) -> None:
        """`down` watches for a mean that falls."""
        if self.count >= LEAST:
            usual = self.total / self.count
            self.evidence = tuple(
                min(_CEILING, max(1.0, before) * _bet(value, usual, share, direction))
                for before, share in zip(self.evidence, _BETS, strict=True)
            )
            self.alarm = self.alarm or sum(self.evidence) / len(_BETS) >= THRESHOLD
        if max(self.evidence) < _DOUBT:
            self.count += 1
            self.total += value

    @property
    def usual(self) -> float | None:
        return self.total / self.count if self.count >= LEAST else None

    def reset(self) -> None:
        """Begin anew: what comes now is what is usual from now on."""
        self.count, self.total, self.alarm, self.scale = 0, 0.0, False, 0.0
        self.evidence = (0.0,) * len(_BETS)


def _bet(value: float, usual: float, share: float, direction: Direction) -> float:
    if direction == "up":
        value, usual = 1.0 - value, 1.0 - usual
    mean = max(0.02, usual - MARGIN)  # still fine
    return 1.0 + share / (1.0 - mean) * (mean - value)


def relative_cost(dollars: float, usual: float) -> float:
    """A cost as a number from 0 to 1: half of it is the usual."""
    return dollars / (dollars + usual) if dollars + usual > 0 else 0.5
