"""The calls of transcripts that are replayed, and the limits."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from perdure.bank import Bank
from perdure.config import Config, HistoryConfig
from perdure.core.clock import Clock, now
from perdure.core.errors import BudgetTooSmall, InvalidInput
from perdure.core.levels import Level
from perdure.core.messages import Message, Text, ToolResult, encode
from perdure.core.tokens import Counter, count_message, o200k
from perdure.core.turns import Position
from perdure.importers import import_files
from perdure.simulation.prompt_cache import CacheBlock
from perdure.simulation.transcript_formats import detect_format
from perdure.simulation.used_identifiers import old_uses, text_of
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
    #: What stands in it, and with tool outputs masked: see `used_identifiers.text_of`.
    text: str = ""
    masked_text: str = ""

    @property
    def prompt(self) -> tuple[CacheBlock, ...]:
        return self.blocks[: self.opening]

    @property
    def tokens(self) -> int:
        return sum(block.tokens for block in self.blocks)

    @property
    def prompt_tokens(self) -> int:
        return sum(block.tokens for block in self.prompt)


class History(msgspec.Struct, frozen=True, dict=True):
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

    @cached_property
    def old_uses(self) -> Sequence[Sequence[str]]:
        """What each call names again after a while: see `used_identifiers`."""
        return old_uses([(call.messages, call.opening, call.text) for call in self.calls])

    @classmethod
    def of(
        cls, rounds: Iterable[tuple[Position, Sequence[Message]]], counter: Counter | None = None
    ) -> History:
        """The history of these rounds, each one model call: a prompt or results of tools went
        before it. Events, system text (which is assumed) and rounds of nothing else are left out;
        the others are numbered anew, without gaps. Every message is counted once.
        """
        counter = counter or o200k()
        calls = list[Call]()
        turn = number = 0
        for begins, sent in _calls(rounds):
            turn, number = (turn + 1, 1) if begins or not turn else (turn, number + 1)
            calls.append(_call(counter, Position(turn, number), tuple(sent)))
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


def _calls(
    rounds: Iterable[tuple[Position, Sequence[Message]]],
) -> list[tuple[bool, list[Message]]]:
    """Model calls, and whether each begins a turn. A reply behind a reply is one with it; what a
    harness says in between is a prompt.
    """
    found = list[tuple[bool, list[Message]]]()
    source = 0
    for position, said in rounds:
        sent = [message for message in said if _is_sent(message)]
        if not sent:
            continue
        begins, source = position.turn != source, position.turn
        before = found[-1][1] if found else []
        if before and (sent[0].role == "assistant") and _is_answered(before):
            tail = _tail(before)
            if not tail:
                before += sent
                continue
            del before[len(before) - len(tail) :]
            begins, sent = True, [*tail, *sent]
        found.append((begins, sent))
    return found


def _is_sent(message: Message) -> bool:
    if message.role in {"event", "system", "developer"}:
        return False
    return any(not isinstance(part, Text) or part.text.strip() for part in message.parts)


def _is_answered(call: Sequence[Message]) -> bool:
    """Whether the model was done: it asked for no tool."""
    spoken = [message for message in call if message.role == "assistant"]
    return bool(spoken) and not spoken[-1].calls and not any(m.results for m in _tail(call))


def _tail(call: Sequence[Message]) -> list[Message]:
    """What came behind the reply."""
    behind = list(takewhile(lambda message: message.role != "assistant", reversed(call)))
    return behind[::-1]


def _call(counter: Counter, position: Position, said: tuple[Message, ...]) -> Call:
    blocks = tuple(block_of(counter, message) for message in said)
    masked = [_masked(counter, *pair) for pair in zip(said, blocks, strict=True)]
    return Call(
        position=position,
        messages=said,
        blocks=blocks,
        masked=tuple(block for block, _ in masked),
        opening=sum(1 for _ in takewhile(lambda message: message.role != "assistant", said)),
        text=text_of(said),
        masked_text=text_of([message for _, message in masked]),
    )


def block_of(counter: Counter, message: Message) -> CacheBlock:
    """Its key covers all of the message, so equal keys mean equal bytes."""
    key = hashlib.blake2b(encode((message,)), digest_size=_KEY_BYTES).digest()
    return CacheBlock(key, count_message(counter, message))


def _masked(counter: Counter, message: Message, block: CacheBlock) -> tuple[CacheBlock, Message]:
    if not message.results:
        return block, message
    parts = tuple(
        msgspec.structs.replace(part, content=(Text(PLACEHOLDER),))
        if isinstance(part, ToolResult)
        else part
        for part in message.parts
    )
    masked = msgspec.structs.replace(message, parts=parts)
    shorter = block_of(counter, masked)
    return (shorter, masked) if shorter.tokens < block.tokens else (block, message)


class ReplaySetting(msgspec.Struct, frozen=True, kw_only=True):
    """What is replayed, and within which limits."""

    calls: Sequence[Call]
    budget: int  # For all messages of a request: history, injection and prompt.
    injection: int = 0  # What is injected with each request.
    #: Of each call, what it names again after a while; empty if nobody asks.
    old_uses: Sequence[Sequence[str]] = ()
    shown: HistoryConfig = HistoryConfig()  # How a session of Perdure shows its history.

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
    shortened: bool = False  # Not all of the history is shown as it was said.
    injected: int = 0  # Tokens that were injected with the prompt of the turn under way.
    #: Tokens of the history by level, where there are levels.
    bands: Mapping[Level, int] = {}
    bands_possible: bool = False  # Right after an epoch: whether each could be in its range.
    #: What stands in it, in any pieces: see `used_identifiers`.
    texts: Sequence[str] = ()


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
async def scratch_bank(config: Config | None = None, clock: Clock = now) -> AsyncIterator[Bank]:
    """A temporary bank, without the user's settings: no model is ever called. (Not in memory: that
    backend searches all its rows for each page, which would take minutes for some thousand rounds.)
    """
    with TemporaryDirectory(prefix="perdure-") as folder:
        url = f"sqlite:///{Path(folder) / 'scratch.db'}"
        async with Bank(url, config=config or Config(), clock=clock) as bank:
            yield bank
