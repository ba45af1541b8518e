"""Which process this is, and whether another one still lives.

A pid alone is not enough: it is used again. With the boot id and the time at which the process
began, as the system tells it, a process is known for good. Where the system does not tell (no
``/proc``), a process that has the pid counts as the same one: then a lease runs out instead.
"""

from __future__ import annotations

import os
import platform
import uuid
from functools import cache
from pathlib import Path

import msgspec

_ENDED = "ended"  # Of a zombie.
_STARTED = 19  # The field of /proc/PID/stat, counted from the one behind the program's name.


class ProcessIdentity(msgspec.Struct, frozen=True):
    """A process on a host, between two boots of it."""

    host: str
    boot: str
    pid: int
    started: str


def this_process() -> ProcessIdentity:
    return identity_of(os.getpid())


def identity_of(pid: int) -> ProcessIdentity:
    """Of a process of this host, which lives."""
    host, boot = _machine()
    return ProcessIdentity(host, boot, pid, _started(pid) or "")


def is_dead(other: ProcessIdentity) -> bool:
    """Whether it surely lives no more. Of another host, or another container, nothing is known."""
    host, boot = _machine()
    if other.host != host or not other.pid:
        return False
    if other.boot.partition("/")[0] != boot.partition("/")[0]:
        return True  # the host was started anew
    if other.boot != boot:
        return False
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is somebody else's, and lives
    began = _started(other.pid)
    if began == _ENDED:
        return True
    return began is not None and bool(other.started) and began != other.started


@cache
def _machine() -> tuple[str, str]:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        boot = ""
    # Containers may share the host's name and boot id, but not its processes.
    return f"{platform.node()}/{uuid.getnode():x}", f"{boot}{_pid_space()}"


def _pid_space() -> str:
    try:
        return f"/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """None if it cannot be told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()
    # A zombie has ended; only its parent has not looked.
    if len(fields) <= _STARTED or fields[0] in {b"Z", b"X"}:
        return _ENDED
    return fields[_STARTED].decode()
