"""Applies what a run found, in one transaction, and takes it back.

Memories, former versions, the index, messages, cursors and the run's own record change together or
not at all; a process that lost its lease changes nothing. What was changed is kept with what was
before, so that `undo_run` puts back exactly that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.core.display import one_line
from perdure.core.errors import Conflict, InvalidInput, NotFound, PerdureError
from perdure.history.log_records import SessionRecord
from perdure.recall.memories.memory_writer import MemoryWriter
from perdure.recall.memory_records import (
    FormerMemory,
    LastNumber,
    Memory,
    numbers_of,
    source_of,
    version_id,
)
from perdure.reflection import topic_weights
from perdure.reflection.inbox import InboxMessage, post
from perdure.reflection.lease import LeaseHolder
from perdure.reflection.operation_checks import CheckedOperation, Refused
from perdure.reflection.operation_plan import OperationPlan
from perdure.reflection.reflection_records import (
    AppliedOperation,
    MemoryRevision,
    ReflectionCursor,
    ReflectionRun,
    RunAnswer,
    RunChanges,
    RunCounts,
    SessionSpan,
    no_run,
    parse_run,
)
from perdure.reflection.run_messages import draft_message, message, proposal_message
from perdure.storage.concurrency import in_thread
from perdure.storage.options import STRONG
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: How often a session is read again of which something was lost.
_RETRIES = 2
_TEXT = 300  # Characters of an operation's text that are kept for `show`.


#: ``open``: nobody answered. ``lost``: the answer could not be used, or the provider gives none.
PartOutcome: TypeAlias = Literal["read", "open", "lost"]


class ReadPart(msgspec.Struct, frozen=True):
    """Turns of a session that one question is about, and what became of it."""

    span: SessionSpan
    outcome: PartOutcome = "read"

    def has(self, turn: str) -> bool:
        """Whether a turn, by its name everywhere, is one of them."""
        session, place = source_of(turn)
        return session == self.span.session and self.span.first <= place.turn <= self.span.last


class RunFindings(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run found, to be applied."""

    operations: tuple[CheckedOperation, ...] = ()
    refused: tuple[Refused, ...] = ()
    messages: tuple[InboxMessage, ...] = ()
    #: What was read, of each session in order: its cursor moves behind what needs no other look.
    parts: tuple[ReadPart, ...] = ()
    #: Turns that speak of each topic, by its text.
    mentions: Mapping[str, int] = {}


async def apply_run(
    store: Store,
    writer: MemoryWriter,
    lease: LeaseHolder,
    run: ReflectionRun,
    findings: RunFindings,
    *,
    half_life: float,
    count_tokens: Callable[[str], int],
) -> ReflectionRun:
    """Apply findings, and write `run` with their counts. Raises `Conflict` if the lease is lost."""

    async def body(transaction: Transaction) -> ReflectionRun | PerdureError:
        if (lost := await lease.refusal(transaction)) is not None:
            return lost
        plan = await plan_run(
            transaction, run, findings, now=transaction.now(), half_life=half_life
        )
        await _write_plan(transaction, writer, plan)
        left_out = await _move_cursors(transaction, run, findings, plan)
        messages = [
            *(proposal_message(run, each) for each in plan.proposals),
            *(draft_message(run, each, plan, count_tokens) for each in plan.drafts),
            *findings.messages,
            *left_out,
        ]
        posted = [await post(transaction, each) for each in messages]
        refused = (*findings.refused, *plan.refused)
        changes = RunChanges(
            id=run.id,
            revisions=plan.revisions(),
            operations=_told(plan, refused),
            messages=tuple(dict.fromkeys(each.id for each in posted)),
        )
        await transaction.collection(RunChanges).put(changes)
        await transaction.collection(RunAnswer).query().prefix(f"{run.id}/").delete()
        counts = Counter(each.op for each in plan.applied)
        counts.update(each.asked.op for each in plan.drafts)
        done = replace(
            run,
            ended=transaction.now(),
            # What questions showed was kept for their answers.
            calls=tuple(replace(call, names={}, versions={}) for call in run.calls),
            counts=RunCounts(
                applied=dict(sorted(counts.items())),
                proposed=len(plan.proposals),
                messages=len({each.id for each in posted if each.run == run.name}),
                refused=dict(sorted(Counter(each.why for each in refused).items())),
            ),
        )
        await transaction.collection(ReflectionRun).put(done)
        return done

    return await _committed(store, body)


