"""What an importer is: where a format's files are, what they are called, and what reads them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perdure.history.log_records import MAX_NAME
from perdure.importers.source import Source
from perdure.importers.steps import Reader

#: Bytes that the names of a format and of a sub-agent may add to that of a conversation.
_ROOM = MAX_NAME - 50
_unfit = re.compile(r"[^\w.@+=:-]+")


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """A file with a conversation."""

    path: Path
    #: The conversation's own name: the same file under another path has the same.
    id: str
    #: The sub-agent whose part of the conversation this is.
    agent: str = ""
    #: The tool call that started it, if something beside the file tells.
    call: str = ""
    facts: dict[str, Any] = {}
    #: The session that it was, in a file that was exported from a bank.
    session: str = ""
    #: Why the file is not imported.
    skip: str = ""


class Importer:
    """One format. Derive from it; an instance is registered under the format's name.

    Only `reader` must be given.
    """

    #: What the files in a folder are called.
    patterns: Sequence[str] = ("*.jsonl", "*.jsonl.zst")
    #: Conversations are named by their files: another file of the same name is another
    #: conversation. Otherwise the format has names of its own.
    named_by_file = True

    def reader(self, transcript: Transcript) -> Reader:
        """What reads this file."""
        raise NotImplementedError

    def places(self) -> Sequence[Path]:
        """Where to look when no path is given."""
        return ()

    def transcripts(self, path: Path) -> Iterable[Transcript]:
        """The transcripts at a path, which exists: a file, or a folder with any number of them.

        Those of sub-agents come behind the one that started them.
        """
        for file in files(path, self.patterns):
            yield Transcript(path=file, id=stem(file))

    def open(self, transcript: Transcript) -> Source:
        """The lines of the file. Raises OSError."""
        return Source(transcript.path)


def files(path: Path, patterns: Iterable[str]) -> Iterator[Path]:
    """The file itself, or those below the folder that have such names, in order of their paths."""
    if not path.is_dir():
        yield path
        return
    found = {file for pattern in patterns for file in path.rglob(pattern)}
    yield from sorted(file for file in found if file.is_file())


def stem(path: Path) -> str:
    """The file's name without what says of which kind it is."""
    return Path(path.name.removesuffix(".zst")).stem or path.name


def name_of(*parts: str) -> str:
    """A name, as a part of a session's, made of these; different ones for different parts."""
    names = [_unfit.sub("-", part).strip("-.") or "unnamed" for part in parts if part]
    name = ".".join(names)
    if len(name.encode()) <= _ROOM:
        return name
    mark = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{name.encode()[: _ROOM - 13].decode(errors='ignore')}-{mark}"
