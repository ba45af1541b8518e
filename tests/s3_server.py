"""A real S3 server from a package, on loopback, and a bad line to it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from perdure.artifacts.artifact import Artifact, object_path
from perdure.artifacts.artifact_places import parse
from tests.servers import _free_port

_PATIENCE = 60.0
#: Given a process and its folder, end both when standard input ends: that is when we do.
_WATCH = 'read -r _; kill -KILL "$0"; while kill -0 "$0"; do sleep 0.1; done; rm -rf "$1"'

ACCESS_KEY = "AKIATESTS"
SECRET_KEY = "a secret of the tests"
READER_KEY = "AKIAREADER"
#: The variables that let a client in.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_EC2_METADATA_DISABLED": "true",
}


class S3Server:
    """A SeaweedFS of our own in a temporary folder; it takes three seconds to start.

    A watchdog ends it if this process dies, however it dies.
    """

    def __init__(self, *, address: str = "127.0.0.1") -> None:
        self._address = address
        self._home = Path(tempfile.mkdtemp(prefix="perdure-s3-"))
        self._numbers = itertools.count(1)
        self._bucket = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        (self._home / "s3.json").write_text(json.dumps({"identities": _identities()}))
        while True:
            self._ports = ports = [_free_port() for _ in range(8)]
            self.port, self._filer = ports[0], ports[1]
            if len(set(ports)) == len(ports) and self._started(ports):
                return

    def bucket(self) -> str:
        """The name of an empty bucket; another one at each call."""
        name = f"bucket-{os.getpid()}-{next(self._numbers)}"
        # The part of the server below S3 makes one from a folder, without a signed request.
        request = urllib.request.Request(
            f"http://{self._address}:{self._filer}/buckets/{name}/", method="POST"
        )
        urllib.request.urlopen(request, timeout=_PATIENCE).close()
        return name

    def url(self, *, port: int | None = None, options: str = "") -> str:
        """The address of an empty place; another one at each call."""
        if not self._bucket:
            self._bucket = self.bucket()
        return self.address(f"{self._bucket}/{next(self._numbers)}", port=port, options=options)

    def address(self, place: str, *, port: int | None = None, options: str = "") -> str:
        endpoint = f"http://{self._address}:{port or self.port}"
        return f"s3://{place}?region=us-east-1&endpoint={endpoint}{options}"

    async def overwrite(self, url: str, artifact: Artifact, content: bytes) -> None:
        """Put other bytes in the place of an artifact's, as only somebody else would."""
        import obstore

        from perdure.artifacts.s3_objects import S3Objects

        objects = S3Objects(parse(url))
        await obstore.put_async(objects._store, object_path(artifact.hash), content)

    def kill(self) -> None:
        """Stop it with kill -9."""
        self._end()

    def start(self) -> None:
        """Start it again, on the same ports."""
        if not self._started(self._ports):
            raise RuntimeError("The ports of the S3 server were taken meanwhile.")

    def dispose(self) -> None:
        """Stop it for good and remove its files."""
        self._end()
        shutil.rmtree(self._home, ignore_errors=True)

    # ------------------------------------------------------------------------------------------

    def _started(self, ports: list[int]) -> bool:
        s3, filer, master, volume, *grpc = ports
        data = self._home / "data"
        data.mkdir(exist_ok=True)
        command = [
            str(Path(sys.executable).with_name("weed")),
            *("-logtostderr=true", "server", f"-dir={data}"),
            *(f"-ip={self._address}", f"-ip.bind={self._address}"),
            *(f"-master.port={master}", f"-master.port.grpc={grpc[0]}", "-master.telemetry=false"),
            *("-master.volumeSizeLimitMB=64", f"-volume.port={volume}", "-volume.max=200"),
            *(f"-volume.port.grpc={grpc[1]}", "-filer", f"-filer.port={filer}"),
            *(f"-filer.port.grpc={grpc[2]}", "-s3", f"-s3.port={s3}", f"-s3.port.grpc={grpc[3]}"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false"),
            f"-s3.config={self._home / 's3.json'}",
        ]
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._home,
                env={"HOME": str(self._home), "PATH": os.environ["PATH"], "GOMAXPROCS": "2"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, str(self._process.pid), str(self._home)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._answers():
                return True
            time.sleep(0.05)
        self._end()
        if "address already in use" in (told := (self._home / "log").read_text(errors="replace")):
            return False
        raise RuntimeError(f"The S3 server did not start:\n{told[-4000:]}")

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"http://{self._address}:{self.port}/", timeout=1).close()
        except urllib.error.HTTPError as exc:
            exc.close()
            return exc.code == 403
        except OSError:
            return False
        return True

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait(_PATIENCE)
        for path in Path("/tmp").glob("seaweedfs-*.sock"):
            with suppress(OSError):  # it leaves its sockets there; another server's answers
                probe = socket.socket(socket.AF_UNIX)
                with probe:
                    if probe.connect_ex(str(path)):
                        path.unlink()
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()


def _identities() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "credentials": [{"accessKey": key, "secretKey": SECRET_KEY}],
            "actions": actions,
        }
        for name, key, actions in [
            ("tests", ACCESS_KEY, ["Admin", "Read", "Write", "List", "Tagging"]),
            ("reader", READER_KEY, ["Read", "List"]),
        ]
    ]


