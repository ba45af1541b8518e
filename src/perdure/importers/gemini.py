"""Conversations of Gemini CLI: ``~/.gemini/tmp/<project>/chats/session-<time>-<id>.jsonl``.

Sub-agents are in ``chats/<session>/<agent>.jsonl``. In older versions a conversation is a document,
``session-….json``, which newer ones turn into lines when it goes on.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from perdure.importers.gemini_reader import GeminiReader
from perdure.importers.importer import Importer, Transcript, files, stem, word
from perdure.importers.message_parts import mapping
from perdure.importers.transcript_source import Broken, JsonDocument, TranscriptSource, decode

_session_id = re.compile(rb'"sessionId"\s*:\s*"([^"\\]{1,200})"').search
#: Where the id of a conversation stands in its file.
_HEAD = 64 * 1024
#: More than a list of a person's projects has.
_REGISTRY = 4 * 1024 * 1024


class GeminiImporter(Importer):
    """Reads what Gemini CLI records."""

    patterns: Sequence[str] = ("session-*.json", "*.jsonl")
    named_by_file = False
    client = "gemini"

    def reader(self, transcript: Transcript) -> GeminiReader:
        return GeminiReader()

    def places(self) -> Sequence[Path]:
        home = Path(os.environ.get("GEMINI_CLI_HOME") or Path.home()).expanduser()
        return [home / ".gemini" / "tmp"]

    def transcripts(self, path: Path) -> Iterable[Transcript]:
        agents = list[Path]()
        for file in files(path, self.patterns):
            if file.parent.parent.name == "chats":
                agents.append(file)
            elif path.is_dir() and not file.name.startswith("session-"):
                continue
            elif file.suffix != ".json" or not file.with_suffix(".jsonl").exists():
                yield Transcript(path=file, id=_id(file), folder=_folder(file.parent.parent))
        for file in agents:
            folder = _folder(file.parent.parent.parent)
            yield Transcript(path=file, id=file.parent.name, agent=stem(file), folder=folder)

    def open(self, transcript: Transcript) -> TranscriptSource:
        is_document = transcript.path.suffix == ".json"
        return JsonDocument(transcript.path) if is_document else TranscriptSource(transcript.path)


def _id(file: Path) -> str:
    try:
        with file.open("rb") as content:
            found = _session_id(content.read(_HEAD))
    except OSError:
        found = None
    return found[1].decode("utf-8", "replace") if found else stem(file)


def _folder(place: Path) -> str:
    """The project whose conversations are in this folder; its name, if nothing tells."""
    try:
        root = (place / ".project_root").read_text(errors="replace").strip()
    except OSError:
        root = ""
    if root:
        return root
    registry = place.parent.parent / "projects.json"
    try:
        changed = registry.stat().st_mtime_ns
    except OSError:
        return place.name
    return _projects(registry, changed).get(place.name, place.name)


@lru_cache(maxsize=8)
def _projects(registry: Path, changed: int) -> dict[str, str]:  # noqa: ARG001 (part of the key)
    """Folders by the name that their conversations' folder has: a short one, before that a hash."""
    try:
        with registry.open("rb") as content:
            found = decode(content.read(_REGISTRY))
    except (OSError, Broken):
        return {}
    projects = mapping(mapping(found).get("projects"))
    hashes = {hashlib.sha256(folder.encode()).hexdigest(): folder for folder in projects}
    return hashes | {word(name): folder for folder, name in projects.items()}
