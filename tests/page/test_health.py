"""Jobs and health, in a real browser: what failed, another try, storage, and `verify`."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from perdure.core.messages import assistant, user
from perdure.gateway.outcomes import Outcome
from perdure.jobs.job import Job
from perdure.reflection.reflection_records import ReflectionRun
from perdure.server.operations import TokenScope
from tests.page.conftest import OpenPage
from tests.page.test_access import violations
from tests.page.test_costs import DOLLAR, WIDE, call, part, row
from tests.server.conftest import RunningServer
from tests.waiting import until


async def fill(server: RunningServer) -> list[str]:
    """A job that fails once, one that waits, a run, calls. Returns the tries of the first."""
    bank, tries = server.bank, list[str]()

    def fail_once(job: Job) -> None:
        tries.append(job.id)
        if len(tries) == 1:
            raise RuntimeError("No such <b>folder</b>.")

    bank.jobs.register("export", fail_once, retries=0)
    await bank.jobs.enqueue(None, "export", key="one")
    await bank.jobs.enqueue(None, "later", key="two", delay=3_600)
    await until(lambda: bank.jobs.counts.failed == 1)
    await (await bank.session("ada/notes")).append([user("Hi"), assistant("Hello")])
    now = bank.store.now()
    calls = [call(1, now, purpose="reflect", cost=DOLLAR // 4), call(2, now)]
    await bank.collection(Outcome).put_many(calls)
    run = ReflectionRun(id="ada/00000001", agent="ada", state="stopped", started=now, why="Broke.")
    await bank.collection(ReflectionRun).put(run)
    return tries


async def test_what_failed_is_tried_again(server: RunningServer, open_page: OpenPage) -> None:
    tries = await fill(server)
    at = await open_page(server)
    await at.page.get_by_role("link", name="Jobs and health").click()
    await expect(at.page.locator(".sums").first).to_contain_text("Waiting1Failed1")
    failed = row(at, "Failed jobs", "export/one")
    await expect(failed).to_contain_text("No such <b>folder</b>.")
    await expect(row(at, "Jobs", "later")).to_contain_text("later010")
    spends = row(at, "What the background spends (30 days)", "reflect")
    await expect(spends).to_contain_text("$0.25")
    await expect(row(at, "Reflection", "ada/R-1")).to_contain_text("Broke.")
    await expect(part(at, "Proxy, since the server started")).to_contain_text("No client came")
    await expect(row(at, "Storage", "outcomes")).to_contain_text("2")
    await failed.get_by_role("button", name="Try again").focus()
    await at.page.keyboard.press("Enter")
    await expect(part(at, "Failed jobs")).to_have_count(0)
    await until(lambda: len(tries) == 2)
    await expect(row(at, "Jobs", "export")).to_have_count(0)  # done, and heard of


async def test_verify_says_what_it_found(server: RunningServer, open_page: OpenPage) -> None:
    session = await server.bank.session("ada/notes")
    await session.append([user("Read"), assistant("x" * 100_000)])
    at = await open_page(server, "#/bank/health")
    await at.page.get_by_role("button", name="Verify").click()
    status = part(at, "Storage").get_by_role("status")
    await expect(status).to_contain_text("All is sound:")
    (file,) = [each for each in Path(str(server.bank.artifacts.place)).rglob("*") if each.is_file()]
    file.chmod(0o600)
    file.write_bytes(b"not what it was")
    await at.page.get_by_role("button", name="Verify").click()
    await expect(status).to_contain_text("One problem among")
    await expect(part(at, "Storage").locator(".problems li")).to_have_count(1)
    await at.page.route("**/api/v1/checks/bank", lambda route: route.abort())
    await at.page.get_by_role("button", name="Verify").click()
    await expect(at.page.get_by_role("alert")).to_have_text("The server cannot be reached.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_for_everybody(server: RunningServer, open_page: OpenPage, scheme: str) -> None:
    await fill(server)
    at = await open_page(server, "#/bank/health", color_scheme=scheme)
    await expect(part(at, "Storage")).to_be_visible()
    await expect(part(at, "Failed jobs")).to_be_visible()
    assert await violations(at) == []
    await at.page.set_viewport_size({"width": 360, "height": 700})
    assert not await at.page.evaluate(WIDE)
    assert await violations(at) == []
    reader = await open_page(server, "#/bank/health", token=server.token(TokenScope.READ))
    await expect(part(reader, "Storage")).to_be_visible()
    await expect(part(reader, "Failed jobs")).to_be_visible()
    assert await reader.page.get_by_role("main").get_by_role("button").count() == 0
    own = server.token(TokenScope.READ, agent="ada")
    narrow = await open_page(server, "#/bank/health", token=own)
    await expect(narrow.page.get_by_role("alert")).to_contain_text("the whole bank")
