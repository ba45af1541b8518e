"""The inbox: messages for the administrator. ``planner/I-3`` names one.

A proposal, the draft of a reference layer, a candidate, or a contradiction can be accepted: it is
carried out then, in the name of the person who does so. All else is read and dismissed.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.core.errors import Conflict, InvalidInput, NotFound
from perdure.history.log_records import checked_agent
from perdure.recall.memory_records import Author, MemoryQuote, acting
from perdure.recall.recall import Recall
from perdure.reflection.operation_checks import MemoryOperation
from perdure.reflection.reflection_records import next_number
from perdure.services import Services
from perdure.storage.record_keys import numbered
from perdure.storage.records import Compressed, Indexed, Key, system_record
from perdure.storage.transaction import Transaction

#: ``candidate`` is what an algorithm suspects; ``junk`` what a model asked for and was refused.
MessageKind: TypeAlias = Literal[
    "proposal", "layer", "contradiction", "candidate", "note", "junk", "spend", "trouble"
]
MessageStatus: TypeAlias = Literal["open", "accepted", "dismissed"]

_name = re.compile(r"([^#]+)/[Ii]-([1-9]\d{0,7})", re.ASCII).fullmatch


@system_record("inbox")
class InboxMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message for the administrator. Times are microseconds."""

    id: Annotated[str, Key()]  # agent/number
    agent: Annotated[str, Indexed()]
    kind: Annotated[MessageKind, Indexed()]
    status: Annotated[MessageStatus, Indexed()] = "open"
    title: str
    text: Annotated[str, Compressed()] = ""
    #: What accepting it does, and to which memories, at which versions.
    operation: MemoryOperation | None = None
    keys: tuple[str, ...] = ()
    versions: tuple[int, ...] = ()
    quotes: tuple[MemoryQuote, ...] = ()
    #: The run that left it: ``planner/R-3``.
    run: str = ""
    created: int = 0
    decided: int | None = None
    by: str = ""
    #: The memory that accepting it made or changed: ``planner/M-3``.
    memory: str = ""

    @property
    def number(self) -> int:
        return int(self.id[-8:])

    @property
    def name(self) -> str:
        """``planner/I-3``."""
        return f"{self.agent}/I-{self.number}"


def inbox_id(agent: str, number: int) -> str:
    return f"{agent}/{numbered(number)}"


def parse_message(text: str) -> str:
    """The id of the message that ``planner/I-3`` names. Raises `InvalidInput`."""
    found = _name(str(text).strip())
    if found is None:
        raise InvalidInput(f"{text!r} does not name a message.", hint="Write planner/I-3.")
    return inbox_id(checked_agent(found[1]), int(found[2]))


async def post(transaction: Transaction, message: InboxMessage) -> InboxMessage:
    """Leave a message, in this transaction; one that is open and says the same stays alone."""
    messages = transaction.collection(InboxMessage)
    same = messages.query().where("agent", "=", message.agent).where("kind", "=", message.kind)
    for other in await same.where("status", "=", "open").values():
        if (other.title, other.operation) == (message.title, message.operation):
            return other
    number = await next_number(transaction, f"inbox/{message.agent}")
    made = replace(message, id=inbox_id(message.agent, number), created=transaction.now())
    await messages.put(made)
    return made


class Inbox:
    """The inbox of a bank."""

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._recall: Callable[[], Awaitable[Recall]] = services.loaded_recall

    async def list(
        self, agent: str | None = None, *, kind: str | None = None, status: str | None = "open"
    ) -> builtins.list[InboxMessage]:
        """Messages about an agent, or about all; the newest first. `status` is None for any."""
        query = self._store.collection(InboxMessage).query()
        for field, wanted in (("agent", agent), ("kind", kind), ("status", status)):
            if wanted is not None:
                query = query.where(field, "=", wanted)
        return sorted(await query.values(), key=lambda each: (-each.created, each.id))

    async def get(self, key: str, /) -> InboxMessage:
        """Raises `NotFound`, `InvalidInput`."""
        found = await self._store.collection(InboxMessage).get(parse_message(key))
        if found is None:
            raise NotFound(f"There is no message {key}.", hint="`perdure inbox` lists them.")
        return found

    async def dismiss(self, key: str, *, by: Author | None = None) -> InboxMessage:
        """Read, and not wanted. Raises `Conflict` if it was decided before."""
        return await self._decide(await self.get(key), "dismissed", by or acting())

    async def accept(self, key: str, *, by: Author | None = None) -> InboxMessage:
        """Carry out what it proposes, in the name of a person. Raises `Conflict` if it was decided
        before, if a memory that it is about has changed since, or if there is a layer of that name.
        """
        message, author = await self.get(key), by or acting()
        if message.status != "open":
            raise _decided(message)
        recall = await self._recall()
        keys = [f"{message.agent}/{each}" if "/" not in each else each for each in message.keys]
        found = await recall.memories.get_many(keys)
        for name, version, memory in zip(keys, message.versions, found, strict=False):
            if memory is None or memory.version != version:
                raise Conflict(
                    "memories",
                    name,
                    message=f"{name} has changed since {message.name} was written.",
                    hint="Dismiss it; the next run looks again.",
                )
        changed = await self._carry_out(recall, message, keys, author)
        return await self._decide(message, "accepted", author, changed)

    async def _carry_out(
        self,
        recall: Recall,
        message: InboxMessage,
        keys: builtins.list[str],
        author: Author,
    ) -> str:
        """The memory that was made or changed; empty if none was."""
        asked, memories = message.operation, recall.memories
        if message.kind == "contradiction" and len(keys) > 1:
            await memories.contradict(keys)
        if asked is None:
            return ""
        sources = tuple(dict.fromkeys(quote.turn for quote in message.quotes))
        if asked.op == "layer":
            for name in asked.keys:
                there = await recall.references.get(name)
                if there is not None and there.text.strip() not in message.text:
                    raise Conflict(
                        "references",
                        name,
                        message=f"There is a reference layer {name} already: it stays as it is.",
                        hint="Take over by hand what is new, and dismiss the draft.",
                    )
            await recall.references.add(message.text, replace=True)
            return ""
        if asked.op == "merge":
            return (await memories.merge(keys, text=asked.text or None, by=author)).name
        if asked.op in {"add", "topic"}:
            made = await memories.add(
                message.agent,
                asked.text,
                kind="topic" if asked.op == "topic" else asked.kind,
                tags=asked.tags,
                provenance=sources,
                by=author,
            )
            return made.name
        if asked.op == "retire":
            await memories.retire(keys[0], by=author)
        elif asked.op == "update":
            await memories.edit(
                keys[0],
                text=asked.text or None,
                kind=asked.kind or None,
                tags=asked.tags or None,
                provenance=sources,
                by=author,
            )
        return keys[0] if keys else ""

    async def _decide(
        self, message: InboxMessage, status: MessageStatus, author: Author, memory: str = ""
    ) -> InboxMessage:
        def change(found: InboxMessage | None) -> InboxMessage:
            if found is None or found.status != "open":
                raise _decided(found or message)
            now = self._store.now()
            return replace(found, status=status, decided=now, by=author.name, memory=memory)

        return await self._store.collection(InboxMessage).change(message.id, change)


def _decided(message: InboxMessage) -> InvalidInput:
    return InvalidInput(
        f"{message.name} is {message.status} already.", hint="`perdure inbox` lists open ones."
    )
