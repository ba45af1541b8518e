"""Shortens the output of a tool: its ends, its errors, or a count of what it lists.

Knows text only; `pruning` knows messages and rules. What is left out is said in a line of its own,
with where the whole can be had::

    [… 1,234 lines left out; the whole result: T-12.3]
    [Summary: 42 files found; the whole result: T-12.3]

Work is in proportion to what is kept, but for counting lines and for looking for the errors of a
command that failed.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from perdure.core.messages import sound
from perdure.core.tokens import o200k

_LONGEST_POINTER = 200
#: What a notice takes at most, besides its number and pointer, with the line behind shown errors.
_NOTICE = len("\n[…  characters left out but for these]\n[…]\n")
_BEFORE, _BEHIND = 120, 280  # Characters shown before and behind an error word.
#: Where a tool writes its exit code: so many characters from either end.
_EXIT_WINDOW = 600
_TROUBLE_WINDOW = 3_000
_HITS = 16
_ERRORS = 4_000  # Characters of errors that are shown where lines are counted, not characters.
_LONGEST_TOKEN = 8  # On average. Characters; of what is denser, a little less is shown.
_TRIES = 8  # To meet a number of tokens by a number of characters.

_notice = re.compile(
    r"^\[(?:… [\d,]+ (?:lines|characters) left out|Summary: [\d,]+ files found)", re.MULTILINE
).search
EXIT_CODE = re.compile(
    r"\b(?:exit(?:ed)?(?: with)?[ _-]?(?:code|status)|return[ _]?code)\b[^\w\n-]{0,4}(-?\d+)",
    re.IGNORECASE,
)
# At the end of an output: it failed. Only `_TROUBLE_WINDOW` is searched with it.
_trouble = re.compile(
    r"^Traceback \(most recent call last\)|^(?:\S{1,200}: )?(?:fatal|panic|error)\b ?[:\[(]"
    r"|^[\w.]{0,100}(?:Error|Exception)\b:|^(?:FAILED |FAIL: |--- FAIL|not ok )|^E  +\S"
    r"|\b[1-9]\d* (?:failed|failures?|errors?)\b|\bSegmentation fault|: command not found",
    re.MULTILINE | re.IGNORECASE,
).search
# Parts of words, so that each is found with or without a capital by a plain search, which is thirty
# times as fast as a pattern.
_ERROR_WORDS = (
    *("rror", "ERR", "xception", "raceback", "FAIL", "ailed", "ailure", "atal: ", "panic"),
    *("denied", "o such file", "not found", "undefined reference", "\nE  "),
)
_harmless = re.compile(r"\b(?:0|no) (?:errors?|failed|failures?)\b", re.IGNORECASE).search


class Whole(NamedTuple):
    """An output without its wrapping: one or several texts, and how to wrap others instead."""

    texts: list[str]
    #: Whether the wrapping tells of an exit code but 0.
    failed: bool
    wrap: Callable[[list[str]], str]


# Codex, and Claude Code for a command that failed.
_header = re.compile(
    r"(?:(?:Exit code:? -?\d+|Process (?:exited|running) with.{0,99}"
    r"|(?:Chunk ID|Wall time|Original token count|Total output lines):.{0,99})\n)+(?:Output:\n)?"
).match
_OUTPUTS = ("output", "stdout", "stderr")
_LARGEST_WRAPPING = 2_000  # beyond that, it is data of another kind
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def unwrap(text: str) -> Whole:
    """The output without the JSON or the header that tools put around it.

    Of ``{"output": "…", "metadata": {"exit_code": 1}}``, that is the output; wrapping gives JSON
    again. Takes ``stdout`` and ``stderr``, too, and lists of such objects.
    """
    bare = text.strip()
    if bare.startswith(("{", "[")) and bare.endswith(("}", "]")):
        found = _unwrap_json(bare)
        if found is not None:
            return found
    header = _header(text)
    if header is not None:
        start = header.end()
        code = EXIT_CODE.search(header[0])
        failed = code is not None and int(code[1]) != 0
        return Whole([text[start:]], failed, lambda texts: text[:start] + texts[0])
    return Whole([text], False, lambda texts: texts[0])


def _unwrap_json(text: str) -> Whole | None:
    if not any(f'"{key}"' in text for key in _OUTPUTS):
        return None
    try:
        data = json.loads(text)
        records = data if isinstance(data, list) else [data]
        outputs, between = _taken_apart(records)
    except (ValueError, RecursionError):
        return None
    if not outputs or not between:
        return None
    first, *others = between
    if isinstance(data, list):
        first, others[-1] = f"[{first}", f"{others[-1]}]"

    def wrap(texts: list[str]) -> str:
        views = (_json(view) + other for view, other in zip(texts, others, strict=True))
        return str(sound(first + "".join(views)))

    return Whole(outputs, any(map(_code_in, records)), wrap)


def _taken_apart(records: list[Any]) -> tuple[list[str], list[str]]:
    outputs, between = [], [""]
    for number, record in enumerate(records):
        if not isinstance(record, dict) or sum(map(len, between)) > _LARGEST_WRAPPING:
            return [], []
        between[-1] += ",{" if number else "{"
        for at, (key, value) in enumerate(record.items()):
            between[-1] += f"{',' if at else ''}{_json(key)}:"
            if key in _OUTPUTS and isinstance(value, str):
                outputs.append(value)
                between.append("")
            else:
                between[-1] += _json(value)
        between[-1] += "}"
    return (outputs, between) if sum(map(len, between)) <= _LARGEST_WRAPPING else ([], [])


def _code_in(record: dict[str, Any]) -> int:
    for place in (record, record.get("metadata"), record.get("outcome")):
        for key in ("exit_code", "exitCode", "returncode"):
            if isinstance(place, dict) and isinstance(place.get(key), int):
                return int(place[key])
    return 0


def is_excerpt(text: str, tokens: int) -> bool:
    """Whether the text was shortened before: it has the notice, and is no longer than that leaves
    it.
    """
    slack = 3 * _LONGEST_POINTER
    if len(text) > tokens * _LONGEST_TOKEN + slack or _notice(text) is None:
        return False
    return _fits(text, tokens + slack)


def looks_failed(text: str) -> bool:
    """Whether it ends like the output of a command that failed, or names an exit code
    other than 0.
    """
    return any(code != 0 for code, _, _ in _exits(text)) or bool(
        _trouble(text, max(0, len(text) - _TROUBLE_WINDOW))
    )


def listing(text: str, *, pointer: str) -> str | None:
    """How many files the text lists, and its exit codes; None if it is no list of names."""
    count = _count(text)
    if count is None:
        return None
    return f"[Summary: {count:,} files found{_where(pointer)}]{_exit_lines(text)}"


def instead_of(text: str, *, pointer: str, words: str = "") -> str:
    begin = words if not words or words.endswith("\n") else f"{words}\n"
    return f"{begin}{_left_out(text, 0, len(text), pointer)}{_exit_lines(text)}"


def ends(
    text: str, head: int, tail: int, cap: int, pointer: str, *, look: bool, failed: bool
) -> str:
    """The first and last lines, in at most `cap` characters with all that is said between them; as
    many lines as asked for if the cap is not below the length.

    With `look`, exit codes stay; if it failed, its error lines too, in up to half of the room. A
    line that does not fit is left out, unless half of the room would stay empty. A very small cap
    is exceeded by the notice and the exit code.
    """
    room, half, aside = len(text), len(text), _ERRORS
    if cap < len(text):
        # A tenth shorter: an excerpt that leaves out next to nothing only costs the reader.
        room = min(cap, len(text) * 9 // 10) - len(f"{len(text):,}{_where(pointer)}") - _NOTICE
        half, aside = room // 2, room - room // 2
    first, last = _edges(text, head, tail, max(room, 0))
    if first >= last:
        return text
    shown: list[tuple[int, int]] = []
    if look:
        low, high = _edges(text, head, tail, max(half, 0))
        exits = [(start, end) for _, start, end in _exits(text) if start < high and end > low]
        errors = error_lines(text, low, high) if failed else []
        if any(start < last and end > first for start, end in (*exits, *errors)):
            first, last, shown = low, high, _chosen(exits, errors, aside)
    begin = text[:first] if not first or text[first - 1] == "\n" else f"{text[:first]}\n"
    notice = _left_out(text, first, last, pointer, " but for these" if shown else "")
    middle = "".join(f"{text[start:end]}\n" for start, end in shown) + "[…]\n" * bool(shown)
    return f"{begin}{notice}\n{middle}{text[last:]}"


def ends_in_tokens(
    text: str, head: int, tail: int, tokens: int, pointer: str, *, look: bool, failed: bool
) -> str:
    """As `ends`, in at most so many tokens; the text itself if it has no more lines and tokens."""
    cap = min(len(text), tokens * _LONGEST_TOKEN)
    for _ in range(_TRIES):
        made = ends(text, head, tail, cap, pointer, look=look, failed=failed)
        if _fits(made, tokens):
            return made
        cap = min(cap, len(made)) * tokens * 97 // (100 * o200k().count(made))
    return ends(text, head, tail, tokens // 4, pointer, look=look, failed=failed)


def _fits(text: str, tokens: int) -> bool:
    # No token is shorter than a byte.
    return len(sound(text).encode()) <= tokens or o200k().count(text) <= tokens


def _where(pointer: str) -> str:
    pointer = " ".join(sound(pointer).split())
    return f"; the whole result: {pointer[:_LONGEST_POINTER]}" if pointer else ""


def _left_out(text: str, first: int, last: int, pointer: str, except_for: str = "") -> str:
    lines = text.count("\n", first, last) + (last == len(text) and not text.endswith("\n"))
    many = f"{lines:,} lines" if lines > 1 else f"{last - first:,} characters"
    return f"[… {many} left out{except_for}{_where(pointer)}]"


def _edges(text: str, head: int, tail: int, room: int) -> tuple[int, int]:
    half = room // 2 if room < len(text) else room
    first = _settled(text, _after(text, head, half), -1)
    last = _settled(text, _before(text, tail, room - first), 1)
    return first, last


def _after(text: str, lines: int, room: int) -> int:
    at = 0
    for _ in range(lines):
        found = text.find("\n", at, room)
        if found < 0:
            return room if room - at > room // 2 else at
        at = found + 1
    return at


def _before(text: str, lines: int, room: int) -> int:
    limit = len(text) - room
    at = len(text)
    for _ in range(lines):
        # The break that ends a line belongs to it.
        found = text.rfind("\n", limit, max(at - 1, limit))
        if found < 0:
            begins = not limit or text[limit - 1] == "\n"
            return limit if begins or at - limit > room // 2 else at
        at = found + 1
    return at


def _settled(text: str, at: int, step: int) -> int:
    """The place, moved so that it splits no character that a reader sees as one."""
    for _ in range(32):
        if not 0 < at < len(text) or not _joined(text[at - 1], text[at]):
            break
        at += step
    return at


def _joined(left: str, right: str) -> bool:
    if right < "\u0300":
        return left == "\r" and right == "\n"
    return (
        "\udc00" <= right <= "\udfff"
        or left == "\u200d"  # joins emoji
        or right in "\u200d\ufe0e\ufe0f"
        or "\U0001f3fb" <= right <= "\U0001f3ff"  # skin tones
        or (_is_flag(left) and _is_flag(right))
        or unicodedata.category(right).startswith("M")
        or unicodedata.combining(left) == 9  # binds two consonants of Indian scripts
    )


def _is_flag(letter: str) -> bool:
    return "\U0001f1e6" <= letter <= "\U0001f1ff"


def _exits(text: str) -> Iterator[tuple[int, int, int]]:
    done = 0
    for start, end in ((0, _EXIT_WINDOW), (len(text) - _EXIT_WINDOW, len(text))):
        for found in EXIT_CODE.finditer(text, max(start, done), end):
            if found.start() >= done:
                first, done = _around(text, found.start(), done, len(text))
                yield int(found[1]), first, done


def _exit_lines(text: str) -> str:
    return "".join(f"\n{text[start:end]}" for _, start, end in _exits(text))


def _around(text: str, at: int, low: int, high: int) -> tuple[int, int]:
    low, high = max(low, at - _BEFORE), min(high, at + _BEHIND)
    start, end = text.rfind("\n", low, at + 1) + 1, text.find("\n", at + 1, high)
    return _settled(text, start or low, 1), _settled(text, high if end < 0 else end, -1)


def _chosen(
    exits: list[tuple[int, int]], errors: list[tuple[int, int]], room: int
) -> list[tuple[int, int]]:
    chosen = exits.copy()
    room -= sum(end - start + 1 for start, end in chosen)
    left = deque(errors)
    while left:
        # Alternately the last and the first: what failed in the end, what went wrong to begin with.
        start, end = left.pop() if len(left) % 2 == 0 else left.popleft()
        if room < end - start + 1:
            break
        if all(end <= other or start >= until for other, until in exits):
            chosen.append((start, end))
            room -= end - start + 1
    return sorted(chosen)


def error_lines(text: str, first: int, last: int) -> list[tuple[int, int]]:
    """Where lines between two places tell of errors: of many, the first and the last ones."""
    found: dict[int, int] = {}
    for word in _ERROR_WORDS:
        low, high = first, last
        # Backwards first: that search is twice as fast, and mostly finds nothing.
        for _ in range(_HITS):
            if (at := text.rfind(word, low, high)) < 0:
                high = low
                break
            start, found[start] = _around(text, at, first, last)
            high = min(start, at)
        for _ in range(_HITS):
            if (at := text.find(word, low, high)) < 0:
                break
            start, found[start] = _around(text, at, first, last)
            low = max(found[start], at + 1)
    errors: list[tuple[int, int]] = []
    for start, end in sorted(found.items()):
        if (not errors or start >= errors[-1][1]) and not _harmless(text, start, end):
            errors.append((start, end))
    return errors


_LONGEST_NAME = 1_024
_tree_summary = re.compile(r"\d+ director(?:y|ies)(?:, (\d+) files?)?\s*\Z").search
# What tools write around a list: ls its blocks and its folders, Claude Code its remarks.
_not_a_file = re.compile(r"total \d+$|\(.*\)$|NOTE: |.*:$").match


def _count(text: str) -> int | None:
    if text[:1] not in ("[", "{"):
        return _count_lines(text)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return _count_lines(text)
    values = data.values() if isinstance(data, dict) else [data]
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) != 1 or not all(_is_name(item) for item in lists[0]):
        return None
    return len(lists[0])


def _is_name(item: Any) -> bool:
    if isinstance(item, dict):
        item = item.get("path") or item.get("name")
    return isinstance(item, str) and len(item) <= _LONGEST_NAME


def _count_lines(text: str) -> int | None:
    tree = _tree_summary(text, max(0, len(text) - 100))
    if tree:
        return int(tree[1] or 0)
    lines = text.splitlines()
    if max(map(len, lines), default=0) > _LONGEST_NAME:
        return None
    # Remarks stand at either end; folders stand anywhere, but few lists of theirs are that long.
    looked_at = lines if len(lines) < 2_000 else lines[:2] + lines[-2:]
    others = sum(1 for line in looked_at if line and (line.isspace() or _not_a_file(line)))
    return len(lines) - lines.count("") - others
