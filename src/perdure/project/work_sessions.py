"""Conversations of a project's clients, summarised turn by turn as they arrive in the bank.

Whoever recorded the turns: proxy, importers or hooks. `refresh` reads what it has not read yet. A
turn's summary has the turn's number as its key and is written together with how far the log was
read, so a process that is killed in between loses nothing and doubles nothing.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.core import actors, clock
from perdure.core.client_agents import agent_of_client
from perdure.core.errors import InvalidInput, NotFound, PerdureError
from perdure.core.turns import Position, Turn
from perdure.history.log_records import Head, SessionRecord
from perdure.project.git_repository import GitRepository
from perdure.project.memory_scope import CLIENTS, MemoryScope
from perdure.project.project_location import ProjectLocation, initialised
from perdure.project.work_records import (
    MadeCommit,
    ProjectNote,
    Todo,
    TurnSummary,
    WorkSession,
    new_note_key,
    session_key,
    summary_key,
)
from perdure.recall.memory_records import Anchor
from perdure.services import Services
from perdure.storage.transaction import Transaction

#: What was checked out in the work tree of this folder at a moment (microseconds).
AnchorAt: TypeAlias = Callable[[Path, int], Awaitable[Anchor]]

_STEP = 8  # Turns in one transaction.
_GIT_COMMIT = re.compile(r"commit|merge|cherry-pick|revert|am\b|pull").match
_REFLOG_TAIL = 262_144  # Bytes of the reflog that are looked at.
_SECOND = clock.SECOND
#: A note belongs to the conversation that was active at most so long before it.
_NEAR = 30 * 60 * _SECOND


class WorkRefresh(msgspec.Struct, frozen=True):
    """What a look for new turns found."""

    sessions: tuple[str, ...] = ()
    turns: int = 0
    #: There is more: the limit was reached.
    more: bool = False
    remarks: tuple[str, ...] = ()


class WorkSessions:
    """The conversations of one project."""

    def __init__(
        self, services: Services, location: ProjectLocation, *, anchor_at: AnchorAt
    ) -> None:
        self.services = services
        self.location = location
        self.project = initialised(location).project
        self._anchor_at = anchor_at
        store = services.store
        self._sessions = store.collection(WorkSession)
        self._turns = store.collection(TurnSummary)
        self._notes = store.collection(ProjectNote)

    # Reading

    async def list(self) -> builtins.list[WorkSession]:
        """The most recently active first."""
        found = await self._sessions.query().where("project", "=", self.project).values()
        return sorted(found, key=lambda each: (-each.active, each.key))

    async def get(self, session: str) -> WorkSession:
        """By its name in the bank, or a part of it that is unique. Raises `NotFound`,
        `InvalidInput`.
        """
        found = await self._sessions.get(session_key(self.project, session))
        if found is not None:
            return found
        fits = [each for each in await self.list() if session and session in each.session]
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise InvalidInput(f"{session!r} fits {len(fits)} sessions.", hint="Write more of it.")
        raise NotFound(
            f"The project knows no session {session!r}.",
            hint="`perdure project sessions` lists them; `project refresh` looks for new ones.",
        )

    async def turns(self, session: str, *, last: int = 0) -> builtins.list[TurnSummary]:
        """What came of its turns, oldest first; the newest so many of them, or all."""
        prefix = f"{session_key(self.project, session)}/"
        if last:
            end = f"{prefix}~"
            newest = await self._turns.behind(end, prefix, limit=last, descending=True)
            return newest[::-1]
        return [each async for each in self._turns.walk(prefix)]

    async def turn(self, session: str, turn: int) -> TurnSummary | None:
        return await self._turns.get(summary_key(self.project, session, turn))

    async def anchor_of(self, session: str, turn: str | int | Position) -> Anchor | None:
        """What was checked out when a turn was said; None if the project does not know it."""
        found = await self.turn(session, Position.parse(turn).turn)
        return None if found is None else found.anchor

    async def notes(self, session: str | None = None) -> builtins.list[ProjectNote]:
        """In the order in which they were made; of one conversation (empty: of none), or all."""
        query = self._notes.query().where("project", "=", self.project)
        found = [each for each in await query.values() if not each.struck]
        if session is not None:
            found = [each for each in found if each.session == session]
        return sorted(found, key=lambda each: (each.at, each.key))

    async def most_relevant(
        self, branch: str, is_before: Callable[[Collection[str]], Awaitable[set[str]]]
    ) -> WorkSession | None:
        """The session that one goes on with: of the same branch, and of a commit that is in this
        line of history, before others; of equal ones the newest. `is_before` tells which commits
        are in this line.
        """
        known = [each for each in await self.list() if each.active]
        if not known:
            return None
        recent = known[:50]
        commits = {each.anchor.commit for each in recent if each.anchor.commit}
        held = await is_before(commits) if commits else set()

        def rank(each: WorkSession) -> tuple[bool, bool, int]:
            same = each.anchor.branch == branch
            return same, each.anchor.commit in held or not each.anchor.commit, each.active

        return max(recent, key=rank)

    # Writing

    async def note(
        self, text: str, *, session: str = "", client: str = "", by: str = ""
    ) -> ProjectNote:
        """Add to the scratchpad and the journal. Without a session, that of the conversation of
        this client (or any) that is going on in this work tree. Raises `InvalidInput`.
        """
        words = str(self.services.mask_data({"text": text})["text"]).strip()
        if not words:
            raise InvalidInput("A note needs words.", hint="Write what is to be kept.")
        now = self.services.store.now()
        owner = (await self.get(session)).session if session else ""
        if not owner:
            here = str(self.location.root)
            near = [
                each
                for each in await self.list()
                if each.active > now - _NEAR
                and (not client or client.startswith(each.client))
                and (each.root == here or each.root.startswith(f"{here}/"))
            ]
            owner = near[0].session if near else ""
        actor = actors.current_actor()
        note = ProjectNote(
            key=new_note_key(self.project),
            project=self.project,
            text=words,
            session=owner,
            by=by or (actors.system_user() if actor is None else actor.name),
            at=now,
            day=local_day(now),
            anchor=await self._anchor_at(self.location.root, now),
        )
        await self._notes.put(note)
        if owner:
            await self._sessions.change(session_key(self.project, owner), _grown)
        self.location.drop_preambles()
        return note

    async def refresh(self, *, limit: int = 400) -> WorkRefresh:
        """Summarise what is new in the conversations of the project's clients: at most so many
        turns, those of the newest conversation first.
        """
        scope = await MemoryScope.of_location(self.services, self.location)
        pairs: builtins.list[tuple[SessionRecord, Head]] = []
        store = self.services.store
        for agent in scope.agents:
            if agent != scope.own:
                query = store.collection(SessionRecord).query().where("agent", "=", agent)
                records = [each for each in await query.values() if each.started_by is None]
                heads = await store.collection(Head).get_many([each.id for each in records])
                pairs += [
                    (record, head)
                    for record, head in zip(records, heads, strict=True)
                    if head is not None and head.newest > record.forked_at
                ]
        pairs.sort(key=lambda pair: -(pair[1].said or pair[1].time))
        keys = [session_key(self.project, record.id) for record, _ in pairs]
        known = await self._sessions.get_many(keys)
        sessions: builtins.list[str] = []
        remarks: builtins.list[str] = []
        count = 0
        for (record, head), work in zip(pairs, known, strict=True):
            if work is not None and _is_read(work, head):
                continue
            if count >= limit:
                return WorkRefresh(tuple(sessions), count, True, tuple(remarks))
            try:
                count += await self._read(record, head, work, limit - count)
            except PerdureError as exc:  # one damaged log does not hide the others
                remarks.append(f"{record.id} could not be read: {exc}")
                continue
            sessions.append(record.id)
        return WorkRefresh(tuple(sessions), count, False, tuple(remarks))

    async def _read(
        self, record: SessionRecord, head: Head, work: WorkSession | None, limit: int
    ) -> int:
        """Summarise what is new in one conversation; returns how many turns."""
        root = _folder_of(record)
        reader = self.services.reader
        number = max(record.forked_at + 1, 1 if work is None else work.done)
        count = 0
        while number <= head.newest:
            turns = await reader.turns(
                record, head, number, min(number + _STEP - 1, head.newest), counted=False
            )
            before = await self.turn(record.id, number - 1)
            todos = before.todos if before is not None else ()
            made: builtins.list[TurnSummary] = []
            texts = await self._tiny(record, head, turns)
            for turn in turns:
                if turn.status in {"undone", "forgotten"}:
                    continue
                summary = await self._summary(turn, texts.get(turn.number, ""), todos, root)
                todos = summary.todos
                made.append(summary)
            number = (turns[-1].number if turns else number + _STEP - 1) + 1
            count += len(turns)
            last = number > head.newest
            await self._store(record, head, root, made, number - 1, last=last)
            if count >= limit:
                break
        return count

    async def _store(
        self,
        record: SessionRecord,
        head: Head,
        root: str,
        made: Sequence[TurnSummary],
        read: int,
        *,
        last: bool,
    ) -> None:
        gone = [
            summary_key(self.project, record.id, turn)
            for span in head.undone
            for turn in range(span.first, span.last + 1)
        ]

        async def body(transaction: Transaction) -> None:
            sessions = transaction.collection(WorkSession)
            turns = transaction.collection(TurnSummary)
            # Whoever forgets a turn counts it in the head, first or last: what was read before
            # that is not kept.
            now = await transaction.collection(Head).get(record.id)
            if now is None or now.forgets != head.forgets:
                return
            work = await sessions.get(session_key(self.project, record.id))
            if work is None:
                work = await self._begun(transaction, record, root, made)
            kept = await turns.get_many([each.key for each in made])
            await turns.put_many(
                each
                if old is None
                else replace(each, journal=old.journal, struck=old.struck, anchor=old.anchor)
                for each, old in zip(made, kept, strict=True)
            )
            if gone:
                await turns.delete_many(gone)
            closed = [each.turn for each in made if not each.open]
            opened = [each.turn for each in made if each.open]
            done = min(opened) - 1 if opened else max([read, work.done, *closed])
            if made:
                newest = made[-1]
                work = replace(work, active=max(work.active, newest.ended), anchor=newest.anchor)
            work = replace(work, done=done, version=work.version + 1)
            if last:
                work = replace(
                    work,
                    pieces=head.pieces,
                    forgets=head.forgets,
                    undone=sum(each.last - each.first + 1 for each in head.undone),
                )
            await sessions.put(work)

        await self.services.store.transact(body)

    async def _begun(
        self,
        transaction: Transaction,
        record: SessionRecord,
        root: str,
        made: Sequence[TurnSummary],
    ) -> WorkSession:
        first = made[0] if made else None
        started = first.started if first else self.services.store.now()
        anchor = first.anchor if first else Anchor(repo=self.project)
        stamp = clock.to_datetime(started).strftime("%Y%m%dT%H%M%SZ")
        branch = re.sub(r"[^\w.+=-]+", "-", anchor.branch).strip("-.")[:60] or "none"
        name = f"{stamp}_{branch}"
        sessions = transaction.collection(WorkSession)
        query = sessions.query().where("project", "=", self.project)
        if any(each.file == name for each in await query.values()):
            name = f"{name}-{agent_of_client('x', record.id, '').rpartition('-')[2]}"
        return WorkSession(
            key=session_key(self.project, record.id),
            project=self.project,
            session=record.id,
            client=_client_of(record),
            root=root,
            file=name,
            started=started,
            active=started,
            began_at=anchor,
            anchor=anchor,
        )

    async def _tiny(
        self, record: SessionRecord, head: Head, turns: Sequence[Turn]
    ) -> dict[int, str]:
        """The turns at T."""
        closed = [turn.number for turn in turns if turn.status == "closed"]
        wanted = [(number, 0) for number in closed]
        texts = await self.services.renditions.tiny_texts(record, head, wanted)
        return dict(zip(closed, texts, strict=True))

    async def _summary(
        self, turn: Turn, tiny: str, todos: Sequence[Todo], root: str
    ) -> TurnSummary:
        from perdure.project.turn_digest import digest_of, summary_of

        found = digest_of(turn, todos, root)
        place = _existing(root) or self.location.root
        anchor = await self._anchor_at(place, turn.ended)
        commits = list(found.commits)
        if found.uses_git:
            known = {each.id for each in commits}
            for each in _reflog(place, turn.started, turn.ended):
                short = next((id for id in known if each.id.startswith(id)), "")
                commits = [one for one in commits if one.id != short] + [each]
        return TurnSummary(
            key=summary_key(self.project, turn.session, turn.number),
            project=self.project,
            session=turn.session,
            turn=turn.number,
            open=turn.status != "closed",
            started=turn.started,
            ended=turn.ended,
            day=local_day(turn.ended),
            anchor=anchor,
            asked=found.asked,
            summary=summary_of(turn, tiny),
            files=found.files,
            commands=found.commands,
            commits=tuple(commits),
            approvals=found.approvals,
            decided=found.decided,
            open_ends=found.open_ends,
            todos=found.todos,
            listed=found.listed,
            waiting=found.waiting if turn.status != "closed" else (),
            tasks=found.tasks,
        )


def _grown(work: WorkSession | None) -> WorkSession:
    if work is None:
        raise NotFound("The session was forgotten.", hint="Leave --session out.")
    return replace(work, version=work.version + 1)


def local_day(moment: int) -> str:
    """The date of a moment where this machine is."""
    return clock.to_datetime(moment).astimezone().date().isoformat()


def _existing(folder: str) -> Path | None:
    return Path(folder) if folder and Path(folder).is_dir() else None


def _is_read(work: WorkSession, head: Head) -> bool:
    undone = sum(each.last - each.first + 1 for each in head.undone)
    return (work.pieces, work.forgets, work.undone) == (head.pieces, head.forgets, undone)


def _folder_of(record: SessionRecord) -> str:
    for name in ("cwd", "folder"):
        value = record.state.get(name)
        if isinstance(value, str) and value:
            return value
    return ""


def _client_of(record: SessionRecord) -> str:
    named = record.state.get("client")
    if isinstance(named, str) and named:
        return named
    name = record.agent.partition("@")[0]
    return name if name in CLIENTS else record.agent


def _reflog(folder: Path, first: int, last: int) -> builtins.list[MadeCommit]:
    """Commits that were made in a work tree in this time, by its reflog."""
    git = GitRepository.find(folder)
    if git is None:
        return []
    try:
        with (git.git_dir / "logs" / "HEAD").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _REFLOG_TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    found: dict[str, MadeCommit] = {}
    for line in text.splitlines():
        places, _, words = line.partition("\t")
        fields = places.split()
        if len(fields) < 5 or not fields[-2].isdigit() or not _GIT_COMMIT(words):
            continue
        if first // _SECOND <= int(fields[-2]) <= last // _SECOND + 1:
            subject = words.partition(": ")[2][:200]
            found[fields[1]] = MadeCommit(fields[1], subject)
    return list(found.values())
