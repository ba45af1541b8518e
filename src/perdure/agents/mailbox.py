"""Mailboxes: messages are rows, numbered in the order in which they were accepted.

A message that was accepted is done once, whatever happens to processes; sent again with the same
key, it is accepted once. Messages of one session are done in their order. One that waits for its
next attempt holds up its session's later ones, and those of no other session; one that waits for a
person, or was parked, holds up nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from perdure.agents.agent_lease import HeldLease
from perdure.agents.agent_records import (
    AgentMailbox,
    AgentMessage,
    AgentQuestion,
    MessageState,
    ToolIntent,
    message_key,
    no_message,
)
from perdure.core.clock import SECOND
from perdure.core.errors import InvalidInput, TooLarge
from perdure.storage.finder import any_of, where
from perdure.storage.options import STRONG
from perdure.storage.store import Store, join
from perdure.storage.transaction import Transaction

#: Characters of a message. What is longer belongs in a file or an artifact that it names.
MOST_BODY = 1_000_000
_PAGES = (50, 10_000)  # Messages that are looked at for the next one: as a rule few are enough.
#: No message waits for so long (microseconds): one that would is due, the clock was put back.
_LONGEST = 300 * SECOND


class Mailboxes:
    """The messages of all agents of a bank."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._messages = store.collection(AgentMessage)

    async def accept(
        self, message: AgentMessage, transaction: Transaction | None = None
    ) -> AgentMessage:
        """Give a message its number and keep it. If its sender's key is known, returns the one that
        was accepted with it.
        """
        check_body(message.body)

        async def take(transaction: Transaction) -> AgentMessage:
            # Read first: whoever takes a number meanwhile makes this commit fail, and begin anew.
            boxes = transaction.collection(AgentMailbox)
            box = await boxes.get(message.agent) or AgentMailbox(message.agent)
            messages = transaction.collection(AgentMessage)
            if message.sender_key is not None:
                known = messages.query().where("agent", "=", message.agent)
                if (
                    found := await known.where("sender_key", "=", message.sender_key)
                    .limit(1)
                    .values()
                ):
                    return found[0]
            seq = box.accepted + 1
            now = self._store.now()
            accepted = msgspec.structs.replace(
                message, id=message_key(message.agent, seq), seq=seq, accepted=now, due=now
            )
            await boxes.put(AgentMailbox(message.agent, seq))
            await messages.put(accepted)
            return accepted

        return await join(transaction or self._store, take)

    async def get(self, id: str) -> AgentMessage:
        """As it is now. Raises `NotFound`."""
        found = await self._messages.get(id, STRONG)
        if found is None:
            raise no_message(id)
        return found

    async def next(self, agent: str) -> AgentMessage | None:
        """The message to be done now: one that had begun, else the oldest that is due."""
        for state in ("working", "accepted"):
            finder = self._messages.query().where("agent", "=", agent).where("state", "=", state)
            for most in _PAGES:
                waiting = await finder.order_by("key").limit(most).values(STRONG)
                if (found := self._first_due(waiting)) is not None:
                    return found
                if len(waiting) < most:
                    break
        return None

    def _first_due(self, waiting: Sequence[AgentMessage]) -> AgentMessage | None:
        held, now = set[str](), self._store.now()
        for message in waiting:
            if message.session in held:
                continue
            if message.due <= now or message.due > now + _LONGEST:
                return message
            held.add(message.session)
        return None

    async def agents_with_work(self) -> list[str]:
        """Names of agents with messages that are due or under way, by whomever."""
        found = dict[str, None]()
        now = self._store.now()
        for state in ("accepted", "working"):
            due = any_of(where("due", "<=", now), where("due", ">", now + _LONGEST))
            matching = self._messages.query().where("state", "=", state).where(due)
            for row in await matching.group_by("agent").aggregate(STRONG, messages="count"):
                found[row["agent"]] = None
        return list(found)

    async def list(
        self, agent: str, *, states: Sequence[MessageState] = (), limit: int = 100
    ) -> list[AgentMessage]:
        """The newest first."""
        finder = self._messages.query().where("agent", "=", agent)
        if states:
            finder = finder.where("state", "in", list(states))
        return await finder.order_by("-key").limit(limit).values()

    async def change(
        self,
        id: str,
        change: Callable[[AgentMessage], AgentMessage],
        *,
        lease: HeldLease | None = None,
        topic: str = "",
    ) -> AgentMessage:
        """Change a message in a transaction of its own, under a lease if one is given; `topic` is
        the event that tells of it.
        """

        async def body(transaction: Transaction) -> AgentMessage:
            if lease is not None:
                await lease.check(transaction)
            changed = await changed_in(transaction, id, change)
            if topic:
                tell(transaction, topic, changed)
            return changed

        return await self._store.transact(body)

    async def retry(self, id: str) -> AgentMessage:
        """Have a parked message done after all, with all its attempts."""

        def again(found: AgentMessage) -> AgentMessage:
            if found.state != "parked":
                raise InvalidInput(
                    f"The message {id} is {found.state}, not parked.", hint="There is no need to."
                )
            return msgspec.structs.replace(
                found,
                state="accepted",
                due=self._store.now(),
                attempts=0,
                deaths=0,
                outages=0,
                error="",
            )

        return await self.change(id, again)

    async def cancel(self, id: str) -> AgentMessage:
        """Take back a message that has not begun, or that was parked."""

        def cancelled(found: AgentMessage) -> AgentMessage:
            if found.turn and found.state != "parked":
                raise InvalidInput(
                    f"The message {id} has begun.", hint="Only one that waits can be taken back."
                )
            return msgspec.structs.replace(found, state="cancelled", ended=self._store.now())

        return await self.change(id, cancelled)


