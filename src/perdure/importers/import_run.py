"""One run of an importer: its sessions, and counts of what was done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from perdure.bank import Bank
from perdure.core.client_agents import session_of_client
from perdure.history.import_cursors import CONVERSATION
from perdure.history.log_records import Link, SessionRecord, agent_of
from perdure.history.piece_packing import RoundWritten
from perdure.importers.import_cursor import Bookmark, cursor_key
from perdure.importers.importer import Begun, Describe, Importer, Spawn, Transcript, name_of
from perdure.sessions.session import Session
from perdure.storage.store import Progress

#: Sub-agents whose calls are remembered.
_SPAWNED = 100_000

#: Told what was added, each time something was.
Heard: TypeAlias = "Callable[[SessionImport], None]"


class ImportRun:
    """Names and links the sessions of a run, and counts what was done.
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
        return self._session is not None

    @property
    def is_shared(self) -> bool:
        """Whether others, such as the proxy, may record the same conversations."""
        return bool(self.importer.client) and self._session is None

    def base(self, transcript: Transcript, conversation: str = "") -> str:
        """The session of a conversation in the transcript's project; its own by default."""
        return self._named(transcript, conversation or transcript.id)

    def session_of(self, transcript: Transcript, part: str = "", copy: int = 1) -> str:
        """The session of a file, or of a conversation inside it; `copy` numbers files of one
        name.
        """
        return self._named(transcript, transcript.id, copy, transcript.agent, part)

    def _named(self, transcript: Transcript, conversation: str, copy: int = 1, *parts: str) -> str:
        parts = tuple(part for part in parts if part)
        if self.is_shared:
            name = f"{conversation}-{copy}" if copy > 1 else conversation
            return session_of_client(
                self.importer.client, transcript.folder or "", name, ".".join(parts)
            )
        base = self._session or transcript.session or f"{self.format}/{name_of(conversation)}"
        base = f"{base}-{copy}" if copy > 1 else base
        return f"{base}.{name_of(*parts)}" if parts else base

    def spawn(self, base: str, child: str, link: Link) -> None:
        if len(self._spawned) < _SPAWNED:
            self._spawned[base, child] = link

    def link_to(self, base: str, child: str) -> Link | None:
        return self._spawned.get((base, child))


class SessionImport(msgspec.Struct, kw_only=True):
    """What was added to one session, and counts of records read and skipped.
    A file that came to nothing has the name that its session would have.
    """

    name: str
    turns: int = 0
    rounds: int = 0
    messages: int = 0
    #: In o200k tokens.
    tokens: int = 0
    tool_calls: int = 0
    undone: int = 0
    read: int = 0
    skipped: dict[str, int] = {}
    known: bool = False

    @property
    def used(self) -> int:
        return self.read - sum(self.skipped.values())

    def add(self, rounds: Iterable[RoundWritten]) -> None:
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
        return self._sessions.setdefault(name, SessionImport(name=name))

    def drop(self, name: str) -> None:
        self._sessions.pop(name, None)


#: Why a conversation is not imported whose session was forgotten.
FORGOTTEN = "forgotten before; import it with --session NAME to have it again"
#: Why a file is not read on for now.
ARRIVING = "an answer is arriving; import it again in a moment"
#: Sessions that are kept open while a file is read.
_OPEN = 64


