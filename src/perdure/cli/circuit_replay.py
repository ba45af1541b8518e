"""How circuits stand, told from outcomes: a command starts anew, the bank knows what was before.

Each process keeps circuits of its own, in memory. Those of others cannot be seen; what they met can
be, in the bank. It is replayed here through a circuit of the same kind. So this is what a process
that made all those calls would hold of a model now, give or take the dice of its probes.
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
#: What an error of this kind says about its provider, as `breaker.counts` has it. Whether a
#: rate limit came with a pause is not recorded: it says nothing then.
_MEANS: dict[str, PerdureError] = {
    **dict.fromkeys(("down", "bad_answer", "broken"), ProviderDown()),
    **dict.fromkeys(("rejected", "unauthorized", "too_long"), Rejected()),
}
_NOTHING = PerdureError()


class ReplayedCircuit(msgspec.Struct, frozen=True, kw_only=True):
    """How a model did lately, and how its circuit would stand."""

    state: State
    calls: int
    #: Without calls that their callers gave up.
    failures: int
    #: The kind of the last error; empty if there was none.
    error: str
    #: Seconds until the next probe; None unless it is open.
    next_probe: float | None


async def recent_circuits(store: Store) -> dict[tuple[str, str], ReplayedCircuit]:
    """The circuits of models that were called lately, by provider and model."""
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
