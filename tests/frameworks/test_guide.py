"""docs/frameworks.md: every example runs, and prints what it says it prints."""

from __future__ import annotations

import asyncio
import sys
import types
from pathlib import Path

import pytest

from tests.test_docs import ROOT, blocks, run


def test_python_examples_print_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = blocks(ROOT / "docs" / "frameworks.md", "python")
    assert examples
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("example_frameworks")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with asyncio.Runner() as runner:
        for code, output in examples:
            printed = run(code, module.__dict__, runner)
            assert output is None or printed == output, code
