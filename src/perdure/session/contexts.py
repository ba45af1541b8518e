"""Contexts: what to send to a model, what was sent, and how the history is shown in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from perdure.context import tools as history_tools
from perdure.context.board import Entry
from perdure.context.composer import Prompted
from perdure.context.context import Context
from perdure.core.levels import Level, parse_level
from perdure.core.turns import Position
from perdure.gateway.calls import Tool
from perdure.history.epochs import Epoch
from perdure.history.manifest import Place
from perdure.history.reading import position
from perdure.history.records import SessionRecord
from perdure.history.strategies import parse_strategy
from perdure.session.conversation import Conversation
from perdure.session.given import budget_in, flag_in, prompt_in, text_in


class Contexts(Conversation):
    """The role of a session that makes prompts of its history."""

    async def context(
        self,
        prompt: Any = None,
        *,
        system: str | None = "",
        tools: Iterable[Tool | Mapping[str, Any]] | None = (),
        model: str | None = "",
        budget: int | None = None,
        recall: bool = True,
        keep: bool = True,
    ) -> Context:
        """What to send to a model: the history within the budget, and the prompt.

        The prompt is a text, a message, several, or the parts of one (a text and an image, say).
        Without a prompt, the open turn goes on: after results of its tools were appended. `tools`
        are yours; add `perdure.HISTORY_TOOLS` to let the model reach its past (see `run_tool`).
        `model` tells which reasoning is still valid. `budget` counts tokens of messages, not those
        of system text and tools. `recall` puts beside the prompt what it brings to mind, whatever
        the strategy: in at most a quarter of the budget, and nothing that stands there anyway. It
        is asked once for a prompt and kept, and stays as it is once the prompt was appended. Before
        that, the same prompt may be composed again with or without it: send the last one.

        Send what `Context.to_chat`, `to_responses` or `to_messages` gives, and append the answer
        with ``context=``. With `keep` off nothing is written down: to look at what would be sent.

        Raises `BudgetTooSmall` if the prompt does not fit or the budget is below 500, and
        `InvalidInput` if nothing is said in the prompt, or if there is neither a prompt nor an open
        turn.
        """
        said, budget = prompt_in(prompt), budget_in(budget)
        system, model = text_in(system, "system"), text_in(model, "model")
        recall, keep = flag_in(recall, "recall"), flag_in(keep, "keep")
        masked, _ = await self._intake.masked(said)
        record, head = await self._standing()
        return await self._composer.compose(
            Prompted(
                record=record,
                head=head,
                own=self._writer.own,
                prompt=masked,
                system=system,
                tools=() if tools is None else tools,
                model=model,
                budget=budget,
                recall=recall,
                keep=keep,
            )
        )

    async def past_context(self, at: str | int | Position) -> Context:
        """What was sent for a turn, or for a round of it, put together again byte for byte.

        Turns that were forgotten since are tombstones. Raises `InvalidInput` if nothing was sent
        through `context` for it.
        """
        place = position(at, self.record)
        record, head = await self._standing()
        return await self._composer.past(record, head, Place(place.turn, place.round or 1))

    async def set_fidelity(
        self, id: str | int | Position, level: Level | str, *, now: bool = False
    ) -> str:
        """Show a turn at this level: from the next epoch on, or from the next request on.

        Says what that costs. Raises `InvalidInput` if it cannot be done.
        """
        place = position(id, self.record)
        return await self._desk.set_fidelity(place.turn, parse_level(level), now=now)

    async def board(self) -> Sequence[Entry]:
        """What stands on the board, oldest first."""
        return await self._desk.board()

    async def run_tool(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Do what a model asked for by one of `perdure.HISTORY_TOOLS`; the answer is for it.

        Never raises for what the model wrote: it is told what to do instead.
        """
        return await history_tools.run(self._desk, name, arguments)

    async def epochs(self) -> list[Epoch]:
        """When, why and how the gradient was recalculated, oldest first."""
        return await self._rooms.contexts.desk.epochs.all(self.name)

    async def change_strategy(
        self, strategy: str | None = None, *, budget: int | None = None
    ) -> None:
        """Show the history by another strategy, or in another budget, from now on.

        Raises `InvalidInput` if there is no such strategy, `BudgetTooSmall` below 500 tokens.
        """
        if strategy is not None:
            parse_strategy(strategy)
        budget = budget_in(budget)

        def change(found: SessionRecord) -> SessionRecord:
            return msgspec.structs.replace(
                found,
                strategy=found.strategy if strategy is None else strategy,
                budget=found.budget if budget is None else budget,
            )

        await self._change_record(change)
