"""Writes what clients and models say through the proxy, each message once.

`Recorder.record` compares the items of a request with what is recorded, and appends what is new.
What a client took back is undone; a line that was taken back and speaks again becomes a fork: two
clients speak in one conversation. `AnswerRecorder` writes the answer: as a draft while it arrives,
whole at its end.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from perdure.bank.bank import Bank
from perdure.config.pauses import Pauses
from perdure.core.messages import Message, Text, event
from perdure.core.turns import is_prompt
from perdure.history.log_records import Head
from perdure.history.manifest import RoundId
from perdure.history.message_identity import COMPACTION, with_texts
from perdure.history.turn_log import Written
from perdure.server.proxy.alignment import Alignment, ItemFacts, NewItem, Recorded, align
from perdure.server.proxy.client_habits import is_summary
from perdure.server.proxy.client_items import ClientItems, decoded, new_messages
from perdure.server.proxy.client_request import ClientRequest
from perdure.server.proxy.conversation import (
    PAUSED,
    AnswerInProgress,
    Conversation,
    OthersWrote,
    Said,
    SessionGone,
)
from perdure.server.proxy.conversations import Conversations, shared_turn, told_apart
from perdure.storage.transaction import Transaction

_log = logging.getLogger(__name__)

#: The event that keeps what had arrived of an answer that the client broke off and dropped.
ABORTED = "aborted"


class Recording(msgspec.Struct, frozen=True):
    """A request that is recorded."""

    conversation: Conversation
    #: The turn that the answer belongs to; 0 if nothing was said.
    turn: int
    #: The round of each item; None for system text in front of everything.
    places: tuple[RoundId | None, ...]


class Recorder:
    """Records requests."""

    def __init__(self, bank: Bank) -> None:
        self.items = ClientItems(bank.services)
        self.pauses = Pauses()
        self.conversations = Conversations(bank)
        self._bank = bank
        self._spoken = 0

    async def record(
        self,
        request: ClientRequest,
        answer: AnswerInProgress | None = None,
    ) -> Recording:
        """Append what is new of a request; when this returns, it survives the process. `answer` is
        the one that is expected. Raises `Denied` if the session is of another agent than the
        caller's, and what the store raises.
        """
        facts = await self.items.facts.read(request.wire, request.items)
        self._spoken += 1
        while True:
            try:
                return await self._record(request, facts, answer)
            except SessionGone as gone:
                self.conversations.drop(gone.name)

    async def is_of_pause(self, request: ClientRequest) -> bool:
        """Whether it is not to be recorded: there is a pause, or what it says goes on with a prompt
        of one. Raises `Corrupted`.
        """
        if self.pauses.current() is not None:
            return True
        if not self.pauses.has_heard:
            return False
        facts = await self.items.facts.read(request.wire, request.items)
        if not self.pauses.was_heard(told_apart(request.id, facts)):
            return False
        behind = max((n for n, each in enumerate(facts, 1) if each.by_model), default=0)
        new = [NewItem(item) for item in range(behind, len(facts))]
        said = new_messages(request.wire, request.items, new)
        return not any(is_prompt(message) for message, _ in said)

    async def hear(self, request: ClientRequest) -> None:
        """Record nothing: there is a pause. But its client will send again what it says now, and
        then it has to be known. Raises `Unavailable`.
        """
        facts = await self.items.facts.read(request.wire, request.items)
        self.pauses.hear(told_apart(request.id, facts))

    async def _record(
        self, request: ClientRequest, facts: Sequence[ItemFacts], answer: AnswerInProgress | None
    ) -> Recording:
        conversation = await self.conversations.find(request, facts)
        while True:
            await conversation.settle()
            async with conversation.lock:
                if not conversation.is_settled:
                    continue
                try:
                    found = await self._recorded(conversation, request, facts)
                except OthersWrote:
                    continue
                if isinstance(found, Conversation):
                    conversation = found  # a fork, where it goes on
                    continue
                conversation.spoken = self._spoken
                if answer is not None and found.turn:
                    before = conversation.answers.get(found.turn)
                    if before is not None:
                        await before.leave()
                    conversation.answers[found.turn] = answer
                return found

    async def look(self, request: ClientRequest) -> Recording | None:
        """What a recording would find, of a conversation that is known here; nothing is written.
        What is new has no place.
        """
        conversation = self.conversations.opened(request.id)
        if conversation is None:
            return None
        facts = await self.items.facts.read(request.wire, request.items)
        async with conversation.lock:
            try:
                await conversation.refresh()
            except SessionGone as gone:
                self.conversations.drop(gone.name)
                return None
            found, line = align(conversation.line, facts), conversation.line
            at = [n if n < found.kept else -1 for n in found.matched]
            places = [RoundId(line[n].turn, line[n].round) if n >= 0 else None for n in at]
            return Recording(conversation, line[-1].turn if line else 0, _filled(places, facts))

    async def _recorded(
        self, conversation: Conversation, request: ClientRequest, facts: Sequence[ItemFacts]
    ) -> Recording | Conversation:
        head = await conversation.refresh()
        heard = told_apart(request.id, facts)
        if self.pauses.was_heard(heard):
            # Leave a gap in the line for what was said in a pause.
            told = event(PAUSED, "Nothing was recorded here: Perdure was paused.")
            await self._append(conversation, [(told, [-1])], [])
            self.pauses.unhear(heard)
            head = await conversation.refresh()
        found = align(conversation.line, facts)
        if found.compacted or not found.extends(conversation.line):
            for line in await self.conversations.lines_of(request.id, conversation):
                at = await self._spoken_again(line, facts, _count(found))
                if at:
                    return await self.conversations.fork(line, at, request.id)
        return await self._write(conversation, head, request, facts, found)

    async def _spoken_again(
        self, conversation: Conversation, facts: Sequence[ItemFacts], known: int
    ) -> int:
        """The last turn of a line that was taken back, if these items go on with it, and share more
        with it than the `known` items; else 0.
        """
        best = 0
        for span, line in await conversation.branches():
            found = align(line, facts)
            at = shared_turn(line, found)
            own = any(index >= 0 and line[index].turn >= span.first for index in found.matched)
            if at >= span.first and own and _count(found) > known:
                best, known = at, _count(found)
        return best

    async def _write(
        self,
        conversation: Conversation,
        head: Head,
        request: ClientRequest,
        facts: Sequence[ItemFacts],
        found: Alignment,
    ) -> Recording:
        again: list[Message] = []
        matched = list(found.matched)
        if not found.extends(conversation.line):
            again = await self._take_back(conversation, head, found.kept)
        elif head.answering:
            await self._end_draft(conversation, request, facts, found.new)
        said = [
            (part, of)
            for message, of in new_messages(request.wire, request.items, found.new)
            for part in _with_events(message)
        ]
        if again:
            said = [*((message, [-1]) for message in again), *said]
        if said:
            await self._append(conversation, said, matched)
        line = conversation.line
        turn = line[-1].turn if line else 0
        places = [RoundId(line[at].turn, line[at].round) if at >= 0 else None for at in matched]
        return Recording(conversation, turn, _filled(places, facts))

    async def _append(
        self,
        conversation: Conversation,
        said: Sequence[tuple[Message, list[int]]],
        matched: list[int],
    ) -> None:
        """Append messages with their items, and note in `matched` where these are now."""
        session, line = conversation.session, conversation.line
        messages = [message for message, _ in said]
        own, head = conversation.own_turn, conversation.head
        elsewhere = own and line and own != line[-1].turn and not is_prompt(messages[0])
        if elsewhere and (head is None or not head.mark.fresh):
            await session.resume(line[-1].turn)
        written: list[Written] = []

        async def note(_: Transaction, what: Written) -> None:
            conversation.check(what)
            written[:] = [what]

        known = [self.items.identities(message) for message in messages]
        await session.append(messages, within=note)
        places = [(round.turn, round.round) for round in written[0].rounds for _ in round.messages]
        conversation.wrote(written[0].head, len(written[0].pieces))
        conversation.own_turn = written[0].last
        ends = conversation.said(
            Said(message, parts, turn, round)
            for message, parts, (turn, round) in zip(messages, known, places, strict=True)
        )
        for message, parts in zip(messages, known, strict=True):
            if message.name == COMPACTION and parts:
                await self.conversations.compacted(conversation, parts[0])
        for (_, items), at in zip(said, ends, strict=True):
            for item in items:
                if item >= 0 and at >= 0:
                    matched[item] = at

    async def _take_back(self, conversation: Conversation, head: Head, kept: int) -> list[Message]:
        """Undo what the client took back. Returns what it kept of a turn in the middle of which it
        went back: that is said again, in a turn of its own.
        """
        line = conversation.line
        first = line[kept].turn
        stay: int | None = max(line[kept].message, 0)
        before = line[kept - 1] if kept else None
        if before is not None and before.turn < first and _is_open(before):
            # What is taken back shares this turn, and must not get the answer that comes now.
            first, stay = before.turn, None
        again: list[Message] = []
        if stay != 0:
            turn = await conversation.session.turn(first)
            again = [msgspec.structs.replace(each, usage=None) for each in turn.messages[:stay]]
        heads: list[Head] = []

        async def note(_: Transaction, what: Written) -> None:
            heads[:] = [what.head]

        numbers = range(first, head.turn + 1)
        await conversation.session.undo(numbers=numbers, within=note)
        conversation.wrote(heads[0], 0, undone=True)
        conversation.own_turn = heads[0].turn
        conversation.forget_from(first)
        return list(await with_texts(again, self._bank.artifacts))

    async def _end_draft(
        self,
        conversation: Conversation,
        request: ClientRequest,
        facts: Sequence[ItemFacts],
        new: Sequence[NewItem],
    ) -> None:
        """The client goes on behind an answer of which only a draft is there. What it has of it
        counts; an event keeps what had arrived, unless the client has that, too.
        """
        line = conversation.line
        turn = line[-1].turn if line else 0
        arriving = conversation.answers.get(turn)
        if arriving is not None:
            await arriving.leave()
        session = conversation.session
        partial = next((each for each in await session.partials() if each.turn == turn), None)
        if partial is None:
            return
        words, theirs = _squeezed(partial.message.text), ""
        if new and facts[new[0].item].by_model:
            said = decoded(request.wire, [request.items[new[0].item]])
            theirs = _squeezed("".join(each.text for each in self.items.masked(tuple(said))))
        if not theirs.startswith(words):
            await self._append(conversation, [(event(ABORTED, partial.message.text), [-1])], [])
        await session.drop_partial(partial)


def _count(found: Alignment) -> int:
    """How many items are in the line."""
    return sum(at >= 0 for at in found.matched)


def _is_open(part: Recorded) -> bool:
    """Whether an answer may still come to the turn that ends with this."""
    return not part.by_model or part.identity.startswith("call ")


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _with_events(message: Message) -> list[Message]:
    """A summary in a user message is no prompt, but the event of a compaction."""
    if message.role != "user":
        return [message]
    summaries = [part for part in message.parts if isinstance(part, Text) and is_summary(part.text)]
    if not summaries:
        return [message]
    rest = tuple(part for part in message.parts if part not in summaries)
    found = [event(COMPACTION, "\n".join(part.text for part in summaries))]
    return [*found, msgspec.structs.replace(message, parts=rest)] if rest else found


def _filled(
    places: Sequence[RoundId | None], facts: Sequence[ItemFacts]
) -> tuple[RoundId | None, ...]:
    """Items without a place of their own belong where their neighbours are: what the model said to
    what follows, as reasoning does; all else to what comes before.
    """
    found = list(places)
    for at in range(len(found) - 2, -1, -1):
        if found[at] is None and facts[at].by_model and not facts[at].identities:
            found[at] = found[at + 1]
    for at in range(1, len(found)):
        if found[at] is None:
            found[at] = found[at - 1]
    return tuple(found)
