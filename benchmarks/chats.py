"""Long chats with questions about them (LoCoMo), as Perdure is given them: each line a turn.

The file is never part of the repository; it lies where the transcripts do.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import perdure
from benchmarks import transcripts
from perdure.bank import Bank
from perdure.bank.session import Session
from perdure.core.messages import Message, Text

FILE = "locomo_dev.json"
_DEFAULT = Path(__file__).parent.parent.parent / "shared/data"
#: What the numbers in the file stand for.
CATEGORIES = {1: "multi_hop", 2: "temporal", 3: "open", 4: "single_hop", 5: "adversarial"}
#: A few entries are written a little differently.
_line_ids = re.compile(r"D:?(\d+):0*(\d+)").findall
_SECOND = 1_000_000
#: Seconds between two lines; the file tells when a session began.
_PACE = 20


class Line(NamedTuple):
    """What somebody said."""

    speaker: str
    text: str
    #: Microseconds.
    time: int


class Asked(NamedTuple):
    """A question, and the turns that answer it."""

    text: str
    evidence: tuple[int, ...]
    category: str


class Chat(NamedTuple):
    lines: Sequence[Line]
    questions: Sequence[Asked]

    @property
    def moment(self) -> int:
        """A day later: when the questions are asked."""
        return self.lines[-1].time + 86_400 * _SECOND


def found() -> list[Chat]:
    """The chats; none if the file is not there."""
    file = folder() / FILE
    if not file.exists():
        return []
    return [_chat(each) for each in json.loads(file.read_text(encoding="utf-8"))]


def folder() -> Path:
    """Where the chats are."""
    return Path(os.environ.get(transcripts.VARIABLE, _DEFAULT))


@asynccontextmanager
async def banked(chat: Chat, *, prefixed: bool = False) -> AsyncIterator[tuple[Bank, Session]]:
    """A bank in memory in which the chat was held, with its vectors.

    With `prefixed`, names stand before what is said, as in a plain transcript.
    """
    async with perdure.open("memory://") as bank:
        session = await bank.session("reader/chat")
        for line in chat.lines:
            await session.append(_message(line, prefixed=prefixed), fresh=True)
        await bank.settle()
        yield bank, session


def _message(line: Line, *, prefixed: bool) -> Message:
    if prefixed:
        return Message("user", (Text(f"{line.speaker}: {line.text}"),), time=line.time)
    return Message("user", (Text(line.text),), name=line.speaker, time=line.time)


def _chat(told: dict[str, Any]) -> Chat:
    lines, numbers = list[Line](), dict[str, int]()
    for id, line in _lines(told["conversation"]):
        lines.append(line)
        numbers[id] = len(lines)
    questions = list[Asked]()
    for each in told["qa"]:
        ids = [f"D{a}:{b}" for entry in each["evidence"] for a, b in _line_ids(entry)]
        evidence = sorted({numbers[id] for id in ids if id in numbers})
        if evidence:
            category = CATEGORIES[each["category"]]
            questions.append(Asked(each["question"], tuple(evidence), category))
    return Chat(lines, questions)


def _lines(conversation: dict[str, Any]) -> Iterator[tuple[str, Line]]:
    number = 1
    while said := conversation.get(f"session_{number}"):
        began = datetime.strptime(
            conversation[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y"
        ).replace(tzinfo=UTC)
        for place, each in enumerate(said):
            # What a picture shows is said in words, as in what was published on this data.
            text = " ".join(filter(None, (each["text"], each.get("blip_caption"))))
            time = (int(began.timestamp()) + place * _PACE) * _SECOND
            yield each["dia_id"], Line(each["speaker"], text, time)
        number += 1
