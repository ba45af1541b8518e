"""Transcripts of Codex: ``~/.codex/sessions/Y/M/D/rollout-<time>-<id>.jsonl``, or ``….zst``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from perdure.importers.codex.codex_reader import CodexReader
from perdure.importers.importer import Importer, Transcript, files, stem, word
from perdure.importers.transcript_source import JsonDocument, TranscriptSource, first_records

_id = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$").search


#: Records in which the folder is looked for: the first says it, in old files the first message.
_FIRST = 20
_cwd = re.compile(r"<cwd>([^<]+)</cwd>").search


class CodexImporter(Importer):
    """Reads Codex' rollouts, those of the first versions included."""

    patterns: Sequence[str] = ("rollout-*.jsonl", "rollout-*.jsonl.zst", "rollout-*.json")
    named_by_file = False
    client = "codex"

    def reader(self, transcript: Transcript) -> CodexReader:
        return CodexReader()

    def places(self) -> Sequence[Path]:
        home = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex").expanduser()
        found = [home / "sessions", home / "archived_sessions"]
        return [place for place in found if place.exists()] or found[:1]

    def transcripts(self, path: Path) -> Iterable[Transcript]:
        for file in files(path, self.patterns):
            found = _id(stem(file))
            yield Transcript(path=file, id=found[0] if found else stem(file))

    def folder(self, transcript: Transcript) -> str | None:
        found = None
        for record in first_records(transcript.path, _FIRST):
            payload = record.get("payload", record) if isinstance(record, dict) else None
            if isinstance(payload, dict):
                found = word(payload.get("cwd")) or _named_folder(payload)
                if found:
                    break
        return found

    def open(self, transcript: Transcript) -> TranscriptSource:
        is_document = transcript.path.suffix == ".json"
        return JsonDocument(transcript.path) if is_document else TranscriptSource(transcript.path)


def _named_folder(item: dict[str, Any]) -> str:
    """The folder that a message about the environment names."""
    content = item.get("content")
    for block in content if isinstance(content, list) else ():
        found = _cwd(word(block.get("text"))) if isinstance(block, dict) else None
        if found:
            return found[1].strip()
    return ""
