"""Continuous one-shot: each turn begins afresh, behind a brief instead of a history.

An agent is woken for one run at a time. What it has to know is in four texts: the specification,
the tasks, the last entries of the log that it keeps itself, and what whoever woke it found out
(`agents/one_shot`). Earlier turns are in the log of the session, not in the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from perdure.artifacts import ArtifactStore
from perdure.history.log_records import SessionRecord
from perdure.history.strategies.regular_strategy import OpenTurn
from perdure.history.token_counts import TokenCounts
from perdure.history.turn_reader import TurnReader
from perdure.storage.records import Compressed, Key, system_record
from perdure.storage.store import Store

#: Tokens of the log that are shown at most, and a few for headings.
LOG_TOKENS = 4_000
_HEADINGS = 60
_heading = re.compile(r"^#{1,6} ", re.MULTILINE)
_paragraph = re.compile(r"\n\s*\n")


@system_record("briefs")
class OneShotBrief(msgspec.Struct, frozen=True, kw_only=True):
    """What the next turn of a one-shot session begins with. The texts are those of files, read by
    whoever runs the agent: a session itself names no files, since others may write its state.
    """

    id: Annotated[str, Key()]  # The session.
    spec: Annotated[str, Compressed()] = ""
    tasks: Annotated[str, Compressed()] = ""
    log: Annotated[str, Compressed()] = ""
    facts: Annotated[str, Compressed()] = ""


class OneShotStrategy(OpenTurn):
    """Shows the turn under way, and nothing older."""

    name = "one-shot"

    def __init__(
        self, reader: TurnReader, artifacts: ArtifactStore, token_counts: TokenCounts, store: Store
    ) -> None:
        super().__init__(reader, artifacts, token_counts)
        self._briefs = store.collection(OneShotBrief)

    async def brief(self, record: SessionRecord, room: int) -> str:
        """What stands in front of a prompt: as much of the log's end as there is room for, and the
        rest whole. Empty if nothing was written for the session.
        """
        found = await self._briefs.get(record.id)
        if found is None:
            return ""
        count = self._rounds.counter.count
        texts = [("The specification", found.spec), ("The tasks", found.tasks)]
        facts = [("What was found out before this run", found.facts)]
        taken = sum(count(text) for _, text in (*texts, *facts)) + _HEADINGS
        entries = last_entries(found.log)
        log, left = list[str](), min(LOG_TOKENS, room - taken)
        for entry in reversed(entries):
            left -= count(entry)
            if left < 0:
                break
            log.insert(0, entry)
        name = "The log" if len(log) == len(entries) else "The last entries of the log"
        whole = [*texts, (name, "\n\n".join(log)), *facts]
        return "\n\n".join(f"# {name}\n{text.strip()}" for name, text in whole if text.strip())


def last_entries(log: str) -> Sequence[str]:
    """The entries of a log, oldest first: by its headings, or by its paragraphs."""
    starts = [each.start() for each in _heading.finditer(log)]
    if len(starts) < 2:
        return [each.strip() for each in _paragraph.split(log) if each.strip()]
    ends = [*starts[1:], len(log)]
    parts = [log[: starts[0]], *(log[a:b] for a, b in zip(starts, ends, strict=True))]
    return [part.strip() for part in parts if part.strip()]
