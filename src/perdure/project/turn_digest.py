"""What came of a turn: files, commands, commits, decisions, open ends. Pure; no model is asked.

Reads what Claude Code, Codex and others call their tools. What it does not know it leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from perdure.core.messages import ToolCall, ToolResult, words_of
from perdure.core.turns import Turn
from perdure.history.excerpt import EXIT_CODE, unwrap
from perdure.history.gist import asked as asked_by
from perdure.history.gist import came
from perdure.history.tool_patterns import command_of, json_object, tool_names
from perdure.project.work_records import Approval, CommandRun, MadeCommit, Todo, TodoState

_SHELLS = frozenset(
    {
        *("bash", "shell", "local_shell", "exec_command", "shell_command", "exec"),
        *("run_terminal_cmd", "run_shell_command", "execute_bash"),
    }
)
_EDITS = frozenset(
    {
        *("edit", "multiedit", "write", "notebookedit", "str_replace_editor", "create_file"),
        *("str_replace_based_edit_tool", "write_file", "edit_file", "patch", "create"),
    }
)
_LISTS = frozenset({"todowrite", "todo_write", "update_plan"})
_PATHS = ("file_path", "filePath", "notebook_path", "path")
_STATES: dict[str, TodoState] = {
    **dict.fromkeys(("completed", "done", "cancelled", "deleted"), "done"),
    "in_progress": "active",
}
_patched = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$", re.MULTILINE).findall
_committed = re.compile(r"^\[[^\]\n]{1,200}? ([0-9a-f]{7,64})\] (.{0,200})$", re.MULTILINE).findall
_task = re.compile(r"\btk_[0-9a-f]{12}\b").search
_number = re.compile(r"#(\d+)").search
_refused = re.compile(
    r"user doesn't want to proceed|rejected by (?:the )?user|user (?:rejected|declined|denied)"
    r"|requires approval|aborted by user|Request interrupted by user",
    re.IGNORECASE,
).search
_agreed = re.compile(r"User has approved|user approved", re.IGNORECASE).search
_answered = re.compile(r"User has answered your questions?: (.{1,400})", re.DOTALL).search
_left = re.compile(
    r"\b(?:TODO|FIXME|next steps?|still (?:to|open|needs?|missing)|left to do|remains? to"
    r"|not (?:yet|done|finished|implemented|tested|run)\b|follow-?up|blocked (?:on|by))",
    re.IGNORECASE,
).search
_MOST_FILES, _MOST_COMMANDS, _MOST_WORDS = 100, 60, 5
_COMMAND, _ASKED, _LINE, _ANSWER = 300, 1_000, 300, 160


class TurnDigest(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn's messages tell."""

    asked: str
    files: tuple[str, ...]
    commands: tuple[CommandRun, ...]
    commits: tuple[MadeCommit, ...]
    approvals: tuple[Approval, ...]
    decided: tuple[str, ...]
    open_ends: tuple[str, ...]
    todos: tuple[Todo, ...]
    waiting: tuple[str, ...]
    tasks: tuple[str, ...]
    #: It changed the client's list.
    listed: bool
    #: It called git: commits of the reflog in its time may be its own.
    uses_git: bool


def digest_of(turn: Turn, todos: Sequence[Todo], root: str = "") -> TurnDigest:
    """`todos` is the client's list before the turn; paths below `root` are told from there."""
    results = {result.call: result for message in turn.messages for result in message.results}
    files: dict[str, None] = {}
    commands: list[CommandRun] = []
    commits: list[MadeCommit] = []
    approvals: list[Approval] = []
    decided: list[str] = []
    waiting: list[str] = []
    tasks: list[str] = []
    uses_git = False
    items = {each.id: each for each in todos}
    for message in turn.messages:
        for call in message.calls:
            result = results.get(call.id)
            names, said = set(tool_names(call.name)), "" if result is None else _said(result)
            if result is None:
                waiting.append(_shown(call))
            if _refused(said[:600]) and result is not None and result.is_error:
                approvals.append(Approval(_shown(call), granted=False))
                continue
            if _agreed(said[:600]):
                approvals.append(Approval(_shown(call), granted=True))
            if answer := _answered(said[:1_000]):
                decided.append(_line(answer[1]))
            command = command_of(call) if names & _SHELLS else ""
            if command:
                commands.append(CommandRun(_line(command, _COMMAND), _exit(result, said)))
                if re.search(r"\bgit\b", command):
                    uses_git = True
                    commits += [
                        MadeCommit(id, _line(words)) for id, words in _committed(_printed(said))
                    ]
            for path in _files(call, names, command):
                files[_below(path, root)] = None
            items = _todos(call, names, said, items)
            if any(name.endswith("task_claim") for name in names) and (found := _task(said)):
                tasks.append(found[0])
    prompt, answer_text = turn.prompt, _answer(turn)
    return TurnDigest(
        asked=_line(prompt, _ASKED),
        files=tuple(files)[:_MOST_FILES],
        commands=tuple(commands)[-_MOST_COMMANDS:],
        commits=tuple(dict.fromkeys(commits)),
        approvals=tuple(approvals),
        decided=(*_decisions(prompt, answer_text), *decided)[:_MOST_WORDS],
        open_ends=tuple(_open_ends(answer_text))[:_MOST_WORDS],
        todos=tuple(items.values()),
        listed=tuple(items.values()) != tuple(todos),
        waiting=tuple(waiting),
        tasks=tuple(dict.fromkeys(tasks)),
        uses_git=uses_git,
    )


