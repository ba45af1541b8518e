"""Jobs that wait, run and failed, and trying a failed one again."""

from __future__ import annotations

from typing import Annotated

import msgspec

from perdure.jobs import JobCounts
from perdure.jobs.job_list import JobSum, JobView, list_jobs
from perdure.server.operations import Operation, RequestBody, RequestQuery, ServerCall, TokenScope


class JobsQuery(RequestQuery, frozen=True):
    """How many are listed."""

    #: Of each state.
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 50


class JobChoice(RequestBody, frozen=True):
    """Which job."""

    job: Annotated[str, msgspec.Meta(max_length=2_000)]


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """The background work of a bank. Jobs that are done are not kept."""

    sums: list[JobSum]
    #: Failed ones first, then those that run, then those that wait; each the first due first.
    jobs: list[JobView]
    #: How jobs ended that this process began.
    ended: JobCounts


async def get_jobs(call: ServerCall) -> JobReport:
    """Jobs that wait, run and failed."""
    return await _report(call, call.query.limit)


async def retry_job(call: ServerCall) -> JobReport:
    """Try a failed job again, with all its attempts."""
    call.require_all_agents()
    await call.bank.jobs.retry(call.body.job)
    return await _report(call, JobsQuery().limit)


async def _report(call: ServerCall, limit: int) -> JobReport:
    call.require_all_agents()
    sums, listed = await list_jobs(call.bank.store, limit)
    return JobReport(sums=sums, jobs=listed, ended=call.bank.jobs.counts)


OPERATIONS = (
    Operation.of("GET", "/api/v1/jobs", get_jobs, TokenScope.READ, query=JobsQuery),
    Operation.of("POST", "/api/v1/jobs/retry", retry_job, TokenScope.WRITE, body=JobChoice),
)
