"""Changes to files that belong to others: planned first, made at once, taken back exactly.

An edit knows the file's bytes before and after. If nobody changed the file since, taking it back
restores the former bytes; otherwise only our part is taken out of what is there now. All edits of a
set-up are planned before the first is made, so a file that cannot be read changes nothing.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from perdure.core.errors import Corrupted, Unavailable
from perdure.project.project_location import write_atomically

_RECORD = "clients.json"

#: Gives a file's text with our part in it, or without; None stands for no file.
Change: TypeAlias = Callable[[str | None], str | None]


class FileEdit(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was done to one file. `client` is whom it is for; empty: no client."""

    path: str
    client: str
    after: bytes
    #: None: there was no file.
    before: bytes | None = None
    #: Folders that were made for it, the innermost first.
    folders: tuple[str, ...] = ()


class PlannedEdit(msgspec.Struct, frozen=True):
    """An edit that was not made yet. `now` is what the file holds at this moment."""

    edit: FileEdit
    now: bytes | None

    @property
    def changes(self) -> bool:
        return self.now != self.edit.after


class PlannedReturn(msgspec.Struct, frozen=True):
    """An edit that is to be taken back: the file's bytes now, and what will be left."""

    edit: FileEdit
    now: bytes | None
    left: bytes | None


class EditRecord:
    """The edits of a project: ``clients.json`` beside its settings. Each is written down before it
    is made, so that it can be taken back after a crash.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _RECORD

    def all(self) -> dict[str, FileEdit]:
        """By path. Raises `Corrupted`."""
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=list[FileEdit])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as exc:
            raise Corrupted(
                f"{self._path} cannot be read: {exc}.",
                hint="Move it away; what it was about is in the clients' own files.",
            ) from exc
        return {each.path: each for each in found}

    def plan(self, path: Path, client: str, put_in: Change, take_out: Change) -> PlannedEdit | None:
        """None if there is nothing to put in. Raises `Corrupted` if the file cannot be read or
        understood.
        """
        now, known = read_bytes(path), self.all().get(str(path))
        if known is not None and now == known.after:
            before, folders = known.before, known.folders
        else:
            before = _changed(path, now, take_out)
            folders = _missing_folders(path.parent) if known is None else known.folders
        after = _changed(path, before, put_in)
        if after is None or (known is None and after == now):
            return None
        return PlannedEdit(FileEdit(str(path), client, after, before, folders), now)

    def make(self, planned: PlannedEdit) -> bool:
        """False if the file was like that. Raises `Unavailable` if it cannot be written, or if
        somebody else has changed it meanwhile.
        """
        edit, path = planned.edit, Path(planned.edit.path)
        self._write({**self.all(), edit.path: edit})
        if not planned.changes:
            return False
        if read_bytes(path) != planned.now:
            raise Unavailable(f"{path} was changed meanwhile.", hint="Run the command again.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, edit.after)
        except OSError as exc:
            raise _unwritable(path, exc) from exc
        return True

    def plan_back(self, edit: FileEdit, take_out: Change) -> PlannedReturn:
        """Raises `Corrupted` if somebody has broken the file since."""
        path = Path(edit.path)
        now = read_bytes(path)
        left = edit.before if now == edit.after else _changed(path, now, take_out)
        return PlannedReturn(edit, now, left)

    def take_back(self, planned: PlannedReturn) -> bool:
        """False if nothing of ours was there. Raises `Unavailable` if it cannot be written."""
        path = Path(planned.edit.path)
        try:
            _clear(path)
            if planned.left is None:
                path.unlink(missing_ok=True)
            elif planned.left != planned.now:
                replace_file(path, planned.left)
        except OSError as exc:
            raise _unwritable(path, exc) from exc
        for folder in planned.edit.folders:
            try:
                Path(folder).rmdir()
            except OSError:
                break  # somebody else has put something there
        known = self.all()
        known.pop(planned.edit.path, None)
        self._write(known)
        return planned.left != planned.now

    def _write(self, edits: Mapping[str, FileEdit]) -> None:
        if edits:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, msgspec.json.encode([*edits.values()]))
        else:
            self._path.unlink(missing_ok=True)


def read_bytes(path: Path) -> bytes | None:
    """None if there is no file. Raises `Corrupted`."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise Corrupted(f"{path} cannot be read: {exc.strerror}.", hint="Mend its rights.") from exc


def replace_file(path: Path, data: bytes) -> None:
    """At once, with the rights that it had. A link is followed: dot files often are links."""
    target = path.resolve()
    _clear(target)
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    beside = target.with_name(f".{target.name}.perdure-{secrets.token_hex(4)}")
    try:
        beside.write_bytes(data)
        if mode is not None:
            beside.chmod(mode)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _clear(path: Path) -> None:
    """Take away what a killed process has left beside a file."""
    for left in path.parent.glob(f".{path.name}.perdure-*"):
        left.unlink(missing_ok=True)


def with_lines(text: str | None, begin: str, end: str, lines: Iterable[str]) -> str:
    """A text with a block of ours at its end."""
    text = without_lines(text, begin, end) or ""
    between = "" if not text or text.endswith("\n") else "\n"
    return "".join((text, between, begin, *(f"{line}\n" for line in lines), end))


def without_lines(text: str | None, begin: str, end: str) -> str | None:
    if text is None:
        return None
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    return before + after if found and ended else text


def _changed(path: Path, data: bytes | None, change: Change) -> bytes | None:
    try:
        text = None if data is None else data.decode()
    except UnicodeDecodeError as exc:
        raise Corrupted(f"{path} is not UTF-8.", hint="Mend it, or leave this client out.") from exc
    try:
        changed = change(text)
    except ValueError as exc:
        raise Corrupted(
            f"{path} cannot be understood: {exc}.", hint="Mend it, or leave this client out."
        ) from exc
    return None if changed is None else changed.encode()


def _missing_folders(folder: Path) -> tuple[str, ...]:
    found = []
    while not os.path.lexists(folder):
        found.append(str(folder))
        folder = folder.parent
    return tuple(found)


def _unwritable(path: Path, exc: OSError) -> Unavailable:
    return Unavailable(
        f"{path} cannot be written: {exc.strerror}.",
        hint="Mend its rights, or leave this client out.",
    )
