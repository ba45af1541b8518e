"""``perdure jobs``: what waits, what failed, and another try."""

from __future__ import annotations

import asyncio
from pathlib import Path

import perdure
from perdure.jobs import Job
from tests.cli.conftest import Ask, Run


def _leave_jobs(url: str) -> str:
    async def leave() -> str:
        async with perdure.open(url) as bank:

            def fail(_job: Job) -> None:
                raise RuntimeError("No such folder.")

            bank.jobs.register("tidy", fail, retries=0)
            failed = await bank.jobs.enqueue(None, "tidy", {"secret": "zebra"}, key="attic")
            for number in range(3):
                await bank.jobs.enqueue(None, "later", key=str(number), delay=3_600)
            await bank.jobs.settle()
            return failed

    return asyncio.run(leave())


def test_jobs_are_listed_and_tried_again(run: Run, ask: Ask, home: Path) -> None:
    url = f"sqlite:///{home / 'bank.db'}"
    failed = _leave_jobs(url)
    shown = run("jobs", "--bank", url, "--limit", "2")
    assert shown.stdout.splitlines()[1].split(maxsplit=4) == [
        *(failed, "failed", "just", "now"),
        "1      RuntimeError: No such folder.",
    ]
    assert "later/0" in shown.stdout
    assert "later/2" not in shown.stdout
    assert "1 more job not shown" in shown.stderr
    _, found = ask("jobs", "list", "--bank", url, "--limit", "0")
    assert [each["id"] for each in found["jobs"]] == [failed, "later/0", "later/1", "later/2"]
    assert {"kind": "later", "state": "pending", "count": 3} in found["sums"]
    assert "zebra" not in str(found)
    assert ask("jobs", "retry", "--bank", url) == (0, {"retried": [failed]})
    assert ask("jobs", "retry", failed, "--bank", url)[0] == 1
    assert ask("jobs", "--bank", url)[1]["jobs"][0]["state"] == "pending"


def test_a_bank_without_jobs(run: Run) -> None:
    run("bank", "init")
    assert run("jobs").stdout == "There are no jobs.\n"
    assert run("jobs", "retry").stdout == "0 jobs to be tried again.\n"
