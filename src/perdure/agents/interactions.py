"""Interactions recorded: what they add up to is kept in the transaction that ends them.

One record adds a row, and adds to the figures of its agent, of its task with its model and
version, and of each memory that stood in its prompts. So nothing is ever counted by reading all
interactions, and what was committed is counted once: an interaction that is recorded again changes
nothing. A rating that comes later changes the same figures, in the transaction that keeps it.
"""

from __future__ import annotations

import msgspec

from perdure.agents.episodes import Episodes
from perdure.agents.interaction import Interaction
from perdure.agents.interaction_records import (
    MOST_ENTRIES,
    AgentTotals,
    EvolutionEntry,
    Figures,
    InteractionRecord,
    PatternFigures,
    interaction_key,
    patterns_of,
)
from perdure.core.errors import InvalidInput, NotFound
from perdure.gateway.calls import indexable
from perdure.gateway.outcomes import Judge, Outcome, is_overruled
from perdure.history.log_records import agent_of, checked_agent
from perdure.recall.memory_records import LastNumber
from perdure.services import Services
from perdure.storage.transaction import Transaction

#: Interactions that one agent's numbers have room for.
_ROOM = 1_000_000_000
#: Memories of one interaction that are looked at.
_MOST_MEMORIES = 50
#: Characters that are kept of an error.
_ERROR = 300
_NUMBERS = "agents"