class Fault(msgspec.Struct):
    """What happens to the next requests of these methods, `times` of them."""

    #: ``pass``: nothing; ``status``: answered with `status`; ``slow``: held back for `seconds`;
    #: ``cut``: the answer's body ends after `bytes` of it; ``reset``: the connection is reset;
    #: ``lost``: carried out, and then reset, so that the client does not hear of it.
    kind: str
    times: int = 1
    methods: tuple[str, ...] = ()
    status: int = 500
    seconds: float = 0.0
    bytes: int = 0


class BadLine:
    """A proxy in front of a server that does to requests what bad networks do.

    Runs in a thread of its own, so that clients in other threads and processes can use it.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0
        self.faults: list[Fault] = []
        #: Method and path of every request, and whether a fault met it.
        self.seen: list[tuple[str, str, str]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(_PATIENCE)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)

    def happen(self, kind: str, **how: Any) -> None:
        """Let something happen to the next requests."""
        self.faults.append(Fault(kind, **how))

    # ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        running = asyncio.all_tasks(self._loop)
        for task in running:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*running, return_exceptions=True))
        # What they closed is gone with the next turns of the loop, not at once.
        for _ in range(3):
            self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            try:
                await self._one_request(reader, writer)
            finally:
                writer.close()

    async def _one_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        fault = self._next(method)
        self.seen.append((method, path, "" if fault is None else fault.kind))
        if fault is not None and fault.kind == "reset":
            _reset(writer)
            return
        if fault is not None and fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
        body = await reader.readexactly(_length(head))
        if fault is not None and fault.kind == "status":
            writer.write(
                b"HTTP/1.1 %d Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                % fault.status
            )
            await writer.drain()
            return
        answer = await self._asked(_closing(head), body)
        if fault is not None and fault.kind == "lost":
            _reset(writer)
            return
        start, blank, content = answer.partition(b"\r\n\r\n")
        if fault is not None and fault.kind == "cut":
            content = content[: fault.bytes]
        writer.write(start + blank + content)
        await writer.drain()

    async def _asked(self, head: bytes, body: bytes) -> bytes:
        there, here = await asyncio.open_connection("127.0.0.1", self._upstream)
        try:
            here.write(head + body)
            await here.drain()
            return await there.read()
        finally:
            here.close()

    def _next(self, method: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and (not fault.methods or method in fault.methods):
                fault.times -= 1
                return fault
        return None


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def _closing(head: bytes) -> bytes:
    """The head of a request that asks the server to hang up after its answer."""
    first, *lines = head.rstrip(b"\r\n").split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith((b"connection:", b"expect:"))]
    return b"\r\n".join([first, *kept, b"connection: close"]) + b"\r\n\r\n"


def _reset(writer: asyncio.StreamWriter) -> None:
    """Hang up so that the other side gets a reset, not an end."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    writer.transport.abort()
