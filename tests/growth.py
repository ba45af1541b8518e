"""Whether work grows with what it is given, and no faster: seconds depend on the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def assert_linear(run: Callable[[T], object], small: T, large: T) -> None:
    """`large` is eight times `small`: it takes about eight times as long; a square, sixty-four."""
    assert _fastest(lambda: run(large)) < 30 * _fastest(lambda: run(small)) + 0.02


def _fastest(run: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    times = []
    for _ in range(2):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times)
