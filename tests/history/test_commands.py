"""Which program a shell command runs, as far as its output is that program's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.messages import ToolCall
from perdure.history.tool_patterns import program_of

COMMANDS: list[tuple[Any, str]] = [
    ("ls", "ls"),
    ("ls -la src 2>/dev/null", "ls"),
    ("/bin/ls -la 2>&1", "ls"),
    ("cd /srv/app && ls -R", "ls"),
    ("cd a; find . -name '*.py' -type f | head -20", "find"),
    ("find . -name 'a b' | sort | uniq", "find"),
    ("find . -name '*.py' -exec cat {} +", ""),
    ("find . | xargs cat", ""),
    ("tree -L 2;", "tree"),
    ("git ls-files", "git ls-files"),
    ("git --no-pager diff HEAD~1 -- a.py", "git diff"),
    ("rg --files src", "rg --files"),
    ("rg -n 'a|b' src", "rg"),
    ("PYTHONPATH=. LANG=C pytest -q", "pytest"),
    ("sudo timeout 60 cat /etc/hosts", "cat"),
    ("timeout -k 5 60 cat x", "cat"),
    ("env A=1 ls", "ls"),
    ("ls -la a && cat b", ""),
    ("ls; ls", ""),
    ("ls || true", ""),
    ("ls > files.txt", ""),
    ("cat <<EOF\nls\nEOF", ""),
    ("cat $(ls)", ""),
    ("echo `ls`", ""),
    ("(ls)", ""),
    ("ls &", ""),
    ("ls 'unclosed", ""),
    ("", ""),
    ("   ", ""),
    ("A=1", ""),
    ("cd src", "cd"),
    ("ls " + "x" * 5_000, ""),
    (["ls", "-la"], "ls"),
    (["bash", "-lc", "ls -la"], "ls"),
    (["/bin/zsh", "-c", "cd x && sed -n '1,200p' a.py"], "sed"),
    (["bash", "-lc", "ls", "extra"], "ls"),
    (["apply_patch", "*** Begin Patch\n…"], "apply_patch"),
    ([], ""),
    ([1, None], "1"),
    (None, ""),
    (17, ""),
]


@pytest.mark.parametrize(("command", "program"), COMMANDS)
def test_programs(command: Any, program: str) -> None:
    for arguments in ({"command": command}, {"cmd": command}, {"action": {"command": command}}):
        assert program_of(ToolCall("c", "shell", json.dumps(arguments))) == program


@pytest.mark.parametrize(
    "arguments", ["", "not JSON", "[]", '"ls"', "{}", "[" * 100_000, '{"action": "ls"}']
)
def test_other_arguments_name_no_program(arguments: str) -> None:
    assert program_of(ToolCall("c", "shell", arguments)) == ""


@given(st.text(max_size=60) | st.text("ls|&;()<>$`'\"\\\n {}-=", max_size=40))
def test_no_command_is_too_odd(command: str) -> None:
    assert isinstance(program_of(ToolCall("c", "shell", json.dumps({"command": command}))), str)
