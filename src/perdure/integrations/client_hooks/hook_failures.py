"""Failures of the clients' hooks: a short log that the client never sees, and doctor does.

Lines are as the shell writes them: version, time, event, client, what went wrong. The newest are
kept.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

_NAME = "client-failures"
#: Bytes at which the older half is dropped.
_MOST = 64 * 1024
_MARK = "1"


class HookFailure(msgspec.Struct, frozen=True):
    """One failure. `time` is in seconds since 1970."""

    time: int
    event: str
    client: str
    what: str


def note_failure(home: Path, event: str, client: str, what: str) -> None:
    """Never raises: there may be no room, or no folder any more."""
    line = "\t".join((_MARK, str(int(time.time())), event, client, " ".join(what.split())[:500]))
    path = home / _NAME
    try:
        if path.stat().st_size > _MOST:
            path.write_bytes(path.read_bytes()[-_MOST // 2 :])
    except OSError:
        pass  # there is none yet, or it stays long
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    except OSError:
        return


def read_failures(home: Path) -> list[HookFailure]:
    """Oldest first."""
    try:
        text = (home / _NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found: list[HookFailure] = []
    for line in text.splitlines():
        mark, _, rest = line.partition("\t")
        fields = rest.split("\t", 3)
        if mark == _MARK and len(fields) == 4 and fields[0].isdigit():
            found.append(HookFailure(int(fields[0]), *fields[1:]))
    return found
