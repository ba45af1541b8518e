"""The state of circuits, replayed from outcomes in the bank.

Each process keeps its own circuits in memory. What they met is in the bank, and is replayed here:
the state that a process would have that made all those calls, but for the dice of its probes.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from perdure.core import clock
from perdure.core.errors import PerdureError, ProviderDown, Rejected
from perdure.gateway.breaker import Breaker, State
from perdure.gateway.outcomes import CANCELLED, Outcome
from perdure.storage.store import Store

#: Seconds that are looked back: the longest rest of a circuit, twice.
WINDOW = 600
#: Outcomes that are replayed at most; the newest.
_MOST = 5_000
#: What this kind of error says about its provider, as in `breaker.counts`. Pauses of rate limits
#: are not recorded, so these say nothing.
_MEANS: dict[str, PerdureError] = {
    **dict.fromkeys(("down", "bad_answer", "broken"), ProviderDown()),
    **dict.fromkeys(("rejected", "unauthorized", "too_long"), Rejected()),
}
_NOTHING = PerdureError()


class ReplayedCircuit(msgspec.Struct, frozen=True, kw_only=True):
    """The recent calls of a model, and the state of its circuit."""

    state: State
    calls: int
    #: Without calls that their callers gave up.
    failures: int
    error: str
    #: Seconds until the next probe; None unless it is open.
    next_probe: float | None


async def recent_circuits(store: Store) -> dict[tuple[str, str], ReplayedCircuit]:
    now = store.now()
    finder = store.collection(Outcome).query().where("started", ">=", now - WINDOW * clock.SECOND)
    found = await finder.order_by("-started").limit(_MOST).values()
    tried = dict[tuple[str, str], list[Outcome]]()
    for outcome in found:
        if not outcome.cached:
            tried.setdefault((outcome.provider, outcome.model), []).append(outcome)
    return {key: replay_circuit(outcomes, now) for key, outcomes in tried.items()}


def replay_circuit(outcomes: Iterable[Outcome], now: int) -> ReplayedCircuit:
    """The circuit that these outcomes, in any order, would have led to."""
    ordered = sorted(outcomes, key=_end)
    at = [0.0]
    breaker = Breaker("", clock=lambda: at[0], random=lambda: 0.0)
    for outcome in ordered:
        at[0] = _end(outcome)
        try:
            attempt = breaker.attempt()
        except ProviderDown:
            continue  # another process had not seen what opened it
        attempt.end(None if outcome.success else _MEANS.get(outcome.error, _NOTHING))
    at[0] = max(at[0], now / clock.SECOND)
    view = breaker.view()
    failed = (each.error for each in ordered if not each.success)
    errors = [error for error in failed if error != CANCELLED]
    return ReplayedCircuit(
        state=view.state,
        calls=len(ordered),
        failures=len(errors),
        error=errors[-1] if errors else "",
        next_probe=view.next_probe,
    )


def _end(outcome: Outcome) -> float:
    return outcome.started / clock.SECOND + outcome.latency
