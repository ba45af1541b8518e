"""The calls of transcripts that are replayed, and the limits."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from perdure.bank import Bank
from perdure.config import Config
from perdure.core.errors import BudgetTooSmall, InvalidInput
from perdure.core.messages import Message, Text, ToolResult, encode
from perdure.core.tokens import Counter, count_message, o200k
from perdure.core.turns import Position
from perdure.importers import import_files
from perdure.simulation.prompt_cache import CacheBlock
from perdure.simulation.transcript_formats import detect_format
from perdure.storage.store import Progress

PLACEHOLDER = "[Old tool output removed]"  # In place of a masked tool output.

_KEY_BYTES = 16


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One model call: a round of the joined session."""

    position: Position
    messages: tuple[Message, ...]
    blocks: tuple[CacheBlock, ...]  # A block for each message.
    masked: tuple[CacheBlock, ...]  # With tool outputs masked, where that is shorter.
    opening: int  # How many messages came before the model spoke: mostly the prompt.

    @property
    def prompt(self) -> tuple[CacheBlock, ...]:
        return self.blocks[: self.opening]

    @property
    def tokens(self) -> int:
        return sum(block.tokens for block in self.blocks)

    @property
    def prompt_tokens(self) -> int:
        return sum(block.tokens for block in self.prompt)


class History(msgspec.Struct, frozen=True):
    """All calls in order."""

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
        """The history of these rounds, each one model call. Events, and rounds of nothing else, are
        left out; the others are numbered anew, without gaps. Every message is counted once.
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
    """The transcripts at these paths, joined into one session. Without a format, the files tell it:
    see `transcript_formats`. Raises `InvalidInput` if a path or format does not exist, if no format
    fits, or if nothing was said.
    """
    rounds = list[tuple[Position, Sequence[Message]]]()
    turns, seen = 0, set[str]()
    told = [await asyncio.to_thread(detect_format, path, format) for path in paths]
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


def _call(counter: Counter, position: Position, said: tuple[Message, ...]) -> Call:
    blocks = tuple(block_of(counter, message) for message in said)
    return Call(
        position=position,
        messages=said,
        blocks=blocks,
        masked=tuple(_masked(counter, *pair) for pair in zip(said, blocks, strict=True)),
        opening=sum(1 for _ in takewhile(lambda message: message.role != "assistant", said)),
    )


def block_of(counter: Counter, message: Message) -> CacheBlock:
    """Its key covers all of the message, so equal keys mean equal bytes."""
    key = hashlib.blake2b(encode((message,)), digest_size=_KEY_BYTES).digest()
    return CacheBlock(key, count_message(counter, message))


def _masked(counter: Counter, message: Message, block: CacheBlock) -> CacheBlock:
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


class ReplaySetting(msgspec.Struct, frozen=True, kw_only=True):
    """What is replayed, and within which limits."""

    calls: Sequence[Call]
    budget: int  # For all messages of a request: history, injection and prompt.
    injection: int = 0  # What is injected with each request.

    def room(self, number: int) -> int:
        """What the prompt of this call, and its injection, leave for the history. Raises
        `BudgetTooSmall` if they do not fit themselves.
        """
        needed = self.calls[number].prompt_tokens + self.injection
        if needed > self.budget:
            raise BudgetTooSmall(self.budget, needed)
        return self.budget - needed


class SimulatedRequest(msgspec.Struct, frozen=True):
    """What is sent for one call, without system text and injection."""

    blocks: list[CacheBlock]
    rewritten: bool = False  # The policy says that this does not extend the request before.
    #: Raw tokens of the calls that it stands for in any form, and what it shows for them.
    covered: int = 0
    history: int = 0


def cut(blocks: Iterable[CacheBlock], most: int) -> tuple[CacheBlock, ...]:
    """With the end cut off, at most so many tokens."""
    found, left = list[CacheBlock](), most
    for block in blocks:
        if block.tokens > left:
            if left:
                found.append(CacheBlock(digest(block.key, left), left))
            break
        found.append(block)
        left -= block.tokens
    return tuple(found)


def digest(key: bytes, number: int) -> bytes:
    return blake2b(b"%b %d" % (key, number), digest_size=16).digest()


@asynccontextmanager
async def scratch_bank() -> AsyncIterator[Bank]:
    """A temporary bank, without the user's settings: no model is ever called. (Not in memory: that
    backend searches all its rows for each page, which would take minutes for some thousand rounds.)
    """
    with TemporaryDirectory(prefix="perdure-") as folder:
        async with Bank(f"sqlite:///{Path(folder) / 'scratch.db'}", config=Config()) as bank:
            yield bank
