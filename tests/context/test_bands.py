"""The picture of the bands."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from perdure.cli.charts import BandChart
from perdure.history.manifest import Band

BANDS = [
    Band("T", "T-1.1", "T-512.1", 9_000, 4_000_000),
    Band("C", "T-513.1", "T-600.1", 8_000, 60_000),
    Band("S", "T-601.1", "T-640.1", 10, 20_000),
    Band("R", "T-641.1", "T-660.4", 50_000, 50_000),
]


def drawn(bands: list[Band], width: int, budget: int = 0, *, color: bool = False) -> list[str]:
    out = io.StringIO()
    system = "standard" if color else None
    console = Console(file=out, width=width, color_system=system, force_terminal=color)  # type: ignore[arg-type]
    console.print(BandChart(bands, budget))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [30, 60, 90, 200])
def test_every_band_is_seen_and_no_line_is_too_long(width: int) -> None:
    shown, behind, *rest = drawn(BANDS, width, 100_000)
    for line in (shown, behind):
        assert len(line) <= max(width, 28)
        assert {"T", "C", "S", "R"} <= set(line)
    assert shown.count("R") > shown.count("T") > shown.count("S")
    assert shown.endswith(".")
    assert behind.count("T") > behind.count("R")
    if width >= 90:
        assert rest[-1] == "67,010 of 100,000 tokens stand for 4,130,000: a span of 61.6×"


def test_colours_tell_bands_apart_where_there_are_any() -> None:
    assert "█" in drawn(BANDS, 80, color=True)[0]
    assert "░" not in drawn(BANDS, 80, color=True)[0]


def test_nothing_is_drawn_of_nothing() -> None:
    assert drawn([], 80) == ["No history yet."]
