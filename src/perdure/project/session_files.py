"""The files ``.perdure/sessions/<timestamp>_<branch>.json``, to be read and edited.

Everything in them is made from summaries of turns. What somebody changes is kept with the session
as a path and a value, laid over what is made anew, and so is never overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from perdure.core.errors import InvalidInput
from perdure.core.messages import sound
from perdure.project.projections import Projections
from perdure.project.state_records import iso
from perdure.project.task_records import Task
from perdure.project.work_records import ProjectNote, TurnSummary, WorkSession
from perdure.project.work_sessions import WorkSessions
from perdure.storage.transaction import Transaction

FOLDER = "sessions"
#: Turns that a file has, the newest ones; files that are looked after, the most recent ones.
_MOST_TURNS, _MOST_FILES = 100, 200


class SessionFiles:
    """Writes the files of the conversations that took place in one work tree."""

    def __init__(self, work: WorkSessions) -> None:
        self._work = work
        self._projections = Projections(work.location)
        self._sessions = work.services.store.collection(WorkSession)

    async def merge(self, sessions: Iterable[WorkSession]) -> tuple[str, ...]:
        """Take over what people changed. Returns what they should know."""
        remarks: list[str] = []
        for work in sessions:
            name = file_name(work)
            if not self._projections.is_edited(name):
                continue
            file = self._projections.read(name)
            if file.text is None or not file.is_edited:
                continue
            try:
                theirs, base = _read(file.text), _read(file.base or "{}")
            except InvalidInput as exc:
                kept = self._projections.keep(name, file.text)
                self._projections.remove(name)
                remarks.append(f"{name} {exc} It is kept as {kept.name}, and written anew.")
                continue
            if file.base is None:
                # Another bank wrote it, at another time: what it says besides is kept, no more.
                edits = _additions(await self.view(replace(work, edits={})), theirs)
            else:
                edits = changes(base, theirs)
            if edits:
                await self._keep(work, edits)
            self._projections.note(name, file.text)
        return tuple(remarks)

    async def write(self, sessions: Iterable[WorkSession]) -> None:
        """Write the files of these. Raises `Unavailable`."""
        for work in sessions:
            name = file_name(work)
            text = _written(await self.view(work))
            file = self._projections.read(name)
            if file.is_edited:
                continue  # since it was merged: the next time
            if file.text != text or file.base != text:
                self._projections.write(name, text, file.text)

    async def view(self, work: WorkSession) -> dict[str, Any]:
        """What the file of a session says."""
        turns = await self._work.turns(work.session, last=_MOST_TURNS)
        notes = await self._work.notes(work.session)
        named = dict.fromkeys(id for turn in turns for id in turn.tasks)
        keys = [f"{work.project}/{id}" for id in named]
        tasks = await self._work.services.store.collection(Task).get_many(keys)
        now = self._work.services.store.now()
        held = [each for each in tasks if each is not None and each.is_held(now)]
        return with_changes(_view(work, turns, notes, held), work.edits)

    async def _keep(self, work: WorkSession, edits: Mapping[str, Any]) -> None:
        async def body(transaction: Transaction) -> None:
            sessions = transaction.collection(WorkSession)
            found = await sessions.get(work.key)
            if found is not None:
                await sessions.put(
                    replace(found, edits={**found.edits, **edits}, version=found.version + 1)
                )

        await self._work.services.store.transact(body)


def file_name(work: WorkSession) -> str:
    return f"{FOLDER}/{work.file}.json"


def here(work: WorkSessions, sessions: Sequence[WorkSession]) -> list[WorkSession]:
    """Those whose files are in this work tree: they took place in it, or nobody knows where."""
    root = str(work.location.root)
    found = [
        each
        for each in sessions
        if not each.root or each.root == root or each.root.startswith(f"{root}/")
    ]
    return found[:_MOST_FILES]


def changes(base: Any, theirs: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """What was changed: values by their path, written as a JSON list; None is gone."""
    if isinstance(base, dict) and isinstance(theirs, dict):
        found: dict[str, Any] = {}
        for name in base.keys() | theirs.keys():
            found |= changes(base.get(name), theirs.get(name), (*path, name))
        return found
    return {} if base == theirs else {json.dumps(path, ensure_ascii=False): theirs}


def _additions(view: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """What a file of unknown age says that is not made anew: words in turns that are over, notes
    and fields of people. What is missing there was perhaps not known yet.
    """
    turns, notes = theirs.get("turns"), theirs.get("scratchpad")
    over = {
        name: turn
        for name, turn in (turns if isinstance(turns, dict) else {}).items()
        if isinstance(turn, dict) and not turn.get("open")
    }
    added = {name: value for name, value in theirs.items() if name not in view}
    found = changes({}, added)
    for name, parts in (("turns", over), ("scratchpad", notes)):
        if isinstance(parts, dict):
            found |= changes(view.get(name, {}), parts, (name,))
    return {path: value for path, value in found.items() if value is not None}


def with_changes(view: dict[str, Any], edits: Mapping[str, Any]) -> dict[str, Any]:
    """What is made anew, with what people changed. A turn that is gone stays gone."""
    for written in sorted(edits):
        path, value = json.loads(written), edits[written]
        place: Any = view
        for name in path[:-1]:
            if name not in place and place is view.get("turns"):
                break
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                break
        else:
            if path and value is None:
                place.pop(path[-1], None)
            elif path:
                place[path[-1]] = value
    return view


def _view(
    work: WorkSession,
    turns: Sequence[TurnSummary],
    notes: Sequence[ProjectNote],
    held: Sequence[Task],
) -> dict[str, Any]:
    newest = turns[-1] if turns else None
    subtasks = {
        f"todo {each.id}": {"state": each.state, "text": each.text}
        for each in (newest.todos if newest else ())
        if each.state != "done"
    } | {each.id: {"owner": each.owner, "state": "claimed", "text": each.title} for each in held}
    return {
        "format": 1,
        "session": work.session,
        "client": work.client,
        "started": iso(work.started),
        "active": iso(work.active),
        "began_at": {"branch": work.began_at.branch, "commit": work.began_at.commit},
        "head": {"branch": work.anchor.branch, "commit": work.anchor.commit},
        "turns": {each.name: _turn(each) for each in turns},
        "open_subtasks": subtasks,
        "pending_approvals": list(newest.waiting) if newest else [],
        "open_ends": list(newest.open_ends) if newest else [],
        "scratchpad": {
            each.id: {"at": iso(each.at), "by": each.by, "text": each.text} for each in notes
        },
    }


def _turn(each: TurnSummary) -> dict[str, Any]:
    shown = {
        "asked": each.asked,
        "summary": each.summary,
        "files": list(each.files),
        "commands": [
            {"command": run.command}
            if run.exit is None
            else {"command": run.command, "exit": run.exit}
            for run in each.commands
        ],
        "commits": [{"id": made.id, "subject": made.subject} for made in each.commits],
        "approvals": [{"what": one.what, "granted": one.granted} for one in each.approvals],
        "decided": list(each.decided),
    }
    return {
        "ended": iso(each.ended),
        "at": {"branch": each.anchor.branch, "commit": each.anchor.commit},
        **({"open": True} if each.open else {}),
        **{name: value for name, value in shown.items() if value},
    }


def _read(text: str) -> dict[str, Any]:
    try:
        found = sound(json.loads(text))
    except (ValueError, RecursionError) as exc:
        raise InvalidInput(f"is not JSON ({exc}).") from exc
    if not isinstance(found, dict):
        raise InvalidInput("is no object.")
    return found


def _written(view: dict[str, Any]) -> str:
    return json.dumps(view, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
