"""The state of a project: goals, milestones, checkpoints and links, and the file people read.

Truth is in the bank. ``.perdure/project_state.json`` is written from it, and what people change
there is merged back, three ways, against what was written last. When the file is under git, what a
checkout or pull brought is merged against the version that both lines of history have in common:
that an older branch lacks an entry does not remove it.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from perdure.core import actors
from perdure.core.display import did_you_mean
from perdure.core.errors import InvalidInput, NotFound, PerdureError, Unavailable
from perdure.project.project_location import ProjectLocation, initialised
from perdure.project.projection_bases import forget_foreign_bases, note_bases
from perdure.project.projections import Projections
from perdure.project.state_file import STATE_FILE, read_state, write_state
from perdure.project.state_records import (
    HEADER,
    MAX_TITLE,
    PREFIXES,
    EntryKind,
    EntryStatus,
    StateEntry,
    entry_key,
    entry_line,
    entry_of,
    iso,
    new_entry_id,
)
from perdure.project.task_merge import TaskLine, TaskLines, merge_tasks, older_lines
from perdure.project.task_order import path_between
from perdure.project.task_records import Task, task_key
from perdure.recall.memory_records import Anchor
from perdure.services import Services
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

_abbreviated = re.compile(r"[a-z]{2}_[0-9a-f]{3,12}", re.ASCII).fullmatch
_TRIES = 5


class StateSync(msgspec.Struct, frozen=True):
    """What a look at the file did."""

    #: Entries of the bank that were changed, added or removed by what the file says, in words.
    taken: tuple[str, ...] = ()
    written: bool = False
    #: What a person should know.
    remarks: tuple[str, ...] = ()


async def shown_entries(store: Store, project: str) -> list[StateEntry]:
    """The entries of a project, wherever its folder is, in the order in which they were made;
    without those that were taken out of the file.
    """
    found = [each async for each in store.collection(StateEntry).walk(f"{project}/")]
    wanted = [each for each in found if each.kind != "project" and each.status != "removed"]
    return sorted(wanted, key=lambda each: (each.made, each.id))


class ProjectState:
    """Goals, milestones, checkpoints and links of one project. An entry is named by its id, the
    beginning of it, or its title.
    """

    def __init__(
        self,
        services: Services,
        location: ProjectLocation,
        *,
        here: Callable[[], Awaitable[Anchor]],
        note_commits: Callable[[Sequence[str]], Awaitable[object]] | None = None,
    ) -> None:
        """`here` tells what is checked out; `note_commits` is told of commits of checkpoints, so
        that they can be followed when history is rewritten.
        """
        self.services = services
        self.location = location
        self.project = initialised(location).project
        self.projections = Projections(location)
        self._here, self._note_commits = here, note_commits
        self._entries = services.store.collection(StateEntry)

    # Reading

    async def list(
        self, kind: EntryKind | None = None, *, closed: bool = True
    ) -> builtins.list[StateEntry]:
        """In the order in which they were made; without those that were taken out of the file."""
        return [
            each
            for each in await shown_entries(self.services.store, self.project)
            if kind in {None, each.kind} and (closed or not each.is_closed)
        ]

    async def get(self, name: str, /) -> StateEntry:
        """Raises `NotFound`, and `InvalidInput` if the name fits several."""
        text = name.strip()
        found = await self._entries.get(entry_key(self.project, text)) if text else None
        if found is not None and found.kind != "project":
            return found
        everything = [each async for each in self._entries.walk(f"{self.project}/")]
        entries = [each for each in everything if each.kind != "project"]
        matches = [each for each in entries if _abbreviated(text) and each.id.startswith(text)]
        words = text.casefold()
        shown = [each for each in entries if each.status != "removed"]
        for fits in (
            lambda title: title == words,
            lambda title: title.startswith(words),
            lambda title: words in title,
        ):
            matches = matches or [e for e in shown if words and fits(e.title.casefold())]
        if len(matches) > 1:  # a checkpoint is called like its milestone
            plans = [each for each in matches if each.kind in {"goal", "milestone"}]
            matches = [each for each in plans if not each.is_closed] or plans or matches
        if len(matches) == 1:
            return matches[0]
        if matches:
            some = ", ".join(f"{each.id} ({each.title})" for each in matches[:4])
            raise InvalidInput(f"{text!r} fits several: {some}.", hint="Give its id.")
        near = did_you_mean(text, [each.title for each in shown])
        raise NotFound(
            f"The project has no entry {text!r}.",
            hint=f"{near} `perdure project show` lists what there is.".lstrip(),
        )

    async def waits_for(self, entry: StateEntry) -> builtins.list[str]:
        """What an entry needs that is not over, in words."""
        keys = [entry_key(self.project, each) for each in entry.needs]
        entries = await self._entries.get_many(keys)
        keys = [task_key(self.project, each) for each in entry.needs]
        tasks = await self.services.store.collection(Task).get_many(keys)
        found = [f"{each.id} {each.title}" for each in entries if each and not each.is_closed]
        return found + [
            f"{each.name} {each.title}" for each in tasks if each and not each.is_closed
        ]

    async def text(self) -> str:
        """What the file says, or would say."""
        return write_state(await self._lines())

    # Changing

    async def add(
        self,
        kind: EntryKind,
        title: str,
        *,
        text: str = "",
        needs: Iterable[str] = (),
        of: str = "",
        target: str = "",
        commit: str = "",
        branch: str = "",
        by: str = "",
    ) -> StateEntry:
        """Raises `InvalidInput`, `NotFound`."""
        needed = [await self._named(each) for each in needs]
        above = await self._named(of) if of else ""
        anchor = await self._here()
        now, who = self.services.store.now(), by or _actor()
        entry = StateEntry(
            key=entry_key(self.project, new_entry_id(kind)),
            project=self.project,
            kind=kind,
            title=self._title(title),
            text=self._plain(text),
            needs=tuple(dict.fromkeys(needed)),
            of=above,
            target=target,
            commit=commit,
            branch=branch,
            made=now,
            made_by=who,
            made_at=anchor,
            changed=now,
            changed_by=who,
            changed_at=anchor,
        )
        await self._entries.put(entry)
        self.location.drop_preambles()
        return entry

    async def edit(
        self,
        name: str,
        /,
        *,
        title: str | None = None,
        text: str | None = None,
        needs: Iterable[str] | None = None,
        of: str | None = None,
        status: EntryStatus | None = None,
        by: str = "",
    ) -> StateEntry:
        """Change an entry; what is None stays. Raises `InvalidInput` for a circle of needs."""
        entry = await self.get(name)
        needed = None if needs is None else [await self._named(each) for each in needs]
        above = None if of is None else (await self._named(of) if of else "")
        anchor, who = await self._here(), by or _actor()

        async def body(transaction: Transaction) -> StateEntry:
            entries = transaction.collection(StateEntry)
            before = await entries.get(entry.key)
            if before is None:
                raise NotFound(f"{entry.id} is gone.", hint="`perdure project show` lists them.")
            now = transaction.now()
            after = before
            if title is not None:
                after = replace(after, title=self._title(title))
            if text is not None:
                after = replace(after, text=self._plain(text))
            if above is not None:
                after = replace(after, of=above)
            if status is not None:
                closed = {"open": 0, "removed": before.closed}.get(status, now)
                after = replace(after, status=status, closed=closed)
            if needed is not None:
                everything = [each async for each in entries.walk(f"{self.project}/")]
                graph = {each.id: each.needs for each in everything} | {after.id: tuple(needed)}
                for each in needed:
                    if way := path_between(graph, each, after.id):
                        raise InvalidInput(
                            f"They would wait for each other in a circle: "
                            f"{' → '.join((after.id, *way))}.",
                            hint=f"{after.id} is unchanged.",
                        )
                after = replace(after, needs=tuple(dict.fromkeys(needed)))
            if after != before:
                after = replace(after, changed=now, changed_by=who, changed_at=anchor)
                await entries.put(after)
            return after

        edited = await self.services.store.transact(body)
        self.location.drop_preambles()
        return edited

    async def finish(
        self, name: str, /, *, anyway: bool = False, by: str = ""
    ) -> tuple[StateEntry, StateEntry | None]:
        """Close a goal or milestone. A milestone leaves a checkpoint: the commit that is checked
        out; None where there is no commit. Raises `InvalidInput` if something that it needs is
        open, unless `anyway`.
        """
        entry = await self.get(name)
        if entry.kind not in {"goal", "milestone"} or entry.status == "done":
            is_done = entry.status == "done"
            raise InvalidInput(
                f"{entry.title} is {'done already' if is_done else f'a {entry.kind}'}.",
                hint="Name a goal or milestone that is open: `perdure project show`.",
            )
        if not anyway and (waits := await self.waits_for(entry)):
            raise InvalidInput(
                f"{entry.title} needs what is not over: {'; '.join(waits)}.",
                hint="Finish these first, or say --anyway.",
            )
        point = None
        if entry.kind == "milestone":
            # First: after kill -9 in between it can be finished again, and finds its checkpoint.
            point = await self.checkpoint(entry.title, of=entry.id, by=by)
        return await self.edit(entry.id, status="done", by=by), point

    async def checkpoint(self, title: str, *, of: str = "", by: str = "") -> StateEntry | None:
        """Note the commit that is checked out, once for each `of`. None if there is none."""
        anchor = await self._here()
        if not anchor.commit:
            return None
        for each in await self.list("checkpoint") if of else ():
            if (each.of, each.commit) == (of, anchor.commit):
                return each
        if self._note_commits is not None:
            await self._note_commits([anchor.commit])
        commit, branch = anchor.commit, anchor.branch
        return await self.add("checkpoint", title, of=of, commit=commit, branch=branch, by=by)

    async def sync(self, *, write: bool = True) -> StateSync:
        """Merge what was changed in the file into the bank; then, if `write`, write the file.

        A file that cannot be read is left as it is, and said. Raises `Unavailable` if it cannot be
        written; the bank has what was merged then.
        """
        async with self.projections.locked():
            await forget_foreign_bases(self.services, self.project, self.projections)
            done = await self._sync(write=write)
            await note_bases(self.services, self.project, self.projections)
            return done

    async def _sync(self, *, write: bool) -> StateSync:
        remarks: builtins.list[str] = []
        taken: dict[str, None] = {}

        def done(*, written: bool) -> StateSync:
            return StateSync(tuple(taken), written=written, remarks=tuple(remarks))

        for _ in range(_TRIES):
            file = self.projections.read(STATE_FILE)
            try:
                steps = await self.projections.incoming(file)
                for number, (base, theirs) in enumerate(steps, 1):
                    # What git brought has the times of those who wrote it.
                    at = file.changed if number == len(steps) else 0
                    taken |= dict.fromkeys(await self._merge(base, theirs, at, remarks))
            except InvalidInput as exc:
                said = f"{exc.message} The file is left as it is. {exc.hint}".rstrip()
                remarks.append(said)
                return done(written=False)
            if not write:
                if file.is_edited and file.text is not None:
                    await self.projections.note_here(STATE_FILE, file.text)
                return done(written=False)
            text = await self.text()
            if self.projections.write(STATE_FILE, text, file.text):
                await self.projections.note_here(STATE_FILE, text)
                return done(written=text != file.text)
        raise Unavailable(
            f"{self.projections.path(STATE_FILE)} is written by somebody else all the time.",
            hint="Close what writes it, and run `perdure project refresh`.",
        )

    async def _merge(
        self, base: str | None, theirs: str, changed: int, remarks: builtins.list[str]
    ) -> builtins.list[str]:
        """Bring the bank to the merge of itself and `theirs`; returns what changed, in words.
        `changed` is when somebody edited it by hand; 0: nobody did.
        """
        if base == theirs:
            return []
        file = read_state(theirs, self.projections.path(STATE_FILE).name)
        common = None if base is None else _readable(base)
        lines = dict(file.lines)
        now = changed or self.services.store.now()
        for line in file.new:
            id = _id_for(line, self.project)
            lines[id] = {**line, "id": id, "created": line.get("created") or iso(now)}
        for id, line in lines.items():
            was = (common or {}).get(id, {})
            stamped = was.get("updated") != line.get("updated")
            if changed and id != HEADER and line != was and not stamped:
                lines[id] = {**line, "updated": iso(changed), "changed_by": "by hand"}
        lines, refused = _checked(self.project, lines, common or {}, now)
        if refused:
            kept = self.projections.keep(STATE_FILE, theirs)
            remarks += [f"{each} A copy of the file is kept: {kept.name}." for each in refused]
        anchor = await self._here()
        taken, said = await self.services.store.transact(
            lambda transaction: self._apply(transaction, common, lines, anchor)
        )
        if taken:
            self.location.drop_preambles()
        remarks += said
        return taken

    async def _apply(
        self, transaction: Transaction, common: TaskLines | None, theirs: TaskLines, anchor: Anchor
    ) -> tuple[builtins.list[str], tuple[str, ...]]:
        entries, now = transaction.collection(StateEntry), transaction.now()
        taken: builtins.list[str] = []
        known = {each.id: each async for each in entries.walk(f"{self.project}/")}
        ours = {id: entry_line(each) for id, each in known.items() if each.status != "removed"}
        ours.setdefault(HEADER, self._header())  # kept only if the file says something else
        if common is None:  # of two versions the older one counts as the common one
            common = older_lines(ours, theirs)
            gone = {id: iso(each.changed) for id, each in known.items() if id not in ours}
            theirs = {
                id: line for id, line in theirs.items() if id not in gone or _age(line) > gone[id]
            }
        if HEADER not in common:
            common = {**common, HEADER: ours[HEADER]}
        merge = merge_tasks(common, ours, theirs)
        for id, line in merge.lines.items():
            if ours.get(id) != line:
                entry = entry_of(self.project, id, line, now)
                if not line.get("changed_at"):
                    entry = replace(entry, changed_at=anchor)
                await entries.put(entry)
                taken.append(f"{entry.kind} {entry.title}")
        for id in ours.keys() - merge.lines.keys() - {HEADER}:
            await entries.put(replace(known[id], status="removed", changed=now))
            taken.append(f"{known[id].kind} {known[id].title}, which was taken out")
        return taken, merge.remarks

    # Names

    async def _lines(self) -> TaskLines:
        entries = [each async for each in self._entries.walk(f"{self.project}/")]
        lines = {each.id: entry_line(each) for each in entries if each.status != "removed"}
        return lines | {HEADER: {**self._header(), **lines.get(HEADER, {})}}

    def _header(self) -> TaskLine:
        name = initialised(self.location).name
        return {"project": self.project, "name": name, "id": HEADER, "kind": "project"}

    async def _named(self, name: str) -> str:
        """The id of an entry or a task. Raises `NotFound`, `InvalidInput`."""
        text = name.strip()
        if text.startswith(("tk_", "#")) or text.isdigit():
            from perdure.project.task_graph import TaskGraph

            return (await TaskGraph(self.services, self.location).get(text)).id
        return (await self.get(text)).id

    def _title(self, text: str) -> str:
        title = " ".join(self._plain(text).split())
        if not title or len(title) > MAX_TITLE:
            raise InvalidInput(
                f"A title has 1 to {MAX_TITLE} characters.", hint="Put the rest into --text."
            )
        return title

    def _plain(self, text: str) -> str:
        """Without secrets, and without what cannot be stored."""
        return str(self.services.mask_data({"text": text})["text"])


def _checked(
    project: str, lines: TaskLines, common: TaskLines, now: int
) -> tuple[TaskLines, builtins.list[str]]:
    """The lines that are entries; of others what they were before. And what is wrong."""
    sound: TaskLines = {}
    refused: builtins.list[str] = []
    for id, line in lines.items():
        try:
            entry_of(project, id, line, now)
            sound[id] = line
        except PerdureError as exc:
            refused.append(str(exc))
            if id in common:
                sound[id] = common[id]
    return sound, refused


def _readable(text: str) -> TaskLines | None:
    """None if it is no state: an unknown version is better than a wrong one."""
    try:
        return read_state(text).lines
    except InvalidInput:
        return None


def _id_for(line: TaskLine, project: str) -> str:
    """The same id however often the same file is read."""
    digest = sha256(msgspec.json.encode([project, line], order="deterministic")).hexdigest()
    return f"{PREFIXES[line['kind']]}_{digest[:12]}"


def _age(line: TaskLine) -> str:
    return str(line.get("updated", ""))


def _actor() -> str:
    actor = actors.current_actor()
    return actors.system_user() if actor is None else actor.name
