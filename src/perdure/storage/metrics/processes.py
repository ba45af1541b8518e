"""Which process this is."""

from __future__ import annotations

import os
import re
import socket
from typing import Self

import msgspec

_odd = re.compile(r"[^A-Za-z0-9._-]+")


class Process(msgspec.Struct, frozen=True):
    """A process on a host. Its number is used again some day; its start tells."""

    host: str
    pid: int

    @classmethod
    def this(cls) -> Self:
        """The one that runs this; another one after a fork."""
        return cls(_odd.sub("-", socket.gethostname())[:100] or "unknown", os.getpid())

    def __str__(self) -> str:
        return f"{self.host}/{self.pid}"
