"""What an import left in a bank, in a form that can be compared."""

from __future__ import annotations

import re
from typing import Any

from perdure.bank import Bank
from perdure.core.messages import Message
from perdure.core.turns import Turn
from perdure.history.log_records import SessionRecord
from perdure.importers.importer import PIECE

#: The status of a turn, and its messages, pieces of a reply put together.
Shown = tuple[str, list[tuple[str, str, str, tuple[Any, ...]]]]


async def names(bank: Bank) -> list[str]:
    """The sessions in the bank."""
    page = await bank.collection(SessionRecord).list(limit=100)
    return [record.id for record in page.values]


async def conversation(bank: Bank, name: str) -> list[Shown]:
    """Turn by turn, what was said and what became of it."""
    session = await bank.session(name)
    return [shown(turn) async for turn in session.read(undone=True)]


async def everything(bank: Bank) -> dict[str, list[Shown]]:
    return {name: await conversation(bank, name) for name in await names(bank)}


def shown(turn: Turn) -> Shown:
    said: list[tuple[str, str, str, tuple[Any, ...]]] = []
    for message in turn.messages:
        name = message.id
        before = next((at for at, m in enumerate(said) if name and m[1] == name), None)
        if before is None:
            said.append((message.role, name, message.name, _parts(message)))
        else:
            said[before] = (*said[before][:3], said[before][3] + _parts(message))
    said = [(role, _name(id), name, parts) for role, id, name, parts in said]
    status = "undone" if turn.status == "undone" else "there"
    # Which results came first is no one's concern.
    return status, [m for m in said if m[0] != "tool"] + sorted(m for m in said if m[0] == "tool")


def _name(id: str) -> str:
    """The provider's name of a reply, without one that pieces of it were given by us."""
    return "" if id.startswith(PIECE) else id


def _parts(message: Message) -> tuple[Any, ...]:
    """As text. The file of a result that moved out is known only while its call is remembered."""
    return tuple(re.sub(r"filename='[^']*'", "", repr(part)) for part in message.parts)


async def output_tokens(bank: Bank, name: str) -> int:
    """What the provider counted, over all replies."""
    session = await bank.session(name)
    turns = [turn async for turn in session.read(undone=True)]
    usages = [message.usage for turn in turns for message in turn.messages]
    return sum(usage.output or 0 for usage in usages if usage is not None)
