"""The files of a folder of reference layers, read without trust in what lies there.

Whatever cannot be read is one problem in words; it hides no other file. Links are followed to files
inside the folder only: a folder that came with somebody's repository must not fetch other files of
this machine into a prompt.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from perdure.core.display import format_size
from perdure.core.messages import sound

#: Bytes of a file; files of a folder, and folders below each other.
MAX_BYTES, MAX_FILES, MAX_DEPTH = 512_000, 2_000, 8
_SUFFIXES = (".md", ".markdown")
#: A file that was changed so lately may change again without a new time. Nanoseconds.
_FRESH = 2_000_000_000


class LayerProblem(msgspec.Struct, frozen=True):
    """Something that is wrong with a file or a layer; or only unwise, if it is a warning."""

    #: The path in the folder, or the layer's name.
    where: str
    what: str
    warning: bool = False


class LayerFile(NamedTuple):
    """A file that is there."""

    path: str
    size: int
    modified: int


class Content(NamedTuple):
    """A file that was read."""

    text: str
    hash: str


class Scanned(NamedTuple):
    """What lies in a folder."""

    #: Those that are to be read, by path.
    files: list[LayerFile]
    problems: list[LayerProblem]
    #: The paths of all, also of those that are too many.
    paths: frozenset[str] = frozenset()

    def has(self, path: str) -> bool:
        """Whether a file is there, or may be: it, or a folder around it, could not be read."""
        if path in self.paths:
            return True
        places = {path, *map(str, Path(path).parents)}
        return any(problem.where in places for problem in self.problems)


def scan(folder: Path) -> Scanned:
    """The Markdown files of a folder by path, and what cannot be read. Blocks: call it elsewhere.

    Raises `OSError` if the folder itself cannot be read.
    """
    problems = list[LayerProblem]()
    root = folder.resolve(strict=True)
    with os.scandir(root):
        pass  # raises for what is no folder, or may not be looked at
    files = sorted(_files(root, Path(), problems))
    if len(files) > MAX_FILES:
        what = (
            f"There are {len(files):,} files; {MAX_FILES:,} are read. Layers of the others stay as"
            f" they are, from {files[MAX_FILES].path} on."
        )
        problems.append(LayerProblem(str(folder), what))
    return Scanned(files[:MAX_FILES], problems, frozenset(file.path for file in files))


def is_fresh(modified: int, now: int) -> bool:
    """Whether a file was changed so lately that its time does not tell of another change."""
    return now - modified < _FRESH


def load(folder: Path, path: str) -> Content | LayerProblem:
    """A file's text and the hash of its bytes; or why there is none. Blocks."""
    try:
        # It may have become something else since it was looked at: what waits for a writer, say.
        descriptor = os.open(folder / path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return LayerProblem(path, "It is no file.")
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        return LayerProblem(path, f"It cannot be read: {exc.strerror or exc}.")
    if len(data) > MAX_BYTES:
        return _too_large(path)
    try:
        return Content(data.decode(), hashlib.sha256(data).hexdigest())
    except UnicodeDecodeError as exc:
        line = data[: exc.start].count(b"\n") + 1
        return LayerProblem(path, f"Line {line} is not UTF-8.")


def _files(root: Path, below: Path, problems: list[LayerProblem]) -> Iterator[LayerFile]:
    try:
        entries = sorted(os.scandir(root / below), key=lambda entry: entry.name)
    except OSError as exc:
        problems.append(
            LayerProblem(str(below), f"The folder cannot be read: {exc.strerror or exc}.")
        )
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if sound(entry.name) != entry.name:
            problems.append(LayerProblem(ascii(entry.name), "Its name is not UTF-8."))
            continue
        path = below / entry.name
        is_layer = entry.name.casefold().endswith(_SUFFIXES)
        try:
            if entry.is_symlink() and entry.is_dir():
                problems.append(
                    LayerProblem(str(path), "It is a link to a folder, and not followed.")
                )
            elif entry.is_dir():
                if len(path.parts) <= MAX_DEPTH:
                    yield from _files(root, path, problems)
                else:
                    problems.append(
                        LayerProblem(str(path), f"It lies deeper than {MAX_DEPTH} folders.")
                    )
            elif is_layer:
                yield from _file(root, path, problems)
        except OSError as exc:  # a link to nowhere, or no right to look
            problems.append(LayerProblem(str(path), f"It cannot be read: {exc.strerror or exc}."))
        except RuntimeError:  # what pathlib says about a loop of links
            problems.append(LayerProblem(str(path), "It is a link that leads to itself."))


def _file(root: Path, path: Path, problems: list[LayerProblem]) -> Iterator[LayerFile]:
    real = (root / path).resolve(strict=True)
    if not real.is_relative_to(root):
        problems.append(LayerProblem(str(path), "It is a link to a file outside of the folder."))
        return
    found = real.stat()
    if not stat.S_ISREG(found.st_mode):
        problems.append(LayerProblem(str(path), "It is no file."))
    elif found.st_size > MAX_BYTES:
        problems.append(_too_large(str(path)))
    else:
        yield LayerFile(str(path), found.st_size, found.st_mtime_ns)


def _too_large(path: str) -> LayerProblem:
    return LayerProblem(
        path, f"It has more than {format_size(MAX_BYTES)}, which is too much for a layer."
    )
