"""Which tool a rule is about: by its name and, for a shell, by the program that it runs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Any

from perdure.core.messages import ToolCall


@lru_cache(maxsize=256)
def matcher(tool: str | tuple[str, ...]) -> Callable[[str], object]:
    """Whether a name in small letters is one of these patterns."""
    patterns = [tool] if isinstance(tool, str) else tool
    return re.compile("|".join(translate(pattern.lower()) for pattern in patterns)).match


def tool_names(name: str, program: str = "") -> list[str]:
    """What rules may call a tool, in small letters: also without its server's prefix."""
    short = re.split(r"__|[./:]", name)[-1]
    if name.startswith("mcp__") and "_" not in short:
        short = ""  # what a database finds is no list of files
    return [each.lower() for each in dict.fromkeys((program, name, short)) if each] or [""]


def json_object(text: str) -> dict[str, Any]:
    """Empty if the text is not the JSON of an object."""
    try:
        given = json.loads(text) if text.lstrip()[:1] == "{" else None
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


_LONGEST = 2_000  # a longer command is a script
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "fish", "pwsh", "powershell", "cmd"})
#: They choose among the lines that another program prints, or put them in order.
_FILTERS = frozenset({"head", "tail", "sort", "uniq", "grep", "egrep", "sed", "cut", "tr", "cat"})
_PREFIXES = frozenset({"sudo", "time", "env", "command", "nice", "nohup", "timeout", "stdbuf"})
_redirections = re.compile(r"\d?>{1,2}\s*(?:&\d|/dev/null)")
# What the shell puts in, several lines, other redirections.
_unforeseeable = re.compile(r"[`\n<>]|\$\(").search
_assignment = re.compile(r"\w+=").match
_option_or_number = re.compile(r"-|\d").match


def program_of(call: ToolCall) -> str:
    """The program that a shell's call runs: ``ls``, ``git log``. Empty if it is not just one."""
    if len(call.arguments) > 2 * _LONGEST:
        return ""
    command = _command(json_object(call.arguments))
    if isinstance(command, list):
        words = [str(word) for word in command]
        if len(words) < 3 or _name(words[0]) not in _SHELLS:
            return _program(words)
        command = words[2]
    return _of_script(command) if isinstance(command, str) else ""


def command_of(call: ToolCall) -> str:
    """What a shell's call runs, as it was written; empty if it is none."""
    command = _command(json_object(call.arguments))
    if isinstance(command, list):
        words = [str(word) for word in command]
        is_shell = len(words) > 2 and _name(words[0]) in _SHELLS
        return words[2] if is_shell else " ".join(words)
    return command if isinstance(command, str) else ""


def _command(arguments: dict[str, Any]) -> Any:
    action = arguments.get("action")  # of a local_shell call
    for given in (arguments, action if isinstance(action, dict) else {}):
        for key in ("command", "cmd", "script"):
            if key in given:
                return given[key]
    return None


def _of_script(script: str) -> str:
    script = _redirections.sub("", script).strip().rstrip(";")
    if len(script) > _LONGEST or _unforeseeable(script):
        return ""
    lexer = shlex.shlex(script, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:  # a quote that is not closed
        return ""
    stages: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", ";"):
            if len(stages) > 1 or stages[0][:1] != ["cd"]:
                return ""  # two programs
            stages = [[]]
        elif word == "|":
            stages.append([])
        elif set(word) <= set("|&;()"):
            return ""
        else:
            stages[-1].append(word)
    if any(_program(stage) not in _FILTERS for stage in stages[1:]):
        return ""
    return _program(stages[0])


def _program(words: Sequence[str]) -> str:
    left = list(words)
    while left and (_assignment(left[0]) or left[0] in _PREFIXES):
        if left.pop(0) in _PREFIXES:
            while left and _option_or_number(left[0]):
                del left[0]
    if not left:
        return ""
    name = _name(left[0])
    if name == "git":
        return " ".join(["git", *[word for word in left[1:] if not word.startswith("-")][:1]])
    if name == "rg" and "--files" in left:
        return "rg --files"
    if name == "find" and any(word.startswith(("-exec", "-ok")) for word in left):
        return ""
    return name


def _name(path: str) -> str:
    return path.rpartition("/")[2]
