"""Readers, tried on records without a bank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from perdure.core.messages import Message
from perdure.core.turns import TurnSplitter
from perdure.importers import Say, Step, TranscriptReader, Undo
from tests.importers.transcripts import Record, lines

T = TypeVar("T", bound=Step)


def steps(reader: TranscriptReader, records: Iterable[Record | str | bytes]) -> list[Step]:
    """What the records come to, those that are held back at the end included."""
    found = list[Step]()
    for line in lines(records).splitlines():
        found += reader.read(reader.decode(line))
    return [*found, *reader.finish()]


def said(reader: TranscriptReader, records: Iterable[Record], to: str = "") -> list[Message]:
    return messages(steps(reader, records), to)


def messages(steps: Iterable[Step], to: str = "") -> list[Message]:
    return [step.message for step in steps if isinstance(step, Say) and step.to == to]


def undone(steps: Iterable[Step]) -> list[int]:
    return [step.turns for step in steps if isinstance(step, Undo)]


def places(messages: Iterable[Message]) -> list[tuple[int, int]]:
    """The turn and the round of each message."""
    cutter = TurnSplitter()
    return [cutter.feed(message) for message in messages]


def of(kind: type[T], steps: Iterable[Step]) -> list[T]:
    return [step for step in steps if isinstance(step, kind)]
