"""One run, from what is new to what is applied.

    extract       per session: what is worth remembering
    consolidate   over all: merged, bettered, retired; topics, layers, notes
    apply         one transaction

Each question is written down before it is sent, and each answer as it arrives. Whoever takes up a
run that was killed asks only what has no answer yet, and builds the same questions: they are made
from turns that do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from perdure.core.display import plural
from perdure.gateway.calls import CallOptions, Request
from perdure.recall.memory_records import Memory
from perdure.recall.recall import Recall
from perdure.recall.references.layers import LayerRecord
from perdure.reflection import prompts, topic_weights
from perdure.reflection.algorithm_findings import AlgorithmFindings, find_by_algorithm
from perdure.reflection.apply_run import RunFindings, apply_run
from perdure.reflection.cited_turns import EvidenceFinder
from perdure.reflection.inbox import InboxMessage, MessageKind
from perdure.reflection.lease import LeaseHolder
from perdure.reflection.model_calls import AnswersLater, CallResult, ModelCalls
from perdure.reflection.operation_checks import (
    CheckedOperation,
    InvalidAnswer,
    Refused,
    check_answer,
)
from perdure.reflection.reflection_records import (
    Phase,
    ReflectionRun,
    ReflectionState,
    RunAnswer,
    RunCall,
    SessionSpan,
)
from perdure.reflection.run_messages import message
from perdure.reflection.run_scope import RunScope, span_view
from perdure.reflection.view import ViewedTurn, ViewWindow, broad_view, windows
from perdure.services import Services
from perdure.storage.transaction import Transaction

REFLECT = CallOptions(purpose="reflect", task="reflection")
#: Tokens of a request besides the view: instructions, memories, the answer; and without memories.
_BESIDE, _OVERHEAD = 24_000, 1_500
#: Tokens of an answer that a run is expected to get: for the estimate.
EXPECTED_ANSWER = 1_500
#: Refused operations from which on the administrator is told.
_JUNK = 10


class RunQuestion(msgspec.Struct, frozen=True):
    """What one call is about."""

    call: RunCall
    window: ViewWindow


class RunWalk:
    """Carries out one run; with models, if it `asks` them."""

    def __init__(
        self,
        services: Services,
        recall: Recall,
        scope: RunScope,
        *,
        asks: bool,
    ) -> None:
        self._services = services
        self._recall = recall
        self._scope = scope
        self._asks = asks
        self._calls: ModelCalls | None = None
        self._config = services.config.reflection
        self._finder = EvidenceFinder(services, scope.sessions)
        self._texts = list[str]()
        self._messages = list[InboxMessage]()
        self._refused = list[Refused]()
        self._operations = list[CheckedOperation]()
        #: Sessions of which something could not be asked: they are read again.
        self._unread = set[str]()
        self._why = ""
        self._over_budget = self._told_failure = False
        self._memories = list[Memory]()
        self._layers = list[LayerRecord]()
        self._broad = list[ViewWindow]()
        self._run: ReflectionRun | None = None

    @property
    def run(self) -> ReflectionRun:
        assert self._run is not None  # noqa: S101 (for the type checker)
        return self._run

    async def prepare(self, intended: Sequence[SessionSpan]) -> list[RunQuestion]:
        """Read what is to be asked about, of all that the run intended: questions are numbered by
        their place there, also if a session is forgotten by now. Sends and writes nothing.
        """
        spans = self._scope.spans
        self._memories = await self._recall.memories.list(self._scope.agent)
        self._layers = await self._recall.references.list()
        questions = list[RunQuestion]()
        for place, span in enumerate(intended, 1):
            if span not in spans:
                continue
            turns = await span_view(self._services, self._scope, span, self._config.view)
            read = self._scope.read.get(span.session, 0)
            self._texts += [turn.text for turn in turns if turn.number > read]
            if not self._asks:
                continue
            for part, window in enumerate(self._windows(turns), 1):
                call = RunCall(
                    id=f"extract-{place}-{part}",
                    phase="extract",
                    span=span,
                    part=part,
                    names=prompts.names_in(window),
                )
                questions.append(RunQuestion(call, window))
        if self._asks:
            sessions = list(self._scope.sessions.values())
            detailed = {span.session: range(span.first, span.last + 1) for span in spans}
            self._broad = self._windows(
                await broad_view(self._services, sessions, self._config.view, detailed)
            )
        return questions

    def questions(self, questions: Sequence[RunQuestion]) -> int:
        """How many questions there are in all."""
        return len(questions) + len(self._broad)

    async def find_without_model(self, run: ReflectionRun) -> AlgorithmFindings:
        return await find_by_algorithm(
            self._services, self._scope, run, self._finder, self._memories
        )

    def estimate(self, questions: Sequence[RunQuestion]) -> int:
        """Tokens that asking may take, answers included."""
        counter = self._services.counter
        known = counter.count("\n".join(memory.text for memory in self._memories)) + _OVERHEAD
        asked = [*(question.window for question in questions), *self._broad]
        return sum(window.tokens + known + EXPECTED_ANSWER for window in asked)

    async def finish(
        self,
        lease: LeaseHolder,
        run: ReflectionRun,
        questions: Sequence[RunQuestion],
        calls: ModelCalls | None,
    ) -> ReflectionRun:
        """Ask what is not answered, and apply it. If nobody waits for the answers of a batch, the
        run is returned as it is by then. Raises `Conflict` if the lease is lost.
        """
        self._run, self._calls = run, calls
        if calls is None:
            found = await self.find_without_model(run)
            self._operations += found.operations
            self._messages += found.messages
        else:
            try:
                await self._extract(questions)
                await self._consolidate()
            except AnswersLater:
                return self.run
        return await self._apply(lease)

    # The phases -------------------------------------------------------------------------------

    async def _extract(self, questions: Sequence[RunQuestion]) -> None:
        requests = {
            each.call.id: prompts.extraction(
                each.window, self._memories, self._layers, room=self._config.window
            )
            for each in questions
        }
        answers = await self._ask("extract", requests)
        for question in questions:
            text = answers.get(question.call.id)
            if text is None:
                if question.call.span is not None:
                    self._unread.add(question.call.span.session)
                continue
            await self._check(question, text)

    async def _consolidate(self) -> None:
        known = len(self._memories) + len(self._operations)
        if self._why or known < 2 or not self._broad:
            return
        calls = tuple(
            RunCall(
                id=f"consolidate-{part}",
                phase="consolidate",
                part=part,
                names=prompts.names_in(window),
            )
            for part, window in enumerate(self._broad, 1)
        )
        if self.run.state == "extracting":
            await self._save(state="consolidating", calls=(*self.run.calls, *calls))
        candidates = [each for each in self._operations if each.asked.op == "add"]
        questions = [
            RunQuestion(call, window) for call, window in zip(calls, self._broad, strict=True)
        ]
        requests = {
            each.call.id: prompts.consolidation(
                each.window,
                self._memories,
                self._layers,
                candidates,
                room=self._config.window,
            )
            for each in questions
        }
        answers = await self._ask("consolidate", requests)
        for question in questions:
            if (text := answers.get(question.call.id)) is not None:
                await self._check(question, text)

    async def _check(self, question: RunQuestion, text: str) -> None:
        shown = {memory.key: memory for memory in self._memories}
        is_late = question.call.phase == "consolidate"
        added = [each for each in self._operations if is_late and each.asked.op == "add"]
        try:
            names = self._names(question.call)
            good, bad = await check_answer(text, self._finder, names, shown, added)
        except InvalidAnswer as exc:
            where = question.call.span.session if question.call.span else "all sessions"
            title = f"An answer about {where} was not used: {exc}"
            self._messages.append(message(self.run, "junk", title))
            return
        self._operations += [self._masked(each) for each in good]
        self._refused += bad

    def _names(self, call: RunCall) -> dict[str, str]:
        """As the question that was sent called sessions."""
        return next((each.names for each in self.run.calls if each.id == call.id), call.names)

    async def _apply(self, lease: LeaseHolder) -> ReflectionRun:
        if self.run.state != "applying":
            await self._save(state="applying")
        if len(self._refused) >= _JUNK:
            title = f"{plural(len(self._refused), 'operation')} were refused"
            reasons = sorted({each.why for each in self._refused})
            self._messages.append(message(self.run, "junk", title, "\n".join(reasons)))
        topics = [memory.text for memory in self._memories if memory.kind == "topic"]
        findings = RunFindings(
            operations=tuple(self._operations),
            refused=tuple(self._refused),
            messages=tuple(self._messages),
            spans=tuple(span for span in self.run.spans if span.session not in self._unread),
            mentions=topic_weights.mentions(topics, self._texts),
        )
        counter = self._services.counter
        ended = replace(
            self.run,
            state="stopped" if self._why else "done",
            why=self._why,
            left_after=await tokens_left(self._services) if self.run.mode else None,
        )
        self._run = await apply_run(
            self._services.store,
            self._recall.memories.writer,
            lease,
            ended,
            findings,
            half_life=self._config.half_life,
            count_tokens=counter.count,
        )
        return self._run

    # Asking -----------------------------------------------------------------------------------

    async def _ask(self, phase: Phase, requests: Mapping[str, Request]) -> dict[str, str]:
        """Answers by call; those that were there before are not asked again."""
        assert self._calls is not None  # noqa: S101 (for the type checker)
        kept = self._services.store.collection(RunAnswer)
        ids = [f"{self.run.id}/{call}" for call in requests]
        found = {
            answer.id.rpartition("/")[2]: answer.text
            for answer in await kept.get_many(ids)
            if answer is not None
        }
        open_ones = {id: request for id, request in requests.items() if id not in found}

        async def on_result(id: str, result: CallResult) -> None:
            await self._keep(id, result)
            if not result.error:
                found[id] = result.text

        options = replace(REFLECT, agent=self.run.agent)
        if open_ones:
            await self._calls(f"reflection/{self.run.id}/{phase}", open_ones, options, on_result)
        if any(id not in found for id in requests):
            self._tell_failure()
        return found

    async def _keep(self, id: str, result: CallResult) -> None:
        """Write down what came of a question, with what it took, in one transaction."""

        async def body(transaction: Transaction) -> ReflectionRun:
            runs = transaction.collection(ReflectionRun)
            run = await runs.get(self.run.id) or self.run
            calls = tuple(_after(call, result) if call.id == id else call for call in run.calls)
            costs = [call.cost for call in calls if call.state == "answered"]
            run = replace(
                run,
                calls=calls,
                tokens=sum(call.tokens for call in calls),
                cost=None if None in costs else sum(filter(None, costs)),
            )
            await runs.put(run)
            if not result.error:
                answer = RunAnswer(f"{run.id}/{id}", result.text)
                await transaction.collection(RunAnswer).put(answer)
            return run

        self._run = await self._services.store.transact(body)
        if result.over_budget:
            self._why, self._over_budget = result.error, True
        elif result.error and not self._why:
            self._why = f"A model could not be asked: {result.error}"

    def _tell_failure(self) -> None:
        self._why = self._why or "Not every question was answered."
        if not self._told_failure:
            self._told_failure = True
            kind: MessageKind = "spend" if self._over_budget else "trouble"
            title = f"{self.run.name} stopped before its end"
            self._messages.append(message(self.run, kind, title, self._why))

    async def _save(
        self, *, state: ReflectionState, calls: Iterable[RunCall] | None = None
    ) -> None:
        def change(found: ReflectionRun | None) -> ReflectionRun:
            run = found or self.run
            return replace(run, state=state, calls=run.calls if calls is None else tuple(calls))

        self._run = await self._services.store.collection(ReflectionRun).change(self.run.id, change)

    def _windows(self, turns: Sequence[ViewedTurn]) -> list[ViewWindow]:
        size = max(self._config.window - _BESIDE, self._config.window // 3)
        topics = {m.text.casefold() for m in self._memories if m.kind == "topic"}

        def topics_of(text: str) -> frozenset[str]:
            folded = text.casefold()
            return frozenset(topic for topic in topics if topic in folded)

        return windows(turns, size, topics_of)

    def _masked(self, checked: CheckedOperation) -> CheckedOperation:
        """Without secrets: a model may have put one together."""
        asked = checked.asked
        given = {"text": asked.text, "title": asked.title, "reason": asked.reason}
        return replace(checked, asked=replace(asked, **self._services.mask_data(given)))


def _after(call: RunCall, result: CallResult) -> RunCall:
    return replace(
        call,
        state="failed" if result.error else "answered",
        model=result.model,
        tokens=call.tokens + result.tokens,
        cost=result.cost,
        error=result.error,
    )


async def tokens_left(services: Services) -> int | None:
    """Tokens that reflection may still take today; None if there is no limit."""
    found = [
        status.tokens_left
        for status in await services.gateway.budgets()
        if status.budget.covers(REFLECT) and status.tokens_left is not None
    ]
    return min(found) if found else None
