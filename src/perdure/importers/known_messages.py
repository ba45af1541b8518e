"""Tells which messages of a file a session has already.

There are two cases. A file was written anew: then all of it is compared with the session. Or others
wrote to the session since the file was last imported, such as the proxy, which records the same
conversation: then what is new in the file is compared with what they wrote.

A message of the file is known by its name, which is the provider's id of a reply or the time of
another message, and part by part by what was said (`perdure.history.message_identity`); but not if
that was written down before it was said: then it was said twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec

from perdure.bank import Bank
from perdure.core import clock
from perdure.core.messages import Message, Part, Reasoning, words_of
from perdure.core.turns import is_prompt
from perdure.history.log_records import Head, TurnPiece, turn_prefix
from perdure.history.message_identity import COMPACTION, is_weak, part_identity, with_texts
from perdure.importers.importer import PIECE
from perdure.sessions.session import Session

#: A client notes a prompt a moment before the proxy sees it.
_BEFORE = 2 * clock.SECOND
#: What was recorded so long before a message of a file is not in the file behind it.
_LATE = 60 * clock.SECOND


class _Stored:
    """A message of the session, and what of it was not found in the file so far."""

    __slots__ = ("id", "left", "piece", "time", "turn")

    def __init__(self, id: str, left: list[str], time: int, turn: int, piece: int) -> None:
        self.id = id  # the provider's
        self.left = left
        self.time = time  # when it was written down, at the latest
        self.turn = turn
        self.piece = piece


class KnownMessages:
    """What a session has, as a file's messages are compared with it, in order."""

    def __init__(self, bank: Bank, name: str) -> None:
        self._bank = bank
        self._intake = bank.services.intake(name)
        self._stored: list[_Stored] = []
        self._by_name: dict[str, list[_Stored]] = {}
        self._by_words: dict[str, list[_Stored]] = {}
        self._forgotten: dict[int, tuple[int, int]] = {}  # by turn: from when to when
        self._newest = 0  # when the newest message of the file was said
        #: The turn of the message that was known last; 0 if there was none.
        self.turn = 0

    @classmethod
    async def of(cls, bank: Bank, session: Session, own: Iterable[int] | None) -> tuple[Self, Head]:
        """All that the session has, and its head. Of a forgotten turn only its times are known:
        what was said between them stays forgotten. `own` are the turns that this holds for; None:
        all.
        """
        known, head = cls(bank, session.name), await session.head()
        shared = session.record.forked_at
        async for turn in session.read(1, shared, undone=True):
            await known._add(turn.messages, turn.ended, turn.number, 0)
        await known.add_behind(head, 0, shared + 1)
        if own is not None:
            opened = set(own)
            known._forgotten = {
                turn: span for turn, span in known._forgotten.items() if turn in opened
            }
        return known, head

    async def add_behind(self, head: Head, pieces: int, turn: int) -> None:
        """Add what was written to the session behind so many pieces, from this turn on."""
        first = turn_prefix(head.id, max(turn, 1))
        async for piece in self._bank.collection(TurnPiece).walk(f"{head.id}/", after=first):
            if not pieces < piece.number <= head.pieces:
                continue
            if piece.forgotten:
                began, ended = self._forgotten.get(piece.turn, (piece.time, piece.ended))
                span = min(began, piece.time), max(ended, piece.ended)
                self._forgotten[piece.turn] = span
            await self._add(piece.messages(), piece.ended, piece.turn, piece.number)

    async def _add(self, messages: tuple[Message, ...], ended: int, turn: int, piece: int) -> None:
        for message in await with_texts(messages, self._bank.artifacts):
            left = [_part_name(message, part) for part in message.parts]
            if not left or _is_compaction(message):
                left.append(message.name)
            # An answer is noted when it begins here, and when it ends there.
            time = ended + _LATE if message.role != "user" else message.time or ended
            stored = _Stored(message.id, left, time, turn, piece)
            self._stored.append(stored)
            if name := _name(message):
                self._by_name.setdefault(name, []).append(stored)
            for words in left:
                self._by_words.setdefault(words, []).append(stored)

    def in_step(self, head: tuple[int, int]) -> tuple[int, int]:
        """The piece and the turn up to which the file and the session are in step: `head`, unless
        the file does not have yet what was written to the session before that.
        """
        since = self._newest - _LATE
        late = [each for each in self._stored if each.time >= since and _is_awaited(each)]
        first = min(late, key=lambda each: each.piece, default=None)
        return head if first is None else (max(first.piece - 1, 0), first.turn)

    async def news(self, message: Message) -> Message | None:
        """What of the message the session does not have; None if it has all of it."""
        self._newest = max(self._newest, message.time or 0)
        if self._is_forgotten(message):
            return None
        (masked,), _ = await self._intake.masked((message,))
        named = self._by_name.get(_name(message), [])
        if _is_compaction(message) or not masked.parts:
            # What clients make of a compaction differs: a summary, or what only a model can read.
            told = [_part_name(masked, part) for part in masked.parts] + [message.name]
            known = any(self._find(words, named, message) for words in told)
            return None if known else message
        new: list[int] = []
        waiting: list[int] = []  # reasoning, which belongs to what follows it
        for at, part in enumerate(masked.parts):
            words = _part_name(masked, part)
            if isinstance(part, Reasoning):
                if _take(words, named) is None:
                    waiting.append(at)
            elif self._find(words, named, message):
                waiting = []
            else:
                new += [*waiting, at]
                waiting = []
        if not any(not isinstance(part, Reasoning) for part in masked.parts):
            new = waiting
        if len(new) == len(message.parts):
            return message
        if not new:
            return None
        parts = tuple(message.parts[at] for at in new)
        return msgspec.structs.replace(message, parts=parts, usage=None)

    def _find(self, words: str, named: list[_Stored], message: Message) -> bool:
        found = _take(words, named)
        if found is None:
            stored = self._by_words.get(words, [])
            if not words.startswith(("call ", "result ")):  # those say by themselves which they are
                stored = [each for each in stored if _may_be(each, message)]
            found = _take(words, stored)
        if found is not None:
            self.turn = found.turn
        return found is not None

    def _is_forgotten(self, message: Message) -> bool:
        moment = message.time
        if moment is None:
            return False
        before = _BEFORE if is_prompt(message) else 0
        spans = self._forgotten.values()
        return any(began - before <= moment <= ended for began, ended in spans)


