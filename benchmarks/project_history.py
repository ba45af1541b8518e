"""What it takes to follow a repository's history.

- `anchors`: of the commits that survive a rewrite, the share whose place is found, over the
  rewrites of `benchmarks.rewrites`, with and without git hooks; `anchors_wrong` are those that were
  said to be somewhere where they are not.
- `open_after_rebase_s`: `Project.refresh` after 60 commits, each with an entry, were rebased, in a
  bank that has the files of the repository.
- `commit_added_ms`: the median time of ``git commit`` with our hooks, less that without, one after
  the other.
- `open_after_rebase_cpu_s`, `commit_added_cpu_ms`: processor time of the same, git's included.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import time
from pathlib import Path

import perdure
from benchmarks.harness import Report, seconds_of_children
from benchmarks.rewrites import (
    REWRITES,
    VARIABLES,
    Rewrite,
    build,
    expected,
    output,
    prepare,
    shell,
)
from perdure.bank import Bank
from perdure.project.git_hooks import GitHooks
from perdure.project.project import Project
from perdure.project.project_location import ProjectLocation, ProjectSettings, new_project_id

_REBASED = 60


async def measure_history(
    report: Report, folder: Path, large: Path, bank_of_large: str, *, quick: bool
) -> None:
    """`large` is a repository with many files, which `bank_of_large` has. It gets branches and
    commits of its own.
    """
    figures = report.figures
    async with perdure.open(f"sqlite:///{folder}/history.db") as bank:
        good = wrong = all_ = 0
        kinds = [(0, False)] if quick else [(0, False), (3600, False), (0, True)]
        for tick, hooks in kinds:
            template = build(folder / f"template-{tick}-{hooks}", tick=tick)
            for name, rewrite in [*REWRITES.items()][: 6 if quick else None]:
                box = folder / f"{tick} {hooks} {name}".replace(":", "")
                box.mkdir()
                found = await _one(bank, template, box / "repo", rewrite, hooks=hooks)
                good, wrong, all_ = good + found[0], wrong + found[1], all_ + found[2]
                if found[0] < found[2] or found[1]:
                    report.say(f"  {name}: {found[0]} of {found[2]}, {found[1]} wrong")
        figures["anchors"] = round(good / all_, 4)
        figures["anchors_wrong"] = wrong
        figures["rewrites"] = len(REWRITES)
        report.say(f"  anchors: {good} of {all_} found, {wrong} wrong")
    async with perdure.open(bank_of_large) as bank:
        opened = await _open_after_rebase(bank, large)
    added = await _commit_added(large, 5 if quick else 60)
    for metric, figure in (opened | added).items():
        figures[metric] = figure
        report.say(f"  {metric}: {figure}")


async def _one(
    bank: Bank, template: Path, folder: Path, rewrite: Rewrite, *, hooks: bool
) -> tuple[int, int, int]:
    """How many were found, how many wrongly placed, and how many survive."""
    commits = prepare(template, folder, rewrite)
    project = _project(bank, folder)
    if hooks:
        await GitHooks(project.location).install()
    await project.refresh()
    await project.anchors.note([*commits.values()])
    shell(folder, rewrite.script, **commits)
    await project.refresh()
    places = await project.anchors.where([*commits.values()])
    wanted = {old: to or {""} for old, to in expected(folder, rewrite, commits).items()}
    survive = [old for old, to in wanted.items() if to != {""}]
    good = sum(places[old] in wanted[old] for old in survive)
    wrong = sum(bool(place) and place not in wanted[old] for old, place in places.items())
    return good, wrong, len(survive)


async def _open_after_rebase(bank: Bank, large: Path) -> dict[str, float]:
    project = _project(bank, large)
    main = output(large, "symbolic-ref", "--short", "HEAD")
    await project.refresh()
    shell(large, "git checkout -q -b measured")
    for number in range(_REBASED):
        text = "\\n".join(f"the line {line} of the file {number}" for line in range(12))
        shell(large, f"printf '{text}' >made-{number}.txt; git add made-{number}.txt; say {number}")
        await project.tasks.add(f"task {number}")
    await project.refresh()
    shell(
        large,
        f"""git checkout -q -b upstream {main}; echo more >upstream.txt; git add upstream.txt
        say upstream; git checkout -q measured; git rebase -q upstream""",
    )
    fresh = Project(bank.services, ProjectLocation.find(large))
    began, used = time.perf_counter(), time.process_time() + seconds_of_children()
    await fresh.refresh()
    took = time.perf_counter() - began
    used = time.process_time() + seconds_of_children() - used
    tasks = await fresh.tasks.list()
    there = await fresh.anchors.true_at([each.made_at.commit for each in tasks], "HEAD")
    if len(there) < _REBASED:
        raise RuntimeError(f"{len(there)} of {_REBASED} commits were followed")
    return {"open_after_rebase_s": round(took, 3), "open_after_rebase_cpu_s": round(used, 3)}


async def _commit_added(large: Path, rounds: int) -> dict[str, float]:
    hooks = GitHooks(ProjectLocation.find(large))
    await hooks.install()
    took: dict[bool, list[float]] = {True: [], False: []}
    processor: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds):
        for hooked in (True, False) if number % 2 else (False, True):
            (large / "counted.txt").write_text(f"{number} {hooked}\n")
            shell(large, "git add counted.txt")
            off = () if hooked else ("-c", "core.hooksPath=/dev/null")
            began, used = time.perf_counter(), seconds_of_children()
            await asyncio.to_thread(
                subprocess.run,
                ["git", *off, "commit", "-q", "-m", f"count {number}"],
                cwd=large,
                env=_environment(),
                check=True,
            )
            took[hooked].append((time.perf_counter() - began) * 1_000)
            processor[hooked].append((seconds_of_children() - used) * 1_000)
    await hooks.uninstall()
    return {
        metric: round(statistics.median(each[True]) - statistics.median(each[False]), 2)
        for metric, each in (("commit_added_ms", took), ("commit_added_cpu_ms", processor))
    }


def _environment() -> dict[str, str]:
    return {**os.environ, **VARIABLES}


def _project(bank: Bank, folder: Path) -> Project:
    location = ProjectLocation.find(folder)
    if location.settings is None:
        location.write_settings(ProjectSettings(project=new_project_id(), name=folder.name))
    return Project(bank.services, location)