def summary_of(turn: Turn, tiny: str) -> str:
    """The turn at T; with the beginning of the model's last words if T has no room for them, or
    only for what they left open. Without a T the turn's own words.
    """
    words = _answer(turn)
    answer = _line(words, _ANSWER)
    told = " ".join(tiny.split()) or f"User: {_line(turn.prompt)}"
    asked, _, said = told.partition(" Assistant: ")
    return f"{asked} Assistant: {answer}" if answer and said in {"", *_open_ends(words)} else told


def _said(result: ToolResult) -> str:
    return "\n".join(words_of(part) for part in result.content)


def _printed(said: str) -> str:
    return "\n".join(unwrap(said).texts)


def _answer(turn: Turn) -> str:
    """The last words of the model."""
    replies = (m.text for m in reversed(turn.messages) if m.role == "assistant")
    return next((text for text in replies if text.strip()), "")


def _shown(call: ToolCall) -> str:
    return _line(f"{call.name}: {asked_by(call)}")


def _exit(result: ToolResult | None, said: str) -> int | None:
    if result is None:
        return None
    given = json_object(said[:100_000])
    metadata = given.get("metadata")
    for place in (given, metadata if isinstance(metadata, dict) else {}):
        for key in ("exit_code", "exitCode", "returncode"):
            if isinstance(place.get(key), int):
                return int(place[key])
    if found := EXIT_CODE.search(said[:300]):
        return int(found[1])
    return 1 if came(result).failed else 0


def _files(call: ToolCall, names: set[str], command: str) -> Iterator[str]:
    given = call.arguments
    if "apply_patch" in names or "*** Begin Patch" in (command or given)[:400]:
        whole = json_object(given)
        patch = next((v for v in whole.values() if isinstance(v, str)), "") if whole else given
        yield from _patched(command if "*** Begin Patch" in command else patch)
    elif names & _EDITS:
        arguments: dict[str, Any] = json_object(given)
        for name in _PATHS:
            if isinstance(arguments.get(name), str):
                yield arguments[name]
                return


def _todos(call: ToolCall, names: set[str], said: str, items: dict[str, Todo]) -> dict[str, Todo]:
    given = json_object(call.arguments)
    if names & _LISTS:
        listed = given.get("todos", given.get("plan"))
        found = [each for each in listed if isinstance(each, dict)] if listed else []
        made = [_todo(each, number) for number, each in enumerate(found, 1)]
        return {each.id: each for each in made if each.text}
    if "taskcreate" in names and (text := _line(str(given.get("subject", "")))):
        number = _number(said)
        id = number[1] if number else str(len(items) + 1)
        return {**items, id: Todo(id, text)}
    if "taskupdate" in names and (before := items.get(str(given.get("taskId", "")))):
        state = _STATES.get(str(given.get("status", "")), before.state)
        return {**items, before.id: msgspec.structs.replace(before, state=state)}
    return items


def _todo(given: dict[str, Any], number: int) -> Todo:
    words = given.get("content") or given.get("step") or given.get("text") or ""
    state = _STATES.get(str(given.get("status", "")), "open")
    return Todo(str(given.get("id") or number), _line(str(words)), state)


def _decisions(prompt: str, answer: str) -> list[str]:
    from perdure.history.renditions.sentences import decides, units

    found: dict[str, None] = {}
    for text in (prompt, answer):
        for unit in units(text[:8_000]):
            if unit.kind != "code" and decides(unit.text):
                found[_line(unit.text)] = None
    return list(found)


def _open_ends(answer: str) -> Iterator[str]:
    """What the last answer left open: questions, and what it says is not done."""
    from perdure.history.renditions.sentences import units

    for unit in units(answer[-4_000:]):
        text = unit.text.strip()
        if unit.kind != "code" and (text.endswith("?") or _left(text)):
            yield _line(text)


def _below(path: str, root: str) -> str:
    try:
        return str(PurePath(path).relative_to(root)) if root else path
    except ValueError:
        return path


def _line(text: str, most: int = _LINE) -> str:
    words = " ".join(text[: 4 * most].split())
    return words if len(words) <= most else f"{words[: most - 1]}…"