class ImportSessions:
    """Opens the sessions of a file when something is said in them."""

    def __init__(self, run: ImportRun, transcript: Transcript) -> None:
        self._run = run
        self._transcript = transcript
        self._records = run.bank.collection(SessionRecord)
        self._open: dict[str, Session] = {}
        self._begun: dict[str, Begun] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._copy = 0
        self._forgotten = False
        #: The turn that the file's own conversation was writing to.
        self.turn = 0

    def name(self, to: str = "") -> str:
        return self._run.session_of(self._transcript, to, self._copy)

    def start(self) -> None:
        self._copy, self._forgotten = 0, False

    async def bookmark(self) -> Bookmark | None:
        """The cursor of the file's session, or of the next session it may belong to.
        Call again if the session is another conversation's. None if the file's own session was
        forgotten, unless its name was given.
        """
        transcript, store = self._transcript, self._run.bank.store
        self._open.clear()
        if not self._copy and transcript.agent and not self._run.is_given:
            # Those that a forgotten one started went with it, and new ones do not come.
            base = cursor_key(self._run.base(transcript), f"{transcript.id}\0")
            self._forgotten = (await Bookmark(store, base).load()).forgotten
        while True:
            self._copy += 1
            key = cursor_key(self.name(), f"{transcript.id}\0{transcript.agent}")
            found = Bookmark(store, key)
            forgotten = (await found.load()).forgotten
            if not forgotten and not found.used:
                by_proxy = Bookmark(store, f"{self.name()}/{CONVERSATION}")
                forgotten = (await by_proxy.load()).forgotten
            if not forgotten:
                if not self._forgotten or found.used:
                    return found
                self._copy = 1
                return None
            if self._run.is_given:
                found.begin_anew()
                return found
            self._forgotten = True

    def report(self, reason: str) -> None:
        found = self._run.result.of(self.name())
        found.read += 1
        found.skip({reason: 1})

    async def is_taken(self) -> bool:
        """Whether the session that the file was exported from, or one of its name, is here."""
        if not self._transcript.session or self._run.is_given:
            return False
        return await self._records.get(self.name()) is not None

    def note(self, step: Describe | Spawn | Begun) -> None:
        if isinstance(step, Describe):
            self._facts.setdefault(step.to, {}).update(step.facts)
        elif isinstance(step, Begun):
            self._begun[step.to] = step
        else:
            base = self._run.base(self._transcript)
            self._run.spawn(base, step.child, Link(self.name(step.to), step.call))

    async def get(self, to: str) -> Session:
        found = self._open.get(to)
        if found is None:
            found = await self._opened(to)
            if len(self._open) >= _OPEN:
                self._open.pop(next(iter(self._open)))
            self._open[to] = found
        facts = self._facts.pop(to, {})
        if any(found.state.get(fact) != value for fact, value in facts.items()):
            await found.describe(facts)
        return found

    async def describe_all(self) -> None:
        """Write facts that came after the last message, in sessions that exist."""
        for to in list(self._facts):
            if to in self._open or await self._records.get(self.name(to)) is not None:
                await self.get(to)

    async def tie(self, to: str = "") -> None:
        """Link a session to the call that started it, if that was not known when it was made."""
        link = self._link(to)
        if link is None or not link.call:
            return

        def tied(record: SessionRecord | None) -> SessionRecord:
            assert record is not None  # noqa: S101 (it was there a moment ago)
            return msgspec.structs.replace(record, link=link, started_by=link.session)

        found = await self._records.get(self.name(to))
        if found is not None and found.link is not None and not found.link.call:
            await self._records.change(found.id, tied)

    async def _opened(self, to: str) -> Session:
        transcript, link = self._transcript, self._link(to)
        known = {"format": self._run.format, "source": str(transcript.path)}
        state = transcript.facts | known | self._facts.get(to, {})
        session = await self._run.bank.session(self.name(to), state=state, link=link)
        if session.record.link != link:
            await self.tie(to)
        if not to and self.turn:
            await session.resume(self.turn)
        self._facts[to] = state  # for one that was there
        return session

    def _link(self, to: str) -> Link | None:
        transcript, begun = self._transcript, self._begun.get(to)
        call = begun.call if begun is not None else ""
        if to:
            return Link(self.name(), call) if begun is not None else None
        if transcript.agent:
            base, child = self._run.base(transcript), transcript.agent
        elif begun is not None:
            base, child = self._run.base(transcript, begun.by), transcript.id
        else:
            return None
        return self._run.link_to(base, child) or Link(base, transcript.call or call)
