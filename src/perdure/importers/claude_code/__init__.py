"""Transcripts of Claude Code: ``~/.claude/projects/<folder>/<session>.jsonl``.

Those of sub-agents are in ``<session>/subagents/agent-<id>.jsonl`` or, from older versions,
beside the session's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from perdure.importers.claude_code.claude_reader import ClaudeCodeReader
from perdure.importers.importer import Importer, Transcript, files, stem, word
from perdure.importers.transcript_source import Broken, decode, first_records

_agent_file = re.compile(r"agent-(.+)").fullmatch
#: Runs that the program makes for itself: compactions, whose summary the session's own file holds,
#: and suggestions, which are never said.
_errand = re.compile(r"a(?:compact|prompt_suggestion)-").match
#: More than any file about a sub-agent has.
_META_BYTES = 64 * 1024
#: Records in which the first message of a file is looked for.
_FIRST = 200


class ClaudeCodeImporter(Importer):
    """Reads Claude Code's transcripts: sessions, and sub-agents as their children."""

    named_by_file = False
    client = "claude-code"

    def reader(self, transcript: Transcript) -> ClaudeCodeReader:
        return ClaudeCodeReader(transcript.agent)

    def places(self) -> Sequence[Path]:
        configured = os.environ.get("CLAUDE_CONFIG_DIR")
        if configured:
            return [Path(configured).expanduser() / "projects"]
        return [Path.home() / ".claude" / "projects", Path.home() / ".config/claude/projects"]

    def transcripts(self, path: Path) -> Iterable[Transcript]:
        agents = list[Path]()
        for file in files(path, self.patterns):
            if _agent_file(stem(file)):
                agents.append(file)
                continue
            yield Transcript(path=file, id=stem(file))
            if not path.is_dir():
                agents += files(file.parent / stem(file) / "subagents", self.patterns)
        yield from sorted(
            (_of_agent(file) for file in agents if file.exists()),
            key=lambda found: (found.facts.get("depth", 0), found.path),
        )

    def folder(self, transcript: Transcript) -> str | None:
        """That of the session's first message, for its sub-agents, too."""
        if transcript.agent:
            found = _folder(_session_file(transcript))
            if found is not None:
                return found
        return _folder(transcript.path)


def _session_file(transcript: Transcript) -> Path:
    """The file of the session that started a sub-agent, if it is where it should be."""
    path = transcript.path
    if "subagents" in path.parts:
        above = len(path.parts) - path.parts[::-1].index("subagents") - 2
        folder = Path(*path.parts[:above])
    else:
        folder = path.parent
    name = f"{transcript.id}.jsonl"
    return folder / name if (folder / name).exists() else folder / f"{name}.zst"


def _folder(file: Path) -> str | None:
    for record in first_records(file, _FIRST):
        if isinstance(record, dict) and record.get("type") in {"user", "assistant"}:
            return word(record.get("cwd"))
    return None


def _of_agent(file: Path) -> Transcript:
    agent = stem(file).removeprefix("agent-")
    meta = _meta(file.with_name(f"{stem(file)}.meta.json"))
    depth = meta.get("spawnDepth")
    found = {"agent_type": meta.get("agentType"), "title": meta.get("description")}
    facts: dict[str, Any] = {
        name: text for name, text in found.items() if isinstance(text, str) and text
    }
    if isinstance(depth, int):
        facts["depth"] = depth
    return Transcript(
        path=file,
        id=_parent(file),
        agent=agent,
        call=word(meta.get("toolUseId")),
        facts=facts,
        skip="the program's own run" if _errand(agent) else "",
    )


def _parent(file: Path) -> str:
    if "subagents" in file.parts:
        above = file.parts[len(file.parts) - 1 - file.parts[::-1].index("subagents") - 1]
        if above not in {"", "/"}:
            return above
    for record in first_records(file, 5):
        if isinstance(record, dict) and (session := word(record.get("sessionId"))):
            return session
    return stem(file)


def _meta(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as content:
            found = decode(content.read(_META_BYTES))
    except (OSError, Broken):
        return {}
    return found if isinstance(found, dict) else {}
