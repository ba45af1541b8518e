"""Long chats of three kinds with questions about them, as Perdure is given them.

LoCoMo and REALTALK are of two people, made up and real: each line is a turn. BEAM is of a user and
an assistant: a turn is a prompt and its reply. Evidence is a set of turns: where BEAM names a
message, prompt or reply, the turn that holds it is meant, since that is what recall gives.

The files are never part of the repository; they lie where the transcripts do.
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
from perdure.core.messages import Message, Text
from perdure.sessions.session import Session

FILE = "locomo_dev.json"
KINDS = ("locomo", "realtalk", "beam")
_DEFAULT = Path(__file__).parent.parent.parent / "shared/data"
#: What the numbers in the file stand for.
CATEGORIES = {1: "multi_hop", 2: "temporal", 3: "open", 4: "single_hop", 5: "adversarial"}
#: A few entries are written a little differently.
_line_ids = re.compile(r"D:?(\d+)[:;]0*(\d+)").findall
#: What stands behind prompts of BEAM: `` ->-> 1,1``.
_numbering = re.compile(r"\s*->->.*$", re.DOTALL).sub
#: How times are written.
_DATED, _DATED_REAL, _DATED_PROJECT = "%I:%M %p on %d %B, %Y", "%d.%m.%Y, %H:%M:%S", "%B-%d-%Y"
_SECOND = 1_000_000
#: Seconds between two lines; the file tells when a session began.
_PACE = 20


class Line(NamedTuple):
    """What somebody said."""

    speaker: str
    text: str
    #: Microseconds.
    time: int
    #: What a model answered in the same turn.
    reply: str = ""

    @property
    def words(self) -> str:
        """All that the turn says."""
        return f"{self.text}\n{self.reply}" if self.reply else self.text


class Asked(NamedTuple):
    """A question, and the turns that answer it."""

    text: str
    evidence: tuple[int, ...]
    category: str
    #: The words of the very messages that answer it.
    said: tuple[str, ...] = ()


class Chat(NamedTuple):
    lines: Sequence[Line]
    questions: Sequence[Asked]

    @property
    def moment(self) -> int:
        """A day later: when the questions are asked."""
        return self.lines[-1].time + 86_400 * _SECOND


def found() -> list[Chat]:
    """The chats of LoCoMo; none if the file is not there."""
    file = _folder() / FILE
    if not file.exists():
        return []
    return [_chat(each["conversation"], each["qa"], _DATED) for each in _read(file)]


def by_kind() -> dict[str, list[Chat]]:
    """The chats of each of `KINDS`, as far as they are there."""
    folder = _folder()
    talks = map(_read, sorted(folder.glob("realtalk_dev/*.json")))
    projects = sorted(each.parent for each in folder.glob("beam_dev/*/chat.json"))
    return {
        "locomo": found(),
        "realtalk": [_chat(each, each["qa"], _DATED_REAL) for each in talks],
        "beam": [
            _project(_read(each / "chat.json"), _read(each / "questions.json")) for each in projects
        ],
    }


def _folder() -> Path:
    return Path(os.environ.get(transcripts.VARIABLE, _DEFAULT))


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


@asynccontextmanager
async def banked(chat: Chat, *, prefixed: bool = False) -> AsyncIterator[tuple[Bank, Session]]:
    """A bank in memory in which the chat was held, with its vectors.

    With `prefixed`, names stand before what is said, as in a plain transcript.
    """
    async with perdure.open("memory://") as bank:
        session = await bank.session("reader/chat")
        for line in chat.lines:
            await session.append(_messages(line, prefixed=prefixed), fresh=True)
        await bank.settle()
        yield bank, session


def _messages(line: Line, *, prefixed: bool) -> list[Message]:
    text = f"{line.speaker}: {line.text}" if prefixed and line.speaker else line.text
    name = "" if prefixed else line.speaker
    said = Message("user", (Text(text),), name=name, time=line.time)
    if not line.reply:
        return [said]
    return [said, Message("assistant", (Text(line.reply),), time=line.time)]


# Two people


def _chat(conversation: dict[str, Any], asked: Sequence[dict[str, Any]], dated: str) -> Chat:
    lines, numbers = list[Line](), dict[str, int]()
    for id, line in _lines(conversation, dated):
        lines.append(line)
        numbers[id] = len(lines)
    questions = list[Asked]()
    for each in asked:
        ids = [f"D{a}:{b}" for entry in each["evidence"] for a, b in _line_ids(entry)]
        evidence = sorted({numbers[id] for id in ids if id in numbers})
        if evidence:
            category = CATEGORIES[each["category"]]
            said = tuple(lines[number - 1].text for number in evidence)
            questions.append(Asked(each["question"], tuple(evidence), category, said))
    return Chat(lines, questions)


def _lines(conversation: dict[str, Any], dated: str) -> Iterator[tuple[str, Line]]:
    number = 1
    while said := conversation.get(f"session_{number}"):
        began = _seconds(conversation[f"session_{number}_date_time"], dated)
        for place, each in enumerate(said):
            # What a picture shows is said in words, as in what was published on this data.
            told = each["text"] if "text" in each else each["clean_text"]
            text = " ".join(filter(None, (told, each.get("blip_caption"))))
            time = began + place * _PACE
            if "date_time" in each:
                time = _seconds(each["date_time"], dated)
            yield each["dia_id"], Line(each["speaker"], text, time * _SECOND)
        number += 1


def _seconds(written: str, dated: str) -> int:
    return int(datetime.strptime(written, dated).replace(tzinfo=UTC).timestamp())


# A user and an assistant


def _project(batches: Sequence[dict[str, Any]], asked: dict[str, list[dict[str, Any]]]) -> Chat:
    lines, numbers, texts, time = list[Line](), dict[int, int](), dict[int, str](), 0
    for said in (each for batch in batches for turn in batch["turns"] for each in turn):
        text = _numbering("", said["content"])
        if said["role"] == "user":
            began = said.get("time_anchor")
            time = _seconds(began, _DATED_PROJECT) if began else time + _PACE
            lines.append(Line("", text, time * _SECOND))
        else:
            lines[-1] = lines[-1]._replace(reply=text)
        numbers[said["id"]], texts[said["id"]] = len(lines), text
    questions = list[Asked]()
    for category, some in asked.items():
        for each in some:
            ids = [id for id in _flat(each.get("source_chat_ids", ())) if id in numbers]
            if evidence := sorted({numbers[id] for id in ids}):
                said = tuple(texts[id] for id in sorted(set(ids)))
                questions.append(Asked(each["question"], tuple(evidence), category, said))
    return Chat(lines, questions)


def _flat(ids: Any) -> list[int]:
    """Message ids, however they are nested."""
    if isinstance(ids, int):
        return [ids]
    some = ids.values() if isinstance(ids, dict) else ids
    return [id for each in some for id in _flat(each)]
