"""What a run asks: questions about what is new, and a broad view to consolidate with.

A run reads as much as is left of the day's budget, the oldest first, and leaves the rest to the
next one: sessions that do not fit, or the later part of one. The size of windows and of the broad
view is such that a fresh budget holds a few windows, and the view in half of it.

The same turns give the same questions, also to whoever takes up a run that was killed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from perdure.gateway.attempts import estimate_request
from perdure.gateway.budgets import BudgetRoom, CallEstimate
from perdure.gateway.calls import CallOptions, Request
from perdure.recall.memory_records import Memory
from perdure.recall.recall import Recall
from perdure.recall.references.layers import LayerRecord
from perdure.reflection import prompts
from perdure.reflection.model_calls import model_limits
from perdure.reflection.operation_checks import CheckedOperation
from perdure.reflection.reflection_records import ReflectionRun, RunCall, SessionSpan
from perdure.reflection.run_scope import RunScope, span_view
from perdure.reflection.shown_memories import MemoryChoice
from perdure.reflection.view import ViewedTurn, ViewWindow, broad_view, windows
from perdure.reflection.word_sets import word_set
from perdure.services import Services
from perdure.storage.concurrency import in_thread

REFLECT = CallOptions(purpose="reflect", task="reflection")
#: Tokens of a request besides the view: instructions, memories, the answer.
_BESIDE = 24_000
#: The smallest window, and how many of them a day's budget has to hold.
_SMALLEST, _WINDOWS = 2_000, 4
#: The share of what a model can read that a request takes: models count tokens in their own way.
_FITTING = 0.75


class RunQuestion(msgspec.Struct, frozen=True):
    """What one call asks."""

    call: RunCall
    request: Request


class RunQuestions(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run is about to ask; nothing is sent yet."""

    memories: list[Memory]
    layers: list[LayerRecord]
    #: What is read now, and how many turns of how many sessions wait for another run.
    spans: tuple[SessionSpan, ...] = ()
    waiting_turns: int = 0
    waiting_sessions: int = 0
    questions: list[RunQuestion] = []
    broad: list[ViewWindow] = []
    #: Tokens of the broad view, and of one request.
    view: int = 0
    window: int = 0
    #: The texts that nobody has read before.
    texts: list[str] = []
    estimate: CallEstimate = CallEstimate()
    left: BudgetRoom = BudgetRoom()

    @property
    def count(self) -> int:
        return len(self.questions) + len(self.broad)

    @property
    def is_affordable(self) -> bool:
        return self.left.holds(self.estimate)


