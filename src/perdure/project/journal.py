"""The journal: for each interaction what was asked, done, decided and left open, for people.

A page is a file of one conversation and day, ``.perdure/journal/<date>_<session>.md``, so branches
never write to the same one. Each entry stands behind a mark. Entries are made from summaries of
turns and from notes, and appended; what people change in one stays as they wrote it, and one that
they take out stays out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from perdure.core import clock
from perdure.core.turns import Position
from perdure.project.projections import Projections
from perdure.project.work_records import (
    ProjectNote,
    TurnSummary,
    WorkSession,
    session_key,
    summary_key,
)
from perdure.project.work_sessions import WorkSessions
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

FOLDER = "journal"
_mark = re.compile(r"^<!-- perdure (T-[1-9]\d{0,7}|nt_[0-9a-f]{12}) -->\n", re.MULTILINE)
_MOST_COMMANDS, _MOST_FILES = 8, 12
#: How pages of notes end that belong to no conversation: all clones write to them.
_NOTES = "_notes.md"
#: The part of a page in front of its first entry.
PREFACE = ""


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a turn, or a note, as a page of the journal has it."""

    #: The conversation; empty: none. The turn; 0: a note.
    session: str
    turn: int
    #: Microseconds.
    at: int
    #: Markdown.
    text: str


async def newest_entries(store: Store, project: str, *, limit: int) -> list[JournalEntry]:
    """The newest entries of a project's journal, wherever its folder is; the newest first."""
    found: list[JournalEntry] = []
    works = await store.collection(WorkSession).query().where("project", "=", project).values()
    for work in works:
        prefix = f"{session_key(project, work.session)}/"
        turns = await store.collection(TurnSummary).behind(
            f"{prefix}~", prefix, limit=limit, descending=True
        )
        found += [
            JournalEntry(
                session=each.session,
                turn=each.turn,
                at=each.ended,
                text=each.journal or entry_text(each),
            )
            for each in turns
            if not each.open and not each.struck
        ]
    notes = await store.collection(ProjectNote).query().where("project", "=", project).values()
    found += [
        JournalEntry(session=each.session, turn=0, at=each.at, text=_note(each))
        for each in notes
        if not each.struck
    ]
    found.sort(key=lambda each: (-each.at, each.session, each.turn))
    return found[:limit]


