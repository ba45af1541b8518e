"""Batches as rows: what is to be sent, where it is, and what came of it.

A batch is written whole before anything is sent. Its items are kept in the order in which they were
given; a part is a run of them that is sent at once. The provider knows an item by `wire_id`, which
holds the run: that is how a batch is recognised that was sent by a process that died.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

import msgspec

from perdure.core.clock import to_datetime
from perdure.gateway.budgets import BudgetHold, Reservation
from perdure.gateway.calls import CallOptions, ModelAnswer, Reply, Request
from perdure.storage.records import Compressed, Indexed, Key, system_record


class BatchState(StrEnum):
    """The state of a batch, and of each part of it."""

    #: In the bank; not sent, as far as is known.
    WRITTEN = "written"
    #: The provider has it.
    SENT = "sent"
    IN_PROGRESS = "in_progress"
    #: Every item has its result, good or bad.
    ENDED = "ended"
    #: The caller has used the results; requests and answers are deleted.
    APPLIED = "applied"
    #: Refused as a whole: no item was answered, nothing was charged.
    FAILED = "failed"
    CANCELLED = "cancelled"


class ItemState(StrEnum):
    """What became of one request."""

    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    #: Refused, or the provider failed at it. Not charged for.
    ERRORED = "errored"
    #: Not begun within the provider's 24 hours. Not charged for.
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    #: The provider's results lack it: what it cost is not known.
    MISSING = "missing"


#: States that a batch, or a part of one, does not leave by itself.
FINAL = frozenset({BatchState.ENDED, BatchState.APPLIED, BatchState.FAILED, BatchState.CANCELLED})
BatchMode: TypeAlias = Literal["batch", "live"]


class BatchPart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A run of items that is sent at once. Times are microseconds."""

    #: The number of its first item, and how many it has.
    first: int
    count: int
    state: BatchState = BatchState.WRITTEN
    #: The provider's ids of the batch and of the file with its requests.
    remote: str = ""
    file: str = ""
    #: Since when it may have been sent, though no answer is known; 0: it surely was not.
    sending: int = 0
    #: How many requests were sent then: what was forgotten before is not among them.
    lines: int = 0
    sent: int = 0
    #: How often its state was asked for, and results were fetched that lacked lines.
    looks: int = 0
    gaps: int = 0
    cancelling: bool = False
    error: str = ""

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.count)