class Interactions:
    """The interactions of a bank's agents."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.episodes = Episodes(services)

    async def record(self, transaction: Transaction, interaction: Interaction) -> InteractionRecord:
        """Record an ended message, in the caller's transaction; its episode is written later, by
        a job. Recorded twice, it counts once; one that had failed and was tried again counts as it
        ended at last. Raises `InvalidInput` if it names no agent or another agent's session.
        """
        found = await self._row(interaction)
        rows = transaction.collection(InteractionRecord)
        known = await rows.get(found.id)
        if known is not None and (known.success or interaction.ended <= known.ended):
            return known
        totals = await self._totals(transaction, found.agent)
        if known is None:
            figures = totals.figures.plus(found)
            number = totals.number * _ROOM + figures.interactions
        else:
            figures, number = totals.figures.minus(known).plus(found), known.number
            await self._take_back(transaction, known)
        found = msgspec.structs.replace(found, number=number)
        await rows.put(found)
        await transaction.collection(AgentTotals).put(
            msgspec.structs.replace(totals, figures=figures, updated=transaction.now())
        )
        await self._add_up(transaction, found, None)
        await self.episodes.begin(transaction, interaction, found, known)
        return found

    async def rated(self, transaction: Transaction, before: Outcome, after: Outcome) -> None:
        """A rating of an outcome was kept: count it for its interaction, if that is its answer."""
        del before
        if after.quality is None or after.quality_by == "heuristic":
            return
        query = transaction.collection(InteractionRecord).query()
        for found in await query.where("outcome", "=", after.id).limit(1).values():
            await self._rate(transaction, found, after.quality, after.quality_by)

    async def rate(self, agent: str, id: str, score: float, by: Judge = "user") -> None:
        """Rate an interaction from 0 to 1, and the outcome of its answer, if the gateway has one.
        A judge does not overrule a user. Raises `InvalidInput`.
        """
        key = interaction_key(checked_agent(agent), id)
        found = await self._services.store.collection(InteractionRecord).get(key)
        if found is None:
            raise NotFound(
                f"There is no interaction {id!r} of {agent}.",
                hint=f"`perdure agent episodes {agent}` lists them.",
            )
        if by == "heuristic" or not 0.0 <= score <= 1.0:
            raise InvalidInput(
                f"A score of {score!r} by {by!r} makes no sense.",
                hint="Give 0.0 to 1.0, by 'user' or 'judge'.",
            )
        if found.outcome is not None:
            try:
                await self._services.gateway.feedback(found.outcome, score, by=by)
            except NotFound:  # made by hand, or older than outcomes are kept
                pass
            else:
                return

        async def body(transaction: Transaction) -> None:
            again = await transaction.collection(InteractionRecord).get(key)
            if again is not None and not is_overruled(again.quality_by, by):
                await self._rate(transaction, again, float(score), by)

        await self._services.store.transact(body)

    async def evolved(self, transaction: Transaction, agent: str, entry: EvolutionEntry) -> None:
        """Add to an agent's evolution history, in the caller's transaction."""
        totals = await self._totals(transaction, checked_agent(agent))
        kept = (*totals.evolution, entry)[-MOST_ENTRIES:]
        await transaction.collection(AgentTotals).put(
            msgspec.structs.replace(totals, evolution=kept, updated=transaction.now())
        )

    async def totals(self, agent: str) -> AgentTotals | None:
        return await self._services.store.collection(AgentTotals).get(checked_agent(agent))

    async def patterns(self, agent: str) -> list[PatternFigures]:
        rows = self._services.store.collection(PatternFigures).query()
        return await rows.prefix(f"{checked_agent(agent)}/").order_by("key").values()

    # ------------------------------------------------------------------------------------------

    async def _row(self, given: Interaction) -> InteractionRecord:
        agent, services = checked_agent(given.agent), self._services
        if given.session and agent_of(given.session) != agent:
            raise InvalidInput(
                f"{given.session} is no session of {agent}.",
                hint="An interaction belongs to the agent whose session it is in.",
            )
        if not given.id:
            raise InvalidInput("An interaction needs an id.", hint="Use perdure.new_id().")
        # An answer may have been rated before its message has ended.
        answer = given.outcomes[-1] if given.outcomes else None
        outcome = None if answer is None else await services.store.collection(Outcome).get(answer)
        is_rated = outcome is not None and outcome.quality_by != "heuristic"
        error: str = services.mask_data({"error": given.error})["error"]
        return InteractionRecord(
            id=interaction_key(agent, given.id),
            number=0,
            agent=agent,
            agent_version=given.agent_version,
            session=given.session,
            turn=given.turn,
            task=indexable(given.task),
            provider=indexable(given.provider),
            model=indexable(given.model),
            variant=given.variant,
            success=given.success,
            error=error[:_ERROR],
            cost=given.cost,
            latency=given.latency,
            quality=outcome.quality if outcome is not None and is_rated else None,
            quality_by=outcome.quality_by if outcome is not None and is_rated else "heuristic",
            memories=_memories(given.recalled),
            outcome=answer,
            ended=given.ended or services.store.now(),
        )

    async def _totals(self, transaction: Transaction, agent: str) -> AgentTotals:
        found = await transaction.collection(AgentTotals).get(agent)
        if found is not None:
            return found
        numbers = transaction.collection(LastNumber)
        last = await numbers.get(_NUMBERS) or LastNumber(_NUMBERS)
        await numbers.put(LastNumber(_NUMBERS, last.last + 1))
        return AgentTotals(agent=agent, number=last.last + 1, created=transaction.now())

    async def _rate(
        self, transaction: Transaction, found: InteractionRecord, score: float, by: Judge
    ) -> None:
        rated = msgspec.structs.replace(found, quality=score, quality_by=by)
        await transaction.collection(InteractionRecord).put(rated)
        totals = await self._totals(transaction, found.agent)
        figures = totals.figures.rerated(found.quality, score)
        await transaction.collection(AgentTotals).put(
            msgspec.structs.replace(totals, figures=figures, updated=transaction.now())
        )
        await self._add_up(transaction, rated, found)

    async def _take_back(self, transaction: Transaction, known: InteractionRecord) -> None:
        rows = transaction.collection(PatternFigures)
        for row in await rows.get_many([each.id for each in patterns_of(known)]):
            if row is not None:
                await rows.put(msgspec.structs.replace(row, figures=row.figures.minus(known)))

    async def _add_up(
        self, transaction: Transaction, found: InteractionRecord, before: InteractionRecord | None
    ) -> None:
        """Add an interaction to its patterns; or the change of its rating."""
        rows = transaction.collection(PatternFigures)
        wanted = patterns_of(found)
        known = await rows.get_many([each.id for each in wanted])
        changed = list[PatternFigures]()
        for empty, row in zip(wanted, known, strict=True):
            figures = Figures() if row is None else row.figures
            if before is None:
                figures = figures.plus(found)
            elif found.quality is not None and row is not None:
                figures = figures.rerated(before.quality, found.quality)
            changed.append(
                msgspec.structs.replace(empty, figures=figures, updated=transaction.now())
            )
        await rows.put_many(changed)


def _memories(recalled: tuple[str, ...]) -> tuple[str, ...]:
    """Keys of memories and layers: single turns come too seldom to be learnt from."""
    found = dict.fromkeys(key for key in recalled if key and "#" not in key and _is_kept(key))
    return tuple(found)[:_MOST_MEMORIES]


def _is_kept(key: str) -> bool:
    return not key.startswith("T-")
