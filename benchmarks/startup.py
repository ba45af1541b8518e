"""From the start of a process to its end: `import perdure`, `perdure --help`, `perdure mcp`.

``…_cpu_s`` is the processor time of the same processes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from time import perf_counter

from benchmarks.harness import Report, as_installed, seconds_of_children

COMMANDS = {
    "python_s": ("-c", "pass"),
    "import_s": ("-c", "import perdure"),
    "help_s": ("-m", "perdure", "--help"),
    "mcp_s": ("-m", "perdure", "mcp"),
}
#: What an MCP client asks first. The server ends when it has answered, since no more can come.
_ASKED = b"""\
{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",\
"capabilities":{},"clientInfo":{"name":"benchmark","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/list"}
"""


async def run(report: Report, *, quick: bool) -> None:
    rounds = 1 if quick else 10
    seconds: dict[str, list[float]] = {metric: [] for metric in COMMANDS}
    processor: dict[str, list[float]] = {metric: [] for metric in COMMANDS}
    for _ in range(rounds + 1):
        for metric, arguments in COMMANDS.items():
            before = seconds_of_children()
            seconds[metric].append(_seconds(arguments))
            processor[metric].append(seconds_of_children() - before)
    for metric, taken in seconds.items():
        counted = taken[1:]  # the first may have had to compile
        cpu = metric.replace("_s", "_cpu_s")
        report.figures[cpu] = round(statistics.median(processor[metric][1:]), 4)
        report.figures[metric] = round(statistics.median(counted), 4)
        report.spread[metric] = [round(min(counted), 4), round(max(counted), 4)]
        report.say(f"  {metric}: {report.figures[metric]} s, median of {rounds} processes")


def _seconds(arguments: tuple[str, ...]) -> float:
    start = perf_counter()
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, check=True, input=_ASKED, stdout=subprocess.PIPE, env=as_installed()
    )
    if "mcp" in arguments and b'"tools"' not in done.stdout:
        raise RuntimeError("perdure mcp lists no tools")
    return perf_counter() - start
