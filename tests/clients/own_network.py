"""A network of our own with nothing in it but loopback, and a name server that only takes notes.

`enter` begins a process again inside it; the rest is for that process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Sequence

#: Says to a process that it is inside.
INSIDE = "PERDURE_OWN_NETWORK"
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1


def unshare_command() -> list[str]:
    """Begins the command line of a process in a network of its own; empty if that cannot be."""
    unshare = shutil.which("unshare")
    if unshare is None or shutil.which("mount") is None:
        return []
    options = ["--net", "--mount"] if os.getuid() == 0 else ["--map-root-user", "--net", "--mount"]
    tried = subprocess.run([unshare, *options, "true"], check=False, capture_output=True)
    return [] if tried.returncode else [unshare, *options]


def enter(command: Sequence[str]) -> int:
    """Run a command in there; returns its exit code."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as resolver:
        resolver.write("nameserver 127.0.0.1\n")
        resolver.flush()
        bind = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        inside = ["sh", "-c", bind, resolver.name, *command]
        done = subprocess.run(
            [*unshare_command(), *inside], check=False, env={**os.environ, INSIDE: "1"}
        )
    return done.returncode


def is_inside() -> bool:
    return os.environ.get(INSIDE) == "1"


def bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(control, _GET_FLAGS, request))
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))


class NameServer:
    """Knows no name, and notes which ones were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            question, sender = self._socket.recvfrom(4096)
            if not question:
                return
            at, labels = 12, []
            while question[at]:
                labels.append(question[at + 1 : at + 1 + question[at]].decode("latin-1"))
                at += question[at] + 1
            self.asked.append(".".join(labels))
            no_such_name = question[:2] + b"\x81\x83" + question[4:6] + bytes(6)
            self._socket.sendto(no_such_name + question[12 : at + 5], sender)
