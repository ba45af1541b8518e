"""What clients of a cluster did and were told: the material of `linearizability`."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from perdure.core.messages import ArtifactPointer, Message, Text, user

#: Who reads each session as a whole at the end.
AUDITOR = "auditor"
Kind = Literal["append", "read", "undo", "fork"]
#: ``failed``: it surely had no effect. ``unknown``: it may have, or may have one later.
Outcome = Literal["ok", "failed", "unknown"]


def words_of_turn(messages: Iterable[Message]) -> str:
    """What a turn says: its prompt, and hashes of what follows. An artifact is named by its own."""
    prompt, *answers = [*messages] or [user("")]
    hashes = [
        part.artifact.removeprefix("sha256:")
        if isinstance(part, ArtifactPointer)
        else hashlib.sha256(
            part.text.encode() if isinstance(part, Text) else msgspec.json.encode(part)
        ).hexdigest()
        for message in answers
        for part in message.parts
    ]
    return " ".join([f"{prompt.text}:", *(each[:16] for each in hashes)])


class Reading(msgspec.Struct, frozen=True):
    """What was seen of a session: its turns from `first` to the newest, and which are undone."""

    first: int
    newest: int
    texts: dict[int, str] = {}
    undone: frozenset[int] = frozenset()


class Operation(msgspec.Struct, kw_only=True):
    """One call of one client. Tried again, it is still one: from its first try to its last."""

    kind: Kind
    session: str
    client: str
    began: float
    ended: float = math.inf
    outcome: Outcome = "unknown"
    #: What was appended, as `words_of_turn` has it. No two appends say the same.
    text: str = ""
    #: The number of the turn that was written, or undone, or of the last that a fork shares.
    turn: int = 0
    #: Of a fork: its name, and whether it was made at the newest turn that was not undone.
    fork: str = ""
    at_newest: bool = False
    seen: Reading | None = None

    def __str__(self) -> str:
        what = {"append": self.text, "fork": self.fork}.get(self.kind, "")
        ended = "…" if math.isinf(self.ended) else f"{self.ended:.3f}"
        seen = f" saw T-{self.seen.newest}" if self.seen is not None else ""
        return (
            f"{self.client} {self.kind} {what or f'T-{self.turn}'} of {self.session}"
            f" [{self.began:.3f}, {ended}] {self.outcome} T-{self.turn}{seen}"
        )


class History:
    """Operations by session, of one process: its clock is that of `time.monotonic`."""

    def __init__(self) -> None:
        self.sessions: dict[str, list[Operation]] = {}
        #: Operations that began, and those of them that ended ok.
        self.began = self.count = 0

    def begin(self, kind: Kind, session: str, client: str, **facts: Any) -> Operation:
        operation = Operation(
            kind=kind, session=session, client=client, began=time.monotonic(), **facts
        )
        self.sessions.setdefault(session, []).append(operation)
        self.began += 1
        return operation

    def end(self, operation: Operation, outcome: Outcome) -> None:
        """An operation of which nothing is known ends never: it may come to pass at any time."""
        operation.outcome = outcome
        self.count += outcome == "ok"
        if outcome != "unknown":
            operation.ended = time.monotonic()

    def outcomes(self) -> dict[str, int]:
        counts = {"ok": 0, "failed": 0, "unknown": 0}
        for operations in self.sessions.values():
            for operation in operations:
                counts[operation.outcome] += 1
        return counts
