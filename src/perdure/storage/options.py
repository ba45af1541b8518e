"""Options of one call: consistency, deadline, expected version."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from perdure.core.errors import InvalidInput

_FOREVER = float("inf")


class Consistency(StrEnum):
    """How fresh reads and how durable writes have to be."""

    #: Reads may come from any cache or replica; writes survive the death of the process.
    EVENTUAL = "eventual"
    #: Reads are not older than `Options.max_staleness`; writes as with EVENTUAL.
    BOUNDED = "bounded"
    #: Reads come from the primary; writes are on disk (fsync) before they are acknowledged.
    STRONG = "strong"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one call, as one value so that signatures need not grow."""

    consistency: Consistency = Consistency.EVENTUAL
    #: Seconds; only with `Consistency.BOUNDED`.
    max_staleness: float | None = None
    #: Seconds this call may take. A write that misses it is either withdrawn
    #: (`DeadlineExceeded`, nothing changed) or, if it had begun, carried to its end.
    deadline: float | None = None
    #: The version the record must have: 0 means that it must not exist.
    expected: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.consistency, Consistency):
            raise InvalidInput(
                f"{self.consistency!r} is not a consistency.",
                hint="Use perdure.Consistency.EVENTUAL, BOUNDED or STRONG.",
            )
        if self.expected is not None and (type(self.expected) is not int or self.expected < 0):
            raise InvalidInput(
                f"{self.expected!r} cannot be an expected version.",
                hint="Use the number that fetch gave, or 0 for a record that must not exist.",
            )
        if self.deadline is not None and not self.deadline > 0:
            raise InvalidInput(
                f"A deadline of {self.deadline!r} seconds has passed before the call.",
                hint="Use a positive number of seconds, or None.",
            )
        age: object = self.max_staleness
        if age is not None and not (isinstance(age, int | float) and 0 <= age < _FOREVER):
            raise InvalidInput(
                f"{age!r} is no age that a read may have.",
                hint="Use a number of seconds, 0 or more.",
            )
        if (self.max_staleness is not None) != (self.consistency is Consistency.BOUNDED):
            raise InvalidInput(
                "max_staleness and Consistency.BOUNDED belong together.", hint="Give both or none."
            )


DEFAULT = Options()


STRONG = Options(consistency=Consistency.STRONG)


def bounded(seconds: float) -> Options:
    return Options(consistency=Consistency.BOUNDED, max_staleness=seconds)
