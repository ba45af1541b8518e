"""A process that forks workers: imports are paid once, and a worker starts in milliseconds.

`Zygote` is used by tests. The process itself, `python zygote.py FD`, takes requests from a socket;
when the test's process dies, the socket ends, and it takes its workers with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
_PATIENCE = 60.0


class Worker:
    """A process that does a task and tells lines. Made by `Zygote.start`."""

    def __init__(self, zygote: Zygote, pid: int, pipe: int) -> None:
        self.lines: list[str] = []
        self._zygote = zygote
        self._pid = pid
        self._pipe = pipe
        self._rest = b""
        self._alive = True

    def listen(self, seconds: float, lines: int = sys.maxsize) -> bool:
        """Collect lines until there are so many, the time is over, or the worker has ended.

        Whether there are so many.
        """
        until = time.monotonic() + seconds
        while len(self.lines) < lines:
            left = max(0.0, until - time.monotonic())
            if not select.select([self._pipe], [], [], left)[0]:
                return False
            told = os.read(self._pipe, 65_536)
            if not told:
                return False
            *whole, self._rest = (self._rest + told).split(b"\n")
            self.lines += [line.decode() for line in whole]
        return True

    def kill(self) -> list[str]:
        """End it as `kill -9` does; returns all it told. No error if it has ended already."""
        if self._alive:
            self._end("kill")
        return self.lines

    def wait(self, seconds: float = _PATIENCE) -> list[str]:
        """Let it come to its end; returns all it told. Fails if that is not a good end."""
        self.listen(seconds)
        over = select.select([self._pipe], [], [], 0)[0] and not os.read(self._pipe, 1)
        status = self._end("wait" if over else "kill")
        assert over, f"a worker did not end in {seconds} s; it told {self.lines[-3:]}"
        assert status == 0, "a worker failed:\n" + "\n".join(self.lines)
        return self.lines

    def signal(self, number: int) -> None:
        """Nothing happens if it has ended."""
        if self._alive:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _end(self, how: str) -> int:
        self._alive = False
        status = self._zygote.ask({how: self._pid})
        while self.listen(1.0):
            pass
        os.close(self._pipe)
        return status


class Zygote:
    """Starts workers. A context manager; leaving it kills those that are still there."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._workers: list[Worker] = []
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
            )
        self._socket.settimeout(_PATIENCE)

    def start(self, task: str, url: str, **details: Any) -> Worker:
        """Start a worker on one of the tasks of `worker`."""
        ours, theirs = os.pipe()
        job = {"task": task, "url": url, **details}
        try:
            pid = self.ask({"start": job}, theirs)
        finally:
            os.close(theirs)
        worker = Worker(self, pid, ours)
        self._workers.append(worker)
        return worker

    def ask(self, request: dict[str, Any], *fds: int) -> int:
        socket.send_fds(self._socket, [json.dumps(request).encode()], list(fds))
        return int(self._socket.recv(100))

    def kill_all(self) -> None:
        while self._workers:
            self._workers.pop().kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.kill_all()
        self._socket.close()
        self._process.wait(_PATIENCE)


# In the process itself ----------------------------------------------------------------------------


def serve(requests: socket.socket) -> None:
    children: set[int] = set()
    try:
        while True:
            message, fds, _, _ = socket.recv_fds(requests, 65_536, 1)
            if not message:
                return
            ((what, about),) = json.loads(message).items()
            if what == "start":
                answer = os.fork()
                if not answer:
                    requests.close()
                    _work(about, fds[0])
                children.add(answer)
                os.close(fds[0])
            else:
                if what == "kill":
                    os.kill(about, signal.SIGKILL)
                answer = os.waitstatus_to_exitcode(os.waitpid(about, 0)[1])
                children.discard(about)
            requests.send(str(answer).encode())
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def _work(job: dict[str, Any], pipe: int) -> None:
    """Do the task in the forked process, and end it."""
    from tests.fire import worker

    def tell(line: str) -> None:
        os.write(pipe, line.encode() + b"\n")  # in one call: a line is told whole or not at all

    status = 1
    try:
        asyncio.run(worker.TASKS[job.pop("task")](tell=tell, **job))
        status = 0
    except BaseException:  # noqa: BLE001  # it is told, and the process ends
        tell(traceback.format_exc())
    finally:
        os._exit(status)


if __name__ == "__main__":
    from tests.fire import worker as _imported_before_the_first_fork  # noqa: F401

    serve(socket.socket(fileno=int(sys.argv[1])))
