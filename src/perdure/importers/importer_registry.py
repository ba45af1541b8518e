"""Registry of importers by format.

A program adds one with `register`, an installed package with an entry point::

    [project.entry-points."perdure.importers"]
    aider = "my_package.importer:AiderImporter"

`register` wins, then Perdure's own, so that a package does not replace ``codex`` unasked.
Importers are loaded when their format is first used.
"""

from __future__ import annotations

import re
from importlib import metadata

from perdure.core.errors import InvalidInput, PerdureError
from perdure.importers.importer import Importer

GROUP = "perdure.importers"

_OWN = {
    "anthropic": "perdure.importers.chat_files:AnthropicImporter",
    "chatgpt": "perdure.importers.chatgpt:ChatGPTImporter",
    "claude-code": "perdure.importers.claude_code:ClaudeCodeImporter",
    "claude-export": "perdure.importers.claude_export:ClaudeExportImporter",
    "codex": "perdure.importers.codex:CodexImporter",
    "otel": "perdure.importers.otel:OtelImporter",
    "perdure": "perdure.importers.export_reader:ExportImporter",
    "cursor": "perdure.importers.cursor:CursorImporter",
    "gemini": "perdure.importers.gemini:GeminiImporter",
    "langsmith": "perdure.importers.langsmith:LangSmithImporter",
    "openai-chat": "perdure.importers.chat_files:OpenAIChatImporter",
    "opencode": "perdure.importers.opencode:OpencodeImporter",
}
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}").fullmatch

_registered: dict[str, Importer] = {}


def register(name: str, importer: Importer) -> None:
    """Use this importer for the format `name`, in this process.
    Its sessions belong to an agent of that name. Raises `InvalidInput` if it cannot be one.
    """
    if not _NAME(name):
        raise InvalidInput(
            f"{name!r} cannot be the name of a format.",
            hint="Use up to 32 lower-case letters, digits and dashes, the first one a letter.",
        )
    _registered[name] = importer


def unregister(name: str) -> None:
    _registered.pop(name, None)


def formats() -> list[str]:
    return sorted({*_registered, *_OWN, *metadata.entry_points(group=GROUP).names})


def importer_for(name: str) -> Importer:
    """Raises `InvalidInput` if there is none, or if it cannot be loaded."""
    if name in _registered:
        return _registered[name]
    if name in _OWN:
        return _load(metadata.EntryPoint(name, _OWN[name], GROUP))
    for entry in metadata.entry_points(group=GROUP, name=name):
        return _load(entry)
    raise InvalidInput(
        f"There is no importer for {name!r}.",
        hint=f"Use one of {', '.join(formats())}; docs/importers.md tells how to add one.",
    )


def _load(entry: metadata.EntryPoint) -> Importer:
    try:
        found = entry.load()
        importer = found() if isinstance(found, type) else found
    except PerdureError:
        raise
    except Exception as exc:  # it is somebody's module: anything may come out of its import
        raise InvalidInput(
            f"The importer for {entry.name} ({entry.value}) cannot be loaded:"
            f" {type(exc).__name__}: {exc}.",
            hint="Mend or remove the package that declares it.",
        ) from exc
    if not isinstance(importer, Importer):
        raise InvalidInput(
            f"The importer for {entry.name} ({entry.value}) is no Importer.",
            hint="Let the entry point name a class derived from perdure.importers.Importer.",
        )
    return importer
