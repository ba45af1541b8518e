"""The reference of commands as Markdown, from the same definitions that `--help` reads."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import typer

from perdure.cli.app import app

_INTRODUCTION = """# All commands

Made from the commands themselves: it is what `perdure COMMAND --help` says.
[Commands](../commands.md) sorts them by what they are for.

Nearly every command takes these options; where it does, they stand behind its own:
"""


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Name and command, those of groups behind the group, in the order of `--help`."""
    for name in group.list_commands(None):
        command = group.commands[name]
        if not command.hidden:
            place = f"{path} {name}".strip()
            yield place, command
            if hasattr(command, "commands"):
                yield from commands(command, place)


def all_commands() -> dict[str, Any]:
    return dict(commands(typer.main.get_command(app)))


def page() -> str:
    found = all_commands()
    ends = [command for command in found.values() if not hasattr(command, "commands")]
    takers = Counter((_last(each), each.help) for end in ends for each in _options(end))
    shared = {each for each, number in takers.items() if number > len(ends) / 2}
    first = {(_last(each), each.help): each for end in ends for each in _options(end)}
    parts = [_INTRODUCTION, _table([of for each, of in first.items() if each in shared])]
    for name, command in found.items():
        parts.append(_command(name, command, shared))
    return "\n\n".join(part for part in parts if part) + "\n"


def _command(name: str, command: Any, shared: set[tuple[str, str]]) -> str:
    level = "##" if " " not in name else "###"
    parts = [f"{level} perdure {name}"]
    parts.append(plain(inspect.cleandoc(command.help or "")))
    context = command.make_context(f"perdure {name}", [], resilient_parsing=True)
    pieces = [piece for piece in command.collect_usage_pieces(context) if piece]
    parts.append("```text\n" + " ".join((f"perdure {name}", *pieces)) + "\n```")
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = _options(command)
    own = [each for each in options if (_last(each), each.help) not in shared]
    if rows := [*arguments, *own]:
        parts.append(_table(rows))
    if taken := [f"`{_last(each)}`" for each in options if each not in own]:
        parts.append(f"{'Also' if rows else 'Options'}: {', '.join(taken)}.")
    if command.epilog:
        example = command.epilog.replace("\b", "").strip().removeprefix("Example:").strip()
        if example.startswith("perdure "):
            parts.append(f"```sh\n{example}\n```")
    return "\n\n".join(part for part in parts if part)


def _options(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "option" and not each.hidden]


def _table(parameters: list[Any]) -> str:
    lines = ["| option | meaning |", "|---|---|"]
    for each in parameters:
        names = [_metavar(each)]
        if each.param_type_name == "option":
            written = [*each.opts, *each.secondary_opts]
            names = [*written[:-1], f"{written[-1]} {_metavar(each)}".strip()]
        meaning = plain(" ".join((each.help or "").split()))
        lines.append(
            f"| {', '.join(f'`{_cell(name)}`' for name in names)} | {meaning}{_more(each)} |"
        )
    return "\n".join(lines)


def _last(option: Any) -> str:
    return str([*option.opts, *option.secondary_opts][-1])


def _metavar(each: Any) -> str:
    if each.param_type_name == "argument":
        return str(each.metavar or each.name.upper())
    if each.is_flag:
        return ""
    choices = getattr(each.type, "choices", None)
    if choices:
        return "|".join(str(getattr(choice, "value", choice)) for choice in choices)
    return str(each.metavar or each.type.name.upper())


def _more(each: Any) -> str:
    default = each.default
    value = getattr(default, "value", default)
    if each.required:
        return " *Required.*"
    if getattr(each, "is_flag", False) or value is None or value == "" or callable(value):
        return ""
    if isinstance(value, str | int | float):
        return f" *Default:* `{value}`."
    return ""


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def plain(text: str) -> str:
    """Text of help, which is no Markdown: brackets and stars stand for themselves."""
    text = text.replace("\b\n", "")
    pieces = re.split(r"(`[^`\n]+`)", text)
    for at in range(0, len(pieces), 2):
        pieces[at] = re.sub(r"([<*_\[\]|])", r"\\\1", pieces[at])
    return "".join(pieces)