class Journal:
    """The journal of one project: its pages, in the bank and as files."""

    def __init__(self, work: WorkSessions) -> None:
        self._work = work
        self._projections = Projections(work.location)
        self._notes = work.services.store.collection(ProjectNote)

    async def pages(
        self, sessions: Iterable[WorkSession], *, loose: bool = True, day: str = ""
    ) -> Mapping[str, str]:
        """The text of each page of these conversations, by file name; with `loose`, of notes that
        belong to no conversation, too.
        """
        found: dict[str, str] = {}
        for work in sessions:
            for date, entries in (await self._entries(work)).items():
                if not day or date == day:
                    found[page_name(date, work)] = "".join(entries.values())
        if loose:
            notes = await self._work.notes("")
            for date in dict.fromkeys(note.day for note in notes):
                if not day or date == day:
                    of_day = [note for note in notes if note.day == date]
                    parts = [f"# Notes of {date}\n\n", *(_section(n.id, _note(n)) for n in of_day)]
                    found[f"{FOLDER}/{date}{_NOTES}"] = "".join(parts)
        return dict(sorted(found.items()))

    async def read(
        self, sessions: Iterable[WorkSession], *, loose: bool = True, day: str = ""
    ) -> Mapping[str, str]:
        """The same pages, and behind them, said to be of the file, what only the files in the
        folder have: entries of others, whom the bank does not know.
        """
        works = [*sessions]
        found = dict(await self.pages(works, loose=loose, day=day))
        for path in sorted(self._projections.path(FOLDER).glob("*.md")):
            name = f"{FOLDER}/{path.name}"
            wanted = _is_page(path.name) and (loose or any(_is_of(name, each) for each in works))
            if not wanted or not path.name.startswith(day):
                continue
            text = (self._projections.read(name).text or "").encode(errors="surrogateescape")
            parts = await self._of_others(found.get(name, ""), text.decode(errors="replace"))
            if parts:
                ours = f"{found[name].rstrip()}\n\n" if name in found else ""
                found[name] = f"{ours}*From the file {name}:*\n\n{''.join(parts).rstrip()}\n\n"
        return dict(sorted(found.items()))

    async def merge(self, sessions: Iterable[WorkSession], *, shared: bool) -> None:
        """Take over what people changed in the files. In a shared journal an entry that is missing
        was not taken out: another branch does not have it yet.
        """
        owners = {work.session: work for work in sessions}
        for name in self._projections.names(FOLDER):
            if not self._projections.is_edited(name):
                continue
            file = self._projections.read(name)
            if file.text is None or not file.is_edited:
                continue
            base, theirs = split_page(file.base or ""), split_page(file.text)
            work = next((each for each in owners.values() if _is_of(name, each)), None)
            day = name.partition("/")[2][:10]
            for id in {**base, **theirs}:
                if theirs.get(id) != base.get(id) and (id in theirs or not shared):
                    await self._change(work, day, id, base.get(id, ""), theirs.get(id))
            self._projections.note(name, file.text)

    async def write(self, sessions: Iterable[WorkSession]) -> bool:
        """Write the pages of these that changed. Raises `Unavailable`."""
        written = False
        for name, page in (await self.pages(sessions)).items():
            file, text = self._projections.read(name), page
            if file.is_edited and file.base is not None:
                continue  # since it was merged: the next time
            if file.text is not None and name.endswith(_NOTES):
                text = await self._with_others(page, file.text)
            elif file.text is not None and file.base is None:
                text = _joined(page, file.text)  # brought by git: nothing in it is lost
            if file.text != text or file.base != text:
                written |= self._projections.write(name, text, file.text)
        return written

    async def _with_others(self, page: str, text: str) -> str:
        """A page of notes has its preface, and notes of other clones, which the bank does not know,
        as the file has them.
        """
        ours, there = split_page(page), split_page(text)
        gone = await self._gone(id for id in there if id not in ours)
        found = {
            id: ours[id] if id in ours and id != PREFACE else f"{part.rstrip()}\n\n".lstrip("\n")
            for id, part in there.items()
            if id not in gone
        }
        return "".join((found | {id: ours[id] for id in ours if id not in found}).values())

    async def _of_others(self, page: str, text: str) -> list[str]:
        """The parts of a file that our page does not have, without notes that were taken out."""
        ours = split_page(page) if page else {}
        there = {id: part for id, part in split_page(text).items() if id not in ours}
        gone = await self._gone(there)
        return [part for id, part in there.items() if id not in gone and part.strip()]

    async def _gone(self, ids: Iterable[str]) -> set[str]:
        """Notes that the bank knows, though a page does not have them."""
        names = [each for each in ids if each.startswith("nt_")]
        held = await self._notes.get_many([f"{self._work.project}/{id}" for id in names])
        return {id for id, note in zip(names, held, strict=True) if note is not None}

    async def _entries(self, work: WorkSession) -> dict[str, dict[str, str]]:
        """By day, then by mark, in the order in which they ended."""
        turns = [t for t in await self._work.turns(work.session) if not t.open and not t.struck]
        notes = await self._work.notes(work.session)
        timed: list[tuple[int, str, str, str]] = [
            (each.ended, each.day, each.name, each.journal or entry_text(each)) for each in turns
        ] + [(each.at, each.day, each.id, _note(each)) for each in notes]
        found: dict[str, dict[str, str]] = {}
        for _, day, id, text in sorted(timed):
            if day not in found:
                found[day] = {PREFACE: work.prefaces.get(day) or _title(work, day)}
            found[day][id] = _section(id, text)
        return found

    async def _change(
        self, work: WorkSession | None, day: str, id: str, base: str, theirs: str | None
    ) -> None:
        """Keep one entry as a person left it; None: they took it out."""
        text = None if theirs is None else _mark.sub("", theirs)

        async def body(transaction: Transaction) -> None:
            if id.startswith("nt_"):
                notes = transaction.collection(ProjectNote)
                note = await notes.get(f"{self._work.project}/{id}")
                if note is not None:
                    edited = note.text if text is None else _note_words(text)
                    await notes.put(replace(note, text=edited, struck=text is None))
            elif work is not None and id == PREFACE:
                sessions = transaction.collection(WorkSession)
                found = await sessions.get(work.key)
                if found is not None:
                    prefaces = {**found.prefaces, day: text or ""}
                    await sessions.put(replace(found, prefaces=prefaces, version=found.version + 1))
            elif work is not None:
                turns = transaction.collection(TurnSummary)
                key = summary_key(self._work.project, work.session, Position.parse(id).turn)
                turn = await turns.get(key)
                if turn is not None and text is None:
                    await turns.put(replace(turn, struck=True))
                elif turn is not None and text is not None:
                    ours = turn.journal or entry_text(turn)
                    merged = text if ours == _mark.sub("", base) else _with_lines(ours, text)
                    await turns.put(replace(turn, journal=merged, struck=False))
                await _grow(transaction, work.key)

        await self._work.services.store.transact(body)


async def _grow(transaction: Transaction, key: str) -> None:
    sessions = transaction.collection(WorkSession)
    work = await sessions.get(key)
    if work is not None:
        await sessions.put(replace(work, version=work.version + 1))


def page_name(day: str, work: WorkSession) -> str:
    conversation = work.session.partition("/")[2]
    fit = re.sub(r"[^\w.+=-]+", "-", conversation)
    if fit != conversation or len(fit) > 40:
        fit = f"{fit[:31]}-{hashlib.sha256(conversation.encode()).hexdigest()[:8]}"
    client = re.sub(r"[^\w.+=-]+", "-", work.client)
    return f"{FOLDER}/{day}_{client}-{fit}.md"


