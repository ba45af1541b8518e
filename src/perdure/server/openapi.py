"""OpenAPI 3.1 from the table of operations.

Schemas are msgspec's. What passes through to a provider is named, and not described: it is theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from http import HTTPStatus
from typing import Any

import msgspec

from perdure import __version__
from perdure.remote.api_errors import ErrorAnswer
from perdure.server.operations import JSON, Operation, Route, TokenScope

_PARAMETER = re.compile(r"\{(\w+)\}")
_REF = "#/components/schemas/{name}"
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-perdure-token"},
}


class ApiDocument:
    """The document in JSON, made when it is first asked for: it takes some tens of milliseconds."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = tuple(routes)

    @cached_property
    def body(self) -> bytes:
        return msgspec.json.encode(describe(self._routes))


def describe(routes: Iterable[Route]) -> dict[str, Any]:
    """The document. WebSockets and ``{rest*}`` are not part of OpenAPI, and left out."""
    operations = [
        route for route in routes if isinstance(route, Operation) and not route.path.endswith("*}")
    ]
    types = [ErrorAnswer, *(kind for each in operations for kind in _types(each))]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(map(id, types), schemas, strict=True))
    paths = dict[str, dict[str, Any]]()
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, by_type, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Perdure", "version": __version__},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SECURITY},
    }


def _types(operation: Operation) -> list[Any]:
    given = (operation.query, operation.body, operation.result)
    return [kind for kind in given if kind is not None]


def _operation(
    operation: Operation, schemas: dict[int, Any], components: dict[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [_tag(operation)],
        "responses": _responses(operation, schemas),
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(operation.path)
    ]
    if operation.query is not None:
        schema = schemas[id(operation.query)]
        parameters += _query(components[schema["$ref"].rpartition("/")[2]])
    if parameters:
        found["parameters"] = parameters
    if operation.body is not None:
        content = {JSON: {"schema": schemas[id(operation.body)]}}
        found["requestBody"] = {"required": True, "content": content}
    if operation.passes_through:
        found["description"] = "Passed on to the provider; see its own documentation."
    if operation.scope is not TokenScope.OPEN:
        allowed = ["header"] if operation.passes_through else ["bearer", "header"]
        found["security"] = [{name: []} for name in allowed]
        found["x-perdure-scope"] = operation.scope.value
    return found


def _query(schema: dict[str, Any]) -> list[dict[str, Any]]:
    required = set(schema.get("required", ()))
    return [
        {"name": name, "in": "query", "required": name in required, "schema": of}
        for name, of in schema["properties"].items()
    ]


def _responses(operation: Operation, schemas: dict[int, Any]) -> dict[str, Any]:
    failure = {
        "description": "An error: what is wrong, and what to do next.",
        "content": {JSON: {"schema": schemas[id(ErrorAnswer)]}},
    }
    if operation.passes_through:
        return {"default": {"description": "The provider's own answer."}}
    if operation.is_foreign:
        return {"default": {"description": "An answer of that protocol, or an error."}}
    if operation.result is None and operation.produces == JSON:
        return {"204": {"description": "Done."}, "default": failure}
    schema = {} if operation.result is None else schemas[id(operation.result)]
    answer = {
        "description": HTTPStatus(operation.status).phrase,
        "content": {kind: {"schema": schema} for kind in operation.produces.split(", ")},
    }
    nothing = {"204": {"description": "There is nothing."}} if operation.may_be_nothing else {}
    return {str(operation.status): answer, **nothing, "default": failure}


def _tag(operation: Operation) -> str:
    parts = operation.path.removeprefix("/api/v1").strip("/").split("/")
    return "proxy" if operation.passes_through else parts[0]
