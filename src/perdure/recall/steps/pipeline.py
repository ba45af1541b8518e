"""The steps of recall, under one deadline.

    keyword → + vector → + what the first hits mention → texts → filters → judge

Whatever has arrived at the deadline is the answer, and it says how far that is. A share of the time
(`RecallConfig`) is a limit for a step that others can do without: if the vectors are late, because
their model is still being loaded, what was found by words stands. The first search by words is
waited for until the deadline: without it there is nothing.

The caller is never kept waiting: the steps are a task of their own, which is left alone when the
time is up. A model that hangs, a thread that is busy, a store that is slow cost the deadline and no
more.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from perdure.config.settings import RecallConfig
from perdure.core.errors import PerdureError
from perdure.core.messages import Message
from perdure.history.log_records import SessionRecord
from perdure.recall.background_tasks import Underway
from perdure.recall.searching.searcher import load_once
from perdure.recall.searching.turn_scan import names_in
from perdure.recall.steps import hops, swarm
from perdure.recall.steps.fetchers import Finds
from perdure.recall.steps.hit_texts import Texts
from perdure.recall.steps.hops import neighbours
from perdure.recall.steps.key_lookup import Names
from perdure.recall.steps.run import Run
from perdure.recall.steps.swarm import Judge, Swarm
from perdure.recall.values import NO_MODEL, Candidate, Filters, Question, Recalled

if TYPE_CHECKING:
    from perdure.gateway.calls import Purpose
    from perdure.gateway.gateway import Gateway

#: Seconds in which no model answers.
_LEAST = 0.02
#: Seconds that what is near in meaning may take longer than the words, to be ranked with them.
_PATIENCE = 0.02
#: Share of the time that is left for indexing what was just appended.
_CATCHING_UP = 0.5
_NO_VECTORS = "nothing of what is looked at has a vector yet"
_LEFT_OUT = "recall.vectors is 0"


class Bounds(Protocol):
    """What may be seen: see `scoping.scope.Scope`."""

    def allows(self, place: int, /) -> bool: ...


class Results(Protocol):
    """What a search found: see `searching.searcher.Found`."""

    @property
    def candidates(self) -> Sequence[Candidate]: ...
    @property
    def terms(self) -> Sequence[str]: ...
    @property
    def unknown(self) -> Collection[str]: ...


class Search(Protocol):
    """Finds and ranks: see `searching.searcher.Searcher`."""

    async def keyword(
        self, question: Question, scope: Any, also: Sequence[str] = (), *, patience: float = 0.0
    ) -> Results: ...
    async def vector(self, found: Any, /) -> Results: ...


#: What a question may see.
ScopeOf = Callable[[Question], Awaitable[Bounds]]


class Pipeline:
    """Answers questions. For one event loop; `close` it at the end."""

    def __init__(
        self,
        search: Search,
        scope_of: ScopeOf,
        texts: Texts,
        config: RecallConfig,
        *,
        gateway: Callable[[], Gateway] | None = None,
        scan: Finds | None = None,
        covers: Callable[[str], bool] | None = None,
        catch_up: Callable[[SessionRecord], Coroutine[Any, Any, None]] | None = None,
        is_behind: Callable[[], bool] = lambda: False,
        triggered: Finds | None = None,
        named: Names | None = None,
        expect: Callable[[str], None] | None = None,
        hops: bool = True,
    ) -> None:
        """`gateway` is None if no model is configured for `filter` or `judge`.

        `scan` is asked if the index does not cover a session, which `covers` tells, if the index
        fails, and if it has nothing while it `is_behind`: not filled yet. `catch_up` indexes what
        was appended for this session to see, and is not in the index yet. `triggered` finds
        reference layers by their triggers, `named` what a question names by its key. `expect` is
        told what will be embedded soon.
        """
        self._search = search
        self._scope_of = scope_of
        self._texts = texts
        self._config = config
        self._gateway = gateway
        self._scan = scan
        self._covers = covers
        self._catch_up = catch_up
        self._is_behind = is_behind
        self._triggered = triggered
        self._names = named
        self._expect = expect
        self._hops = hops
        self._underway = Underway()
        self._warming: asyncio.Task[None] | None = None

    async def recall(
        self,
        question: Question,
        *,
        prompt: Sequence[Message] = (),
        shown: frozenset[str] = frozenset(),
        judged: bool = True,
        deadline: float | None = None,
        room: int | None = None,
    ) -> Recalled:
        """What the past has to say to a question, in `deadline` seconds, or the configured ones.
        Turns that are shown in full take at most `room` tokens, or as many as are configured.

        `shown` are keys of what stands in the window in full: it is not repeated. If `judged`, the
        hits are what is to stand beside `prompt`, in full or as reminders, within the configured
        room, with what their texts mention, and neighbours that come along; otherwise they are what
        was found, best first, and no model is asked. At most `Question.limit` of them; neighbours
        take the places that are left, and count only if there is no prompt.

        Raises `InvalidInput` for a question that cannot be meant. Whatever else goes wrong costs a
        step, which tells so in `Recalled.steps`.
        """
        said = "\n".join(filter(None, (message.text for message in prompt))) or question.text
        if not question.text.strip() or question.limit < 1:
            return Recalled()
        seconds = self._config.deadline if deadline is None else deadline
        run = Run(
            question,
            self._config if room is None else replace(self._config, full_tokens=room),
            seconds,
            prompt=said,
            shown=shown,
            judged=judged,
            beside=bool(prompt),
            models=judged and (self._has("filter") or self._has("judge")),
        )
        if judged:
            self.warm()
        task = self._underway.begin(self._walk(run), awaited=True)
        try:
            await asyncio.wait({task}, timeout=seconds)
        finally:
            is_late = not task.done()
            task.cancel()
        if not is_late:
            task.result()  # raises what it raised
        return run.answer()

    def warm(self) -> None:
        """Load, in the background, what the first call of a model needs; if models are to be asked.
        That takes half a second in a new process: as much as there is for all filters.
        """
        if self._gateway is not None and self._warming is None:
            self._warming = self._underway.begin(self._warm())

    async def _warm(self) -> None:
        assert self._gateway is not None  # noqa: S101 (for the type checker)
        await asyncio.to_thread(importlib.import_module, "perdure.gateway.gateway")
        with suppress(PerdureError):  # who asks a model is told
            await self._gateway().warm()

    async def close(self) -> None:
        """End what is under way, also what nobody waits for any more."""
        await self._underway.close()

    # The steps ---------------------------------------------------------------------------------

    async def _walk(self, run: Run) -> None:
        scope = await self._find(run)
        await self._read(run, scope)
        if run.judged and run.candidates:
            await self._decide(run)

    async def _find(self, run: Run) -> Bounds | None:
        """By words and by meaning; returns the scope, if the index was asked."""
        question = run.question
        scope: Bounds | None = None
        found: Results | None = None
        with run.step("keyword", asks=True):
            if self._covers is None or self._covers(question.record.id):
                if self._expect is not None and self._config.vectors:
                    self._expect(question.text)
                await self._index_new(run)
                scope = await self._scope_of(question)
                if self._names is not None:
                    run.named = await self._names(question, scope)
                patience = _PATIENCE if self._config.vectors else 0.0
                found = await self._search.keyword(run.sought, scope, patience=patience)
                run.rank(found.candidates)
                if found.terms or found.candidates:
                    run.reach("keyword")
        if scope is None or found is None or (not found.candidates and self._is_behind()):
            await self._look_through(run)
            return None
        found = await self._by_meaning(run, found)
        if self._hops and run.judged:
            await self._hop(run, scope, found)
        await self._call_for_layers(run)
        if not run.judged:
            await self._look_for_names(run, found.unknown)
        return scope

    async def _index_new(self, run: Run) -> None:
        """Have the index know the newest turns. Damage is told by the search that follows."""
        if self._catch_up is not None:
            with suppress(PerdureError, TimeoutError):
                await self._underway.within(
                    self._catch_up(run.question.record), run.left() * _CATCHING_UP
                )
        await load_once()

    async def _by_meaning(self, run: Run, found: Results) -> Results:
        """With the vectors, if they come in time; what has none is as it was."""
        if not self._config.vectors:
            run.skip("vector", _LEFT_OUT)
            return found
        with run.step("vector") as step:
            share = min(self._config.vectors, run.left())
            ranked = await self._underway.within(self._search.vector(found), share)
            if ranked is found:
                step.failed = _NO_VECTORS
                return found
            run.rank(ranked.candidates)
            run.reach("vector")
            return ranked
        return found

    async def _look_through(self, run: Run) -> None:
        """Without an index: the turns themselves."""
        if self._scan is not None:
            with run.step("keyword", answers=True):
                run.rank(await self._scan(run.question))

    async def _look_for_names(self, run: Run, unknown: Collection[str]) -> None:
        """A name that the index does not have may stand in the middle of what a tool wrote."""
        names = names_in(run.question.text, unknown)
        if self._scan is None or not names or run.question.filters != Filters():
            return
        with run.step("names"):
            # Without it there may be no answer; with one, nobody waits long for a better one.
            seconds = min(self._config.keyword, run.left()) if _met(run) else run.left() / 2
            looking = self._looked_through(replace(run.question, text=names))
            found = await self._underway.within(looking, seconds)
            run.rank(_joined(run.candidates, found))

    async def _looked_through(self, question: Question) -> Sequence[Candidate]:
        assert self._scan is not None  # noqa: S101 (for the type checker)
        return await self._scan(question)

    async def _call_for_layers(self, run: Run) -> None:
        """Layers that the prompt calls for by name join the others."""
        if self._triggered is None or not run.judged or run.question.filters != Filters():
            return
        with run.step("triggers"):
            layers = {each.place: each for each in await self._triggered(run.question)}
            run.triggered = frozenset(layers)
            known = {each.place for each in run.candidates}
            fresh = [each for place, each in layers.items() if place not in known]
            # In front, so that the cut to the most candidates does not take what was called for.
            run.rank((*fresh, *run.candidates))

    async def _hop(self, run: Run, scope: Bounds, found: Results) -> None:
        """What the first hits mention."""
        best = hops.seeds(run.candidates)
        if not best or run.left() < run.seconds / 2:
            return
        with run.step("hops"):
            seconds = min(self._config.keyword, run.left())
            await self._underway.within(self._hopped(run, scope, found, best), seconds)

    async def _hopped(
        self, run: Run, scope: Bounds, found: Results, best: Sequence[Candidate]
    ) -> None:
        texts = dict(await self._texts.full(run.question, best))
        run.read(best, texts)
        names = hops.further(found.terms, [shown.text for shown in texts.values()])
        if names:
            second = await self._search.keyword(run.sought, scope, also=names)
            # All of the first ranking, not what the limit left of it: its scores hold.
            run.rank(hops.joined(found.candidates, second.candidates, names))

    async def _read(self, run: Run, scope: Bounds | None) -> None:
        """The words of all candidates, and of neighbours that come along."""
        if not run.candidates:
            return
        with run.step("texts"):
            if run.judged and scope is not None and run.question.filters == Filters():
                known = [each.place for each in run.candidates]
                run.neighbours = neighbours(run.candidates, scope.allows, known)
            wanted = [each for each in run.candidates if each.place not in run.full]
            wanted += [beside.candidate for beside in run.neighbours]
            run.read(wanted, dict(await self._texts.full(run.question, wanted)))

    async def _decide(self, run: Run) -> None:
        """What is shown beside the prompt, and how: by models, as far as there are any."""
        filters, judges = self._has("filter"), self._has("judge")
        kept = self._config.judge if judges else 0.0
        if self._warming is not None and not self._warming.done():
            await asyncio.wait({self._warming}, timeout=max(run.left(kept), 0.0))
        reminders = self._underway.begin(self._remind(run, judged=judges))
        try:
            if filters:
                await self._filter(run, min(self._config.filters, run.left(kept)))
            else:
                run.skip("filters", NO_MODEL)
            await asyncio.wait({reminders}, timeout=max(run.left(kept), 0.0))
            if judges:
                await self._judge(run)
            else:
                run.skip("judge", NO_MODEL)
        finally:
            reminders.cancel()

    async def _remind(self, run: Run, *, judged: bool) -> None:
        """What reminders say, and what happened lately: while the filters work."""
        run.tiny |= await self._texts.tiny(run.question, run.candidates)
        if judged:
            run.lately = await self._texts.lately(run.question, self._config.judge_tokens)

    async def _filter(self, run: Run, seconds: float) -> None:
        assert self._gateway is not None  # noqa: S101 (for the type checker)
        with run.step("filters") as step:
            _check(seconds)
            swarm = Swarm(
                self._gateway,
                self._underway,
                most=self._config.swarm,
                concurrency=self._config.concurrency,
            )
            sifted = await swarm.filter(run.case(), seconds)
            run.doubted = sifted.doubted
            run.rank(sifted.kept)
            step.failed = sifted.failed
            if sifted.answered:
                run.reach("filters")

    async def _judge(self, run: Run) -> None:
        assert self._gateway is not None  # noqa: S101 (for the type checker)
        with run.step("judge", answers=True):
            seconds = run.left()
            _check(seconds)
            choosing = Judge(self._gateway).choose(run.case(), seconds)
            run.choice = await self._underway.within(choosing, seconds)

    def _has(self, purpose: Purpose) -> bool:
        """Whether a model can be asked; not if what is configured makes no sense."""
        try:
            return self._gateway is not None and self._gateway().has(purpose)
        except PerdureError:
            return False


def _joined(ranked: Sequence[Candidate], found: Sequence[Candidate]) -> list[Candidate]:
    """A ranking with what was found besides: behind what is more likely, each once."""
    kept = dict[str, Candidate]()
    for each in sorted((*found, *ranked), key=lambda each: each.score, reverse=True):
        kept.setdefault(each.key, each)
    return list(kept.values())


def _met(run: Run) -> bool:
    """Whether something is likely to be what was asked for."""
    return bool(swarm.met(run.candidates))


def _check(seconds: float) -> None:
    """Raises `TimeoutError` if no model answers in so little time."""
    if seconds < _LEAST:
        raise TimeoutError
