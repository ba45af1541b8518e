"""A job: a row that says what is to be done, and its progress."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

import msgspec

from perdure.core.errors import Conflict, InvalidInput
from perdure.storage import record_keys
from perdure.storage.collection_reader import Stored
from perdure.storage.extension import ExtensionChange
from perdure.storage.options import DEFAULT
from perdure.storage.records import Key, system_record, type_of
from perdure.storage.rows import Batch, Check, Delete, Index, Put
from perdure.storage.store import Store


class JobState(StrEnum):
    """The state of a job. One that is done is deleted."""

    PENDING = "pending"
    RUNNING = "running"
    FAILED = "failed"


@system_record(
    "jobs",
    indexes=[
        Index(("due", "kind"), where=(("state", JobState.PENDING.value),)),
        Index(("until", "kind"), where=(("state", JobState.RUNNING.value),)),
        Index(("due",), where=(("state", JobState.FAILED.value),)),
        Index(("order", "placed")),
    ],
)
class Job(msgspec.Struct, frozen=True):
    """A piece of work. Times are microseconds on the store's clock."""

    id: Annotated[str, Key()]
    kind: str
    #: Plain data.
    payload: Any
    state: JobState
    due: int
    attempts: int = 0  # How often it was begun, this time included.
    #: Who runs it, and how long that one may be silent.
    owner: str = ""
    until: int = 0
    error: str = ""  # What went wrong the last time.
    #: Jobs of one order run one after the other, as they were enqueued.
    order: str | None = None
    placed: int = 0
    again: bool = False  # Enqueued again while it ran: it runs again, with this payload.

    def pending(self, due: int, *, attempts: int | None = None, error: str | None = None) -> Job:
        return msgspec.structs.replace(
            self,
            state=JobState.PENDING,
            due=due,
            attempts=self.attempts if attempts is None else attempts,
            error=self.error if error is None else error,
            owner="",
            until=0,
            again=False,
        )

    def running(self, owner: str, until: int) -> Job:
        return msgspec.structs.replace(
            self, state=JobState.RUNNING, attempts=self.attempts + 1, owner=owner, until=until
        )

    def failed(self, error: str) -> Job:
        return msgspec.structs.replace(
            self, state=JobState.FAILED, error=error, owner="", until=0, again=False
        )


#: What does the work: returns when it is done, raises if it has to be tried again.
#: Async, or plain: a plain one runs on the event loop, and should be short.
JobHandler: TypeAlias = Callable[[Job], Awaitable[object] | object]


class JobKind(msgspec.Struct, frozen=True):
    """How jobs of a kind are done."""

    handler: JobHandler
    retries: int
    timeout: float
    pause: float  # Seconds before the first retry; twice as long before each further one.


class RetryLater(Exception):
    """Raised by a handler that cannot do its job now: it is called again after so many seconds, and
    the attempt does not count.
    """

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(why)
        self.seconds = seconds


class JobCounts(msgspec.Struct):
    """How the jobs that a runner began ended."""

    done: int = 0
    retried: int = 0
    failed: int = 0
    withdrawn: int = 0  # Put back when the runner was stopped.
    lost: int = 0  # Taken over by another process, because this one was silent for too long.


async def replace(
    store: Store, found: Stored[Job], job: Job | None, changes: Sequence[ExtensionChange] = ()
) -> Stored[Job] | None:
    """Write a job, or delete it, if it is unchanged since it was found; else returns None. The time
    of creation is checked too: a job with a key may be done, deleted, enqueued anew and reach the
    same version again.
    """
    declared = type_of(Job)
    check = Check(declared.name, found.key, found.version, found.created_us)
    write: Put | Delete = Delete(declared.name, found.key)
    if job is not None:
        write = declared.encode(job, None, None)
    try:
        (version,) = await store.commit(Batch((write,), (check,), (), tuple(changes)), DEFAULT)
    except Conflict:
        return None
    return Stored(found.key, job or found.value, version, found.created_us, store.now())


def check_kind(kind: str) -> str:
    """Raises if it cannot be the beginning of a job's key."""
    if "/" in record_keys.check(kind):
        raise InvalidInput(f"The kind {kind!r} has a slash.", hint="Use a plain name.")
    return kind
