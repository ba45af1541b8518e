"""The Python reference as MyST Markdown: the public names, and the classes that they hand out.

Signatures and texts come from the code: docstrings, and the ``#:`` comments above fields.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import msgspec

import perdure
from tools import sync_stub

#: Pages: name, title, one sentence, and the packages whose objects stand there.
PAGES = (
    (
        "errors",
        "Errors",
        "Every error that Perdure raises derives from `PerdureError`.",
        ("core.errors", "artifacts.artifact_errors"),
    ),
    (
        "messages",
        "Messages and turns",
        "What is appended, and what comes back.",
        ("core.messages", "core.turns", "core.levels", "wire"),
    ),
    (
        "bank",
        "Banks",
        "`perdure.open` gives a `Bank`, `connect` a server's; `open_sync` is without `await`.",
        ("bank", "remote", "sync", "services", "jobs", "core.actors", "core.clock", "importers"),
    ),
    (
        "sessions",
        "Sessions and contexts",
        "One conversation, and the prompts made from it.",
        ("sessions", "context", "history"),
    ),
    (
        "recall",
        "Recall and memories",
        "What is found in the past, and what was learnt from it.",
        ("recall", "reflection"),
    ),
    (
        "agents",
        "Agents",
        "Agents with mailboxes, their memory, and one-shot runs.",
        ("agents", "learning"),
    ),
    ("models", "Models", "The gateway: every call of a model goes through it.", ("gateway",)),
    (
        "storage",
        "Storage",
        "Records, queries, transactions, artifacts, configuration in code.",
        ("storage", "artifacts", "config"),
    ),
    ("testing", "Testing", "Public doubles and the conformance kit.", ("testing",)),
)
#: Modules beside `perdure` itself whose ``__all__`` is public.
MODULES = ("perdure.wire", "perdure.importers", "perdure.testing")
#: Stubs, which type checkers read, do not know these.
PUBLIC: list[str] = vars(perdure)["__all__"]
_MODULES: dict[str, str] = vars(perdure)["_MODULES"]
_names_in = re.compile(r"[A-Za-z_]\w*").findall


@dataclass(frozen=True)
class Documented:
    """One object: how it is called, and what it is."""

    name: str
    value: Any
    module: str

    @property
    def page(self) -> str:
        inside = f"{self.module.removeprefix('perdure.')}."
        for name, _, _, packages in PAGES:
            if any(inside.startswith(f"{package}.") for package in packages):
                return name
        raise LookupError(f"No page of the reference is for {self.module}: see PAGES.")


def documented() -> list[Documented]:
    """All public names, then the classes that their methods and properties hand out."""
    found = {name: Documented(name, getattr(perdure, name), _MODULES[name]) for name in PUBLIC}
    for module in map(importlib.import_module, MODULES):
        for name in sorted(getattr(module, "__all__", ())):
            value = getattr(module, name)
            if not isinstance(value, ModuleType) and name not in found:
                found[name] = Documented(name, value, module.__name__)
    given = {**sync_stub.CLASSES, **sync_stub.REMOTE_CLASSES}
    for name, of in given.items():
        value = getattr(importlib.import_module(of), name)
        found.setdefault(name, Documented(name, value, value.__module__))
    for cls in _handed_out(each.value for each in found.values() if inspect.isclass(each.value)):
        found.setdefault(cls.__name__, Documented(cls.__name__, cls, cls.__module__))
    return list(found.values())


def _handed_out(classes: Iterable[type]) -> Iterator[type]:
    seen = list(classes)
    for cls in seen:  # grows
        for _, member in members(cls):
            function = _function(member)
            if function is None:
                continue
            module = sys.modules[function.__module__]
            for name in _names_in(str(function.__annotations__.get("return", ""))):
                value = getattr(module, name, None)
                if not inspect.isclass(value) or value in seen or name.startswith("_"):
                    continue
                if value.__module__.startswith("perdure."):
                    seen.append(value)
                    yield value


def pages() -> dict[str, str]:
    """Markdown by the page's name."""
    everything = documented()
    made = {}
    for name, title, sentence, _ in PAGES:
        here = sorted((each for each in everything if each.page == name), key=_order)
        parts = [f"# {title}", sentence, *(_object(each) for each in here)]
        made[name] = "\n\n".join(parts) + "\n"
    return made


def _order(each: Documented) -> tuple[bool, str]:
    return (each.name not in PUBLIC, each.name.lower())


def _object(each: Documented) -> str:
    value = each.value
    body: list[str] = []
    if inspect.isclass(value):
        body += _class_body(value)
        kind = "exception" if issubclass(value, BaseException) else "class"
        given = "" if kind == "exception" or _is_made_by_us(value) else signature(value)
        head = f"{{py:{kind}}} {each.name}{given}"
    elif inspect.isroutine(value):
        body.append(text_of(value))
        head = f"{{py:function}} {each.name}{signature(value)}"
        if inspect.iscoroutinefunction(value):
            body.insert(0, ":async:")
    else:
        head = f"{{py:data}} {each.name}"
        body.append(_comment_above(each.module, each.name))
    public = each.name in PUBLIC
    where = "" if public else f"Module `{each.module}`."
    options = [line for line in body[:1] if line.startswith(":")]
    rest = [line for line in (where, *body[len(options) :]) if line]
    return directive(head, options, "\n\n".join(rest), 6)


def directive(head: str, options: Iterable[str], body: str, colons: int) -> str:
    lines = [":" * colons + head, *options, "", body, ":" * colons]
    return "\n".join(lines)


def _is_made_by_us(cls: type) -> bool:
    """Callers get these from others: how they are made is nobody's business."""
    return not issubclass(cls, msgspec.Struct | enum.Enum) and "Made by" in (cls.__doc__ or "")


