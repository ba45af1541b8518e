"""Conformance kit: what every storage backend promises, as checks that can be run.

    report = await run("sqlite:///memory.db")
    print(report)

A backend is checked on the capabilities that it declares; the *level* says how many those are. From
pytest, one check at a time::

    @pytest.mark.parametrize("trial", trials_for(MyAdapter.capabilities), ids=lambda t: t.id)
    async def test_conformance(trial, my_url):
        await perform(trial, my_url)
"""

from perdure.testing.conformance import (  # noqa: F401  # importing them registers their checks
    aggregate,
    core,
    durable,
    erasure,
    full_text,
    listing,
    outbox,
    query_checks,
    recoding,
    shared,
    snapshot_checks,
    strong,
    tags,
    transactions,
    ttl,
    vectors,
    versions,
)
from perdure.testing.conformance.bench import Bench
from perdure.testing.conformance.kit_runner import perform, run, trials_for
from perdure.testing.conformance.report import (
    LEVELS,
    CapabilityResult,
    CapabilityStatus,
    ConformanceLevel,
    ConformanceReport,
    Result,
)
from perdure.testing.conformance.trials import Trial, Unmet, check, check_each, registered

__all__ = [
    "LEVELS",
    "Bench",
    "CapabilityResult",
    "CapabilityStatus",
    "ConformanceLevel",
    "ConformanceReport",
    "Result",
    "Trial",
    "Unmet",
    "check",
    "check_each",
    "perform",
    "registered",
    "run",
    "trials_for",
]
