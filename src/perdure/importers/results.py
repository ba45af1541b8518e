"""What an import did."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from perdure.history.piece_packing import RoundWritten


class SessionImport(msgspec.Struct, kw_only=True):
    """What was added to one session, and what became of the records that were read for it.

    A file that came to nothing is listed under the name that its session would have.
    """

    name: str
    turns: int = 0
    rounds: int = 0
    messages: int = 0
    #: In o200k tokens.
    tokens: int = 0
    tool_calls: int = 0
    #: Turns that were taken back.
    undone: int = 0
    #: Records, and those of them that were skipped, by reason.
    read: int = 0
    skipped: dict[str, int] = {}
    #: The session has turns of what was read: it is of the format, even if nothing in it is new.
    known: bool = False

    @property
    def used(self) -> int:
        return self.read - sum(self.skipped.values())

    def add(self, rounds: Iterable[RoundWritten]) -> None:
        """Count what was written."""
        for round in rounds:
            self.turns += round.round == 1 and not round.before
            self.rounds += not round.before
            self.messages += len(round.messages)
            self.tool_calls += sum(len(message.calls) for message in round.messages)

    def skip(self, reasons: dict[str, int]) -> None:
        for reason, count in reasons.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + count


class Imported:
    """What one run did, session by session."""

    def __init__(self) -> None:
        self._sessions: dict[str, SessionImport] = {}

    @property
    def sessions(self) -> list[SessionImport]:
        return list(self._sessions.values())

    def of(self, name: str) -> SessionImport:
        """What was added to the session of this name."""
        return self._sessions.setdefault(name, SessionImport(name=name))

    def drop(self, name: str) -> None:
        """Count anew what is added to this session."""
        self._sessions.pop(name, None)
