"""The processes of `cluster`: clients that load servers, workers that run jobs; and what they and
others take of the processor.

    python -m benchmarks.cluster_processes load        # reads a `Load` as JSON, prints a `Loaded`
    python -m benchmarks.cluster_processes work URL    # prints each job that it begins
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Self

import httpx2
import msgspec
import psutil

import perdure
from benchmarks.conversations import bulk
from benchmarks.http_lanes import HttpLane, request
from perdure.config import Config, JobsConfig
from perdure.jobs import Job

JOB = "bench"
_MODULE = (sys.executable, "-m", "benchmarks.cluster_processes")
_ROOT = Path(__file__).parent.parent
#: Bodies that a client has ready. No two turns of a session are the same for as long as they last.
_BODIES = 400
_PERIOD_US = 10_000


class Served:
    """``perdure serve`` on a bank, with everything as it comes."""

    def __init__(self, bank: str, folder: Path) -> None:
        self.bank, self._folder = bank, folder

    async def start(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure", "--bank", self.bank),
            *("serve", "--json", "--port", "0"),
            env={**os.environ, "PERDURE_ARTIFACTS_FOLDER": str(self._folder)},
            stdout=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        said = json.loads(await self.process.stdout.readline())
        self.url: str = said["url"]
        async with httpx2.AsyncClient() as client:
            answer = await client.post(f"{self.url}/api/v1/login", json={"code": said["code"]})
        self.headers = {"x-perdure-token": answer.raise_for_status().json()["token"]}
        return self

    async def stop(self) -> None:
        self.process.terminate()
        await self.process.wait()


# Clients ----------------------------------------------------------------------------------------


class Load(msgspec.Struct, frozen=True):
    """What a client does: a lane is a connection that appends turns to a session of its own."""

    name: str
    #: Addresses, each with the headers that it wants.
    servers: list[tuple[str, dict[str, str]]]
    lanes: int
    agents: int
    #: Before those that count.
    warm: float
    seconds: float
    seed: int


class Loaded(msgspec.Struct, frozen=True):
    """Seconds of each append that counts, from its request to the end of the answer."""

    samples: list[float]
    seconds: float
    #: All, with those that were sent to warm up, and the client's processor time for them.
    appended: int
    cpu: float


async def loaded(load: Load) -> Loaded:
    """Let a client of its own do it."""
    process = await asyncio.create_subprocess_exec(
        *(*_MODULE, "load"),
        cwd=_ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate(msgspec.json.encode(load))
    if process.returncode:
        raise RuntimeError("A client of the benchmark failed; see its message above.")
    return msgspec.json.decode(said, type=Loaded)


async def _load(load: Load) -> Loaded:
    turns = [json.dumps({"messages": turn}).encode() for turn in bulk(_BODIES, load.seed)]
    lanes = list[tuple[HttpLane, list[bytes]]]()
    for number in range(load.lanes):
        url, headers = load.servers[number % len(load.servers)]
        session = f"{load.name}-{number % load.agents}/{number}"  # of so many agents
        made = request(f"{url}/api/v1/sessions", "POST", _named(session), headers)
        to = f"{url}/api/v1/sessions/{session}/turns"
        first = number * _BODIES // load.lanes
        bodies = [request(to, "POST", body, headers) for body in turns[first:] + turns[:first]]
        lane = await HttpLane.to(url)
        for asked in (made, bodies[-1]):  # off the clock
            exchange = await lane.ask(asked)
            assert exchange.status in {200, 201}, exchange.body[:500]
        lanes.append((lane, bodies))
    cpu, start = process_time(), perf_counter() + load.warm
    end = start + load.seconds
    took = await asyncio.gather(*(_append(*lane, start, end) for lane in lanes))
    return Loaded(
        [each for _, samples in took for each in samples],
        perf_counter() - start,
        sum(count for count, _ in took) + len(lanes),
        process_time() - cpu,
    )


async def _append(
    lane: HttpLane, bodies: list[bytes], start: float, end: float
) -> tuple[int, list[float]]:
    samples, count = list[float](), 0
    while (now := perf_counter()) < end:
        exchange = await lane.ask(bodies[count % len(bodies)])
        assert exchange.status in {200, 201}, exchange.body[:500]
        count += 1
        if now >= start:
            samples.append(exchange.whole)
    lane.close()
    return count, samples


def _named(session: str) -> bytes:
    return json.dumps({"name": session}).encode()


# Workers ----------------------------------------------------------------------------------------


class Worker:
    """A bank as `perdure worker` opens it, that runs the benchmark's jobs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, bank: str, *, ready: bool = True) -> Worker:
        worker = cls(
            await asyncio.create_subprocess_exec(
                *(*_MODULE, "work", bank),
                cwd=_ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        )
        if ready:
            await worker.next()
        return worker

    async def next(self) -> float:
        """When it began the next job, by the clock of the machine; first, when it was ready."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError("A worker of the benchmark ended; see its message above.")
        return float(line)

    async def stop(self) -> None:
        """Its input ends, and so does it, in good order."""
        if self.process.returncode is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
        await self.process.wait()


def bank_config() -> Config:
    return Config(jobs=JobsConfig(concurrency=8, queues=(JOB,), engine="procrastinate"))


async def _work(url: str) -> None:
    async def run(job: Job) -> None:
        print(perf_counter(), flush=True)
        if job.payload == "hold" and job.attempts == 1:
            await asyncio.sleep(3_600)

    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    async with perdure.open(url, config=bank_config()) as bank:
        bank.services.jobs.register(JOB, run)
        print(perf_counter(), flush=True)
        await ended.wait()


# The processor ----------------------------------------------------------------------------------


def seconds_of(pid: int) -> float:
    """Processor time of a process and of all that came from it, those that have ended, too."""
    root = psutil.Process(pid)
    times = root.cpu_times()
    spent = times.user + times.system + times.children_user + times.children_system
    for child in root.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            own = child.cpu_times()
            spent += own.user + own.system
    return float(spent)


def seconds_of_machine() -> float:
    """Processor time of everybody on it."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


@contextmanager
def quotas(share: float) -> Iterator[Quotas | None]:
    """Lets processes have a share of a core each. None where a user may not, or it is not Linux."""
    try:
        made = Quotas(share)
        made.add(None)
    except OSError:
        yield None
        return
    try:
        yield made
    finally:
        made.remove()


class Quotas:
    """Groups of the kernel, version 2 or 1, one for each process."""

    def __init__(self, share: float) -> None:
        root = Path("/sys/fs/cgroup")
        self._new = (root / "cgroup.controllers").exists()
        self._root = root if self._new else root / "cpu"
        self._quota = int(share * _PERIOD_US)
        self._groups = list[Path]()

    def add(self, pid: int | None) -> None:
        """None: only try whether it can be done."""
        group = self._root / f"perdure-bench-{os.getpid()}-{len(self._groups)}"
        group.mkdir()
        self._groups.append(group)
        if self._new:
            (group / "cpu.max").write_text(f"{self._quota} {_PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(self._quota))
        if pid is not None:
            (group / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """When the processes have ended."""
        for group in self._groups:
            with suppress(OSError):
                group.rmdir()


def main(arguments: list[str]) -> Any:
    if arguments[0] == "load":
        asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Load)
        print(msgspec.json.encode(asyncio.run(_load(asked))).decode())
    else:
        asyncio.run(_work(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