@system_record("batches", ttl="60d")
class BatchRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A batch. Times are microseconds."""

    id: Annotated[str, Key()]  # the run, or the hash of the caller's key
    #: Names its items, here and at the provider.
    run: str
    written: Annotated[int, Indexed()]
    state: Annotated[BatchState, Indexed()]
    mode: BatchMode
    options: CallOptions
    provider: str
    model: str
    parts: tuple[BatchPart, ...]
    #: How many items it has, and how many are in which state.
    items: int
    counts: dict[ItemState, int]
    #: Of the requests: the same key must stand for the same.
    digest: str
    agent: Annotated[str, Indexed()] = ""
    #: What its items count on.
    holds: tuple[BudgetHold, ...] = ()
    #: Who drives it at the moment: whoever lost it to another writes nothing more.
    owner: str = ""
    #: The caller wants no more of it.
    cancel: bool = False
    #: Failures in a row of what was tried last, and when it is tried again.
    failures: int = 0
    next_look: int = 0
    ended: int = 0
    #: Picodollars, as far as they are known, and of how many items they are not.
    cost: int = 0
    unknown_costs: int = 0
    error: str = ""

    @property
    def model_name(self) -> str:
        """As in the configuration: ``provider/model``."""
        return f"{self.provider}{'#' if '://' in self.provider else '/'}{self.model}"

    def part_of(self, number: int) -> int:
        return next(at for at, part in enumerate(self.parts) if number in part.numbers)


@system_record("batch_items", ttl="60d")
class BatchItem(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One request of a batch."""

    id: Annotated[str, Key()]  # run/number
    #: The caller's name for it.
    custom_id: str
    #: Encoded; empty when it is over, or forgotten.
    request: Annotated[bytes, Compressed()] = b""
    answer: Annotated[bytes, Compressed()] = b""
    state: ItemState = ItemState.WAITING
    agent: Annotated[str, Indexed()] = ""
    session: Annotated[str, Indexed()] = ""
    #: Reserved: tokens, and picodollars. Nothing, once a live call reserves for itself.
    tokens: int = 0
    reserved: int = 0
    #: How often a live model was asked.
    attempts: int = 0
    provider: str = ""
    model: str = ""
    #: Picodollars; None is unknown.
    cost: int | None = None
    outcome: str = ""
    #: The kind of the error, and its message.
    error: str = ""
    reason: str = ""
    #: What it says must not be kept; that it was sent, and what it cost, may be.
    forgotten: bool = False

    @property
    def run(self) -> str:
        return self.id.rpartition("/")[0]

    @property
    def number(self) -> int:
        return int(self.id.rpartition("/")[2])

    @property
    def wire_id(self) -> str:
        """Letters, digits and a hyphen, at most 64: what both providers take."""
        return f"{self.run}-{self.number}"

    def reservation(self, holds: tuple[BudgetHold, ...]) -> Reservation:
        return Reservation(holds, self.tokens, self.reserved)

    def asked(self) -> Request:
        return _decode_request(self.request)


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one request. `reply` is there if it succeeded, unless it was forgotten."""

    custom_id: str
    state: ItemState
    reply: Reply | None = None
    #: The kind of the error (``rejected``, ``expired``, …), and what was said.
    error: str = ""
    reason: str = ""

    @classmethod
    def of(cls, item: BatchItem) -> BatchResult:
        reply = None
        if item.answer:
            answer = _decode_answer(item.answer)
            reply = Reply(
                message=answer.message,
                finish=answer.finish,
                provider=item.provider,
                model=item.model,
                cost=item.cost,
                outcome=item.outcome,
            )
        return cls(
            custom_id=item.custom_id,
            state=item.state,
            reply=reply,
            error=item.error,
            reason=item.reason,
        )


class BatchPartView(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a batch: how many items, and the provider's name for it."""

    items: int
    state: BatchState
    remote: str | None
    sent: datetime | None


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch, for people and programs."""

    id: str
    state: BatchState
    mode: BatchMode
    purpose: str
    task: str
    agent: str
    session: str
    provider: str
    model: str
    items: int
    #: How many are in which state.
    counts: dict[ItemState, int]
    parts: list[BatchPartView]
    written: datetime
    ended: datetime | None
    #: When it is looked at next, and why not before.
    next_look: datetime | None
    error: str | None
    cancelling: bool
    #: Known picodollars, and of how many items they are not known.
    cost: int
    unknown_costs: int

    @classmethod
    def of(cls, record: BatchRecord) -> BatchView:
        options = record.options
        return cls(
            id=record.id,
            state=record.state,
            mode=record.mode,
            purpose=options.purpose,
            task=options.task,
            agent=record.agent,
            session=options.session,
            provider=record.provider,
            model=record.model,
            items=record.items,
            counts=record.counts,
            parts=[
                BatchPartView(
                    items=part.count,
                    state=part.state,
                    remote=part.remote or None,
                    sent=_moment(part.sent),
                )
                for part in record.parts
            ],
            written=to_datetime(record.written),
            ended=_moment(record.ended),
            next_look=_moment(record.next_look),
            error=record.error or None,
            cancelling=record.cancel and record.state not in FINAL,
            cost=record.cost,
            unknown_costs=record.unknown_costs,
        )


def _moment(microseconds: int) -> datetime | None:
    return to_datetime(microseconds) if microseconds else None


_decode_request = msgspec.msgpack.Decoder(Request).decode
_decode_answer = msgspec.msgpack.Decoder(ModelAnswer).decode


def item_key(run: str, number: int) -> str:
    return f"{run}/{number:06}"


def number_of(wire_id: str, run: str) -> int | None:
    """The number of the item that the provider knows by this; None if it is not of this run."""
    name, _, number = wire_id.rpartition("-")
    return int(number) if name == run and number.isdecimal() else None
