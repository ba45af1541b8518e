"""`perdure batches`: what waits in providers' batch modes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import config as configuration
from perdure.gateway.calls import CallOptions
from perdure.testing import BatchFaults, ReceivedRequest, ScriptedFault, ScriptedModel
from tests.cli.conftest import Ask, Run

CONFIG = """
bank = "sqlite:///bank.db"
[gateway]
batch_poll = 0.01
[gateway.models]
reflect = "slow/big"
[gateway.providers.slow]
base_url = "{url}"
wire = "messages"
batch = true
[gateway.prices."slow/big"]
input = 1.0
output = 4.0
"""


def script(request: ReceivedRequest) -> str | ScriptedFault:
    if request.prompt == "bad":
        return ScriptedFault(status=400, message="This is too bad.")
    return "Good."


async def leave_batches() -> tuple[str, str]:
    """One that has ended, and one that goes on for ever."""
    options = CallOptions(purpose="reflect", agent="planner", task="extract")
    async with ScriptedModel(script) as model:
        Path("config.toml").write_text(CONFIG.format(url=model.url))
        config = configuration.load(Path("config.toml"))
        async with perdure.open(config=config) as bank:
            batches = bank.gateway.batch
            done = await batches.submit({"a": "good", "b": "bad"}, options)
            await batches.wait(done, 100)
            model.batches.faults = BatchFaults(looks=10**6)
            waiting = await batches.submit({"c": "good"}, options)
            async with asyncio.timeout(100):
                while (await batches.get(waiting)).state != "in_progress":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    return done.id, waiting.id


@pytest.fixture
def ids(monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setenv("PERDURE_CONFIG", "config.toml")
    return asyncio.run(leave_batches())


def test_batches_are_listed_and_shown(ids: tuple[str, str], run: Run, ask: Ask) -> None:
    done, waiting = ids
    listed: list[dict[str, Any]] = ask("batches")[1]["batches"]
    assert [(each["id"], each["state"]) for each in listed] == [
        (waiting, "in_progress"),
        (done, "ended"),
    ]
    assert listed[1]["counts"] == {"succeeded": 1, "errored": 1}
    assert listed[0]["parts"][0]["remote"]
    text = run("batches").stdout
    assert done[:12] in text
    assert "2 of 2" in text
    shown = run("batches", done).stdout
    assert "b: errored. slow/big does not accept the request" in " ".join(shown.split())
    found = ask("batches", done[:-1])[1]
    assert [each["state"] for each in found["results"]] == ["succeeded", "errored"]


def test_a_batch_is_cancelled(ids: tuple[str, str], run: Run, ask: Ask) -> None:
    assert "cancelling" in run("batches", ids[1], "--cancel").stdout
    assert ask("batches", ids[1])[1]["cancelling"] is True
    assert ask("batches", ids[0], "--cancel")[1]["state"] == "ended"
    assert run("batches", "--cancel").exit_code == 2
    assert "no batch 'zz'" in run("batches", "zz").stderr
