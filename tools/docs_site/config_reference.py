"""The reference of the configuration as Markdown, from its structs and their comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from perdure import config
from perdure.config.section import Section
from tools.docs_site.python_reference import field_comments, markdown

_INTRODUCTION = """# All settings

Made from the types that the configuration is read into. [Configuration](../configuration.md)
explains it with examples, and says where the file is. A text, number or switch can be set by a
variable, too: `cache.ttl` by `PERDURE_CACHE_TTL`.
"""


def page() -> str:
    whole = config.Config
    parts, plain = [_INTRODUCTION], ""
    seen: list[type[Section]] = []
    for field in msgspec.structs.fields(whole):
        if isinstance(field.default, Section):
            parts.append(section(f"`[{field.name}]`", type(field.default), field.name, seen))
        else:
            plain = field.name
    parts.insert(
        1,
        f"## `{plain}`\n\n{markdown(field_comments(whole).get(plain, ''))}\n\n"
        f"Variable: `PERDURE_{plain.upper()}`.",
    )
    parts.extend(section(cls.__name__, cls, "", seen) for cls in seen)  # grows meanwhile
    return "\n\n".join(parts) + "\n"


def section(title: str, cls: type[Section], prefix: str, seen: list[type[Section]]) -> str:
    comments = field_comments(cls)
    rows = ["| key | default | type | meaning |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(cls):
        key = f"{prefix}.{field.name}" if prefix else field.name
        default = _default(field)
        of = _types(field.type)
        inner = [each for each in of if isinstance(each, type) and issubclass(each, Section)]
        for each in inner:
            if each not in seen:
                seen.append(each)
        meaning = markdown(comments.get(field.name, ""))
        if inner:
            links = ", ".join(f"[{each.__name__}](#{each.__name__.lower()})" for each in inner)
            meaning = f"{meaning} See {links}."
        rows.append(f"| `{key}` | {default} | {_kind(field.type)} | {_cell(meaning)} |")
    doc = markdown(" ".join((cls.__dict__.get("__doc__") or "").split()))
    return f"## {title}\n\n{doc}\n\n" + "\n".join(rows)


def _types(kind: Any) -> Iterator[Any]:
    inside = get_args(kind)
    if not inside:
        yield kind
    for each in inside:
        yield from _types(each)


def _default(field: Any) -> str:
    if field.default is msgspec.NODEFAULT:
        factory = field.default_factory
        return "*required*" if factory is msgspec.NODEFAULT else f"`{factory()!r}`"
    if isinstance(field.default, Section) or field.default in {None, ""}:
        return "–"
    value = field.default
    shown = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else None
    return f"`{shown or (list(value) if isinstance(value, tuple) else value)}`"


def _kind(kind: Any) -> str:
    words = config.choices(kind)
    if words:
        return ", ".join(f"`{word}`" for word in words)
    names = {bool: "switch", int: "number", float: "number", str: "text", type(None): ""}
    found = dict.fromkeys(names.get(each, "") for each in _types(kind) if each in names)
    shown = " or ".join(word for word in found if word)
    outer = getattr(kind, "__origin__", None)
    if outer is dict:
        return "table"
    return f"list of {shown or 'tables'}" if outer is tuple else shown


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", r"\|").strip()
