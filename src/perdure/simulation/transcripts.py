"""Transcripts as a simulation needs them: all model calls of all files, one after the other.

Files come in through the importers, into a bank that is thrown away, so whatever can be imported
can be simulated, and what is replayed is what an import would hold: undone turns are left
out, secrets are masked. Conversations, those of sub-agents too, are joined in the order in which
they are found, and their turns numbered anew.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, Text, ToolResult, encode
from perdure.core.tokens import Counter, count_message, o200k
from perdure.core.turns import Position
from perdure.importers import import_files
from perdure.simulation.caching import Block
from perdure.simulation.formats import tell
from perdure.simulation.scratch import scratch_bank
from perdure.storage.store import Progress

#: What stands in the place of a tool's output that is masked.
PLACEHOLDER = "[Old tool output removed]"

_KEY_BYTES = 16


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One model call: a round of the joined session."""

    position: Position
    messages: tuple[Message, ...]
    #: A block for each message.
    blocks: tuple[Block, ...]
    #: The same with tools' outputs masked where that makes them shorter.
    masked: tuple[Block, ...]
    #: How many of the messages were there before the model spoke: the prompt, most of all.
    opening: int

    @property
    def prompt(self) -> tuple[Block, ...]:
        """What was said before the model spoke."""
        return self.blocks[: self.opening]

    @property
    def tokens(self) -> int:
        return sum(block.tokens for block in self.blocks)

    @property
    def prompt_tokens(self) -> int:
        return sum(block.tokens for block in self.prompt)


class History(msgspec.Struct, frozen=True):
    """All calls in their order."""

    calls: tuple[Call, ...]
    #: Which path was taken for which format, and the files that could not be read.
    formats: dict[str, str] = {}
    unread: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(call.tokens for call in self.calls)

    @property
    def turns(self) -> int:
        return self.calls[-1].position.turn if self.calls else 0

    @classmethod
    def of(
        cls, rounds: Iterable[tuple[Position, Sequence[Message]]], counter: Counter | None = None
    ) -> History:
        """The history of these rounds, each of which is one model call.

        What is never sent to a model (events) is left out, and so are rounds of nothing else: the
        others are numbered anew, without gaps. Every message is counted once.
        """
        counter = counter or o200k()
        calls = list[Call]()
        source = turn = number = 0
        for position, said in rounds:
            sent = tuple(message for message in said if message.role != "event")
            if not sent:
                continue
            if position.turn != source:
                source, turn, number = position.turn, turn + 1, 0
            number += 1
            calls.append(_call(counter, Position(turn, number), sent))
        return cls(tuple(calls))


async def read_history(
    paths: Sequence[Path],
    format: str | None = None,  # noqa: A002 (that is what it is)
    progress: Progress | None = None,
) -> History:
    """The transcripts at these paths, joined into one session.

    Without a format, the files at each path tell it: see `simulation.formats`.

    Raises `InvalidInput` if a path or format does not exist, if no format fits, or if nothing was
    said.
    """
    rounds = list[tuple[Position, Sequence[Message]]]()
    turns, seen = 0, set[str]()
    told = [await asyncio.to_thread(tell, path, format) for path in paths]
    formats = {path: name for each in told for path, name in each.formats.items()}
    async with scratch_bank() as bank:
        for path, known in formats.items():
            imported = await import_files(bank, known, [path], progress=progress)
            for name in (each.name for each in imported.sessions if each.messages):
                if name in seen:
                    continue
                seen.add(name)
                session = await bank.existing_session(name)
                async for turn in session.read():
                    turns += 1
                    for round in turn.rounds:
                        said = await session.resolve(round.messages)
                        rounds.append((Position(turns, round.number), said))
    history = await asyncio.to_thread(History.of, rounds)
    if not history.calls:
        where = ", ".join(str(path) for path in paths)
        raise InvalidInput(
            f"Nothing was said in {where}.",
            hint="Name transcripts with at least one message, and the right --format.",
        )
    return msgspec.structs.replace(
        history,
        formats={str(path): name for path, name in formats.items()},
        unread=tuple(dict.fromkeys(str(file) for each in told for file in each.unread)),
    )


# ------------------------------------------------------------------------------------------------


def _call(counter: Counter, position: Position, said: tuple[Message, ...]) -> Call:
    blocks = tuple(block_of(counter, message) for message in said)
    return Call(
        position=position,
        messages=said,
        blocks=blocks,
        masked=tuple(_masked(counter, *pair) for pair in zip(said, blocks, strict=True)),
        opening=sum(1 for _ in _before_reply(said)),
    )


def _before_reply(said: Iterable[Message]) -> Iterator[Message]:
    for message in said:
        if message.role == "assistant":
            return
        yield message


def block_of(counter: Counter, message: Message) -> Block:
    """The message as a block. Its key covers all of it, so equal keys mean equal bytes."""
    key = hashlib.blake2b(encode((message,)), digest_size=_KEY_BYTES).digest()
    return Block(key, count_message(counter, message))


def _masked(counter: Counter, message: Message, block: Block) -> Block:
    if not message.results:
        return block
    parts = tuple(
        msgspec.structs.replace(part, content=(Text(PLACEHOLDER),))
        if isinstance(part, ToolResult)
        else part
        for part in message.parts
    )
    shorter = block_of(counter, msgspec.structs.replace(message, parts=parts))
    return shorter if shorter.tokens < block.tokens else block
