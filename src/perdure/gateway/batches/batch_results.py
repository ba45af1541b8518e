"""Results of a batch mode, written down: items, outcomes, costs and budgets together."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.core.clock import SECOND, new_id
from perdure.core.messages import Usage
from perdure.gateway import quality
from perdure.gateway.attempts import GatewayState, credible
from perdure.gateway.batches.batch_apis import ResultLine
from perdure.gateway.batches.batch_records import BatchItem, BatchRecord, ItemState, item_key
from perdure.gateway.batches.owned_batch import OwnedBatch, counted
from perdure.gateway.calls import packed
from perdure.gateway.outcomes import Outcome
from perdure.gateway.prices import batch_price
from perdure.gateway.response_cache import Mask
from perdure.storage.transaction import Transaction


class BatchResultWriter:
    """Writes what became of items, each once."""

    def __init__(self, state: GatewayState, mask: Mask | None) -> None:
        self._state = state
        self._mask = mask

    async def write(
        self,
        batch: OwnedBatch,
        lines: dict[int, ResultLine],
        *,
        error: str = "",
        reason: str = "",
    ) -> None:
        """Write results, outcomes and what was spent, in one transaction."""
        if not lines:
            return

        async def apply(transaction: Transaction) -> BatchRecord:
            record = await batch.check(transaction)
            items = transaction.collection(BatchItem)
            keys = [item_key(record.run, number) for number in lines]
            found = dict(zip(lines, await items.get_many(keys), strict=True))
            done = [
                self._done(record, item, lines[number], error, reason)
                for number, item in found.items()
                if item is not None and item.state is ItemState.WAITING
            ]
            await items.put_many(item for item, _, _ in done)
            outcomes = transaction.collection(Outcome)
            await outcomes.put_many(outcome for _, outcome, _ in done)
            await self._state.ledger.settle_many(
                transaction,
                [
                    (found_item.reservation(record.holds), tokens, item.cost)
                    for item, _, tokens in done
                    if (found_item := found[item.number]) is not None
                ],
            )
            record = counted(record, [item for item, _, _ in done])
            await transaction.collection(BatchRecord).put(record)
            return record

        await batch.commit(apply)

    def _done(
        self, record: BatchRecord, item: BatchItem, line: ResultLine, error: str, reason: str
    ) -> tuple[BatchItem, Outcome, int]:
        """The item with its result, its outcome, and the tokens that it took."""
        answer = None if line.answer is None else credible(line.answer)
        usage = (answer.message.usage if answer is not None else None) or Usage()
        part = record.parts[record.part_of(item.number)]
        if line.error is not None:
            error, reason = line.error.kind, line.error.message
        cost, tokens = 0 if line.state is not ItemState.MISSING else None, 0
        guess = None
        if answer is not None:
            cost = batch_price(self._state.prices.cost(record.provider, record.model, usage))
            tokens = (usage.input or 0) + (usage.output or 0)
            if item.request:
                guess = quality.heuristic(answer, item.asked())
        if line.state is ItemState.MISSING or (answer is not None and usage.input is None):
            tokens = max(tokens, item.tokens)  # nobody says: as if all of it
        candidate = self._state.catalog.find(record.model_name)
        options = replace(record.options, session=item.session, agent=item.agent)
        outcome = Outcome.of(
            options,
            candidate,
            id=new_id(),
            started=part.sent or record.written,
            success=line.state is ItemState.SUCCEEDED,
            error="" if line.state is ItemState.SUCCEEDED else error or line.state.value,
            complexity=self._state.catalog.complexity(options),
            latency=max(0, self._state.clock() - (part.sent or record.written)) / SECOND,
            cost=cost,
            batched=True,
            quality=guess,
        ).having(usage if answer is not None else None)
        content = b""
        if answer is not None and not item.forgotten:
            message = answer.message
            if self._mask is not None:
                (message,) = self._mask((message,))
            content = packed(replace(answer, message=message))
        done = replace(
            item,
            state=line.state,
            request=b"",
            answer=content,
            provider=record.provider,
            model=record.model,
            cost=cost,
            outcome=outcome.id,
            error=outcome.error,
            reason=reason,
        )
        return done, outcome, tokens
