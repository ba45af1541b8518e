"""Who is asked first: the seam where a request's candidates are put in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from perdure.gateway.breaker import State
from perdure.gateway.calls import Ask
from perdure.gateway.health import HealthView

if TYPE_CHECKING:
    from perdure.gateway.catalog import Candidate


class Standing(msgspec.Struct, frozen=True):
    """What is known of a candidate at the moment of choosing."""

    #: Of its circuit breaker.
    state: State = "closed"
    #: For this kind of work.
    health: HealthView = HealthView()
    #: Seconds until its gate lets anybody in.
    paused: float = 0.0


class Selector(Protocol):
    """Puts candidates in the order in which they are to be tried."""

    def order(
        self, ask: Ask, candidates: list[Candidate], standings: Mapping[str, Standing]
    ) -> list[Candidate]:
        """The candidates, the first to be asked first.

        Leaving one out means that it is not asked. `standings` go by the candidates' names; one
        that is not in it has never been called. Must be quick, and must not raise.
        """


class ByHealth:
    """The configured order, adjusted by health: the default.

    A candidate that does badly at this kind of work, or that would keep the call waiting for more
    than `patience` seconds, goes behind those that do well; one whose circuit is open goes last.
    Otherwise the order stays as configured, which keeps a conversation where its prompt cache is.
    """

    def __init__(self, *, patience: float = 1.0) -> None:
        self._patience = patience

    def order(
        self, ask: Ask, candidates: list[Candidate], standings: Mapping[str, Standing]
    ) -> list[Candidate]:
        return sorted(candidates, key=lambda each: self._rank(standings.get(each.name)))

    def _rank(self, standing: Standing | None) -> int:
        if standing is None:
            return 0
        if standing.state == "open":
            return 2
        return int(not standing.health.healthy or standing.paused > self._patience)
