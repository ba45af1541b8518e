"""The command: see the package's docstring."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import endurance, long_project, results, selection_world, transcripts
from benchmarks.harness import Report
from benchmarks.targets import TARGETS, missed

#: Whose modules cannot have their names: one is a word of Python, one a module of its own.
_MODULES = {"copy": "copying", "import": "importing", "index": "index_turns"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=[*TARGETS, "all"])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="tiny: only shows that it works")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--save", action="store_true", help="write the figures to RESULTS.md")
    parser.add_argument("--data", type=Path, help="where the transcripts are, to be imported")
    parser.add_argument("--calls", type=int, help="of the gateway, for memory_growth")
    parser.add_argument(
        "--world", type=Path, help="of selection, as benchmarks/worlds/default.toml"
    )
    options = parser.parse_args(arguments)
    if options.world is not None:
        os.environ[selection_world.VARIABLE] = str(options.world.absolute())
    if options.calls is not None:
        os.environ[endurance.VARIABLE] = str(options.calls)
    if options.data is not None:
        os.environ[transcripts.VARIABLE] = str(options.data.absolute())
    if options.name == "all":
        figures = {name: _in_own_process(name, quick=options.quick) for name in TARGETS}
        long_project.remove()
        answer: dict[str, Any] = figures
    else:
        answer = _run(options.name, quick=options.quick)
        figures = {options.name: answer}
    if (options.save or options.name == "all") and not options.quick:
        results.write(figures)
        print(f"\nwritten to {results.FILE.relative_to(results.FILE.parent.parent)}")
    if options.json:
        print(json.dumps(answer))
    failed = [f"{name}.{t.metric}" for name, found in figures.items() for t in missed(name, found)]
    if options.check and failed:
        print(f"missed: {', '.join(failed)}", file=sys.stderr)
        return 1
    return 0


def _run(name: str, *, quick: bool) -> dict[str, Any]:
    report = Report()
    report.say(f"{name}{' (quick: the figures mean nothing)' if quick else ''}")
    benchmark = importlib.import_module(f"benchmarks.{_MODULES.get(name, name)}")
    asyncio.run(benchmark.run(report, quick=quick))
    report.figures["load_per_core"] = round(os.getloadavg()[1] / (os.cpu_count() or 1), 1)
    found = {"benchmark": name, "quick": quick, **report.as_json()}
    if not quick:
        for line in results.lines(name, found):
            report.say(f"  {line}")
    return found


def _in_own_process(name: str, *, quick: bool) -> dict[str, Any]:
    """Run one as the user would, so that none inherits the memory or threads of another."""
    command = [sys.executable, "-m", "benchmarks", name, "--json", *(["--quick"] * quick)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = ""
        for line in process.stdout:
            if not line.startswith("{"):
                print(line, end="", flush=True)
    if process.returncode:
        raise SystemExit(process.returncode)
    found: dict[str, Any] = json.loads(line)
    return found


if __name__ == "__main__":
    sys.exit(main())
