"""The turns of imported transcripts in memory: rounds of whole messages, to be shortened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import ours
from benchmarks.harness import work_folder
from benchmarks.importing import import_all
from benchmarks.transcripts import Transcripts
from perdure.core.messages import Message


class Told(NamedTuple):
    """One turn: its number, and the messages of its rounds."""

    number: int
    rounds: Sequence[tuple[Message, ...]]

    @property
    def messages(self) -> list[Message]:
        return [message for messages in self.rounds for message in messages]


async def told(given: Transcripts) -> list[Told]:
    """Every turn of the transcripts, with what was moved out put back."""
    found = list[Told]()
    with work_folder() as name:
        file = Path(name) / "bank.db"
        await import_all(file, given)
        async with ours.open_bank(file) as bank:
            for info in await bank.sessions(archived=True):
                session = await bank.existing_session(info.name)
                async for turn in session.read():
                    rounds = [await session.resolve(each.messages) for each in turn.rounds]
                    found.append(Told(turn.number, rounds))
    return found
