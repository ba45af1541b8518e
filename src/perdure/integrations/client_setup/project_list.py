"""The folders on this machine in which `perdure project init` was run: `perdure uninstall` takes it
out of each of them, whatever bank it uses.

One JSON string a line, in the file ``projects`` of the user's data folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from perdure.config import data_folder
from perdure.project.project_location import write_atomically

_FILE = "projects"


def project_list_file() -> Path:
    return data_folder() / _FILE


def listed_projects() -> list[Path]:
    """In the order in which they were set up. A line that cannot be read names nothing."""
    try:
        lines = project_list_file().read_bytes().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = dict[Path, None]()
    for line in lines:
        try:
            found[Path(msgspec.json.decode(line, type=str))] = None
        except (msgspec.DecodeError, ValueError):
            continue  # torn by a full disk
    return list(found)


def list_project(root: Path) -> None:
    """Raises OSError."""
    if root in listed_projects():
        return
    file = project_list_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(made, "ab") as opened:
        # A line of its own, also behind one that was torn.
        opened.write(b"\n" + msgspec.json.encode(str(root)) + b"\n")


def unlist_projects(roots: Iterable[Path]) -> None:
    """Raises OSError."""
    known, gone = listed_projects(), set(roots)
    left = [each for each in known if each not in gone]
    if left == known:
        return
    if left:
        lines = b"".join(msgspec.json.encode(str(each)) + b"\n" for each in left)
        write_atomically(project_list_file(), lines)
    else:
        project_list_file().unlink()
