"""Hosts with an address each, in network namespaces on one bridge, that can be parted.

Everything happens in namespaces of the process that begins it (`enter`): of the network, of mounts
and of processes. When that process ends, however it ends, the system ends all others in there and
takes the network away.

Two hosts are parted by telling each a hardware address for the other that nobody has: what they
send is lost without a word, as in a real network. A slow link is told the address of `SlowRoad`
instead, which passes frames on after a while; the kernel's own delay (netem) is often not built.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

#: Says to a process that it is inside.
INSIDE = "PERDURE_CLUSTER_NETWORK"
_NETWORK = 0x40000000  # CLONE_NEWNET
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_BRIDGE = "perdure"
_NOBODY = "02:00:00:00:00:fe"
_NAMES = Path("/run/netns")
_ADDRESSES = "10.77.0."
_libc = ctypes.CDLL(None, use_errno=True)


def what_is_missing() -> str:
    """Why there can be no such network here, and what to do; empty if there can."""
    for program, package in (("unshare", "util-linux"), ("mount", "mount"), ("ip", "iproute2")):
        if shutil.which(program) is None:
            return f"The program {program} is missing: install {package}."
    if os.geteuid() != 0:
        return "Networks of hosts are made by root only: run it as root."
    if subprocess.run([*_unshare(), "true"], check=False, capture_output=True).returncode:
        return "This kernel, or this container, allows no network namespaces (unshare --net)."
    return ""


def enter(command: Sequence[str]) -> int:
    """Run a command in namespaces of its own; returns its exit code when all in there has ended."""
    return subprocess.run(
        [*_unshare(), *command],
        check=False,
        env={**os.environ, INSIDE: "1"},
        preexec_fn=_end_with_us,
    ).returncode


def _end_with_us() -> None:
    """Whoever ends us, however, ends all in there."""
    _libc.prctl(_END_WITH_PARENT, signal.SIGKILL)


def is_inside() -> bool:
    return os.environ.get(INSIDE) == "1"


def _unshare() -> list[str]:
    return ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


class NetworkHost(msgspec.Struct, frozen=True):
    """A host: its name, its address, and that of its network card."""

    name: str
    number: int

    @property
    def address(self) -> str:
        return f"{_ADDRESSES}{self.number}"

    @property
    def card(self) -> str:
        return f"02:00:00:00:00:{self.number:02x}"

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What this thread connects to, and the processes that it starts, are on this host."""
        with (
            Path("/proc/thread-self/ns/net").open("rb") as here,
            (_NAMES / self.name).open("rb") as there,
        ):
            _enter_network(there.fileno())
            try:
                yield
            finally:
                _enter_network(here.fileno())


def _enter_network(handle: int) -> None:
    if _libc.setns(handle, _NETWORK):
        raise OSError(ctypes.get_errno(), "setns")