def split_page(text: str) -> dict[str, str]:
    """The parts of a page by their marks, each with its mark, in order; what stands in front of
    the first is the preface. Of an entry that is there twice, both are kept, unless they are equal.
    """
    marks = [*_mark.finditer(text)]
    found = {PREFACE: text[: marks[0].start()] if marks else text}
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        part = text[mark.start() : len(text) if following is None else following.start()]
        before = found.get(mark[1])
        if before is None:
            found[mark[1]] = part
        elif part.strip() != before.strip():
            found[mark[1]] = _with_lines(before, _mark.sub("", part))
    return found


def without_entries(text: str, ids: Iterable[str], todos: Collection[str] = ()) -> str:
    """A page without some entries, and without lines that tell of some items to do."""
    gone = set(ids)
    left = "".join(part for id, part in split_page(text).items() if id not in gone)
    return without_todos(left, todos)


def without_todos(text: str, todos: Collection[str]) -> str:
    lines = {open_line(each) for each in todos}
    return "".join(line for line in text.splitlines(keepends=True) if line.rstrip() not in lines)


def entry_text(turn: TurnSummary) -> str:
    """The entry of a turn, for people."""
    moment = clock.to_datetime(turn.ended).astimezone()
    title = _plain(turn.asked.partition(". ")[0][:80]) or "Without a prompt"
    lines = [f"## {moment:%H:%M} {title}", ""]
    if turn.asked:
        lines += [f"**Asked:** {_plain(turn.asked)}", ""]
    if turn.summary:
        done = turn.summary.partition(" Assistant: ")[2] or turn.summary
        lines += [f"**Done:** {_plain(done)}", ""]
    failed = [run for run in turn.commands if run.exit]
    for run in failed[:_MOST_COMMANDS]:
        lines.append(f"- Failed ({run.exit}): {_code(run.command)}")
    if len(turn.commands) > len(failed):
        lines.append(f"- Commands that succeeded: {len(turn.commands) - len(failed)}")
    if turn.files:
        shown = ", ".join(_code(path) for path in turn.files[:_MOST_FILES])
        more = len(turn.files) - _MOST_FILES
        lines.append(f"- Files: {shown}{f' and {more} more' if more > 0 else ''}")
    lines += [f"- Commit {_code(made.id[:10])} {_plain(made.subject)}" for made in turn.commits]
    lines += [f"- {_answer(one.granted)}: {_plain(one.what)}" for one in turn.approvals]
    lines += [f"- Decided: {_plain(each)}" for each in turn.decided]
    lines += [f"- Open: {_plain(each)}" for each in turn.open_ends]
    if turn.listed:
        lines += [open_line(each.text) for each in turn.todos if each.state != "done"]
    where = f" on {_code(turn.anchor.branch)}" if turn.anchor.branch else ""
    if turn.anchor.commit:
        lines.append(f"- At {_code(turn.anchor.commit[:10])}{where}")
    return "\n".join(lines).rstrip() + "\n\n"


def open_line(text: str) -> str:
    """The line of an entry that tells what is still to be done."""
    return f"- Open: {_plain(text)}"


def _title(work: WorkSession, day: str) -> str:
    on = f", on {work.began_at.branch}" if work.began_at.branch else ""
    return f"# {day}: {work.client}{on}\n\nConversation {_code(work.session)}.\n\n"


def _note(note: ProjectNote) -> str:
    moment = clock.to_datetime(note.at).astimezone()
    return f"## {moment:%H:%M} Note by {_plain(note.by)}\n\n{_safe(note.text)}\n\n"


def _note_words(text: str) -> str:
    head, _, rest = text.partition("\n")
    return (rest if head.startswith("## ") else text).strip()


def _section(id: str, text: str) -> str:
    return f"<!-- perdure {id} -->\n{text}"


def _with_lines(ours: str, theirs: str) -> str:
    """Our text, and behind it the lines that only theirs has."""
    have = set(ours.splitlines())
    more = [line for line in theirs.splitlines() if line not in have]
    return f"{ours.rstrip()}\n\n" + "".join(f"{line}\n" for line in more) + "\n" if more else ours


def _joined(ours: str, theirs: str) -> str:
    """Both pages: their entries that we do not have stay, also edited ones."""
    one, other = split_page(ours), split_page(theirs)
    for id, part in other.items():
        one[id] = part if id not in one else _with_lines(part, _mark.sub("", one[id]))
    return "".join(one.values())


def _is_page(name: str) -> bool:
    return re.match(r"\d{4}-\d\d-\d\d_", name) is not None and ".kept-" not in name


def _is_of(name: str, work: WorkSession) -> bool:
    return name == page_name(name.partition("/")[2][:10], work)


def _answer(granted: bool) -> str:  # noqa: FBT001 (one word or the other)
    return "Approved" if granted else "Refused"


def _plain(text: str) -> str:
    return _safe(" ".join(text.split()))


def _safe(text: str) -> str:
    """Marks are ours alone."""
    return text.replace("<!--", "&lt;!--")


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{_safe(' '.join(text.split()))}{fence}"
