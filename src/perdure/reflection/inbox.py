"""The inbox: messages for the administrator. ``planner/I-3`` names one.

A proposal, the draft of a reference layer, a candidate, or a contradiction can be accepted: it is
carried out then, in the name of the person who does so. All else is read and dismissed.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from perdure.core.errors import Conflict, InvalidInput, NotFound, PerdureError
from perdure.history.log_records import checked_agent
from perdure.recall.memories.memories import Memories
from perdure.recall.memory_records import Author, Memory, MemoryQuote, acting, parse_key
from perdure.recall.recall import Recall
from perdure.recall.references.layers import LayerRecord
from perdure.reflection.operation_checks import MemoryOperation
from perdure.reflection.reflection_records import next_number
from perdure.services import Services
from perdure.storage.options import STRONG
from perdure.storage.record_keys import numbered
from perdure.storage.records import Compressed, Indexed, Key, system_record
from perdure.storage.transaction import Transaction

#: ``candidate`` is what an algorithm suspects; ``junk`` what a model asked for and was refused.
MessageKind: TypeAlias = Literal[
    "proposal", "layer", "contradiction", "candidate", "note", "junk", "spend", "trouble"
]
MessageStatus: TypeAlias = Literal["open", "accepted", "dismissed"]
_KINDS: tuple[MessageKind, ...] = get_args(MessageKind)
_STATUSES: tuple[MessageStatus, ...] = get_args(MessageStatus)

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
        """Messages about an agent, or about all; the newest first. `status` is None for any.

        Raises `InvalidInput` for a kind or a status that there is not.
        """
        for wanted, known in ((kind, _KINDS), (status, _STATUSES)):
            if wanted is not None and wanted not in known:
                raise InvalidInput(
                    f"{wanted!r} is none of: {', '.join(known)}.", hint="Write one of these."
                )
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
        """Read, and not wanted. Raises `InvalidInput` if it was decided before."""
        message, author = await self.get(key), by or acting()
        return await self._store.transact(
            lambda transaction: _decide(transaction, message, "dismissed", author)
        )

    async def accept(self, key: str, *, by: Author | None = None) -> InboxMessage:
        """Carry out what it proposes, in the name of a person, in one transaction.

        Raises `InvalidInput` if it was decided before; `Conflict` if a memory that it is about has
        changed since, or if there is a layer of that name.
        """
        message, author, recall = await self.get(key), by or acting(), await self._recall()
        if message.operation is not None and message.operation.op == "layer":
            return await self._add_layer(recall, message, author)

        async def body(transaction: Transaction) -> InboxMessage:
            try:
                await _open_one(transaction, message)
                memories = recall.memories.within(transaction)
                await _require_same(transaction, message)
                changed = await _carry_out(memories, message, author)
            except PerdureError as exc:  # as it is, a Conflict would be tried again
                raise _NotAccepted(exc) from exc
            return await _decide(transaction, message, "accepted", author, changed)

        try:
            return await self._store.transact(body, STRONG)
        except _NotAccepted as refused:
            raise refused.error from None

    async def _add_layer(
        self, recall: Recall, message: InboxMessage, author: Author
    ) -> InboxMessage:
        if message.status != "open":
            raise _decided(message)
        for name in message.operation.keys if message.operation else ():
            if await recall.references.get(name) is not None:
                raise Conflict(
                    "references",
                    name,
                    message=f"There is a reference layer {name} already: it stays as it is.",
                    hint="Take over by hand what is new, and dismiss the draft.",
                )

        async def decide(transaction: Transaction, _: LayerRecord) -> None:
            await _decide(transaction, message, "accepted", author)

        await recall.references.add(message.text, within=decide)
        return await self.get(message.name)


class _NotAccepted(Exception):
    """Why a message is not accepted; nothing of it is carried out."""

    def __init__(self, error: PerdureError) -> None:
        super().__init__(error.message)
        self.error = error


async def _open_one(transaction: Transaction, message: InboxMessage) -> InboxMessage:
    """The message as it is. Raises `InvalidInput` if it was decided."""
    found = await transaction.collection(InboxMessage).get(message.id)
    if found is None or found.status != "open":
        raise _decided(found or message)
    return found


async def _decide(
    transaction: Transaction,
    message: InboxMessage,
    status: MessageStatus,
    author: Author,
    memory: str = "",
) -> InboxMessage:
    found = await _open_one(transaction, message)
    now = transaction.now()
    decided = replace(found, status=status, decided=now, by=author.name, memory=memory)
    await transaction.collection(InboxMessage).put(decided)
    return decided


def _names(message: InboxMessage) -> list[str]:
    return [f"{message.agent}/{each}" if "/" not in each else each for each in message.keys]


async def _require_same(transaction: Transaction, message: InboxMessage) -> None:
    """Raises `Conflict` if a memory that a message is about has changed since."""
    for name, version in zip(_names(message), message.versions, strict=False):
        memory = await transaction.collection(Memory).get(parse_key(name))
        if memory is None or memory.version != version:
            raise Conflict(
                "memories",
                name,
                message=f"{name} has changed since {message.name} was written.",
                hint="Dismiss it; the next run looks again.",
            )


async def _carry_out(memories: Memories, message: InboxMessage, author: Author) -> str:
    """The memory that was made or changed; empty if none was."""
    asked, keys = message.operation, _names(message)
    if message.kind == "contradiction" and len(keys) > 1:
        await memories.contradict(keys)
    if asked is None:
        return ""
    sources = tuple(dict.fromkeys(quote.turn for quote in message.quotes))
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


def _decided(message: InboxMessage) -> InvalidInput:
    return InvalidInput(
        f"{message.name} is {message.status} already.", hint="`perdure inbox` lists open ones."
    )
