"""Background work over HTTP: what waits and failed, and another try."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from perdure.jobs.job import Job
from perdure.server.operations import TokenScope
from tests.server.conftest import RunningServer
from tests.waiting import until


async def test_what_waits_runs_and_failed(
    client: httpx2.AsyncClient, server: RunningServer
) -> None:
    jobs, entered, release = server.bank.jobs, asyncio.Event(), asyncio.Event()
    tries = list[str]()

    async def stay(_job: Job) -> None:
        entered.set()
        await release.wait()

    def fail_once(job: Job) -> None:
        tries.append(job.id)
        if len(tries) == 1:
            raise RuntimeError("No such folder.")

    jobs.register("stay", stay)
    jobs.register("fail", fail_once, retries=0)
    await jobs.enqueue(None, "stay", {"secret": "zebra"}, key="a")
    failing = await jobs.enqueue(None, "fail")
    for number in range(3):
        await jobs.enqueue(None, "nobody", key=str(number), delay=3_600)
    await entered.wait()
    await until(lambda: jobs.counts.failed == 1)
    found = await client.get("/api/v1/jobs?limit=2")
    report = found.json()
    assert report["sums"] == [
        {"kind": "fail", "state": "failed", "count": 1},
        {"kind": "nobody", "state": "pending", "count": 3},
        {"kind": "stay", "state": "running", "count": 1},
    ]
    assert [each["id"] for each in report["jobs"]] == [failing, "stay/a", "nobody/0", "nobody/1"]
    assert "No such folder." in report["jobs"][0]["error"]
    assert report["ended"]["failed"] == 1
    assert "zebra" not in found.text
    for unfit in ("stay/a", "none/1"):
        refused = await client.post("/api/v1/jobs/retry", json={"job": unfit})
        assert refused.status_code == 400, refused.text
    again = await client.post("/api/v1/jobs/retry", json={"job": failing})
    assert again.status_code == 200
    assert not [each for each in again.json()["sums"] if each["state"] == "failed"]
    await until(lambda: len(tries) == 2)
    release.set()
    await until(lambda: jobs.counts.done == 2)


@pytest.mark.parametrize("agent", [None, "ada"])
async def test_who_may(server: RunningServer, agent: str | None) -> None:
    reader = await server.client(server.token(TokenScope.READ, agent=agent))
    assert (await reader.get("/api/v1/jobs")).status_code == (200 if agent is None else 403)
    assert (await reader.post("/api/v1/jobs/retry", json={"job": "x"})).status_code == 403
