"""The reference of the HTTP API as Markdown, from the server's own description (OpenAPI)."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from perdure.server.openapi import describe
from perdure.server.server_app import all_routes
from tools.api_types import type_of

_INTRODUCTION = """# HTTP API

Made from the server's table of operations. A server gives the same as OpenAPI 3.1 at
`/openapi.json`, without a token. [Server](../server.md) explains tokens, paging, errors and live
events.

Each operation needs a token with its scope, as `Authorization: Bearer pd_…` or
`x-perdure-token: pd_…`. What fails is answered by an [ErrorAnswer](#erroranswer), with a status
that says the same.
"""
_OTHER = "beside the API"


def document() -> dict[str, Any]:
    return describe(all_routes())


def page() -> str:
    described = document()
    schemas = described["components"]["schemas"]
    groups = defaultdict[str, list[str]](list)
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            tag = operation["tags"][0] if path.startswith(("/api/v1/", "/v1")) else _OTHER
            groups[tag].append(_operation(method, path, operation, schemas))
    parts = [_INTRODUCTION]
    for tag in sorted(groups, key=lambda tag: (tag == _OTHER, tag)):
        parts += [f"## {tag[0].upper()}{tag[1:]}", *groups[tag]]
    parts += ["## Types", *(_schema(name, of, schemas) for name, of in sorted(schemas.items()))]
    return "\n\n".join(parts) + "\n"


def _operation(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    parts = [f"### {method.upper()} {path}", text(operation["summary"])]
    if "description" in operation:
        parts.append(text(operation["description"]))
    scope = operation.get("x-perdure-scope")
    parts.append(f"Scope: `{scope}`." if scope else "Needs no token.")
    if parameters := operation.get("parameters"):
        rows = ["| parameter | in | type |", "|---|---|---|"]
        for each in parameters:
            needed = ", required" if each["required"] else ""
            rows.append(
                f"| `{each['name']}` | {each['in']}{needed} | {_type(each['schema'], schemas)} |"
            )
        parts.append("\n".join(rows))
    if body := operation.get("requestBody"):
        schema = next(iter(body["content"].values()))["schema"]
        parts.append(f"Body: {_type(schema, schemas)}.")
    for status, answer in operation["responses"].items():
        if status == "default" and "content" in answer:
            continue  # the error, told at the top
        contents = answer.get("content", {})
        kinds = [
            _type(content["schema"], schemas)
            if kind == "application/json" and content["schema"]
            else f"`{kind}`"
            for kind, content in contents.items()
        ]
        told = ", ".join(kinds) if kinds else text(answer["description"].rstrip("."))
        parts.append(f"{'Answer' if status == 'default' else status}: {told}.")
    return "\n\n".join(parts)


def _schema(name: str, schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    parts = [f"### {name}"]
    if "description" in schema:
        parts.append(text(schema["description"]))
    if properties := schema.get("properties"):
        required = set(schema.get("required", ()))
        rows = ["| field | type | |", "|---|---|---|"]
        rows += [
            f"| `{field}` | {_type(of, schemas)} | {'required' if field in required else ''} |"
            for field, of in properties.items()
        ]
        parts.append("\n".join(rows))
    else:
        parts.append(_type(schema, schemas))
    return "\n\n".join(parts)


def _type(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    """The type as TypeScript writes it; each name of a schema leads to it."""
    written = type_of(schema)
    names = {re.sub(r"\W", "_", name): name for name in schemas}
    shown, code = "", ""
    for piece in re.split(r"(\b[A-Z]\w+\b)", written):
        if piece in names:
            anchor = re.sub(r"[^\w\- ]", "", names[piece].lower()).replace(" ", "-")
            shown += f"{_code(code)}[{piece}](#{anchor})"
            code = ""
        else:
            code += piece
    shown += _code(code)
    return shown or "`unknown`"


def _code(written: str) -> str:
    return f"`{written.replace('|', chr(92) + '|')}`" if written else ""


def text(value: str) -> str:
    pieces = re.split(r"(`[^`\n]+`)", " ".join(value.split()))
    for at in range(0, len(pieces), 2):
        pieces[at] = re.sub(r"([<*_\[\]|])", r"\\\1", pieces[at])
    return "".join(pieces)
