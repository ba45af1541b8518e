"""The content in the arguments of a call: the file that is written, the artifact that is made.

It becomes an artifact of its own. In the arguments, which stay JSON, an object stands for it::

    {"filename": "app.py", "content": {"type": "artifact_ref", "key": "sha256:…"}}

Put back, the arguments are what the model wrote, byte for byte. Which tools' content moves is said
by rules, as for pruning: yours in their order (``[[history.artifacts]]``), then `DEFAULT_RULES`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import PurePosixPath, PureWindowsPath
from typing import NamedTuple

from perdure.config import ArtifactRule
from perdure.core.messages import sound
from perdure.history.tool_patterns import json_object, matcher, tool_names

DEFAULT_RULES: tuple[ArtifactRule, ...] = (
    ArtifactRule(("create_*artifact*", "update_*artifact*", "artifacts"), over=0, result=True),
    ArtifactRule(
        (
            *("write", "write_file", "write_to_file", "write_text_file", "writefile", "file_write"),
            *("create_file", "create_text_file", "create_new_file", "create_document", "save_file"),
            *("edit", "edit_file", "multiedit", "multi_edit", "notebookedit", "insert", "replace"),
            *("str_replace_editor", "str_replace_based_edit_tool", "insert_edit_into_file"),
            *("replace_in_file", "replace_string_in_file", "append_file", "apply_patch"),
        )
    ),
)

#: Arguments that name the file a tool works on.
_FILE_FIELDS = (
    *("filename", "file_name", "file_path", "path", "notebook_path", "target_file", "file"),
    *("title", "name"),
)

_compact = json.JSONEncoder(separators=(",", ":")).encode


class CallContent(NamedTuple):
    """Content in the arguments of a call."""

    field: str
    text: str
    #: Characters above which it moves out; None: as any other text.
    over: int | None


@lru_cache(maxsize=64)
def rules_for(own: tuple[ArtifactRule, ...]) -> Callable[[str], ArtifactRule | None]:
    """Which rule holds for a tool, by its name."""
    rules = [(matcher(rule.tool), rule) for rule in (*own, *DEFAULT_RULES)]

    @lru_cache(maxsize=1_000)
    def rule_for(name: str) -> ArtifactRule | None:
        names = tool_names(name)
        return next((rule for fits, rule in rules if any(map(fits, names))), None)

    return rule_for


def content_in(arguments: str, rule: ArtifactRule) -> CallContent | None:
    """The first of the rule's fields that holds text."""
    fields = [rule.content] if isinstance(rule.content, str) else rule.content
    given = json_object(arguments) if any(f'"{field}"' in arguments for field in fields) else {}
    for field in fields:
        text = given.get(field)
        if isinstance(text, str) and text:
            return CallContent(field, text, rule.over)
    return None


def stands_in(arguments: str, artifact: str) -> bool:
    """Whether the arguments hold what would stand for the artifact. Then none can be told from
    ours, and the call has to stay as it is.
    """
    return any(stand_in in arguments for stand_in, _ in _forms(artifact))


def taken_out(arguments: str, content: CallContent, artifact: str) -> str | None:
    """The arguments with an object that names the artifact in place of the content. None if the
    content could not be put back as it was written.
    """
    if sound(content.text) != content.text or stands_in(arguments, artifact):
        return None
    for stand_in, written in _forms(artifact):
        literal = written(content.text)
        place = re.compile(rf'"{re.escape(content.field)}"\s*:\s*').finditer
        starts = (found.end() for found in place(arguments))
        at = next((start for start in starts if arguments.startswith(literal, start)), None)
        if at is not None:
            return f"{arguments[:at]}{stand_in}{arguments[at + len(literal) :]}"
    return None


def put_back(arguments: str, text: str, artifact: str) -> str:
    """Undoes `taken_out`."""
    for stand_in, written in _forms(artifact):
        before, found, behind = arguments.partition(stand_in)
        if found:
            return f"{before}{written(text)}{behind}"
    return arguments


def _forms(artifact: str) -> Iterator[tuple[str, Callable[[str], str]]]:
    """What stands for the content, and how JSON writes that: letters as they are, or in ASCII."""
    note = {"type": "artifact_ref", "key": artifact}
    yield _compact(note), json.JSONEncoder(ensure_ascii=False).encode
    yield _compact(note | {"ascii": True}), json.JSONEncoder().encode


def filename_in(arguments: str) -> str:
    """The name of the file that a call works on, without its folder; empty if none is told."""
    given = json_object(arguments)
    for field in _FILE_FIELDS:
        value = given.get(field)
        if isinstance(value, str) and value.strip():
            path = PureWindowsPath(value) if "\\" in value else PurePosixPath(value)
            return path.name[:120]
    return ""
