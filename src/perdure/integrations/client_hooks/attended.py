"""Whether a person sits before a coding client: then rewritten history waits for their decision."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

#: What the first line of a transcript of `codex exec` says; and how much of it is looked at.
_CODEX_EXEC = b'"originator":"codex_exec"'
_HEAD = 4_096


def is_attended(
    transcripts: Sequence[Path] = (), environment: Mapping[str, str] = os.environ
) -> bool:
    """False in CI, for `claude -p` and programs with its SDK, and if all transcripts are of
    `codex exec`; else somebody is there. A hook has the environment of its client.
    """
    entrypoint = environment.get("CLAUDE_CODE_ENTRYPOINT", "")
    if environment.get("CI") or entrypoint.startswith("sdk-") or "action" in entrypoint:
        return False
    return not transcripts or not all(_CODEX_EXEC in _head(path) for path in transcripts)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD).replace(b'": "', b'":"')
    except OSError:
        return b""
