"""What a client is told and asked when history was rewritten."""

from __future__ import annotations

from typing import Any

import mcp_types
import pytest

import perdure
from tests.integrations.conftest import Connect, Mode, Workplace


async def begin(place: Workplace) -> None:
    place.init()
    async with perdure.open(place.bank):
        pass


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_user_is_asked_through_the_client(
    place: Workplace, connect: Connect, mode: Mode
) -> None:
    await begin(place)
    asked: list[str] = []

    async def answer(_: Any, params: Any) -> mcp_types.ElicitResult:
        asked.append(params.message)
        return mcp_types.ElicitResult(action="accept", content={"choice": "fork"})

    async with connect(mode, elicitation_callback=answer) as client:
        first = await client.call_tool("project_status", {})
        assert first.structured_content["branch"] == "main"
        await client.call_tool("remember", {"text": "Deploys happen on Tuesdays."})
        place.git("commit", "-q", "--amend", "--allow-empty", "-m", "Begin again")
        status = (await client.call_tool("project_status", {})).structured_content
        assert status["changes"] == ["main has its last commit amended"]
        assert status["entries"] == {"moved": 1}
        (waiting,) = status["waiting"]
        assert "Deploys happen on Tuesdays." in waiting["entries"][0]
        done = await client.call_tool("project_reconcile", {})
        assert done.structured_content == {
            "decided": ["fork: main has its last commit amended"],
            "waiting": [],
        }
        assert len(asked) == 1
        assert "amended" in asked[0]


async def test_a_client_that_cannot_ask_has_its_model_ask(
    place: Workplace, connect: Connect
) -> None:
    await begin(place)
    async with connect() as client:
        await client.call_tool("project_status", {})
        await client.call_tool("remember", {"text": "Deploys happen on Tuesdays."})
        place.git("commit", "-q", "--amend", "--allow-empty", "-m", "Begin again")
        left = await client.call_tool("project_reconcile", {})
        assert "Ask the user" in str(left.content[0])
        assert len(left.structured_content["waiting"]) == 1
        done = await client.call_tool("project_reconcile", {"decision": "rebase"})
        assert done.structured_content["waiting"] == []