def check_body(body: str) -> None:
    """Raises `TooLarge`."""
    if len(body) > MOST_BODY:
        raise TooLarge(
            f"The message has {len(body):,} characters; {MOST_BODY:,} are the limit.",
            hint="Put the content into a file or an artifact, and name it.",
        )


async def waiting_for(transaction: Transaction, agent: str) -> set[str]:
    """Agents whose tools sent what this agent has to do, and who sent what those have to do, and so
    on: none of them may be asked by it. Nobody can become one of them until the commit.
    """
    boxes, messages = transaction.collection(AgentMailbox), transaction.collection(AgentMessage)
    found, looked = {agent}, set[str]()
    while left := found - looked:
        looked.add(name := left.pop())
        await boxes.get(name)  # read, so that whoever sends it something meanwhile is a conflict
        for state in ("accepted", "working"):
            to_do = messages.query().where("agent", "=", name).where("state", "=", state)
            for each in await to_do.where("parent", ">", "").values():
                sender = await messages.get(each.parent)
                if sender is not None and sender.state == "working":
                    found.update(each.chain)
    return found


async def changed_in(
    transaction: Transaction, id: str, change: Callable[[AgentMessage], AgentMessage]
) -> AgentMessage:
    messages = transaction.collection(AgentMessage)
    found = await messages.get(id)
    if found is None:
        raise no_message(id)
    changed = change(found)
    await messages.put(changed)
    return changed


def tell(transaction: Transaction, topic: str, message: AgentMessage) -> None:
    """News, not content: what was said is read from the message."""
    news = {"message": message.id, "session": message.session, "turn": message.turn}
    if message.error:
        news["error"] = message.error[:500]
    transaction.emit(topic, {**news, "state": message.state}, key=message.agent)


async def forget_messages(store: Store, session: str, turns: Sequence[int] = ()) -> None:
    """The messages of a session, or those whose turns these are, with what hangs on them."""
    messages = store.collection(AgentMessage)
    finder = messages.query().where("session", "=", session)
    for message in await finder.values():
        if turns and message.turn not in turns:
            continue
        for cls in (AgentQuestion, ToolIntent):
            await store.collection(cls).query().prefix(f"{message.id}/").delete()
        await messages.delete(message.id)
