"""A deadline that is for all the steps that one call becomes."""

from __future__ import annotations

import time

import msgspec

from perdure.core.errors import DeadlineExceeded
from perdure.storage.middleware import Find, Get
from perdure.storage.options import Consistency, Options


class TimeLeft:
    """The options of a call, for each of the steps that it becomes: its deadline is for all."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._until = None if options.deadline is None else time.monotonic() + options.deadline

    def options(self, kind: Options | None = None) -> Options:
        """The call's options, or others, with the time that is left.

        Raises `DeadlineExceeded` if none is.
        """
        if self._until is None:
            return self._options if kind is None else kind
        left = self._until - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(
                "The time allowed was over before all steps of the call were done.",
                hint="Nothing was changed. Allow more time.",
            )
        return msgspec.structs.replace(self._options if kind is None else kind, deadline=left)

    def from_primary(self, call: Get | Find) -> Get | Find:
        """The same read again, from no cache or replica."""
        options = msgspec.structs.replace(
            self.options(), consistency=Consistency.STRONG, max_staleness=None
        )
        return msgspec.structs.replace(call, options=options)
