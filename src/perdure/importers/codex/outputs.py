"""What the outputs of Codex' tools tell: whether they failed, and whom they started."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from perdure.importers.decoding import Broken, decode

#: The lines in front of a command's own output.
_HEAD = 1_000
_exit_code = re.compile(r"^(?:Exit code:|Process exited with code) (-?\d+)\s*$", re.MULTILINE)
_failure = re.compile(
    r"failed in sandbox |execution error|exec_command failed|unsupported call|aborted by user"
    r"|failed to parse function arguments|tool call error"
).match


class _Output(msgspec.Struct):
    """The JSON that some tools return as text."""

    metadata: Any = None
    success: Any = None


_output = msgspec.json.Decoder(_Output)


def failed(item: dict[str, Any], text: str) -> bool:
    """Whether a tool's output says that it failed."""
    if item.get("success") is False or item.get("status") == "failed":
        return True
    if text.startswith("{"):
        try:
            found = _output.decode(text)
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            return False
        code = found.metadata.get("exit_code") if isinstance(found.metadata, dict) else None
        return found.success is False or (isinstance(code, int) and code != 0)
    head = text[:_HEAD].partition("\nOutput:")[0]
    code_line = _exit_code.search(head)
    return bool(_failure(text)) or (code_line is not None and int(code_line[1]) != 0)


def spawned(output: Any) -> Any:
    """The name of the sub-agent that a tool started; None if it does not tell."""
    if not isinstance(output, str):
        return None
    try:
        found = decode(output.encode("utf-8", "replace"))
    except Broken:
        return None
    return found.get("agent_id") if isinstance(found, dict) else None