def _class_body(cls: type) -> list[str]:
    parts = [text_of(cls)]
    if issubclass(cls, enum.Enum):
        parts.append("\n".join(f"- `{member.name}`: `{member.value!r}`" for member in cls))
        return parts
    comments = field_comments(cls)
    for name, kind, default in _fields(cls):
        options = [f":type: {kind}"] if kind else []
        if default:
            options.append(f":value: {default}")
        parts.append(
            directive(f"{{py:attribute}} {name}", options, markdown(comments.get(name, "")), 4)
        )
    for name, member in members(cls):
        function = _function(member)
        if function is None:
            continue
        options = [":async:"] if inspect.iscoroutinefunction(function) else []
        if isinstance(member, property) or not isinstance(
            member, FunctionType | classmethod | staticmethod
        ):
            kind = str(function.__annotations__.get("return", ""))
            parts.append(
                directive(
                    f"{{py:property}} {name}",
                    [f":type: {kind}"] if kind else [],
                    text_of(function),
                    4,
                )
            )
            continue
        if isinstance(member, classmethod):
            options.append(":classmethod:")
        elif isinstance(member, staticmethod):
            options.append(":staticmethod:")
        bound = not isinstance(member, staticmethod)
        head = f"{{py:method}} {name}{signature(function, bound=bound)}"
        parts.append(directive(head, options, text_of(function), 4))
    return parts


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties in the order of the source, inherited ones of ours behind."""
    seen = set()
    for owner in cls.__mro__:
        if not owner.__module__.startswith("perdure."):
            continue
        for name, member in vars(owner).items():
            if not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, member


def _function(member: Any) -> FunctionType | None:
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, classmethod | staticmethod):
        member = member.__func__
    elif not isinstance(member, FunctionType):
        member = getattr(member, "func", None)  # cached_property
    member = inspect.unwrap(member) if member is not None else None
    return member if isinstance(member, FunctionType) else None


def _fields(cls: type) -> Iterator[tuple[str, str, str]]:
    """Name, type and default of what a struct holds."""
    if not issubclass(cls, msgspec.Struct):
        return
    kinds = {}
    for owner in reversed(cls.__mro__):
        kinds.update(vars(owner).get("__annotations__", {}))
    for field in msgspec.structs.fields(cls):
        if not field.name.startswith("_"):
            default = "" if field.default is msgspec.NODEFAULT else _default(field.default)
            yield field.name, str(kinds.get(field.name, "")), default


def signature(value: Any, *, bound: bool = False) -> str:
    """As it is written, on one line; a default that is no literal is told by its name."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "()"
    parameters = list(found.parameters.values())
    if bound:
        parameters = parameters[1:]
    parameters = [
        each.replace(default=_Written(_default(each.default)))
        if each.default is not each.empty
        else each
        for each in parameters
        if not each.name.startswith("_")
    ]
    annotated = [each.replace(annotation=_written(each.annotation)) for each in parameters]
    result = _written(found.return_annotation) if not inspect.isclass(value) else found.empty
    return str(found.replace(parameters=annotated, return_annotation=result))


class _Written(str):
    """Stands in a signature without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _written(annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty:
        return annotation
    if isinstance(annotation, str):
        return _Written(annotation)
    return _Written(inspect.formatannotation(annotation).replace("typing.", ""))


def _default(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str | bytes | tuple | frozenset):
        written = repr(value)
        return "…" if " object at 0x" in written or len(written) > 60 else written
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, type) or inspect.isroutine(value):
        return value.__name__
    return "…"


@cache
def _tree(module: str) -> tuple[ast.Module, list[str]]:
    source = inspect.getsource(importlib.import_module(module))
    return ast.parse(source), source.splitlines()


def field_comments(cls: type) -> dict[str, str]:
    """The ``#:`` comment above each field, those of bases included."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not owner.__module__.startswith("perdure."):
            continue
        tree, lines = _tree(owner.__module__)
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef) or node.name != owner.__name__:
                continue
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    found[each.target.id] = _above(lines, each.lineno)
    return found


def _comment_above(module: str, name: str) -> str:
    tree, lines = _tree(module)
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(each, ast.Name) and each.id == name for each in targets):
            return markdown(_above(lines, node.lineno))
    return ""


def _above(lines: list[str], number: int) -> str:
    """The ``#:`` comment that ends above a line, which counts from 1."""
    found: list[str] = []
    for line in reversed(lines[: number - 1]):
        text = line.strip()
        if not text.startswith("#:"):
            break
        found.append(text.removeprefix("#:").strip())
    return " ".join(reversed(found))


def text_of(value: Any) -> str:
    own = inspect.getdoc(value) if not inspect.isclass(value) else value.__dict__.get("__doc__")
    return markdown(inspect.cleandoc(own)) if own else ""


def markdown(text: str) -> str:
    """A docstring as Markdown: double backticks and ``::`` as reStructuredText writes them."""
    pieces = re.split(r"(``.+?``|`[^`\n]+`)", text, flags=re.DOTALL)
    for at, piece in enumerate(pieces):
        if at % 2:
            continue
        pieces[at] = piece.replace("<", "&lt;").replace("*", r"\*").replace("[", r"\[")
    text = "".join(pieces)
    paragraphs = text.split("\n\n")
    for at, paragraph in enumerate(paragraphs):
        if paragraph.startswith("    "):
            code = textwrap.dedent(paragraph).replace("&lt;", "<")
            paragraphs[at] = "```text\n" + re.sub(r"\\([*\[])", r"\1", code) + "\n```"
        elif paragraph.endswith("::"):
            paragraphs[at] = paragraph[:-1]
    return "\n\n".join(paragraphs)