class QuestionBuilder:
    """Builds the questions of one run; with models, if it `asks` them."""

    def __init__(
        self, services: Services, recall: Recall, scope: RunScope, *, asks: bool, live: bool
    ) -> None:
        self._services = services
        self._recall = recall
        self._scope = scope
        self._asks = asks
        self._live = live
        self._config = services.config.reflection
        self._options = replace(REFLECT, agent=scope.agent)
        self._choice = MemoryChoice(())
        self._topics = dict[str, frozenset[str]]()
        self._layers = list[LayerRecord]()
        self._window, self._answer = self._config.window, prompts.ANSWER
        if asks and services.config.gateway.models.reflect:
            reads, writes = model_limits(services.gateway, self._options)
            if reads is not None:
                self._window = min(self._window, max(int(reads * _FITTING), _SMALLEST))
            if writes is not None:
                self._answer = min(self._answer, writes)

    async def build(self, run: ReflectionRun | None = None) -> RunQuestions:
        """The questions of a new run, or those of one that was begun. Sends and writes nothing."""
        memories = await self._recall.memories.list(self._scope.agent)
        self._layers = await self._recall.references.list()
        self._choice = MemoryChoice(memories)
        topics = (memory.text for memory in memories if memory.kind == "topic")
        self._topics = {topic: words for topic in topics if (words := word_set(topic))}
        made = RunQuestions(memories=memories, layers=self._layers, view=self._config.view)
        if not self._asks:
            texts = [text for span in self._scope.spans for text in await self._new_texts(span)]
            return replace(made, spans=self._scope.spans, texts=texts)
        made = replace(made, left=await self._services.gateway.ledger.room(self._options))
        if run is not None:
            self._window = run.window or self._window
            made = replace(made, view=run.view or made.view)
            made = replace(made, broad=await self._broad_view(made.view))
            for place, span in enumerate(run.spans, 1):
                if span in self._scope.spans:  # else it was forgotten: the others keep their names
                    made = await self._with_span(made, place, span, _ends(run, span))
            return replace(made, spans=run.spans, window=self._window)
        return await self._within(made)

    async def _within(self, made: RunQuestions) -> RunQuestions:
        """As many questions as a budget holds; the first one, if it holds none."""
        affordable = await self._affordable()
        if affordable is not None:
            self._window = min(self._window, max(affordable // _WINDOWS, _SMALLEST))
            made = replace(made, view=min(made.view, max(affordable // 2, _SMALLEST)))
        made = replace(made, window=self._window)
        while True:
            broad = await self._broad_view(made.view)
            taken = await self._sum(await self.consolidation(broad, ()))
            taken = _with(taken, prompts.new_tokens(self._window) * len(broad))
            if affordable is None or taken.tokens <= affordable // 2 or len(broad) <= 1:
                break
            made = replace(made, view=made.view * 2 // 3)
        made = replace(made, broad=broad, estimate=taken)
        for place, span in enumerate(self._scope.spans, 1):
            if made.estimate.tokens - taken.tokens >= self._config.view:
                break  # as much as a run looks at
            whole = await self._with_span(made, place, span)
            fitting = whole if whole.is_affordable else await self._cut(made, place, span)
            if fitting is None:
                return self._waiting(made if made.spans else whole)
            made = fitting
            if made.spans[-1] != span:
                break
        return self._waiting(made)

    async def _affordable(self) -> int | None:
        """About how many tokens a fresh budget holds; None if it has no limit."""
        whole = self._services.gateway.ledger.limits(self._options)
        if whole.cost is None:
            return whole.tokens
        sample = await self._sum(await self._questions(1, SessionSpan("", 1, 1), [ViewWindow(())]))
        if not sample.cost:
            return whole.tokens
        by_money = whole.cost * sample.tokens // sample.cost
        return by_money if whole.tokens is None else min(whole.tokens, by_money)

    async def _cut(self, made: RunQuestions, place: int, span: SessionSpan) -> RunQuestions | None:
        """The first part of a span, as long as it fits; None if not even the shortest does."""
        turns = await span_view(self._services, self._scope, span, self._config.view)
        ends = [window.turns[-1].number for window in (await self._windows(turns))[:-1]]
        found, least, most = None, 0, len(ends)
        while least < most:  # each look reads all that it is about
            middle = (least + most) // 2
            part = await self._with_span(made, place, replace(span, last=ends[middle]))
            if part.is_affordable:
                found, least = part, middle + 1
            else:
                most = middle
        return found

    def _waiting(self, made: RunQuestions) -> RunQuestions:
        read = {span.session: span.last for span in made.spans}
        rest = [
            span.last - read.get(span.session, span.first - 1)
            for span in self._scope.spans
            if read.get(span.session, 0) < span.last
        ]
        return replace(made, waiting_turns=sum(rest), waiting_sessions=len(rest))

    async def _with_span(
        self, made: RunQuestions, place: int, span: SessionSpan, ends: Sequence[int] = ()
    ) -> RunQuestions:
        turns = await span_view(self._services, self._scope, span, self._config.view)
        questions = await self._questions(place, span, await self._windows(turns, ends))
        read = self._scope.read.get(span.session, 0)
        return replace(
            made,
            spans=(*made.spans, span),
            questions=[*made.questions, *questions],
            texts=[*made.texts, *(turn.text for turn in turns if turn.number > read)],
            estimate=made.estimate + await self._sum(questions),
        )

    async def _new_texts(self, span: SessionSpan) -> list[str]:
        turns = await span_view(self._services, self._scope, span, self._config.view)
        read = self._scope.read.get(span.session, 0)
        return [turn.text for turn in turns if turn.number > read]

    async def _questions(
        self, place: int, span: SessionSpan, parts: Sequence[ViewWindow]
    ) -> list[RunQuestion]:
        def build() -> list[RunQuestion]:
            found, first = list[RunQuestion](), span.first
            for part, window in enumerate(parts, 1):
                last = window.turns[-1].number if window.turns else first - 1
                own = SessionSpan(span.session, first, span.last if part == len(parts) else last)
                first = own.last + 1
                read = [turn.text for turn in window.turns]
                shown = self._choice.choose(self._window, read)
                call = RunCall(
                    id=f"extract-{place}-{part}",
                    phase="extract",
                    span=own,
                    part=part,
                    names=prompts.names_in(window),
                    versions=shown.versions,
                )
                asked = prompts.extraction(window, shown, self._layers, answer=self._longest())
                found.append(RunQuestion(call, asked))
            return found

        return await in_thread(build)

    def _longest(self) -> int:
        """Tokens of an answer, at most."""
        return min(self._answer, self._window // 4)

    async def consolidation(
        self,
        broad: Sequence[ViewWindow],
        candidates: Sequence[CheckedOperation],
        intended: Iterable[RunCall] = (),
    ) -> list[RunQuestion]:
        """Questions about everything; those of the intended calls, if some were intended before."""
        known = {call.id: call for call in intended}

        def build() -> list[RunQuestion]:
            found, new = list[RunQuestion](), [each.asked.text for each in candidates]
            for part, window in enumerate(broad, 1):
                id = f"consolidate-{part}"
                if known and id not in known:
                    continue
                shown = self._choice.choose(self._window, [t.text for t in window.turns], new)
                call = RunCall(
                    id=id,
                    phase="consolidate",
                    part=part,
                    names=prompts.names_in(window),
                    versions=shown.versions,
                )
                asked = prompts.consolidation(
                    window,
                    shown,
                    self._layers,
                    candidates,
                    room=self._window,
                    answer=self._longest(),
                )
                found.append(RunQuestion(known.get(id, call), asked))
            return found

        return await in_thread(build)

    async def _sum(self, questions: Sequence[RunQuestion]) -> CallEstimate:
        requests = [question.request for question in questions]
        if not self._services.config.gateway.models.reflect:  # whoever asks counts by itself
            tokens = sum(estimate_request(each) + (each.max_tokens or 0) for each in requests)
            return CallEstimate(tokens, None)
        batch = self._services.gateway.batch
        found = await batch.estimate(requests, self._options, live=self._live)
        return sum(found, CallEstimate())

    async def _broad_view(self, tokens: int) -> list[ViewWindow]:
        sessions = list(self._scope.sessions.values())
        read = {span.session: range(span.first, span.last + 1) for span in self._scope.spans}
        return await self._windows(await broad_view(self._services, sessions, tokens, read))

    async def _windows(
        self, turns: Sequence[ViewedTurn], ends: Sequence[int] = ()
    ) -> list[ViewWindow]:
        size = max(self._window - _BESIDE, self._window // 3)

        @functools.cache
        def topics_of(text: str) -> frozenset[str]:
            here = word_set(text)
            return frozenset(topic for topic, words in self._topics.items() if words <= here)

        return await in_thread(windows, turns, size, topics_of, ends)


def _ends(run: ReflectionRun, span: SessionSpan) -> list[int]:
    """Where the questions about a span end, as they were asked: by now it may be cut otherwise."""
    asked = [call.span for call in run.calls if call.span is not None]
    return [each.last for each in asked if each.session == span.session]


def _with(estimate: CallEstimate, tokens: int) -> CallEstimate:
    """An estimate with so many tokens more, at the same price."""
    if not estimate.cost or not estimate.tokens:
        return CallEstimate(estimate.tokens + tokens, estimate.cost)
    price = -(-estimate.cost // estimate.tokens)
    return CallEstimate(estimate.tokens + tokens, estimate.cost + price * tokens)
