"""How long a coding client waits for its hooks, each run by a shell as clients run them.

``preamble_p95_ms`` is SessionStart with a preamble that was made before,
``preamble_command_p95_ms`` the command that makes one (``…_cpu_ms`` the median of its processor
time); ``hook_shim_ms`` is the median of an event
that is only noted, ``prompt_ms`` that of what a prompt brings to mind.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import msgspec

from benchmarks.harness import Report, as_installed, seconds_of_children
from perdure.bank import Bank
from perdure.config import load
from perdure.integrations.client_setup.project_setup import ProjectSetup, SetupWishes
from perdure.project.memory_scope import MemoryScope
from perdure.project.project_location import ProjectLocation

_WHO = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")


async def run(report: Report, *, quick: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "attic"
        repository.mkdir()
        _first_commit(repository)
        bank = f"sqlite:///{folder}/bank.db"
        await measure_hooks(report, repository, bank, rounds=2 if quick else 40)


async def measure_hooks(report: Report, repository: Path, bank: str, *, rounds: int) -> None:
    """Figures of the hooks in a repository, which is a project, or gets one, in this bank."""
    figures = await hook_figures(repository, bank, rounds=rounds)
    report.figures.update(figures)
    for name, figure in figures.items():
        report.say(f"  {name}: {figure}")


def _first_commit(folder: Path) -> None:
    for command in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", *_WHO, *command], cwd=folder, check=True)


async def hook_figures(repository: Path, bank: str, *, rounds: int) -> dict[str, float | None]:
    location = ProjectLocation.find(repository)
    config = msgspec.structs.replace(load(None), bank=bank)
    wishes = SetupWishes(bank=bank, hooks=False, clients=())
    await ProjectSetup(location).init(Bank(config=config), wishes, lambda *_: True)
    async with Bank(config=config) as opened:
        scope = await MemoryScope.of_location(opened.services, location)
        for number in range(200):
            await opened.memories.add(scope.own, f"Machine {number} has port {8_000 + number}.")
        await opened.settle()
        project = opened.project(repository)
        await project.refresh()
    return await asyncio.to_thread(_measured, location, rounds)


def _measured(location: ProjectLocation, rounds: int) -> dict[str, float | None]:
    script, cwd = location.folder / "client-hook.sh", str(location.root)
    _prebuild(location)
    (location.folder / "spool/started").write_text(f"{2**40}\n")  # no import runs beside it

    def hook(event: str, **given: str) -> Callable[[int], None]:
        def call(number: int) -> None:
            said = {"session_id": f"s{number}", "transcript_path": "/none.jsonl", "cwd": cwd}
            subprocess.run(
                ["sh", str(script), "claude-code", event],
                input=json.dumps({**said, "hook_event_name": event, **given}).encode(),
                stdout=subprocess.DEVNULL,
                cwd=cwd,
                env=as_installed(),
                check=True,
            )

        return call

    noted = hook("PostToolUse", tool_name="Bash", tool_response="x" * 20_000)
    shim = _times(noted, rounds)
    started = _times(hook("SessionStart", source="startup"), rounds)
    prompted = _times(hook("UserPromptSubmit", prompt="Which port has machine 17?"), rounds)
    return {
        "hook_shim_ms": round(statistics.median(shim), 1),
        "preamble_p95_ms": _p95(started),
        **_command(location.root, rounds),
        "prompt_ms": round(statistics.median(prompted), 1),
    }


def _prebuild(location: ProjectLocation) -> None:
    """A preamble of the usual size, if nothing has made one."""
    path = location.folder / "preamble" / f"{location.worktree}.json"
    if path.exists() or location.git is None:
        return
    head = subprocess.run(
        ["git", "log", "-1", "--format=%H %S", "HEAD"],
        cwd=location.root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    branch = (location.git.git_dir / "HEAD").read_text().strip().removeprefix("ref: refs/heads/")
    path.parent.mkdir(exist_ok=True)
    text = "A line of the preamble, of some words.\n" * 150
    path.write_text(json.dumps({"branch": branch, "commit": head[0], "text": text}))


def _command(root: Path, rounds: int) -> dict[str, float | None]:
    command = [sys.executable, "-m", "perdure", "project", "preamble"]
    processor = list[float]()

    def call(_: int) -> None:
        before = seconds_of_children()
        subprocess.run(command, cwd=root, env=as_installed(), check=True, capture_output=True)
        processor.append((seconds_of_children() - before) * 1_000)

    taken = _times(call, rounds)
    return {
        "preamble_command_p95_ms": _p95(taken),
        "preamble_command_cpu_ms": round(statistics.median(processor[1:]), 1),
    }


def _times(call: Callable[[int], None], rounds: int) -> list[float]:
    """In milliseconds; one that may have to compile is not counted."""
    taken: list[float] = []
    for number in range(rounds + 1):
        since = perf_counter()
        call(number)
        taken.append((perf_counter() - since) * 1_000)
    return taken[1:]


def _p95(taken: list[float]) -> float:
    return round(sorted(taken)[min(int(len(taken) * 0.95), len(taken) - 1)], 1)
