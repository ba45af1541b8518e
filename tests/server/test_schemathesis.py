"""Generated requests, fitting and unfitting, to every operation of the API.

None may end in an internal error, and every answer must be what the description says. What passes
through to a provider is not asked: its answers are not ours.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np  # noqa: F401 (hypothesis looks at it while the server's thread imports it)
import pytest
import requests
import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from perdure.core.messages import assistant, user
from perdure.project.project_directory import register_project
from perdure.project.project_location import ProjectLocation, ProjectSettings, new_project_id
from perdure.server import openapi
from perdure.server.operations import Operation
from perdure.server.server_app import all_routes
from tests.server.conftest import RunningServer, running_server

#: What is there, so that not every path leads nowhere.
KNOWN = {"agent": "ada", "name": "notes", "turn": "T-1", "session": "ada/notes"} | {
    "project": "demo",
    "task": "1",
    "run": "R-1",
}
CHECKS: list[Any] = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
OPERATIONS = [
    route for route in all_routes() if isinstance(route, Operation) and not route.passes_through
]
SCHEMA = schemathesis.openapi.from_dict(openapi.describe(OPERATIONS))
load_all_checks()


class ServerThread:
    """A server with a loop of its own, since who asks it here waits without one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.url = self.token = ""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(60)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(60)

    def check(self, case: Case, *further: Any) -> None:
        with requests.Session() as session:
            headers = {"x-perdure-token": self.token}
            answer = case.call(base_url=self.url, session=session, headers=headers)
        if answer.text == "Invalid HTTP request received.":
            return  # what is no HTTP, an empty Transfer-Encoding for one, does not come to us
        assert answer.status_code != 500, answer.text
        case.validate_response(answer, checks=[*CHECKS, *further])

    async def _run(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with running_server(self._folder) as server:
            await _fill(server, self._folder / "demo")
            self.url, self.token = server.url, server.token()
            self._started.set()
            await self._ended.wait()


async def _fill(server: RunningServer, folder: Path) -> None:
    session = await server.bank.session("ada/notes")
    await session.append([user("What is the port?"), assistant("8123.")])
    folder.mkdir()
    location = ProjectLocation.find(folder)
    location.write_settings(ProjectSettings(project=new_project_id(), name="demo"))
    await register_project(server.bank.services, location)
    await server.bank.project(folder).team.run("- Find the port")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("api")) as running:
        yield running


# There are many operations: each gets a fifth of the examples that other properties get.
few = settings(max_examples=max(3, (settings.default or settings()).max_examples // 5))


@pytest.mark.repeated
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
@few
@given(data=st.data())
def test_a_fitting_request(data: st.DataObject, operation: Operation, api: ServerThread) -> None:
    found = SCHEMA[operation.path][operation.method]
    case = data.draw(found.as_strategy())
    if data.draw(st.booleans()):
        for name in case.path_parameters or {}:
            case.path_parameters[name] = KNOWN.get(name, case.path_parameters[name])
    api.check(case)


@pytest.mark.repeated
@pytest.mark.parametrize(
    "operation",
    [each for each in OPERATIONS if each.query or each.body],
    ids=lambda each: each.name,
)
@few
@given(data=st.data())
def test_an_unfitting_request(data: st.DataObject, operation: Operation, api: ServerThread) -> None:
    found = SCHEMA[operation.path][operation.method]
    strategy = found.as_strategy(generation_mode=GenerationMode.NEGATIVE, path_parameters={**KNOWN})
    api.check(data.draw(strategy), negative_data_rejection)
