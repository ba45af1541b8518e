"""The memory of a project in a large repository: 60,000 files, 5,000 commits, made by
`generated_repository`.

- `found_at`: facts are asked for at random commits, in words of their own, through the public
  recall with its eight hits; it is found if a hit shows the line that was true there, in its file.
  `git_grep_at` is how often `git grep` for the words of the question has that file among its first
  eight, of a part of the questions.
- `index_after_commit_s`: from a commit to its files being found, the median of some.
- `preamble_p95_ms` and others: see `client_hooks`, here in this large repository.
- `store_ratio`: the bank on disk with all files of the last commit, to the size of those files.
- `anchors`, `open_after_rebase_s`, `commit_added_ms`: see `benchmarks.project_history`.
- `own_history_at`: the same as `found_at` for questions about this project's own history, which
  were written from its diffs. Not measured where that history is not there.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import perdure
from benchmarks.client_hooks import measure_hooks
from benchmarks.generated_repository import GeneratedRepository, PlantedFact, make_repository
from benchmarks.harness import Report, millis, work_folder
from benchmarks.history_facts import FACTS
from benchmarks.project_history import measure_history
from perdure.core.errors import PerdureError
from perdure.project.file_ranking import parse_query
from perdure.project.project import Project
from perdure.project.project_location import ProjectLocation, ProjectSettings, new_project_id
from perdure.project.project_recall import ProjectHit, recall_project
from perdure.storage.store import Progress

#: Hits that are looked at; seconds for a question; of how many questions each is asked of git, too.
_HITS, _SECONDS, _GREPPED = 8, 20.0, 4
_ROOT = Path(__file__).parent.parent


async def run(report: Report, *, quick: bool) -> None:
    with work_folder() as name:
        folder = Path(name)
        began = time.perf_counter()
        files, commits, facts = (300, 30, 60) if quick else (60_000, 5_000, 400)
        made = await asyncio.to_thread(
            make_repository, folder / "large", files=files, commits=commits, facts=facts
        )
        report.figures["generate_s"] = round(time.perf_counter() - began, 1)
        report.say(
            f"  {made.files:,} files of {made.text_bytes / 1e6:,.0f} MB, {commits:,} commits:"
            f" made in {report.figures['generate_s']} s"
        )
        await _files(report, made, folder, asked=30 if quick else 200)
        bank = f"sqlite:///{folder / 'large.db'}"
        await measure_hooks(report, made.root, bank, rounds=2 if quick else 40)
        if not quick:
            await _own_history(report, folder)
        await measure_history(report, folder, made.root, bank, quick=quick)


def located(root: Path) -> ProjectLocation:
    """The repository as a project."""
    location = ProjectLocation.find(root)
    location.write_settings(ProjectSettings(project=new_project_id(), name=root.name))
    return location


async def _files(report: Report, made: GeneratedRepository, folder: Path, *, asked: int) -> None:
    location, bank_file = located(made.root), folder / "large.db"
    async with perdure.open(f"sqlite:///{bank_file}") as bank:
        files = Project(bank.services, location).files
        began = time.perf_counter()
        await files.index_commit(await files.files.head(), progress=_told(report))
        report.figures["first_index_s"] = round(time.perf_counter() - began, 1)
    report.figures["store_ratio"] = round(_size(bank_file) / made.text_bytes, 3)
    async with perdure.open(f"sqlite:///{bank_file}") as bank:
        project = Project(bank.services, location)
        report.figures["index_after_commit_s"] = await _after_commit(project, made.root)
        questions = _questions(made, asked)
        await _ask(report, project, questions)
    _grep(report, made, questions)
    for metric in ("first_index_s", "store_ratio", "index_after_commit_s"):
        report.say(f"  {metric}: {report.figures[metric]}")


def _size(bank: Path) -> int:
    return sum(file.stat().st_size for file in bank.parent.glob(f"{bank.name}*"))


def _told(report: Report) -> Progress:
    last = 0.0

    def tell(_: str, done: int, whole: int) -> None:
        nonlocal last
        if time.monotonic() - last > 20:
            last = time.monotonic()
            report.say(f"  indexed {done:,} of {whole:,} files")

    return tell


async def _after_commit(project: Project, root: Path) -> float:
    """The median of some commits that change three files each."""
    took = list[float]()
    listed = await project.files.files.tree(await project.files.files.head())
    rng = random.Random(3)
    for number in range(5):
        for file in rng.sample(list(listed.files), 3):
            path = root / file.path
            text = await asyncio.to_thread(path.read_text, encoding="utf-8")
            await asyncio.to_thread(path.write_text, f"{text}\n# Change {number}.\n", "utf-8")
        git = ("git", "-C", str(root), "commit", "-q", "-a", "-m", f"change {number}")
        await asyncio.to_thread(subprocess.run, git, check=True)
        began = time.perf_counter()
        done = await project.files.refresh()
        took.append(time.perf_counter() - began)
        if done.indexed != 3 or done.left:
            raise RuntimeError(f"{done} instead of three files")
    return round(statistics.median(took), 3)


def _questions(made: GeneratedRepository, count: int) -> list[tuple[PlantedFact, str]]:
    """Facts, each at a commit at which it was true; at some twenty commits of all times."""
    rng = random.Random(7)
    ats = rng.sample(range(len(made.commits)), min(20, len(made.commits)))
    found = list[tuple[PlantedFact, str]]()
    for at in ats:
        true = [fact for fact in made.facts if fact.since <= at < fact.until]
        some = rng.sample(true, min(count // len(ats), len(true)))
        found += [(fact, made.commits[at]) for fact in some]
    return found


async def _ask(
    report: Report, project: Project, questions: Sequence[tuple[PlantedFact, str]]
) -> None:
    took, found, first = list[float](), list[bool](), list[bool]()
    for fact, commit in questions:
        began = time.perf_counter()
        answer = await recall_project(
            project, fact.question, at=commit, limit=_HITS, seconds=_SECONDS
        )
        took.append(time.perf_counter() - began)
        good = [hit.path == fact.path and fact.line in hit.text for hit in answer.hits]
        found.append(any(good))
        first.append(any(good[:1]))
    report.figures["found_at"] = round(statistics.mean(found), 3)
    report.figures["found_first"] = round(statistics.mean(first), 3)
    report.figures["recall_p50_ms"] = millis(statistics.median(took))
    report.figures["recall_max_s"] = round(max(took), 2)
    report.say(
        f"  found_at: {report.figures['found_at']} of {len(found)} questions, as the first hit"
        f" {report.figures['found_first']}; p50 {report.figures['recall_p50_ms']:.0f} ms, at most"
        f" {report.figures['recall_max_s']} s where old files were indexed first"
    )


def _grep(
    report: Report, made: GeneratedRepository, questions: Sequence[tuple[PlantedFact, str]]
) -> None:
    """How often `git grep` finds the file: those with most words of the question come first."""
    found = list[bool]()
    for fact, commit in questions[::_GREPPED]:
        counts = dict[str, int]()
        for word in parse_query(fact.question).texts:
            plain = word.strip("?,.").lower()
            command = ("git", "-C", str(made.root), "grep", "-l", "-i", "-F", "-e", plain, commit)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            for line in done.stdout.splitlines():
                counts[line.partition(":")[2]] = counts.get(line.partition(":")[2], 0) + 1
        best = sorted(counts, key=lambda path: (-counts[path], path))[:_HITS]
        found.append(fact.path in best)
    report.figures["git_grep_at"] = round(statistics.mean(found), 3)
    report.say(f"  git_grep_at: {report.figures['git_grep_at']} of {len(found)} questions")


async def _own_history(report: Report, folder: Path) -> None:
    root = folder / "own"
    clone = ("git", "clone", "-q", "--no-checkout", str(_ROOT), str(root))
    done = await asyncio.to_thread(subprocess.run, clone, check=False, capture_output=True)
    if done.returncode:
        return
    async with perdure.open(f"sqlite:///{folder}/own.db") as bank:
        project = Project(bank.services, located(root))
        found = list[bool]()
        for fact in FACTS:
            try:
                answer = await recall_project(
                    project, fact.question, at=fact.commit, limit=_HITS, seconds=3 * _SECONDS
                )
            except PerdureError:
                return  # a copy without its history
            found.append(_shows(answer.hits, fact.answers))
            if not found[-1]:
                report.say(f"  not found: {fact.question}")
    report.figures["own_history_at"] = round(statistics.mean(found), 3)
    report.say(f"  own_history_at: {report.figures['own_history_at']} of {len(found)} questions")


def _shows(hits: Sequence[ProjectHit], answers: Sequence[str]) -> bool:
    return any(answer in hit.text for hit in hits for answer in answers)