async def plan_run(
    executor: Transaction | Store,
    run: ReflectionRun,
    findings: RunFindings,
    *,
    now: int,
    half_life: float,
) -> OperationPlan:
    """What findings make of an agent's memories. Changes nothing."""
    memories = await executor.collection(Memory).query().where("agent", "=", run.agent).values()
    key = numbers_of(run.agent)
    last = await executor.collection(LastNumber).get(key) or LastNumber(key)
    weighed = await executor.collection(ReflectionCursor).get(run.agent)
    former = await executor.collection(FormerMemory).query().prefix(f"{run.agent}/").values()

    def make() -> OperationPlan:
        plan = OperationPlan(
            run.agent,
            memories,
            last_number=last.last,
            now=now,
            former=[each.memory for each in former],
        )
        plan.apply(findings.operations)
        plan.weigh(
            topic_weights.moved_topics(
                memories,
                findings.mentions,
                since=0 if weighed is None else weighed.time,
                now=now,
                half_life=half_life,
            )
        )
        return plan

    return await in_thread(make)  # the words of thousands of memories take a while


async def _move_cursors(
    transaction: Transaction, run: ReflectionRun, findings: RunFindings, plan: OperationPlan
) -> list[InboxMessage]:
    """Mark as read what was, up to where something is missing: the next run goes on there. What is
    lost is tried a few times. Returns messages about that for which it did not help.
    """
    cursors, given_up = transaction.collection(ReflectionCursor), list[InboxMessage]()
    over = [quote.turn for each in plan.over_cap for quote in each.quotes]
    for session, parts in _by_session(findings.parts).items():
        if await transaction.collection(SessionRecord).get(session) is None:
            continue  # it was forgotten meanwhile
        former = await cursors.get(session) or ReflectionCursor(session)
        read, tries = parts[0].span.first - 1, former.tries
        for part in parts:
            is_lost = part.outcome == "lost" or any(map(part.has, over))
            if part.outcome == "open" or (is_lost and tries < _RETRIES):
                tries += is_lost
                break
            if is_lost:
                given_up.append(_given_up(run, part.span))
            read, tries = part.span.last, 0
        newest = max(former.newest, read)
        await cursors.put(ReflectionCursor(session, read, transaction.now(), tries, newest))
    await cursors.put(ReflectionCursor(run.agent, 0, transaction.now()))
    return given_up


def _by_session(parts: Iterable[ReadPart]) -> dict[str, list[ReadPart]]:
    found = defaultdict[str, list[ReadPart]](list)
    for part in parts:
        found[part.span.session].append(part)
    return found


def _given_up(run: ReflectionRun, span: SessionSpan) -> InboxMessage:
    title = f"{span.session} was read {_RETRIES + 1} times, and not all of it was used"
    text = (
        f"T-{span.first} to T-{span.last} count as read now. `perdure reflect --session"
        f" {span.session} --again` reads them once more."
    )
    return message(run, "trouble", title, text)


async def _write_plan(transaction: Transaction, writer: MemoryWriter, plan: OperationPlan) -> None:
    for revision in plan.revisions():
        before, after = revision.before, revision.after
        if after is None:
            continue
        known = () if before is None else before.provenance
        fresh = [turn for turn in after.provenance if turn not in known]
        await writer.owned(transaction, fresh)  # raises if one was forgotten meanwhile
        if before is None:
            await writer.write(transaction, after)
            continue
        if after.version != before.version:
            await transaction.collection(FormerMemory).put(
                FormerMemory(version_id(before), before, transaction.now())
            )
        await writer.rewrite(transaction, before, after)
    if plan.last_number != plan.first_number:
        key = numbers_of(plan.agent)
        await transaction.collection(LastNumber).put(LastNumber(key, plan.last_number))


def _told(plan: OperationPlan, refused: Sequence[Refused]) -> tuple[AppliedOperation, ...]:
    applied = [
        AppliedOperation(
            op=each.op,
            keys=tuple(plan.key_of(id) for id in each.ids),
            text=one_line(each.checked.asked.text, _TEXT),
            evidence=tuple(dict.fromkeys(quote.turn for quote in each.checked.quotes)),
        )
        for each in plan.applied
    ]
    others = [
        AppliedOperation(
            op=each.asked.op,  # without its text: nobody knows which turns that is from
            keys=each.asked.keys,
            refused=each.why,
        )
        for each in refused
    ]
    return (*applied, *others)


