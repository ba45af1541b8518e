"""Runs the kit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

from perdure.storage import registry
from perdure.storage.adapter import Capability
from perdure.storage.registry import adapter_for
from perdure.testing.conformance.bench import Bench
from perdure.testing.conformance.report import ConformanceReport, Result
from perdure.testing.conformance.trials import Trial, registered

#: Called before each check: the check, how many are done, how many there are.
Progress = Callable[[Trial, int, int], None]

#: Seconds after which a check has failed.
TIMEOUT = 60.0


def trials_for(
    capabilities: Collection[Capability], groups: Collection[str] | None = None
) -> list[Trial]:
    return [
        trial
        for trial in registered()
        if set(trial.needs) <= set(capabilities) and (groups is None or trial.group in groups)
    ]


async def attempt(trial: Trial, url: str) -> Result:
    """Run one check and clean up after it; errors become a result."""
    start = time.perf_counter()
    detail = ""
    try:
        async with asyncio.timeout(TIMEOUT):
            await perform(trial, url)
    except Exception as exc:  # noqa: BLE001  # an adapter may raise anything: it is the finding
        detail = f"{type(exc).__name__}: {exc}"
    return Result(
        trial.name,
        trial.group,
        trial.guarantee,
        "failed" if detail else "passed",
        time.perf_counter() - start,
        detail,
    )


async def perform(trial: Trial, url: str) -> None:
    """Run one check and clean up after it; raises what is wrong."""
    bench = Bench(url)
    try:
        await trial.body(bench)
    except BaseException as exc:
        # What is left over after a failure must not hide it.
        try:
            await bench.close()
        except Exception as mess:  # noqa: BLE001  # again, whatever a broken adapter raises
            exc.add_note(f"While cleaning up: {type(mess).__name__}: {mess}")
        raise
    await bench.close()


async def run(
    url: str,
    *,
    groups: Collection[str] | None = None,
    progress: Progress | None = None,
) -> ConformanceReport:
    """Run every check that applies, one after another.

    The store may hold data: the kit removes what it wrote; its collections (``perdure_kit_…``) stay
    behind, empty. `groups` limits it to some capabilities ("core", "listing", …).

    Raises `InvalidURL` or `UnknownBackend`, and what `initialize` raises.
    """
    start = time.perf_counter()
    adapter = adapter_for(url)
    await adapter.initialize()
    await adapter.close()
    trials = trials_for(adapter.capabilities, groups)
    results = []
    for done, trial in enumerate(trials):
        if progress is not None:
            progress(trial, done, len(trials))
        results.append(await attempt(trial, url))
    return ConformanceReport(
        registry.shown(url),
        type(adapter).__name__,
        adapter.capabilities,
        tuple(results),
        time.perf_counter() - start,
    )
