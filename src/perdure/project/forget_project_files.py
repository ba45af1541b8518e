"""Takes forgotten turns out of the files of a project, wherever its work trees are."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from perdure.core.errors import PerdureError
from perdure.project import journal, session_files
from perdure.project.project_directory import ProjectRecord
from perdure.project.project_location import ProjectLocation, write_atomically
from perdure.project.work_records import WorkSession
from perdure.storage.store import Store

#: Parts of a session's file that are made of several turns.
_MIXED = ("open_subtasks", "open_ends", "pending_approvals")


async def forget_files(
    store: Store, work: WorkSession, turns: Sequence[int], todos: Collection[str]
) -> bool:
    """Some turns of a conversation with the items that they put on a list, or all of it. False if a
    file could not be changed.
    """
    record = await store.collection(ProjectRecord).get(work.project)
    done = True
    for root in () if record is None else record.roots:
        try:
            location = ProjectLocation.find(Path(root))
            settings = location.settings
            if settings is None or settings.project != work.project:
                continue
            trees = (
                [location]
                if location.git is None
                else [ProjectLocation.find(tree) for tree in await location.git.worktrees()]
            )
            for tree in trees:
                _forget(tree, work, turns, todos)
        except (OSError, PerdureError):
            done = False
    return done


def _forget(
    location: ProjectLocation, work: WorkSession, turns: Sequence[int], todos: Collection[str]
) -> None:
    """Raises `OSError`."""
    for leftover in (location.folder / "preamble").glob("*.json"):
        leftover.unlink(missing_ok=True)
    for top in (location.files, location.folder / "projections" / location.worktree):
        name = session_files.file_name(work)
        _change(top / name, turns, _session)
        _remove(top.glob(f"{session_files.FOLDER}/{work.file}.kept-*"))
        for page in top.glob(f"{journal.FOLDER}/*.md"):
            day = page.name[:10]
            own = Path(journal.page_name(day, work))
            if page.name == own.name:
                _change(page, turns, lambda text, ids: journal.without_entries(text, ids, todos))
            elif page.name.startswith(f"{own.stem}.kept-"):
                page.unlink(missing_ok=True)


def _change(
    path: Path, turns: Sequence[int], without: Callable[[str, set[str]], str | None]
) -> None:
    if not path.exists():
        return
    text = path.read_bytes().decode(errors="surrogateescape")
    left = without(text, {f"T-{number}" for number in turns}) if turns else None
    if left is None:
        path.unlink()
    elif left != text:
        write_atomically(path, left.encode(errors="surrogateescape"))


def _session(text: str, names: set[str]) -> str | None:
    """None if it cannot be read: then nobody knows what is in it."""
    try:
        view = json.loads(text)
    except ValueError:
        return None
    if not isinstance(view, dict) or not isinstance(view.get("turns"), dict):
        return None
    left = {name: value for name, value in view.items() if name not in _MIXED}
    left["turns"] = {name: turn for name, turn in view["turns"].items() if name not in names}
    return json.dumps(left, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
