"""One run of one importer: what its files have in common."""

from __future__ import annotations

from collections.abc import Callable

from perdure.bank import Bank
from perdure.history.log_records import Link, agent_of
from perdure.importers.importer import Importer, Transcript, name_of
from perdure.importers.results import Imported, SessionImport
from perdure.storage.store import Progress

#: Sub-agents whose calls are remembered.
_SPAWNED = 100_000

#: Told what was added, each time something was.
Heard = Callable[[SessionImport], None]


class Run:
    """Names the sessions of a run, ties them to each other, and counts what was done.

    Raises `InvalidInput` if `session` cannot be a session's name.
    """

    def __init__(
        self,
        bank: Bank,
        format: str,  # noqa: A002 (that is what it is)
        importer: Importer,
        session: str | None,
        progress: Progress,
    ) -> None:
        if session is not None:
            agent_of(session)
        self.bank = bank
        self.format = format
        self.importer = importer
        self.progress = progress
        self.result = Imported()
        self._session = session
        self._spawned: dict[tuple[str, str], Link] = {}

    @property
    def is_given(self) -> bool:
        """Whether everything goes to one session, whatever it was."""
        return self._session is not None

    def base(self, conversation: str, known: str = "") -> str:
        """The session of a conversation; `known` is its name, if it has one."""
        return self._session or known or f"{self.format}/{name_of(conversation)}"

    def session_of(self, transcript: Transcript, part: str = "", copy: int = 1) -> str:
        """The session of a file, or of a conversation inside it.

        `copy` tells conversations apart whose files have the same name.
        """
        base = self.base(transcript.id, transcript.session)
        if copy > 1:
            base = f"{base}-{copy}"
        parts = name_of(transcript.agent, part) if transcript.agent or part else ""
        return f"{base}.{parts}" if parts else base

    def spawn(self, base: str, child: str, link: Link) -> None:
        """Remember the call that started a sub-agent."""
        if len(self._spawned) < _SPAWNED:
            self._spawned[base, child] = link

    def link_to(self, base: str, child: str) -> Link | None:
        """The call that started a sub-agent, if it was seen."""
        return self._spawned.get((base, child))
