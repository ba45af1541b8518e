"""Shortens tool results, by rules per tool name and size.

The log keeps what a tool said; a pruned result is a view for those who need the gist. Listings
become a count; files and terminal output over 2,000 characters their first and last 500 lines, in
at most 20,000 tokens; errors and exit codes stay. Every view says how much was left out and where
the whole can be had::

    for message in prune_tool_results(messages, [PruneRule("pytest", over=4_000, tail=60)]):
        ...

The first rule that fits decides: yours in their order, then `DEFAULT_RULES`. A rule names tools by
patterns; for a shell, also the program that its command runs (``ls``, ``git diff``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, TypeAlias, overload

import msgspec

from perdure.config import HistoryConfig, PruneRule
from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Part,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    changed,
    sound,
    words_of,
)
from perdure.history.excerpt import (
    ends_in_tokens,
    instead_of,
    is_excerpt,
    listing,
    looks_failed,
    unwrap,
)
from perdure.history.tool_patterns import matcher, program_of, tool_names
from perdure.wire import codec, decode
from perdure.wire.detection import body_wire
from perdure.wire.plain import is_object, plain

#: Chooses by looking at the result and its call, if that is known: a rule; words to stand for the
#: result, if it is no error (10,000 characters at most); or None to let the next rule decide.
Chooser: TypeAlias = Callable[[ToolResult, ToolCall | None], PruneRule | str | None]
Pointer: TypeAlias = Callable[[ToolResult], str]  # Where the whole is: ``T-12.3``, ``sha256:…``.

_LISTINGS = (
    *("ls", "list_files", "listfiles", "list_dir", "list_directory", "list_directories", "dir"),
    *("directory_tree", "read_folder", "view_directory", "tree", "glob", "glob_search", "find"),
    *("glob_file_search", "find_files", "find_file", "fd", "eza", "get-childitem"),
    *("git ls-files", "git ls-tree", "rg --files"),
)
_SEARCHES = (
    *("grep", "egrep", "fgrep", "rg", "ripgrep", "ag", "ack", "git grep", "grep_search", "search"),
    *("search_code", "code_search", "codebase_search", "search_for_pattern", "search_file_content"),
    *("search_files", "file_search", "semantic_search", "select-string"),
)
_READS = (
    *("read", "read_file", "read_files", "read_many_files", "read_multiple_files", "readfile"),
    *("read_text_file", "view", "view_file", "open_file", "get_file_contents", "cat_file", "cat"),
    *("bat", "head", "tail", "sed", "nl", "less", "more", "notebookread", "get-content"),
    "git show",
)
_TERMINALS = (
    *("bash", "bashoutput", "shell", "shell_command", "local_shell", "local_shell_call"),
    "terminal",
    *("run_terminal_cmd", "run_terminal_command", "run_in_terminal", "run_shell_command"),
    *("run_command", "runcommand", "execute_command", "exec", "exec_command", "write_stdin"),
    *("container.exec", "unified_exec", "python", "powershell", "killshell", "get_terminal_output"),
)

DEFAULT_RULES: tuple[PruneRule, ...] = (
    PruneRule(_LISTINGS, over=500, keep="count"),
    PruneRule(_SEARCHES, head=30, tail=10, tokens=500, errors=False),
    PruneRule(_READS, head=500, tail=500, errors=False),
    PruneRule(_TERMINALS, head=500, tail=500),
    PruneRule("*", over=8_000, head=60, tail=60, tokens=1_000),
)

_LONGEST_WORDS = 10_000  # Characters that a Chooser may give.
_TOKENS = HistoryConfig().prune_tokens


@overload
def prune_tool_results(
    messages: Iterable[Message],
    rules: Iterable[PruneRule | Chooser] | None = None,
    *,
    pointer: Pointer | None = None,
    wire: str | None = None,
    tokens: int = _TOKENS,
) -> tuple[Message, ...]: ...
@overload
def prune_tool_results(
    messages: Mapping[str, Any],
    rules: Iterable[PruneRule | Chooser] | None = None,
    *,
    pointer: Pointer | None = None,
    wire: str | None = None,
    tokens: int = _TOKENS,
) -> dict[str, Any]: ...
@overload
def prune_tool_results(
    messages: Iterable[Mapping[str, Any]],
    rules: Iterable[PruneRule | Chooser] | None = None,
    *,
    pointer: Pointer | None = None,
    wire: str | None = None,
    tokens: int = _TOKENS,
) -> list[dict[str, Any]]: ...
def prune_tool_results(
    messages: Any,
    rules: Iterable[PruneRule | Chooser] | None = None,
    *,
    pointer: Pointer | None = None,
    wire: str | None = None,
    tokens: int = _TOKENS,
) -> Any:
    """The messages with long tool results shortened.

    Takes canonical messages, or a list, message or body of any wire format (detected as by
    `perdure.wire.decode`, unless `wire` names it), and returns the same kind. What is not shortened
    comes back as the same object.

    Only the text of results changes; order and links between calls and results stay. No result
    grows, equal messages give equal views, and pruning a view changes nothing. Views refer to the
    original by `pointer`, or by the artifact or the call, and have at most so many `tokens` unless
    their rule says otherwise.

    Raises `InvalidInput` for what holds no messages.
    """
    pruner = _Pruner(rules, pointer, tokens)
    if isinstance(messages, Mapping) or is_object(messages):
        body = messages if isinstance(messages, Mapping) else plain(messages)
        return _pruned_body(dict(body), pruner, wire)
    single = isinstance(messages, Message | str) or not isinstance(messages, Iterable)
    items: list[Any] = [messages] if single else list(messages)
    if all(isinstance(item, Message) for item in items):
        return tuple(pruner.message(message) for message in items)
    return _pruned_items(items, pruner, wire)


class _Pruner:
    def __init__(
        self,
        rules: Iterable[PruneRule | Chooser] | None,
        pointer: Pointer | None,
        tokens: int = _TOKENS,
    ) -> None:
        self._tokens = tokens
        self._rules = (*(rules or ()), *DEFAULT_RULES)
        self._pointer = pointer or _own_pointer
        self._calls: dict[str, ToolCall] = {}
        choosers = any(not isinstance(rule, PruneRule) for rule in self._rules)
        # No rule takes an interest in shorter results.
        self._least = (
            0 if choosers else min(r.over for r in self._rules if isinstance(r, PruneRule))
        )

    def message(self, message: Message) -> Message:
        for call in message.calls:
            self._calls[call.id] = call
        if not message.results:
            return message
        parts = tuple(
            self.result(part, self._calls.get(part.call)) if isinstance(part, ToolResult) else part
            for part in message.parts
        )
        return changed(message, parts=parts)

    def result(self, result: ToolResult, call: ToolCall | None) -> ToolResult:
        texts = [part for part in result.content if isinstance(part, Text | ArtifactPointer)]
        if sum(len(words_of(part)) for part in texts) <= self._least:
            return result
        choice = self._choice(result, call)
        if isinstance(choice, PruneRule) and choice.keep == "all":
            return result
        content = _pruned(result, choice, self._pointer, self._tokens)
        return result if content is None else msgspec.structs.replace(result, content=content)

    def _choice(self, result: ToolResult, call: ToolCall | None) -> PruneRule | str:
        name, program = (call.name, program_of(call)) if call is not None else (result.name, "")
        names = tool_names(name, program)
        for rule in self._rules:
            if isinstance(rule, PruneRule):
                if any(map(matcher(rule.tool), names)):
                    return rule
            elif (choice := rule(result, call)) is not None:
                return choice
        return DEFAULT_RULES[-1]


def _pruned_body(body: dict[str, Any], pruner: _Pruner, wire: str | None) -> dict[str, Any]:
    for key in ("messages", "input"):
        if isinstance(body.get(key), list):
            # In a list by itself, a message could be taken for one of another format.
            return {**body, key: _pruned_items(body[key], pruner, wire or body_wire(body))}
    pruned = _pruned_items([body], pruner, wire)
    return pruned[0] if len(pruned) == 1 else body


def _pruned_items(items: list[Any], pruner: _Pruner, wire: str | None) -> list[Any]:
    before = decode(items, wire)
    after = [pruner.message(message) for message in before]
    if all(new is old for new, old in zip(after, before, strict=True)):
        return items
    # Encoded twice, so that every item in which no result was shortened is the one given.
    old, new = _encoded(before), _encoded(after)
    if not len(items) == len(old) == len(new):
        return new
    return [
        item if one == other else other for item, one, other in zip(items, old, new, strict=True)
    ]


def _encoded(messages: Iterable[Message]) -> list[Any]:
    items: list[Any] = []
    for wire, group in groupby(messages, lambda message: message.wire):
        run = list(group)
        items += codec(wire).encode(run) if wire else run
    return items


_Content: TypeAlias = Text | Media | ArtifactPointer | Unknown


def _pruned(
    result: ToolResult, choice: PruneRule | str, pointer: Pointer, tokens: int
) -> tuple[_Content, ...] | None:
    """None if nothing is shortened. Texts are taken as one, so that a thousand short ones do not
    escape, and stand where the first one stood. A reference stays one; its head is shortened.
    """
    texts = [part for part in result.content if isinstance(part, Text)]
    words = "\n".join(part.text for part in texts if part.text)
    view = _shortened(words, choice, result, pointer, tokens)
    shorter = len(view) < sum(len(part.text) for part in texts)
    changed = placed = False
    content: list[_Content] = []
    for part in result.content:
        new: _Content = part
        if isinstance(part, Text) and shorter:
            if placed:
                continue
            new = msgspec.structs.replace(texts[-1], text=view)
            changed = placed = True
        elif isinstance(part, ArtifactPointer):
            rule = choice if isinstance(choice, PruneRule) else DEFAULT_RULES[-1]
            if rule.keep != "ends":  # what a head lists is not all
                rule = msgspec.structs.replace(rule, keep="ends")
            head = _shortened(part.head, rule, result, pointer, tokens)
            if len(head) < len(part.head):
                new, changed = msgspec.structs.replace(part, head=head), True
        content.append(new)
    return tuple(content) if changed else None


def _shortened(
    text: str, choice: PruneRule | str, result: ToolResult, pointer: Pointer, tokens: int
) -> str:
    rule = choice if isinstance(choice, PruneRule) else DEFAULT_RULES[-1]
    over = rule.over if isinstance(choice, PruneRule) else 0
    cap = tokens if rule.tokens is None else rule.tokens
    longest = max(cap, _LONGEST_WORDS)
    whole = unwrap(text)
    if all(len(each) <= over or is_excerpt(each, longest) for each in whole.texts):
        return text
    failed, where = result.is_error or whole.failed, pointer(result)

    def view_of(output: str) -> str:
        if len(output) <= over or is_excerpt(output, longest):
            return output
        trouble = failed or (rule.errors and looks_failed(output))
        view = None if trouble else _brief(output, choice, where)
        if view is None:
            look = rule.errors or failed
            view = ends_in_tokens(
                output, rule.head, rule.tail, cap, where, look=look, failed=trouble
            )
        # The marks in a notice take more bytes than characters.
        return view if len(view) + 8 <= len(output) else output

    views = [view_of(output) for output in whole.texts]
    return text if views == whole.texts else whole.wrap(views)


def _brief(output: str, choice: PruneRule | str, pointer: str) -> str | None:
    """What stands for an output that is no error; None if its ends are to be kept."""
    if isinstance(choice, str):
        return instead_of(output, pointer=pointer, words=sound(choice[:_LONGEST_WORDS]))
    if choice.keep == "count":
        return listing(output, pointer=pointer)
    return instead_of(output, pointer=pointer) if choice.keep == "none" else None


def _own_pointer(result: ToolResult) -> str:
    for part in result.content:
        if isinstance(part, ArtifactPointer):
            return part.artifact
    return f"call {result.call}" if result.call else ""


def keep_pointers(stored: Message, pruned: Message) -> Message:
    """The pruned message with pointers where a result lay in the artifact store: the view is what
    they show, and resolving them gives the whole.
    """
    parts = tuple(map(_with_pointer, stored.parts, pruned.parts))
    return changed(pruned, parts=parts)


def _with_pointer(stored: Part, pruned: Part) -> Part:
    if isinstance(stored, ToolResult) and isinstance(pruned, ToolResult):
        match stored.content, pruned.content:
            case (ArtifactPointer(of="text") as pointer,), (Text(text),):
                shown = msgspec.structs.replace(pointer, head=text)
                return msgspec.structs.replace(pruned, content=(shown,))
    return pruned
