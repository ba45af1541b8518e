"""What fixed a failed command, by what was done until it worked. Pure, no model.

A command failed, and one that begins with the same two words worked a little later in the same
turn. What was changed between is what fixed it; if nothing was, the way it is called. Programs that
say "no" by their exit code (grep, diff, test) have not failed; nor has what was interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from perdure.core.display import one_line
from perdure.core.messages import ToolCall, ToolResult
from perdure.core.turns import Turn
from perdure.history.excerpt import EXIT_CODE, error_lines
from perdure.history.renditions.tool_calls import Used
from perdure.history.tool_patterns import command_of, json_object, tool_names

#: Calls between a failure and what fixed it: if files were changed between; if not.
_NEAR, _NEXT = 25, 4
#: Characters of a command: a longer one is a script.
_COMMAND, _ERROR = 160, 160
#: Characters of a line that tells an exit code and nothing else.
_LAST_LINE = 60
#: Files that are named.
_FILES = 3
#: Their exit codes are answers.
_ANSWERING = frozenset(
    {
        *("grep", "egrep", "fgrep", "rg", "ag", "ack", "ls", "cat", "find", "test", "[", "diff"),
        *("cmp", "which", "type", "command", "head", "tail", "sed", "awk", "wc", "file", "stat"),
        *("tree", "echo", "printf", "kill", "pkill", "pgrep", "killall", "sleep", "timeout", "cd"),
        *("true", "false", "curl"),
    }
)
_EDITING = frozenset(
    {
        *("edit", "multiedit", "write", "notebookedit", "str_replace_editor", "replace"),
        *("str_replace_based_edit_tool", "create_file", "edit_file", "write_file", "apply_patch"),
    }
)
_PATHS = ("file_path", "path", "filename", "notebook_path", "target_file")

_before = re.compile(r"^\s*(?:cd\s+[^;&|]+(?:&&|;)\s*|\w+=\S*\s+|sudo\s+|time\s+|npx\s+)+")
_to_output = re.compile(r" 2>&1$")
_stop = re.compile(r"\s*(?:\|\||&&|;|\||\d?>|<).*$", re.DOTALL)
_patched = re.compile(r"^\*\*\* (?:Update|Add|Delete) File: (.+)$", re.MULTILINE).findall
# Not what pytest calls so: modules that cannot be imported.
_interrupted = re.compile(
    r"timed out|interrupted(?!: \d+ errors? during collection)|was rejected"
    r"|doesn't want to proceed|user rejected|aborted",
    re.IGNORECASE,
).search
_of_sandbox = re.compile(r"^\s*failed in sandbox|^\s*\[\w+ error\]", re.IGNORECASE).search
_cause = re.compile(r"\w(?:Error|Exception)\b|^(?:E  |FAILED |fatal: |error\b)").search
_telling = re.compile(r"[^\W\d_]{3}").search


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool, in order."""

    turn: int
    #: Of a shell; empty of any other tool.
    command: str = ""
    failed: bool = False
    output: str = ""
    #: Files that it changed.
    edited: tuple[str, ...] = ()


class CommandFix(msgspec.Struct, frozen=True, kw_only=True):
    """A command that failed, and what made it work."""

    turn: int
    failed: str
    worked: str
    #: The line that told of the failure.
    error: str
    #: Files that were changed between.
    edited: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What is to be remembered."""
        if self.edited:
            files = ", ".join(self.edited[:_FILES])
            return f"`{self.failed}` failed with “{self.error}”; changing {files} fixed it."
        return f"`{self.failed}` fails with “{self.error}”; `{self.worked}` works."


def uses_of(turn: Turn) -> Iterator[ToolUse]:
    """The calls of a turn with their results."""
    results: dict[str, ToolResult] = {
        result.call: result for message in turn.messages for result in message.results
    }
    for message in turn.messages:
        for call in message.calls:
            result = results.get(call.id)
            if result is None:  # not kept: how a command ended is not known, what was edited is
                yield ToolUse(turn=turn.number, edited=files_changed(call))
                continue
            printed, command = Used.of(call, result).printed, _bare(command_of(call))
            said = _said_code(printed.output) if command else None
            failed = printed.failed or said is not None
            yield ToolUse(
                turn=turn.number,
                command=command,
                failed=failed,
                output=printed.output if said is None else said,
                edited=() if failed else files_changed(call),
            )


def _said_code(output: str) -> str | None:
    """The output in front of a last line that tells an exit code other than 0; None if there is no
    such line.
    """
    before, _, last = output.rstrip().rpartition("\n")
    found = EXIT_CODE.search(last) if len(last) <= _LAST_LINE else None
    if found is None or int(found[1]) == 0 or last[found.end() :].strip(" .)]>"):
        return None
    return before or last


def _bare(command: str) -> str:
    """In one line, without where its errors go."""
    return _to_output.sub("", " ".join(command.split()))


def files_changed(call: ToolCall) -> tuple[str, ...]:
    """Files that a call edits or writes, as they are named."""
    if _EDITING.isdisjoint(tool_names(call.name)):
        command = command_of(call)
        return tuple(_patched(command)) if "apply_patch" in command else ()
    given = json_object(call.arguments)
    for name in _PATHS:
        if isinstance(given.get(name), str):
            return (str(given[name]),)
    return tuple(_patched(call.arguments.replace("\\n", "\n")))


def find_fixes(uses: Iterable[ToolUse]) -> list[CommandFix]:
    """What fixed the commands of a session that failed, in order."""
    found, open_ones, everything = list[CommandFix](), dict[str, int](), list[ToolUse]()
    for use in uses:
        everything.append(use)
        words = first_words(use.command)
        if not words:
            continue
        if use.failed:
            if _is_failure(use):
                open_ones[words] = len(everything) - 1
            continue
        if (place := open_ones.pop(words, None)) is None:
            continue
        fix = _fix(everything[place], use, everything[place + 1 : -1])
        if fix is not None and all(fix.text != other.text for other in found):
            found.append(fix)
    return found


def first_words(command: str) -> str:
    """The first two words of the first program that does something; empty if it only answers."""
    bare = _stop.sub("", _before.sub("", command)).strip()
    words = [word for word in bare.split() if not word.startswith("-")][:2]
    if not words or words[0].rpartition("/")[2] in _ANSWERING:
        return ""
    return " ".join(words)


def _is_failure(use: ToolUse) -> bool:
    return (
        len(use.command) <= _COMMAND and not _interrupted(use.output) and bool(_error(use.output))
    )


def _fix(failure: ToolUse, success: ToolUse, between: Sequence[ToolUse]) -> CommandFix | None:
    if failure.turn != success.turn or len(success.command) > _COMMAND:
        return None
    edited = tuple(dict.fromkeys(path for use in between for path in use.edited))
    same = failure.command == success.command
    if len(between) > (_NEAR if edited else _NEXT) or (same and not edited):
        return None
    return CommandFix(
        turn=failure.turn,
        failed=failure.command,
        worked=success.command,
        error=_error(failure.output),
        edited=edited,
    )


def _error(output: str) -> str:
    """The line that tells best what went wrong; empty if none does."""
    spans = error_lines(output, 0, len(output))
    lines = [output[start:end] for start, end in spans] or output.splitlines()[-1:]
    telling = [line for line in lines if _telling(line) and not _of_sandbox(line)]
    best = next((line for line in telling if _cause(line)), telling[0] if telling else "")
    return one_line(best, _ERROR)
