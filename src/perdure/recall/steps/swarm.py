"""The filter swarm: one tiny model call for each candidate, to drop what is obviously irrelevant.

It only ever takes away, and only what a model calls irrelevant in the one word that was asked for.
A candidate whose call failed, came late, or was answered with anything else stays. The best
candidates of the ranking stay whatever is said of them, so that a model that says no to everything
cannot hide the past; but without a judge, what is doubted becomes a reminder.

Without models, a candidate must not be far worse than the best one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from perdure.core.errors import BudgetReached, NoModel, PerdureError, Unauthorized
from perdure.recall.steps import prompts
from perdure.recall.steps.prompts import Case
from perdure.recall.underway import Underway
from perdure.recall.values import LATE, Candidate

if TYPE_CHECKING:
    from perdure.gateway.gateway import Gateway

#: The kind of work, for the gateway's books.
TASK = "recall-filter"
#: The best so many stay, whatever a model says of them.
SURE = 3
#: A question whose best candidate has less than this score is met by nothing: what was found is
#: merely nearest. Questions about something else stay below, of 822 about LoCoMo's chats one.
#: What nobody asked for stands beside a prompt only if it is met a little better.
MET, MET_BESIDE = 0.07, 0.08
#: Without a model: what has less than this share of the best score does not stand beside a prompt,
#: nor what has less than this score.
RELATIVE, ABSOLUTE = 0.1, 0.05
#: What no other call of the same swarm would fare better with.
_HOPELESS = (BudgetReached, NoModel, Unauthorized)


class Sifted(msgspec.Struct, frozen=True):
    """What is left of some candidates."""

    kept: tuple[Candidate, ...]
    #: Places of those that stay although a model called them irrelevant.
    doubted: frozenset[int] = frozenset()
    #: Models that answered as they were asked to.
    answered: int = 0
    #: Why others did not; empty if all did.
    failed: str = ""


def sift(candidates: Sequence[Candidate], wanted: Collection[int] = ()) -> tuple[Candidate, ...]:
    """The algorithmic filter: those whose score is not far below the best one, and the wanted.

    What is named or wanted is there for another reason than its score: no other is measured by it.
    """
    least = max(ABSOLUTE, RELATIVE * _best(candidates, wanted))
    likely = [each for each in candidates if each.score >= least or each.place in wanted]
    return met(likely, MET_BESIDE, wanted)


def met(
    candidates: Sequence[Candidate], least: float = MET, wanted: Collection[int] = ()
) -> tuple[Candidate, ...]:
    """All of them, if one is likely enough to be what was asked for; else what was named, if any.

    The scores of the others are no reason to leave one out: what is far behind the best one is
    still right now and then, and who reads it sees how likely it is.
    """
    if _best(candidates, wanted) >= least:
        return tuple(candidates)
    return tuple(each for each in candidates if each.named or each.place in wanted)


def _best(candidates: Sequence[Candidate], wanted: Collection[int]) -> float:
    """The best score of what was found by what it says: neither named nor wanted."""
    others = (each for each in candidates if not each.named and each.place not in wanted)
    return max((each.score for each in others), default=0.0)


class Swarm:
    """Asks the models that are configured for `filter`."""

    def __init__(
        self, gateway: Callable[[], Gateway], underway: Underway, *, most: int, concurrency: int
    ) -> None:
        """Looks at `most` candidates at most, so many of them at the same time."""
        self._gateway = gateway
        self._underway = underway
        self._most = most
        self._concurrency = concurrency

    async def filter(self, case: Case, seconds: float) -> Sifted:
        """What is left of the candidates, in their order. Takes `seconds` at most.

        What has no text is not asked about, and stays. Raises nothing of a model's:
        `Sifted.failed` tells.
        """
        flight = _Flight(self._gateway(), case, self._concurrency, seconds)
        tasks = {self._underway.begin(flight.ask(each)) for each in case.readable(self._most)}
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=max(seconds, 0.0))
        finally:
            for task in tasks:
                task.cancel()
        sure = {each.place for each in case.candidates[:SURE]}
        refused = {place for place, useful in flight.verdicts.items() if not useful}
        return Sifted(
            tuple(each for each in case.candidates if each.place not in refused - sure),
            frozenset(refused & sure),
            len(flight.verdicts),
            "" if len(flight.verdicts) == len(tasks) else flight.failed or LATE,
        )


class _Flight:
    """The calls of one question."""

    def __init__(self, gateway: Gateway, case: Case, concurrency: int, seconds: float) -> None:
        self._gateway = gateway
        self._case = case
        self._room = asyncio.Semaphore(concurrency)
        self._ends = asyncio.get_running_loop().time() + seconds
        self._is_hopeless = False
        self.verdicts: dict[int, bool] = {}
        self.failed = ""

    async def ask(self, candidate: Candidate) -> None:
        async with self._room:
            left = self._ends - asyncio.get_running_loop().time()
            if left <= 0 or self._is_hopeless:
                return
            request = prompts.filtering(self._case.prompt, self._case.exhibit(candidate))
            try:
                reply = await self._gateway.complete(request, self._case.ask("filter", TASK, left))
            except PerdureError as exc:
                self.failed = self.failed or exc.message
                self._is_hopeless |= isinstance(exc, _HOPELESS)
                return
        useful = prompts.verdict(reply.text)
        if useful is None:
            self.failed = self.failed or "a model answered neither yes nor no"
        else:
            self.verdicts[candidate.place] = useful
