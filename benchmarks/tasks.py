"""How long it takes to say which tasks are ready, among many."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import perdure
from benchmarks.harness import Report
from perdure.project.project_location import ProjectLocation, ProjectSettings, new_project_id
from perdure.project.task_graph import TaskGraph
from perdure.project.task_transfer import import_tasks


def _lines(count: int) -> str:
    """A third done, a third ready, a third waiting for the ready ones."""
    tasks = []
    for number in range(count):
        task: dict[str, object] = {
            "id": f"tk_{number:012x}",
            "title": f"Task number {number}",
            "description": "What is to be done, in some words. " * 8,
            "priority": number % 5,
            "status": "done" if number % 3 == 0 else "open",
        }
        if number % 3 == 2:
            task["needs"] = [f"tk_{number - 1:012x}", f"tk_{number - 2:012x}"]
        tasks.append(task)
    return "".join(json.dumps(task) + "\n" for task in tasks)


async def run(report: Report, *, quick: bool) -> None:
    count = 300 if quick else 10_000
    report.figures["ready_ms"] = round(await ready_ms(count, rounds=5 if quick else 50), 3)
    report.say(f"  ready_ms: {report.figures['ready_ms']} ms, median, of {count:,} tasks")


async def ready_ms(count: int = 10_000, *, rounds: int = 50) -> float:
    """The median of `ready` with so many tasks, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        location = ProjectLocation(Path(folder), None)
        location.write_settings(ProjectSettings(project=new_project_id(), name="tasks"))
        async with perdure.open(f"sqlite:///{folder}/memory.db") as bank:
            graph = TaskGraph(bank.services, location)
            await import_tasks(graph, _lines(count))
            took = []
            for number in range(rounds):
                await graph.edit(f"tk_{count // 3 * 3 - 2:012x}", owner=str(number))  # no cache
                began = time.perf_counter()
                found = await graph.ready()
                took.append((time.perf_counter() - began) * 1_000)
                if len(found) != 10:
                    raise RuntimeError(f"{len(found)} tasks are ready instead of 10")
            return statistics.median(took)
