"""What comes after an iteration, and what is seen of the files, without running anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from perdure.agents.one_shot.run_records import (
    CheckResult,
    ExitRecord,
    ExitStatus,
    ProcessEnding,
    RunIteration,
    RunSettings,
    TaskCount,
    WorkState,
)
from perdure.agents.one_shot.run_verdicts import verdict_on
from perdure.agents.one_shot.work_files import WorkFolder


def made(
    number: int,
    status: ExitStatus | None = "continue",
    *,
    changed: bool = True,
    opened: int = 1,
    done: tuple[int, int] = (1, 1),
    passes: bool = True,
    error: str = "",
    refused: str = "",
    ending: ProcessEnding = "finished",
) -> RunIteration:
    return RunIteration(
        id=f"run/{number}",
        number=number,
        turn=number,
        before=WorkState(fingerprint=f"{number}", tasks=TaskCount(opened, done[0])),
        after=WorkState(
            fingerprint=f"{number + 1 if changed else number}", tasks=TaskCount(opened, done[1])
        ),
        ending=ending,
        exit=None if status is None else ExitRecord(status, "so", "what?"),
        checks=(CheckResult("make", 0 if passes else 2),),
        error=error,
        refused=refused,
    )


def run(count: int, **options: object) -> list[RunIteration]:
    return [made(number, **options) for number in range(1, count + 1)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("iterations", "verdict"),
    [
        (run(1), "continue"),
        (run(1, status="needs_feedback", changed=False), "needs_feedback"),
        (run(1, status="done", opened=0), "done"),
        (run(1, status="done", opened=0, passes=False), "continue"),
        (run(1, status="done", opened=1), "continue"),
        (run(1, status="done", opened=0, done=(3, 2)), "doubtful"),
        (run(2, changed=False), "continue"),
        (run(3, changed=False), "stuck"),
        (run(3, status="done", opened=1, changed=False), "stuck"),
        (run(3, changed=False, ending="interrupted"), "continue"),
        ([*run(2, changed=False), made(3)], "continue"),
        (run(4, error="boom 1"), "continue"),
        (run(5, error="boom 1"), "stuck"),
        (run(5, error="boom 1", done=(1, 2)), "continue"),
        ([*run(4, error="boom"), made(5, error="bang")], "continue"),
        (run(1, refused="Bash"), "continue"),
        (run(2, refused="Bash"), "stuck"),
        ([made(1, refused="Bash"), made(2), made(3, refused="Edit")], "stuck"),
        (run(1, status=None), "continue"),
        (run(2, status=None), "unsure"),
    ],
)
def test_verdicts(iterations: list[RunIteration], verdict: str) -> None:
    assert verdict_on(iterations).verdict == verdict


def test_an_investigation_begins_the_count_anew() -> None:
    assert verdict_on(run(4, changed=False), investigated=3).verdict == "continue"
    assert verdict_on(run(6, changed=False), investigated=3).verdict == "stuck"


def git(folder: Path, *words: str) -> None:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("repository", [True, False])
async def test_what_changed(tmp_path: Path, repository: bool) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("SPEC.md", "TASKS.md", "LOG.md", "a.py"):
        (tmp_path / name).write_text("- [ ] x\n")
    if repository:
        git(tmp_path, "init", "-q")
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", "first")
    spec, tasks, log = (str(tmp_path / f"{name}.md") for name in ("SPEC", "TASKS", "LOG"))
    settings = RunSettings(folder=str(tmp_path), spec=spec, tasks=tasks, log=log)
    bank = tmp_path / "memory.db"
    folder = WorkFolder(settings, [str(bank)])
    before = await folder.look()
    assert await folder.look() == before
    (tmp_path / "LOG.md").write_text("more\n")
    bank.write_text("x")
    bank.with_name("memory.db-wal").write_text("x")
    logged = await folder.look()
    assert logged.fingerprint == before.fingerprint
    assert logged.log != before.log
    (tmp_path / "a.py").write_text("print()\n")
    edited = await folder.look()
    assert edited.fingerprint != before.fingerprint
    (tmp_path / "sub" / "b.py").write_text("1\n")
    added = await folder.look()
    assert added.fingerprint != edited.fingerprint
    told = await folder.changes(before, 0)
    assert "a.py" in told
    assert "sub/b.py" in told
    assert "LOG.md" not in told
    assert "memory.db" not in told
    if repository:
        git(tmp_path, "add", "a.py")
        git(tmp_path, "commit", "-qm", "Say something")
        told = await folder.changes(before, 2**60)
        assert "Say something" in told
        assert "a.py | 2 +-" in told