class HostNetwork:
    """The bridge and its hosts. The process that makes it is on the bridge, too: `here`."""

    def __init__(self) -> None:
        self.here = NetworkHost("clients", 1)
        self.hosts: dict[str, NetworkHost] = {"clients": self.here}
        _NAMES.mkdir(exist_ok=True)
        _run("mount", "-t", "tmpfs", "tmpfs", str(_NAMES))
        _ip("link", "set", "lo", "up")
        _ip("link", "add", _BRIDGE, "type", "bridge")
        _ip("link", "set", _BRIDGE, "address", self.here.card)
        _ip("addr", "add", f"{self.here.address}/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        self._road = SlowRoad(self._plug("road", 253))
        self._cut: set[frozenset[str]] = set()

    def add(self, name: str) -> NetworkHost:
        host = NetworkHost(name, len(self.hosts) + 1)
        self.hosts[name] = host
        _ip("netns", "add", name)
        card = self._plug(name, host.number)
        _ip("link", "set", card, "netns", name, "name", "eth0")
        _in(host, "link", "set", "lo", "up")
        _in(host, "addr", "add", f"{host.address}/24", "dev", "eth0")
        _in(host, "link", "set", "eth0", "up")
        return host

    def part(self, one: str, other: str) -> None:
        """From now on, nothing that one sends reaches the other."""
        self._redirect(one, other, _NOBODY)

    def isolate(self, name: str) -> None:
        """Part it from everybody."""
        for other in self.hosts.keys() - {name}:
            self.part(name, other)

    def slow(self, one: str, other: str, seconds: float, loss: float = 0.0) -> None:
        """What one sends to the other takes longer; of 1, `loss` never arrives."""
        self._road.seconds, self._road.loss = seconds, loss
        self._redirect(one, other, self._road.card)

    def heal(self) -> None:
        """All hosts reach all others, at once."""
        for one, other in map(sorted, self._cut):
            self._redirect(one, other, None)
        self._cut.clear()

    def _redirect(self, one: str, other: str, card: str | None) -> None:
        pair = self.hosts[one], self.hosts[other]
        for host, to in (pair, pair[::-1]):
            device = _BRIDGE if host is self.here else "eth0"
            known = ("neigh", "replace", to.address, "lladdr", card or to.card, "dev", device)
            _in(host, *known, "nud", "permanent")
        self._cut.add(frozenset((one, other)))

    def _plug(self, name: str, number: int) -> str:
        """A cable from the bridge; returns its other end."""
        near, far = f"b{number}", f"v{number}"
        _ip("link", "add", near, "type", "veth", "peer", "name", far)
        _ip("link", "set", far, "address", NetworkHost(name, number).card)
        _ip("link", "set", near, "master", _BRIDGE, "up")
        # Frames as they would be on a wire: whole, and with their checksums.
        for end in (near, far):
            _plain_frames(end)
        return far


def _in(host: NetworkHost, *command: str) -> None:
    if (_NAMES / host.name).exists():
        _ip("-n", host.name, *command)
    else:
        _ip(*command)


def _ip(*command: str) -> None:
    _run("ip", *command)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def _plain_frames(card: str) -> None:
    """Turn off what a virtual card leaves to the receiver: checksums and segments."""
    checksums, segments, generic = 0x17, 0x1F, 0x24  # ETHTOOL_STXCSUM, _STSO, _SGSO
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for setting in (checksums, segments, generic):
            value = ctypes.create_string_buffer(struct.pack("II", setting, 0))
            request = struct.pack("16sP16x", card.encode(), ctypes.addressof(value))
            fcntl.ioctl(control, 0x8946, request)  # SIOCETHTOOL


class SlowRoad:
    """A card on the bridge that passes frames on to whom they were meant for, later."""

    def __init__(self, device: str) -> None:
        self.card = NetworkHost("road", 253).card
        self.seconds, self.loss = 0.0, 0.0
        self._waiting: list[tuple[float, int, bytes]] = []
        _ip("link", "set", device, "up")
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        self._socket.bind((device, 0))
        self._thread = threading.Thread(target=self._pass, name="slow-road", daemon=True)
        self._thread.start()

    def _pass(self) -> None:
        own, dice, count = _bytes_of(self.card), random.Random(1), 0
        while True:
            pause = self._waiting[0][0] - time.monotonic() if self._waiting else 3600.0
            self._socket.settimeout(max(pause, 0.0001))
            try:
                frame = self._socket.recv(1 << 16)
            except TimeoutError:
                pass
            else:
                to_us = frame[:6] == own and frame[12:14] == b"\x08\x00"
                if to_us and dice.random() >= self.loss:
                    count += 1
                    # The last number of the address says which card it is. As the sender we name
                    # ourselves, or the bridge would look for the real one here.
                    meant = own[:5] + frame[33:34] + own + frame[12:]
                    due = time.monotonic() + self.seconds * dice.uniform(0.8, 1.2)
                    heapq.heappush(self._waiting, (due, count, meant))
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                try:
                    self._socket.send(heapq.heappop(self._waiting)[2])
                except OSError as exc:
                    print(f"a frame is lost on the slow road: {exc}", file=sys.stderr)


def _bytes_of(card: str) -> bytes:
    return bytes.fromhex(card.replace(":", ""))