async def undo_run(store: Store, writer: MemoryWriter, name: str) -> ReflectionRun:
    """Put back what a run changed: memories, their former versions, its open messages.

    Raises `NotFound`; `InvalidInput` if it is not finished, is undone, or cannot be undone since
    something that it was made of was forgotten; `Conflict` if a memory was changed since. What was
    deleted or forgotten since stays so, and the turns count as read.
    """
    id = parse_run(name)

    async def body(transaction: Transaction) -> ReflectionRun | PerdureError:
        run = await transaction.collection(ReflectionRun).get(id)
        if run is None:
            return no_run(name)
        changes = await transaction.collection(RunChanges).get(id)
        if run.state == "undone" or not run.is_finished or changes is None:
            return _not_undoable(run)
        memories = transaction.collection(Memory)
        current = await memories.get_many([revision.id for revision in changes.revisions])
        pairs = list(zip(changes.revisions, current, strict=True))
        if later := [m.name for revision, m in pairs if m is not None and _changed(revision, m)]:
            return Conflict(
                "memories",
                later[0],
                message=f"{', '.join(later)} changed since {run.name}: nothing was undone.",
                hint="Undo later runs first, or correct memories by hand.",
            )
        for (
            revision,
            memory,
        ) in pairs:  # first those that were there: nothing is merged into new ones then
            if revision.before is not None and memory is not None:
                await _restore(transaction, writer, revision, memory)
        for revision, memory in pairs:
            if revision.before is None and memory is not None:
                await writer.remove(transaction, await memories.get(memory.id) or memory)
        messages = transaction.collection(InboxMessage)
        for left in await messages.get_many(changes.messages):
            if left is not None and left.status == "open" and left.run == run.name:
                await messages.delete(left.id)
        await transaction.collection(RunChanges).delete(id)
        await _weighed_before(transaction, run)
        undone = replace(run, state="undone")
        await transaction.collection(ReflectionRun).put(undone)
        return undone

    return await _committed(store, body)


async def give_up_run(store: Store, lease: LeaseHolder, run: ReflectionRun) -> ReflectionRun:
    """End a run that changed nothing yet: what it was to read stays new, what was answered goes."""

    async def body(transaction: Transaction) -> ReflectionRun | PerdureError:
        if (lost := await lease.refusal(transaction)) is not None:
            return lost
        runs = transaction.collection(ReflectionRun)
        found = await runs.get(run.id) or run
        if found.is_finished:
            return _not_undoable(found)
        await transaction.collection(RunAnswer).query().prefix(f"{run.id}/").delete()
        ended = replace(found, state="undone", ended=transaction.now(), why="It was given up.")
        await runs.put(ended)
        return ended

    return await _committed(store, body)


async def _committed(
    store: Store, body: Callable[[Transaction], Awaitable[ReflectionRun | PerdureError]]
) -> ReflectionRun:
    """Carry out a transaction; raise the error that it returns."""
    done = await store.transact(body, STRONG)
    if isinstance(done, PerdureError):
        raise done
    return done


async def _restore(
    transaction: Transaction, writer: MemoryWriter, revision: MemoryRevision, memory: Memory
) -> None:
    before, after = revision.before, revision.after
    if before is None or after is None:
        return
    await writer.rewrite(transaction, memory, before)
    if after.version != before.version:
        await transaction.collection(FormerMemory).delete(version_id(before))


async def _weighed_before(transaction: Transaction, undone: ReflectionRun) -> None:
    """Topics were last weighed by the newest run that stands: what they faded since is not lost."""
    runs = transaction.collection(ReflectionRun).query().where("agent", "=", undone.agent)
    standing = await runs.where("state", "in", ["done", "stopped"]).values()
    time = max((run.ended or 0 for run in standing if run.id != undone.id), default=0)
    await transaction.collection(ReflectionCursor).put(ReflectionCursor(undone.agent, 0, time))


def _changed(revision: MemoryRevision, memory: Memory) -> bool:
    """Whether a memory is not as the run left it: to put back what was before would lose that."""
    return revision.after is not None and memory != revision.after


def _not_undoable(run: ReflectionRun) -> InvalidInput | NotFound:
    if run.state == "undone":
        return InvalidInput(f"{run.name} is undone already.", hint="`perdure reflect list`.")
    if not run.is_finished:
        return InvalidInput(f"{run.name} is not finished.", hint="Run `perdure reflect` to end it.")
    if run.state == "refused":
        return InvalidInput(f"{run.name} did not begin.", hint="There is nothing to undo.")
    return InvalidInput(
        f"{run.name} cannot be undone: something that it was made of was forgotten.",
        hint="Correct memories by hand: `perdure memory list`.",
    )
