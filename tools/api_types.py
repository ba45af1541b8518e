"""Types of the API for the web page, from the server's own description: TypeScript on stdout.

    python tools/api_types.py > web/src/api_types.ts

Every schema becomes an interface or a type of the same name, and `Operations` tells what each
operation takes and answers.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from perdure.server.openapi import describe
from perdure.server.server_app import all_routes

Schema = dict[str, Any]
_PLAIN = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}
_identifier = re.compile(r"[A-Za-z_]\w*").fullmatch


def type_of(schema: Schema) -> str:
    if "$ref" in schema:
        return _name(schema["$ref"].rpartition("/")[2])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " | ".join(dict.fromkeys(type_of(each) for each in schema[several]))
    if "enum" in schema:
        return " | ".join(json.dumps(each) for each in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(type_of({**schema, "type": each}) for each in kind)
    if kind == "array":
        return _array(schema)
    if kind == "object":
        return _object(schema)
    return _PLAIN.get(kind or "", "unknown")


def _array(schema: Schema) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(type_of(each) for each in schema['prefixItems'])}]"
    items = schema.get("items", {})
    return f"Array<{type_of(items) if isinstance(items, dict) else 'unknown'}>"


def _object(schema: Schema) -> str:
    if "properties" not in schema:
        values = schema.get("additionalProperties")
        of = type_of(values) if isinstance(values, dict) else "unknown"
        return f"Record<string, {of}>"
    required = set(schema.get("required", ()))
    fields = [
        f"{_key(name)}{'' if name in required else '?'}: {type_of(of)}"
        for name, of in schema["properties"].items()
    ]
    return f"{{ {'; '.join(fields)} }}"


def _key(name: str) -> str:
    return name if _identifier(name) else json.dumps(name)


def _name(name: str) -> str:
    return re.sub(r"\W", "_", name)


def operation_type(operation: dict[str, Any]) -> str:
    given: dict[str, list[str]] = {"path": [], "query": []}
    for each in operation.get("parameters", ()):
        mark = "" if each["required"] else "?"
        given[each["in"]].append(f"{_key(each['name'])}{mark}: {type_of(each['schema'])}")
    body = operation.get("requestBody")
    answers: dict[str, Any] = operation["responses"]
    answer: dict[str, Any] = next((of for at, of in answers.items() if at != "default"), {})
    content = next(iter(answer.get("content", {}).items()), None)
    result = "void"
    if content is not None:
        result = type_of(content[1]["schema"]) if content[0] == "application/json" else "Blob"
    fields = [
        f"path: {{ {'; '.join(given['path'])} }}",
        f"query: {{ {'; '.join(given['query'])} }}",
        f"body: {type_of(body['content']['application/json']['schema']) if body else 'undefined'}",
        f"result: {result}",
    ]
    return f"{{ {'; '.join(fields)} }}"


def main() -> None:
    document = describe(all_routes())
    lines = ["// Made by tools/api_types.py from the server's operations.", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines.append(f"export type {_name(name)} = {type_of(schema)};")
    lines += ["", "export interface Operations {"]
    for path, methods in sorted(document["paths"].items()):
        if path.startswith("/api/v1"):
            for method, operation in sorted(methods.items()):
                lines.append(
                    f"  {json.dumps(f'{method.upper()} {path}')}: {operation_type(operation)};"
                )
    lines.append("}")
    text = "\n".join(lines) + "\n"
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if target is None:
        sys.stdout.write(text)
    elif not target.exists() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
