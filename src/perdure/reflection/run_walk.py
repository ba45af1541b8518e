"""One run, from what is new to what is applied.

    extract       per session: what is worth remembering
    consolidate   over all: merged, bettered, retired; topics, layers, notes
    apply         one transaction

Each question is written down before it is sent, and each answer as it arrives. Whoever takes up a
run that was killed asks only what has no answer yet. What an answer says of memories holds for the
versions that its question showed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from perdure.core.display import plural
from perdure.core.errors import PerdureError
from perdure.gateway.budgets import BudgetRoom
from perdure.recall.recall import Recall
from perdure.reflection import topic_weights
from perdure.reflection.algorithm_findings import AlgorithmFindings, find_by_algorithm
from perdure.reflection.apply_run import PartOutcome, ReadPart, RunFindings, apply_run
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
)
from perdure.reflection.run_messages import message
from perdure.reflection.run_questions import REFLECT, QuestionBuilder, RunQuestion, RunQuestions
from perdure.reflection.run_scope import RunScope
from perdure.services import Services
from perdure.storage.concurrency import in_thread
from perdure.storage.transaction import Transaction

_CUT = "The answer was cut: it is longer than the model may answer."
#: Refused operations from which on the administrator is told.
_JUNK = 10


class RunWalk:
    """Carries out one run, whose questions are built."""

    def __init__(
        self,
        services: Services,
        recall: Recall,
        scope: RunScope,
        builder: QuestionBuilder,
        built: RunQuestions,
    ) -> None:
        self._services = services
        self._recall = recall
        self._scope = scope
        self._builder = builder
        self._built = built
        self._calls: ModelCalls | None = None
        self._config = services.config.reflection
        self._finder = EvidenceFinder(services, scope.sessions)
        self._messages = list[InboxMessage]()
        self._refused = list[Refused]()
        self._operations = list[CheckedOperation]()
        #: What became of each question about turns; those of which the provider would not answer.
        self._parts = list[ReadPart]()
        self._declined = set[str]()
        self._why = ""
        self._over_budget = self._told_failure = False
        self._run: ReflectionRun | None = None
        self._lease: LeaseHolder | None = None

    @property
    def lease(self) -> LeaseHolder:
        assert self._lease is not None  # noqa: S101 (for the type checker)
        return self._lease

    @property
    def run(self) -> ReflectionRun:
        assert self._run is not None  # noqa: S101 (for the type checker)
        return self._run

    async def find_without_model(self, run: ReflectionRun) -> AlgorithmFindings:
        return await find_by_algorithm(
            self._services, self._scope, run, self._finder, self._built.memories
        )

    async def finish(
        self, lease: LeaseHolder, run: ReflectionRun, calls: ModelCalls | None
    ) -> ReflectionRun:
        """Ask what is not answered, and apply it. If nobody waits for the answers of a batch, the
        run is returned as it is by then; `why` says so if it is not even sent. Raises `Conflict` if
        the lease is lost.
        """
        self._run, self._calls, self._lease = run, calls, lease
        if calls is None:
            found = await self.find_without_model(run)
            self._operations += found.operations
            self._messages += found.messages
            self._parts = [ReadPart(span) for span in run.spans]
        else:
            try:
                await self._extract()
                await self._consolidate()
            except AnswersLater as later:
                return replace(self.run, why=str(later))
        return await self._apply()

    # The phases -------------------------------------------------------------------------------

    async def _extract(self) -> None:
        questions = self._built.questions
        answers = await self._ask("extract", questions)
        about = {each.call.span.session for each in questions if each.call.span is not None}
        self._parts = [ReadPart(span) for span in self.run.spans if span.session not in about]
        for question in questions:
            if question.call.span is None:
                continue
            outcome: PartOutcome = "open"
            if (text := answers.get(question.call.id)) is not None:
                outcome = "read" if await self._check(question, text) else "lost"
            elif question.call.id in self._declined and answers:  # the model does answer others
                outcome = "lost"
            self._parts.append(ReadPart(question.call.span, outcome))

    async def _consolidate(self) -> None:
        known = len(self._built.memories) + len(self._operations)
        if self._why or known < 2 or not self._built.broad:
            return
        candidates = [each for each in self._operations if each.asked.op == "add"]
        intended = [call for call in self.run.calls if call.phase == "consolidate"]
        broad = self._built.broad
        questions = await self._builder.consolidation(broad, candidates, intended)
        if self.run.state == "extracting":
            calls = (question.call for question in questions)
            await self._save(state="consolidating", calls=(*self.run.calls, *calls))
        answers = await self._ask("consolidate", questions)
        for question in questions:
            if (text := answers.get(question.call.id)) is not None:
                await self._check(question, text)

    async def _check(self, question: RunQuestion, text: str) -> bool:
        """Take over what an answer asks for; whether it can be used."""
        there = {memory.key: memory for memory in self._built.memories}
        call = self._sent(question.call)
        is_late = call.phase == "consolidate"
        added = [each for each in self._operations if is_late and each.asked.op == "add"]
        try:
            good, bad = await check_answer(
                text, self._finder, call.names, there, added, versions=call.versions
            )
        except InvalidAnswer as exc:
            where = "all sessions" if call.span is None else call.span.session
            title = f"An answer about {where} was not used: {exc}"
            self._messages.append(message(self.run, "junk", title, call.error))
            return False
        self._operations += [self._masked(each) for each in good]
        self._refused += bad
        return True

    def _sent(self, call: RunCall) -> RunCall:
        """The question as it was sent: it may have called sessions otherwise."""
        return next((each for each in self.run.calls if each.id == call.id), call)

    async def _apply(self) -> ReflectionRun:
        if self.run.state != "applying":
            await self._save(state="applying")
        if len(self._refused) >= _JUNK:
            title = f"{plural(len(self._refused), 'operation')} were refused"
            reasons = sorted({each.why for each in self._refused})
            self._messages.append(message(self.run, "junk", title, "\n".join(reasons)))
        built = self._built
        topics = [memory.text for memory in built.memories if memory.kind == "topic"]
        findings = RunFindings(
            operations=tuple(self._operations),
            refused=tuple(self._refused),
            messages=tuple(self._messages),
            parts=tuple(self._parts),
            mentions=await in_thread(topic_weights.mentions, topics, built.texts),
        )
        counter = self._services.counter
        options = replace(REFLECT, agent=self.run.agent)
        left = BudgetRoom()
        if self.run.mode:
            left = await self._services.gateway.ledger.room(options)
        ended = replace(
            self.run,
            state="stopped" if self._why else "done",
            why=self._why,
            left_after=left.tokens,
            cost_left_after=left.cost,
        )
        self._run = await apply_run(
            self._services.store,
            self._recall.memories.writer,
            self.lease,
            ended,
            findings,
            half_life=self._config.half_life,
            count_tokens=counter.count,
        )
        return self._run

    # Asking -----------------------------------------------------------------------------------

    async def _ask(self, phase: Phase, questions: Sequence[RunQuestion]) -> dict[str, str]:
        """Answers by call; those that were there before are not asked again."""
        assert self._calls is not None  # noqa: S101 (for the type checker)
        requests = {question.call.id: question.request for question in questions}
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
            elif result.is_refused:
                self._declined.add(id)

        options = replace(REFLECT, agent=self.run.agent)
        if open_ones:
            await self._calls(self.run.calls_key(phase), open_ones, options, on_result)
        if any(id not in found for id in requests):
            self._tell_failure()
        return found

    async def _keep(self, id: str, result: CallResult) -> None:
        """Write down what came of a question, with what it took, in one transaction."""

        def change(run: ReflectionRun) -> ReflectionRun:
            calls = tuple(_after(call, result) if call.id == id else call for call in run.calls)
            costs = [call.cost for call in calls if call.state == "answered"]
            return replace(
                run,
                calls=calls,
                tokens=sum(call.tokens for call in calls),
                cost=None if None in costs else sum(filter(None, costs)),
            )

        answer = None if result.error else RunAnswer(f"{self.run.id}/{id}", result.text)
        await self._write(change, answer)
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
        def change(run: ReflectionRun) -> ReflectionRun:
            return replace(run, state=state, calls=run.calls if calls is None else tuple(calls))

        await self._write(change)

    async def _write(
        self, change: Callable[[ReflectionRun], ReflectionRun], answer: RunAnswer | None = None
    ) -> None:
        """Change the run, and keep an answer. Raises `Conflict` if the lease is lost: the run may
        be over by now.
        """

        async def body(transaction: Transaction) -> ReflectionRun | PerdureError:
            if (lost := await self.lease.refusal(transaction)) is not None:
                return lost
            runs = transaction.collection(ReflectionRun)
            changed = change(await runs.get(self.run.id) or self.run)
            await runs.put(changed)
            if answer is not None:
                await transaction.collection(RunAnswer).put(answer)
            return changed

        written = await self._services.store.transact(body)
        if isinstance(written, PerdureError):
            raise written
        self._run = written

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
        error=result.error or (_CUT if result.is_cut else ""),
    )
