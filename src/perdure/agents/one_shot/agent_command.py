"""How agent commands take a prompt: on stdin, or as their last argument."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import PurePath

from perdure.agents.one_shot.run_records import PromptTo
from perdure.core.errors import InvalidInput

#: Linux takes no longer argument.
_LONGEST = 128 * 1024 - 1
_PLACE = "{prompt}"


def prompt_way(command: Sequence[str]) -> PromptTo:
    """Where a command expects its prompt: opencode as an argument, other clients on stdin."""
    if _PLACE in command:
        return "argument"
    return "argument" if "opencode" in map(client_name, command) else "stdin"


def client_name(word: str) -> str:
    return PurePath(word).name.lower().partition(".")[0]


def checked_command(command: Sequence[str]) -> tuple[str, ...]:
    """Raises `InvalidInput` if there is no such program."""
    given = tuple(command)
    if given and shutil.which(given[0]) is None:
        raise InvalidInput(
            f"There is no command {given[0]!r}.", hint="Install it, or write the program's path."
        )
    return given


def with_prompt(command: Sequence[str], way: PromptTo, prompt: str) -> tuple[tuple[str, ...], str]:
    """The words to run, and what goes to stdin. Raises `InvalidInput` if it is too long."""
    words = tuple(command)
    if way == "stdin":
        names = [client_name(word) for word in words]
        is_codex = "codex" in names and "exec" in words and words[-1] != "-"
        return ((*words, "-") if is_codex else words), prompt
    if len(prompt.encode()) > _LONGEST:
        raise InvalidInput(
            "The prompt is too long for an argument.",
            hint="Give it on stdin (--prompt-to stdin), or a shorter specification.",
        )
    if _PLACE in words:
        return tuple(prompt if word == _PLACE else word for word in words), ""
    return (*words, prompt), ""
