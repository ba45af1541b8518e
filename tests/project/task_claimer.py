"""A process that claims tasks until none is ready, and prints their numbers: for `test_tasks`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import perdure
from perdure.core.errors import NotFound
from perdure.project.project_location import ProjectLocation
from perdure.project.task_graph import TaskGraph


async def main(url: str, folder: str, name: str) -> None:
    async with perdure.open(url) as bank:
        graph = TaskGraph(bank.services, ProjectLocation.find(Path(folder)))
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            while True:
                print((await graph.claim(by=name)).number, flush=True)
        except NotFound:
            return


asyncio.run(main(*sys.argv[1:]))
