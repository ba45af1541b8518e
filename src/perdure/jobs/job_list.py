"""What jobs there are, for people."""

from __future__ import annotations

import msgspec

from perdure.jobs.job import Job, JobState
from perdure.storage.store import Store

_LISTED = (JobState.FAILED, JobState.RUNNING, JobState.PENDING)


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job, without its payload."""

    id: str
    kind: str
    state: JobState
    #: When it is to begin. Microseconds.
    due: int
    #: How often it was begun.
    attempts: int
    #: What went wrong the last time.
    error: str

    @classmethod
    def of(cls, job: Job) -> JobView:
        return cls(**{name: getattr(job, name) for name in cls.__struct_fields__})


class JobSum(msgspec.Struct, frozen=True):
    """How many jobs of a kind are in a state."""

    kind: str
    state: JobState
    count: int


async def list_jobs(store: Store, limit: int = 50) -> tuple[list[JobSum], list[JobView]]:
    """How many there are of each kind and state; and so many of each state, 0 for all: failed ones
    first, then those that run, then those that wait; each the first due first.
    """
    jobs = store.collection(Job)
    counted = await jobs.query().group_by("kind", "state").aggregate(count="count")
    sums = [JobSum(each["kind"], JobState(each["state"]), each["count"]) for each in counted]
    listed = []
    for state in _LISTED:
        query = jobs.query().where("state", "=", state.value).order_by("due")
        found = await (query.limit(limit) if limit else query).values()
        listed += [JobView.of(job) for job in found]
    return sorted(sums, key=lambda each: (each.kind, each.state)), listed
