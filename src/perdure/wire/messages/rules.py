"""The rules of Anthropic Messages for a list of messages.

Neighbours of the same role are one turn. Blocks of unknown types are not checked. That an
assistant's message comes last, which newer models refuse, is left to the caller: it is wrong for a
request and right for a history.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from perdure.wire.plain import kind_of, role_of
from perdure.wire.rules import Found, is_name, listed

NAME_LIMIT = 128
ID_LIMIT = 1_000  # none is documented

_ROLES = frozenset({"user", "assistant", "system"})
_THINKING = ("thinking", "redacted_thinking")


class _Turn(NamedTuple):
    role: str
    #: Each block with the position of its message.
    blocks: list[tuple[int, Any]]


def violations(items: list[Any]) -> list[str]:
    found = Found("messages")
    turns = _turns(items, found)
    if turns and turns[0].role != "user":
        found.add(0, "the first message is a user's")
    ids: set[str] = set()
    calls: set[str] = set()  # of the turn before
    for turn in turns:
        if turn.role == "user":
            _check_results(turn, calls, found)
            calls = set()
        else:
            if calls:
                found.add(turn.blocks[0][0], f"comes before the results of {listed(calls)}")
            calls = _check_calls(turn, ids, found)
    if calls:
        found.add(len(items), f"the results of {listed(calls)} are missing")
    return found.all


def shape_violations(items: list[Any]) -> list[str]:
    """Each message by itself: without ids, names and order."""
    found = Found("messages")
    for at, item in enumerate(items):
        _check_shape(item, at, found)
    return found.all


def _turns(items: list[Any], found: Found) -> list[_Turn]:
    turns: list[_Turn] = []
    for at, item in enumerate(items):
        blocks = _check_shape(item, at, found)
        if not blocks:
            continue
        role = item["role"]
        if role == "system":
            follows = bool(turns) and turns[-1].role == "user"
            found.check(at, "system text follows a user's turn", holds=follows)
            continue
        if not turns or turns[-1].role != role:
            turns.append(_Turn(role, []))
        turns[-1].blocks.extend((at, block) for block in blocks)
    return turns


def _check_shape(item: Any, at: int, found: Found) -> list[Any]:
    if role_of(item) not in _ROLES:
        found.add(at, f"a message is an object with one of the roles {listed(_ROLES)}")
        return []
    found.kept(at, item)
    role, content = item["role"], item.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        found.add(at, "a content is a string or a list of at least one block")
        return []
    for block in content:
        _check_block(block, role, at, found)
    if role == "assistant":
        closed = kind_of(content[-1]) not in _THINKING
        found.check(at, "the last block of a reply is not thinking", holds=closed)
    return content


def _check_block(block: Any, role: str, at: int, found: Found) -> None:
    kind = kind_of(block)
    if not kind:
        found.add(at, "a block is an object with a type")
    elif kind == "text":
        text = block.get("text")
        found.check(at, "a text is not blank", holds=isinstance(text, str) and bool(text.strip()))
    elif kind in {"thinking", "redacted_thinking", "tool_use"}:
        found.check(at, f"only a reply has {kind} blocks", holds=role == "assistant")
        if kind == "thinking":
            signed = isinstance(block.get("signature"), str)
            found.check(at, "thinking has its signature", holds=signed)
    elif kind in {"tool_result", "image", "document"}:
        found.check(at, f"only a user's message has {kind} blocks", holds=role == "user")
    if kind in {"image", "document"}:
        found.check(at, f"{kind} has a source", holds=kind_of(block.get("source")) != "")
    elif kind == "tool_use":
        found.check(at, "a call's input is an object", holds=isinstance(block.get("input"), dict))
    elif kind == "tool_result":
        _check_result(block, at, found)


def _check_calls(turn: _Turn, ids: set[str], found: Found) -> set[str]:
    calls: set[str] = set()
    for at, block in turn.blocks:
        if kind_of(block) != "tool_use":
            continue
        call, name = block.get("id"), block.get("name")
        rule = f"the call's id {call!r} is not made of a-z, A-Z, 0-9, _ and -"
        if found.check(at, rule, holds=is_name(call, ID_LIMIT)):
            found.check(at, f"two calls have the id {call!r}", holds=call not in ids | calls)
            calls.add(call)
        rule = f"the tool's name {name!r} is not 1 to {NAME_LIMIT} of a-z, A-Z, 0-9, _ and -"
        found.check(at, rule, holds=is_name(name, NAME_LIMIT))
    ids |= calls
    return calls


def _check_results(turn: _Turn, calls: set[str], found: Found) -> None:
    waiting = set(calls)
    others = False
    for at, block in turn.blocks:
        if kind_of(block) != "tool_result":
            others = True
            continue
        call = block.get("tool_use_id")
        if isinstance(call, str) and call in waiting:
            waiting.discard(call)
            found.check(at, "results come before anything else", holds=not others)
        else:
            found.add(at, f"answers {call!r}, which is no open call of the reply before it")
    if waiting:
        found.add(turn.blocks[0][0], f"the results of {listed(waiting)} are missing")


def _check_result(block: dict[str, Any], at: int, found: Found) -> None:
    content = block.get("content")
    if not isinstance(content, list):
        known = isinstance(content, str | None)
        found.check(at, "a result's content is a string or a list of blocks", holds=known)
        return
    for inner in content:
        _check_block(inner, "user", at, found)
        if block.get("is_error") is True:
            words = kind_of(inner) == "text"
            found.check(at, "a result that is an error holds text only", holds=words)
