"""Disks that are soon full."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEGABYTE = 1024 * 1024


def may_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None


@contextmanager
def small_disk(place: Path, size: int, owner: str = "root") -> Iterator[Path]:
    """A file system of so many bytes, mounted at a place."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "perdure-test", str(place)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        shutil.chown(place, owner)
        yield place
    finally:
        # Lazily: whatever a failed test still has open does not keep it.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, leave: int = 0) -> Path:
    """Take all the room but so many bytes; deleting the file that this returns gives it back."""
    file = disk / "ballast"
    with file.open("wb", buffering=0) as ballast:
        room = shutil.disk_usage(disk).free - leave
        ballast.write(bytes(max(0, room)))
    return file