def _may_be(stored: _Stored, message: Message) -> bool:
    """Whether it may be this message, if it has the same words."""
    if (
        message.id
        and stored.id
        and PIECE not in {message.id[: len(PIECE)], stored.id[: len(PIECE)]}
    ):
        return message.id == stored.id
    return message.time is None or stored.time >= message.time


def is_put_in(message: Message) -> bool:
    """Whether it holds only what programs put in: others may have that in another form, or not."""
    names = [_part_name(message, part) for part in message.parts]
    return bool(names) and all(map(is_weak, names))


def _is_awaited(stored: _Stored) -> bool:
    """Whether nothing of a message was found in the file, and it is one that files have."""
    return bool(stored.left) and not any(map(is_weak, stored.left)) and stored.piece > 0


def _take(words: str, stored: Iterable[_Stored]) -> _Stored | None:
    for each in stored:
        if words in each.left:
            each.left.remove(words)
            return each
    return None


def _part_name(message: Message, part: Part) -> str:
    return part_identity(message, part) or f"{type(part).__name__} {words_of(part)}"


def _is_compaction(message: Message) -> bool:
    return message.role == "event" and message.name == COMPACTION


def _name(message: Message) -> str:
    if message.results:
        return "results " + " ".join(result.call for result in message.results)
    if message.id and not message.id.startswith(PIECE):
        return f"id {message.id}"
    if message.calls:
        return "calls " + " ".join(call.id for call in message.calls)
    return "" if message.time is None else f"{message.role} {message.name} {message.time}"
