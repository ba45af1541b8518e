"""The description of the API, and the API against its description."""

from __future__ import annotations

import httpx2

from perdure.server.operations import Operation, TokenScope
from tests.server.conftest import RunningServer


async def test_every_operation_is_described(
    server: RunningServer, client: httpx2.AsyncClient
) -> None:
    document = (await client.get("/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    operations = [
        route
        for route in server.app.state.routes
        if isinstance(route, Operation) and not route.path.endswith("*}")
    ]
    names = [each.name for each in operations]
    assert sorted(set(names)) == sorted(names)
    for each in operations:
        described = document["paths"][each.path][each.method.lower()]
        assert described["summary"].endswith(".")
        assert ("security" in described) == (each.scope is not TokenScope.OPEN)
        given = {parameter["name"] for parameter in described.get("parameters", ())}
        assert {part[1:-1] for part in each.path.split("/") if part.startswith("{")} <= given


async def test_its_references_lead_somewhere(client: httpx2.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    known = document["components"]["schemas"]

    def check(value: object) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                assert value["$ref"].rpartition("/")[2] in known
            for inner in value.values():
                check(inner)
        elif isinstance(value, list):
            for inner in value:
                check(inner)

    check(document)


async def test_metrics(server: RunningServer, client: httpx2.AsyncClient) -> None:
    await server.bank.session("ada/notes")
    answer = await client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'perdure_storage_operations_total{operation="commit"' in answer.text
