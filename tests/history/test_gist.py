from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.messages import ArtifactPointer, Media, Text, ToolCall, ToolResult, Unknown
from perdure.history.gist import ToolOutcome, asked, came, described, printed

PATCH = """apply_patch << 'P'
*** Begin Patch
*** Add File: a.py
+x
*** Delete File: b c.md
*** End Patch
P"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"command": "ls -la\n  src", "description": "List"}, "ls -la src"),
        ({"command": ["bash", "-lc", "ls | wc"]}, "ls | wc"),
        ({"command": ["git", "status"]}, "git status"),
        ({"command": ["bash", "-lc", PATCH]}, "apply_patch a.py, b c.md"),
        ({"action": {"command": ["git", "log"]}}, "git log"),
        ({"file_path": "/a/b.py", "offset": 3}, "/a/b.py"),
        ({"pattern": "TODO", "path": "src"}, "TODO in src"),
        ({"pattern": "**/*.py"}, "**/*.py"),
        ({"todos": [1, 2], "deep": {"a": 1}, "n": 1.5, "s": "x\ny"}, None),
        ({}, ""),
        ([1, 2], "[1, 2]"),
    ],
)
def test_what_a_call_asks_for(arguments: Any, words: str | None) -> None:
    expected = "todos: [2], deep: {1}, n: 1.5, s: x y" if words is None else words
    assert asked(ToolCall("c", "tool", json.dumps(arguments))) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"command": "cut off in the mid', "cut off in the mid"),
        ('{"content": "…", "file_path": "a \\"b\\".py", "more": "', 'a \\"b\\".py'),
        ("*** Begin Patch\n*** Update File: a.py\n@@", "apply_patch a.py"),
        ("*** Begin Patch\nnothing", "*** Begin Patch nothing"),
        ("", ""),
    ],
)
def test_arguments_that_are_no_json(arguments: str, words: str) -> None:
    assert asked(ToolCall("c", "tool", arguments)) == words
    moved = ToolCall("c", "tool", reference=ArtifactPointer("sha256:0", 9, head=arguments))
    assert asked(moved) == words


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (ToolResult("c"), ToolOutcome("nothing")),
        (ToolResult("c", (Text("  \n"),)), ToolOutcome("1 line, 2 B")),
        (ToolResult("c", (Text("done\n"),)), ToolOutcome("done")),
        (ToolResult("c", (Text("a\nb\n"), Text("c"))), ToolOutcome("4 lines, 6 B")),
        (ToolResult("c", (Text("x" * 2_000),)), ToolOutcome("1 line, 2.0 KB")),
        (ToolResult("c", (Text("No such\nfile"),), True), ToolOutcome("failed: No such", True)),
        (ToolResult("c", (), True), ToolOutcome("failed", True)),
        (
            ToolResult("c", (Text('{"output": "boom\\n", "metadata": {"exit_code": 1}}'),)),
            ToolOutcome("failed: boom", True),
        ),
        (
            ToolResult("c", (Text('{"output": "fine\\n", "metadata": {"exit_code": 0}}'),)),
            ToolOutcome("fine"),
        ),
        (ToolResult("c", (ArtifactPointer("sha256:0", 4_200_000),)), ToolOutcome("4.2 MB")),
        (
            ToolResult("c", (Text("see"), Media("image/png", data=b"1"), Unknown("chat", 1))),
            ToolOutcome("1 line, 3 B, 1 image, 1 other part"),
        ),
        (
            ToolResult("c", (Media("image/png", data=b"1"), Media("audio/wav", data=b"1"))),
            ToolOutcome("2 files"),
        ),
    ],
)
def test_what_came_of_it(result: ToolResult, outcome: ToolOutcome) -> None:
    assert came(result) == outcome


def test_what_a_tool_printed() -> None:
    assert printed("plain\n") == ["plain\n"]
    assert printed('{"a": 1}') == ['{"a": 1}']
    wrapped = '{"output": "a\\nb\\n", "metadata": {"exit_code": 0}}'
    assert printed(wrapped) == ["a\nb", '{"output":"","metadata":{"exit_code":0}}']


def test_images_and_files_in_words() -> None:
    assert described(Media("image/png", data=b"12")) == "image/png, 2 B"
    moved = Media("image/png", artifact="sha256:0", size=1_500, filename="a.png")
    assert described(moved) == "image/png, 1.5 KB, a.png"
    assert described(Media(url="https://example.org")) == "file, https://example.org"
    assert described(Media(file_id="file-1")) == "file, file-1"


@given(st.text(), st.booleans())
def test_always_one_line(text: str, failed: bool) -> None:
    for words in (
        asked(ToolCall("c", "tool", text)),
        asked(ToolCall("c", "tool", json.dumps({"command": text}))),
        asked(ToolCall("c", "tool", json.dumps({"x": text}))),
        came(ToolResult("c", (Text(text),), failed)).words,
    ):
        assert len(words.splitlines()) <= 1
