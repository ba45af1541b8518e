"""RESULTS.md: the figures, their targets, and the machine they come from.

`results.json` keeps the newest figures of each benchmark with the day they were measured, so that
one benchmark can be measured again without the others.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw

from benchmarks import harness, peers
from benchmarks.targets import TARGETS

FILE = Path(__file__).parent / "RESULTS.md"
_VERDICT = {True: "met", False: "**missed**", None: "not measured"}
_LIBRARIES = ("perdure", "apsw", "httpx2", "msgspec", "zstandard")


def lines(name: str, figures: Mapping[str, Any]) -> Iterator[str]:
    """Each target with its figure, for the screen."""
    for target in TARGETS[name]:
        figure = target.of(figures)
        spread = _spread(figures, target.metric)
        verdict = _VERDICT[target.met(figure)].strip("*")
        yield f"{target.metric}: {_shown(figure)}{spread} ({target.text}: {verdict})"


def write(measured: Mapping[str, Mapping[str, Any]]) -> None:
    """Put these figures in the place of older ones."""
    kept = FILE.with_name("results.json")
    everything = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    today = str(datetime.now(UTC).date())
    everything |= {name: {**figures, "day": today} for name, figures in measured.items()}
    everything = {name: everything[name] for name in TARGETS if name in everything}
    kept.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    FILE.write_text("\n".join(_page(everything)) + "\n", encoding="utf-8")


def _page(everything: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "# Results"
    yield ""
    yield "Measured by `make bench`, or one by one by `python -m benchmarks NAME --save`."
    yield "Days differ in the speed of the machine: compare ratios, and times of one day."
    yield "Ratios are of total time over alternating runs; in brackets, the range of eight rounds"
    yield f"of ten. The peer for records is {peers.NAME}; for turns, all of"
    yield f"{', '.join(peers.NAMES.values())} run with 1,000 turns, and"
    yield "the fastest goes on to 10,000, for which the others are too slow; for model"
    yield f"calls it is the {peers.LITELLM}. What is in milliseconds is a difference, or a time."
    yield "Where `load_per_core` is above 1, other work had the machine, too, and times are longer"
    yield "than they would be; `…_cpu_…` is processor time. How it is done stands in the modules'"
    yield "first lines."
    yield ""
    yield "| benchmark | figure | measured | target | | day |"
    yield "|---|---|---|---|---|---|"
    for name, figures in everything.items():
        for target in TARGETS[name]:
            figure = target.of(figures)
            shown = f"{_shown(figure)}{_spread(figures, target.metric)}"
            verdict = _VERDICT[target.met(figure)]
            what = f"`{target.metric}`: {target.meaning}"
            yield f"| {name} | {what} | {shown} | {target.text} | {verdict} | {figures['day']} |"
    yield ""
    yield "## Beside the targets"
    yield ""
    for name, figures in everything.items():
        yield from _beside(name, figures)
    for name, figures in everything.items():
        if "contestants" in figures:
            yield from _contestants(name, figures["contestants"])
    yield ""
    yield "## Machine"
    yield ""
    yield from (f"- {fact}: {value}" for fact, value in environment().items())


def _beside(name: str, figures: Mapping[str, Any]) -> Iterator[str]:
    """What was measured and not promised."""
    groups = {metric: found for metric, found in figures.items() if metric.isdigit()}
    inside = {
        f"{group}.{m}": figure for group, found in groups.items() for m, figure in found.items()
    }
    promised = {target.metric for target in TARGETS[name]}
    for metric, figure in {**figures, **inside}.items():
        if metric in promised:
            continue
        if isinstance(figure, int | float) and not isinstance(figure, bool):
            shown = f"{figure:,}" if isinstance(figure, int) else _shown(figure)
            yield f"- {name}: `{metric}` {shown}{_spread(figures, metric)}"
        elif metric == "best_peer" and figure is not None:
            yield f"- {name}: the fastest peer is {figure}"


def _contestants(name: str, contestants: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    yield ""
    yield f"## {name}, microseconds per operation"
    yield ""
    yield "| contestant | mean | p50 | p95 | p99 |"
    yield "|---|---|---|---|---|"
    for contestant, summary in contestants.items():
        yield f"| {contestant} | " + " | ".join(f"{us:,.1f}" for us in summary.values()) + " |"


def _shown(figure: float | None) -> str:
    return "–" if figure is None else f"{figure:.3g}"


def _spread(figures: Mapping[str, Any], metric: str) -> str:
    spread = figures["spread"].get(metric)
    return f" [{spread[0]:.3g} – {spread[1]:.3g}]" if spread else ""


def environment() -> dict[str, str]:
    """The machine and the versions; nothing that names a place on it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    facts = {
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.0f} GB",
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}, {_file_system()}",
        "Python": platform.python_version(),
        "SQLite": apsw.sqlite_lib_version(),
    }
    for library in _LIBRARIES:
        try:
            facts[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue  # built into this Python, or run from the source
    return facts | peers.facts()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _file_system() -> str:
    """The kind of file system that the banks lay on: an fsync into memory costs nothing."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown file system"
    fields = [line.split()[:3] for line in mounts]
    inside = [(len(at), kind) for _, at, kind in fields if harness.WORK.is_relative_to(at)]
    return max(inside)[1] if inside else "unknown file system"
