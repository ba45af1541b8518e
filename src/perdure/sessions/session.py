"""One conversation of an agent: what `bank.session("planner/auth")` returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

import msgspec

from perdure.context import history_tools
from perdure.context.board import BoardEntry
from perdure.context.composer import Composer
from perdure.context.context import Context
from perdure.context.session_tools import Rendering, SessionTools
from perdure.core.band_marks import BandMarks, parse_profile
from perdure.core.clock import When
from perdure.core.levels import Level, parse_level
from perdure.core.turns import Position, Turn
from perdure.gateway.calls import Tool
from perdure.history.answer_drafts import DraftGuard, Partial
from perdure.history.epochs import Epoch
from perdure.history.log_records import SessionRecord
from perdure.history.manifest import RoundId
from perdure.history.strategies.strategy_registry import parse_strategy
from perdure.history.streamed_answers import StreamedAnswer
from perdure.history.turn_log import AppendHook
from perdure.history.turn_reader import position
from perdure.recall.sharing import Sharing
from perdure.recall.values import Recalled
from perdure.services import Services
from perdure.sessions.session_reader import SessionReader
from perdure.sessions.session_writer import SessionWriter
from perdure.sessions.validation import (
    budget_in,
    flag_in,
    lines_in,
    prompt_in,
    question_in,
    seconds_in,
    text_in,
)
from perdure.storage.options import DEFAULT, Options


class Session(SessionReader):
    """One conversation. Made by `Bank.session`.

    Any number of session objects, tasks and processes may write to the same conversation: turns are
    numbered one after the other, and each writer's messages go to the turn that it opened.
    """

    def __init__(self, services: Services, record: SessionRecord) -> None:
        self._composer = Composer(services)
        super().__init__(services, SessionWriter(services, record, self._composer))
        self._tools = SessionTools(services, self._composer, self._writer.current_state)

    # Writing ----------------------------------------------------------------------------------

    async def append(
        self,
        messages: Any,
        *,
        context: Context | None = None,
        key: str | None = None,
        tags: Mapping[str, str] | None = None,
        expected: str | int | Position | None = None,
        within: AppendHook | None = None,
        options: Options = DEFAULT,
        count: bool = False,
        fresh: bool = False,
        times: tuple[int, int] | None = None,
        masked: Mapping[str, int] | None = None,
    ) -> Turn | list[Turn]:
        """Write messages: a whole turn, several, or the next messages of an open one.

        Takes canonical messages, dicts of any of the wire formats, SDK objects, or a text (a
        prompt). Masks secrets and moves large content out, then writes in one transaction, whose
        cost does not depend on the length of the history. Returns the turn with the rounds written
        now; a list, if there are several turns.

        `context` is what was sent to get these messages: its prompt is written first, unless it is
        written already; what it injected or repeated is not.

        `key` makes the append idempotent: it is written once, and later calls return what the first
        one wrote. `expected` names the newest turn (0 for none); if it is another, `Conflict` is
        raised and nothing is written. `within` runs inside the transaction. `tags` go to each turn
        that begins. `count` counts tokens at once. For bringing back exports: `fresh` opens a turn
        with the first message whatever is open, `times` (microseconds) are its beginning and end.

        Raises `InvalidInput` for what is no message, `Conflict`, and what the store raises.
        """
        return await self._writer.append(
            messages,
            context=context,
            key=key,
            tags=tags,
            expected=expected,
            within=within,
            options=options,
            count=count,
            fresh=fresh,
            times=times,
            masked=masked,
        )

    async def close_turn(self) -> None:
        """Close the newest turn: the next message opens another."""
        await self._writer.close_turn()

    async def undo(
        self,
        turns: int = 1,
        *,
        numbers: Sequence[int] | None = None,
        within: AppendHook | None = None,
    ) -> list[int]:
        """Undo the newest turns, or those of these numbers; returns the turns undone now.

        They are kept for readers that ask for them, but are no longer part of the conversation; an
        answer that was arriving for one of them is dropped. Their numbers are not used again.
        """
        return await self._writer.undo(turns, numbers, within)

    async def resume(self, turn: str | int | Position) -> None:
        """What is appended next goes on with this turn. Without it, a prompt that a new process
        appends opens a turn of its own.
        """
        await self._writer.resume(turn)

    async def leave_turn(self) -> None:
        """What is appended next has nothing to do with what this object wrote before: a prompt
        opens a turn of its own, and leaves the one before it as it is.
        """
        await self._writer.leave_turn()

    async def describe(self, facts: Mapping[str, Any]) -> None:
        """Merge facts into the session's state. Secrets in them are masked."""
        await self._writer.describe(facts)

    async def archive(self) -> None:
        """Take the session out of use. It is kept; appending to it brings it back."""
        await self._writer.archive()

    async def fork(self, name: str, at: str | int | Position | None = None) -> Session:
        """Another session that shares this one's turns up to `at` (default: the newest). Nothing is
        copied. Raises `Conflict` if the name is taken, `InvalidInput` if there is no such turn.
        """
        return Session(self._services, await self._writer.fork(name, at))

    # Answers that arrive piece by piece -------------------------------------------------------

    def answer(
        self,
        *,
        model: str = "",
        resume: Partial | None = None,
        guard: DraftGuard | None = None,
    ) -> StreamedAnswer:
        """Stream an answer to the open turn; see `streamed_answers`. With `resume`, it continues a
        partial one; entering or finishing it raises `InvalidInput` if others completed, closed or
        dropped that. `guard` runs in each of its transactions: what it raises writes nothing.
        """
        return self._writer.answer(model, resume, guard)

    async def partials(self) -> list[Partial]:
        """Answers that are arriving, or were when their process died; `writer` says which."""
        return await self._writer.partials()

    async def close_partial(self, partial: Partial) -> Turn:
        """Write a partial answer as part of its turn, marked as partial. Raises `InvalidInput` if
        it is no longer there, `Conflict` if another process takes it right now.
        """
        return await self._writer.close_partial(partial)

    async def drop_partial(self, partial: Partial) -> None:
        """Delete a partial answer."""
        await self._writer.drop_partial(partial)

    # Reading ----------------------------------------------------------------------------------

    @overload
    async def turn(
        self,
        id: str | int | Position,
        *,
        level: None = None,
        resolve: bool = False,
        prune: bool = False,
    ) -> Turn: ...
    @overload
    async def turn(self, id: str | int | Position, *, level: Level | str) -> Rendering: ...
    async def turn(
        self,
        id: str | int | Position,
        *,
        level: Level | str | None = None,
        resolve: bool = False,
        prune: bool = False,
    ) -> Turn | Rendering:
        """One turn, also an undone or forgotten one; of ``T-12.3``, that round alone.

        With a `level`, its text at R, S, C or T, made now if needed. Raises `InvalidInput` if there
        is no such turn, round or level.
        """
        if level is not None:
            return await self._tools.rendering(position(id, self.record), parse_level(level))
        return await super().turn(id, resolve=resolve, prune=prune)

    # Contexts ---------------------------------------------------------------------------------

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
        reminders: Iterable[str] | None = (),
        strategy: str | None = None,
    ) -> Context:
        """What to send to a model: the history within the budget, and the prompt.

        The prompt is a text, a message, several, or the parts of one (a text and an image, say).
        Without a prompt, the open turn goes on, after tool results were appended. `tools` are
        yours; add `perdure.HISTORY_TOOLS` to let the model search its past (see `run_tool`).
        `model` tells which reasoning is still valid. `budget` counts tokens of messages, not system
        text and tools: those of the model's provider, once its usage has told how it counts, else
        o200k tokens. `recall` adds related turns and memories, with any strategy: about half of a
        small budget, at most 3,000 tokens of a large one (`recall.full_tokens`), and nothing that
        is in the window anyway. It runs once for a prompt, and its result stays once the prompt was
        appended. Before that, the prompt may be composed again with or without it: send the last
        one. `reminders` are lines of yours that stand near the prompt, beside ours of the history:
        what the model can do, and must not forget. `strategy` shows this prompt in another way
        than the session's own.

        Send what `Context.to_chat`, `to_responses` or `to_messages` returns, and append the answer
        with ``context=``. With `keep` off nothing is written: a preview.

        Raises `BudgetTooSmall` if the prompt does not fit or the budget is below 500, and
        `InvalidInput` if the prompt is empty, or if there is neither a prompt nor an open turn.
        """
        said, budget = prompt_in(prompt), budget_in(budget)
        masked, _ = await self._writer.intake.masked(said)
        record, head = await self._writer.current_state()
        if strategy is not None:
            record = msgspec.structs.replace(record, strategy=parse_strategy(strategy))
        return await self._composer.compose(
            record,
            head,
            self._writer.cursor.own,
            masked,
            system=text_in(system, "system"),
            tools=() if tools is None else tools,
            model=text_in(model, "model"),
            budget=budget,
            recall=flag_in(recall, "recall"),
            keep=flag_in(keep, "keep"),
            reminders=lines_in(reminders, "reminders"),
        )

    async def past_context(self, at: str | int | Position) -> Context:
        """What was sent for a turn, or for a round of it, byte for byte. Turns that were forgotten
        since are tombstones. Raises `InvalidInput` if nothing was sent through `context` for it.
        """
        place = position(at, self.record)
        record, head = await self._writer.current_state()
        return await self._composer.past(record, head, RoundId(place.turn, place.round or 1))

    async def set_fidelity(
        self, id: str | int | Position, level: Level | str, *, now: bool = False
    ) -> str:
        """Show a turn at this level from the next epoch on, or with `now` from the next request on.
        Returns what that costs. Raises `InvalidInput` if it cannot be done.
        """
        place = position(id, self.record)
        return await self._tools.set_fidelity(place.turn, parse_level(level), now=now)

    async def board(self) -> Sequence[BoardEntry]:
        """The entries on the board, oldest first."""
        return await self._tools.board()

    async def run_tool(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Run one of `perdure.HISTORY_TOOLS` for a model; returns the answer for it. Never raises
        for what the model wrote: the answer says what to do instead.
        """
        return await history_tools.run(self._tools, name, arguments)

    async def epochs(self) -> list[Epoch]:
        """When, why and how the gradient was recalculated, oldest first."""
        return await self._services.epochs.all(self.name)

    async def change_strategy(
        self,
        strategy: str | None = None,
        *,
        budget: int | None = None,
        profile: str | Mapping[str, float] | BandMarks | None = None,
    ) -> None:
        """Show the history by another strategy, in another budget or by another profile, from now
        on. Raises `InvalidInput` if there is no such strategy or profile, `BudgetTooSmall` below
        500 tokens.
        """
        if strategy is not None:
            parse_strategy(strategy)
        budget = budget_in(budget)
        kept = None if profile is None else parse_profile(profile)

        def change(found: SessionRecord) -> SessionRecord:
            return msgspec.structs.replace(
                found,
                strategy=found.strategy if strategy is None else strategy,
                budget=found.budget if budget is None else budget,
                profile=found.profile if kept is None else kept,
            )

        await self._writer.change_record(change)

    # Recall -----------------------------------------------------------------------------------

    async def recall(
        self,
        query: str,
        *,
        limit: int = 10,
        kinds: str | Iterable[str] | None = None,
        agents: str | Iterable[str] | None = None,
        sessions: str | Iterable[str] | None = None,
        line: bool = False,
        roles: str | Iterable[str] | None = None,
        tools: str | Iterable[str] | None = None,
        branch: str = "",
        task: str = "",
        outcome: str = "",
        tags: Mapping[str, str] | None = None,
        since: When | None = None,
        until: When | None = None,
        deadline: float | None = None,
        wide: bool = False,
        judged: bool = False,
    ) -> Recalled:
        """Search past turns, memories and reference layers; best first, at most 1,000 hits.

        Of a query of more than 100,000 characters, the first and the last 50,000 count. Searched
        are this session's line of turns, the agent's other sessions, and what is shared with the
        agent; sessions forked from this line only if `wide`; never another agent's own. Filters:

        * `kinds`: ``turn``, ``memory``, ``reference``;
        * `agents`, `sessions`: by name; `line`: only turns of this session's line;
        * `roles`: who said the words: ``user``, ``assistant``, ``tool`` (calls and results). The
          hit is the whole round; one found by meaning needs something of that role in it;
        * `tools`: rounds in which one of these was called;
        * `branch`, `task`, `outcome`, `tags`: turns with exactly these tags;
        * `since`, `until`, both included: datetimes, dates, or texts such as ``"2026-02-12"``,
          ``"yesterday"`` and ``"3d"``, by default local time (see `perdure.core.clock.moment`).

        Returns after `deadline` seconds (default: as configured) what was found until then;
        `Recalled.stage` says how far it came. With `judged`, models filter and judge the hits as
        for a prompt, and hits that explain another (the answer to a question, say) are added where
        the limit leaves room; otherwise no model is asked. `Recalled.notes` says, where known, why
        filters left nothing.

        Raises `InvalidInput` for unusable arguments and for unknown sessions and agents,
        `Unsupported` if the bank has no recall.
        """
        now = self._services.store.now()
        question = question_in(
            query,
            *await self._writer.current_state(),
            now,
            limit=limit,
            kinds=kinds,
            agents=agents,
            sessions=sessions,
            line=line,
            roles=roles,
            tools=tools,
            branch=branch,
            task=task,
            outcome=outcome,
            tags=tags,
            since=since,
            until=until,
            wide=wide,
        )
        recall = await self._services.loaded_recall()
        return await recall.recall(
            question, judged=flag_in(judged, "judged"), deadline=seconds_in(deadline, "deadline")
        )

    async def share(self, *agents: str) -> None:
        """Let these agents recall the turns of this session; ``*`` is everybody, now and later.
        Only its own turns: those of a fork's parent are the parent's to share. Raises
        `InvalidInput` if none is named, or if one of them cannot be an agent, or is this session's
        own.
        """
        await Sharing(self._services.store).share(self.record, agents)

    async def unshare(self, *agents: str) -> None:
        """Stop these agents recalling its turns; ``*`` takes back what everybody may.

        It holds at once, in every process. What they were shown before stays with them. Raises
        `InvalidInput`, having changed nothing, if none is named (see `unshare_all`), or if an agent
        would see it nevertheless because it is shared with everybody.
        """
        await Sharing(self._services.store).unshare(self.name, agents)

    async def unshare_all(self) -> None:
        """Only its own agent may recall its turns any more. Holds at once, as `unshare`."""
        await Sharing(self._services.store).unshare_all(self.name)

    async def shared_with(self) -> list[str]:
        """The agents that it is shared with; ``*`` is everybody."""
        return await Sharing(self._services.store).shared_with(self.name)
