"""Real transcripts to import. They are never part of the repository: a path says where they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Report
from perdure.simulation import History, read_history

VARIABLE = "PERDURE_TRANSCRIPTS"
_DEFAULT = Path(__file__).parent.parent.parent / "shared/data"


class Transcripts(NamedTuple):
    """What there is to import."""

    #: By format, what an importer is given.
    paths: dict[str, list[Path]]
    #: Bytes of all files, those of sub-agents included.
    size: int


def found(report: Report) -> Transcripts | None:
    """The transcripts; None, and a line that says how to name them, if there are none."""
    folder = Path(os.environ.get(VARIABLE, _DEFAULT))
    files = sorted(file for file in folder.rglob("*.jsonl*") if file.is_file())
    if not files:
        report.say("no transcripts to import: name their folder with --data")
        return None
    paths: dict[str, list[Path]] = {}
    for file in files:
        if not _comes_along(file):
            # Codex names its files so wherever they are moved to; Claude Code, by an id.
            name = "codex" if file.name.startswith("rollout-") else "claude-code"
            paths.setdefault(name, []).append(file)
    return Transcripts(paths, sum(file.stat().st_size for file in files))


async def joined(report: Report, *, quick: bool) -> History | None:
    """All transcripts as one session, in the order of their names, those of Claude Code first; the
    first alone if it is to be `quick`. None, and a line, if there are none.
    """
    given = found(report)
    if given is None:
        return None
    paths = [path for name in sorted(given.paths) for path in given.paths[name]]
    history = await read_history(paths[:1] if quick else paths)
    report.say(f"  {len(history.calls):,} requests, {history.tokens:,} tokens")
    return history


def _comes_along(file: Path) -> bool:
    """Whether the file is a sub-agent's, whose session is imported as well."""
    home = file.parent.parent
    return file.parent.name == "subagents" and home.with_name(f"{home.name}.jsonl").exists()
