"""What an answer is worth: U = success · (quality - λ·cost) - μ·latency.

Quality is from 0 to 1, cost in dollars, latency in seconds. λ is how much quality a dollar is
worth, μ how much a second is.
"""

from __future__ import annotations


def utility(
    *,
    success: float,
    quality: float,
    dollars: float,
    seconds: float,
    cost_weight: float,
    latency_weight: float,
) -> float:
    return success * (quality - cost_weight * dollars) - latency_weight * seconds
