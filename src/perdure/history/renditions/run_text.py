"""C of several neighbouring rounds of tool work, chosen together.

Each call has its line, as in C of a round: what was asked, and what came of it; a call that was
made again has one, with what came of it last. What room is left is shared by all of them. It goes
to lines of what the model wrote and read: those that name most which nothing at S names. What a
model wrote itself it comes back to seven times as often as to what it has only read; so that comes
first::

    Edit `lib/live.py`: def load_errors(socket): · compute_data(pane_id, breakpoint_map)
    shell `pytest -q`: 3 failed, 12 passed in 1.2s
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter

import msgspec

from perdure.core.messages import Message
from perdure.core.tokens import Counter
from perdure.history.renditions import algorithm
from perdure.history.renditions.line_choice import best_lines, names_in_line
from perdure.history.renditions.merged_text import merge
from perdure.history.renditions.sentences import binds
from perdure.history.renditions.tool_calls import call_line, lines_of

_A_TOKEN = 3.2  # Characters, at first.
_TRIES = 4
_WORDS = 3  # Where there is little room, what was said has this part of it at most.
_names = re.compile(r"\s*\((?:Also|About): [^\n]*$").sub
_DEEP = 3  # Parts of a path that are a folder worth to be left out.
_path = re.compile(r"(?<![\w.:…])/?(?:[\w.@+~-]+/){4,}[\w.@+*~-]+").sub


class _Entry(msgspec.Struct):
    """What somebody said; or a call, as often as it was made, and what came of it last. And lines
    that may be told with it.
    """

    text: str = ""
    came: str = ""
    times: int = 1
    written: list[str] = []
    read: list[str] = []
    spoken: bool = False  # By the user, or it binds.

    def told(self, lines: Sequence[str]) -> str:
        often = f" ×{self.times}" if self.times > 1 else ""
        begin = f"{self.text}{often}: {self.came}" if self.came else f"{self.text}{often}"
        return "; ".join(filter(None, [begin, " · ".join(lines)]))


def run_text(
    rounds: Sequence[Sequence[Message]], cap: int, shown: AbstractSet[str], counter: Counter
) -> str:
    """C of these rounds in at most `cap` tokens. `shown` are names (`line_choice.names_in_line`)
    that stand in the window anyway.
    """
    entries = _entries(rounds)
    offered = [
        (at, line) for at, each in enumerate(entries) for line in (*each.written, *each.read)
    ]
    wrote = {name for each in entries for line in each.written for name in names_in_line(line)}
    lines = [(line, set(names_in_line(line))) for _, line in offered]
    least = [told for each in entries if (told := each.told(()))]
    named = {name for line in least for name in names_in_line(line)} | shown
    taken_up = counter.count("\n".join(least))
    room = cap - taken_up
    if room < 0:
        return _briefly(entries, cap, shown, counter)
    best, wide = "\n".join(least), _A_TOKEN * room
    for _ in range(_TRIES):
        taken = best_lines(lines, int(wide), named, preferred=wrote)
        text = _told(entries, [offered[at] for at in sorted(taken)])
        tokens = counter.count(text)
        if tokens > cap:
            wide *= 0.9 * room / max(tokens - taken_up, 1)
            continue
        best = max(best, text, key=len)
        if tokens * 20 >= cap * 19 or len(taken) == len(offered):
            break
        wide *= 1 + (cap - tokens) / max(tokens - taken_up, room / 4, 1)
    return best


def _briefly(entries: Sequence[_Entry], cap: int, shown: AbstractSet[str], counter: Counter) -> str:
    """Where there is no room for a line of each call: what the user said and what binds, in a third
    of the room at most; then those lines of all calls that name most.
    """
    said = [(at, each.text) for at, each in enumerate(entries) if each.spoken]
    words = "\n".join(text for _, text in said)
    if counter.count(words) * _WORDS > cap:
        words = merge([text for _, text in said], cap // _WORDS, counter)
        said = [(-1, words)] if words else []
    offered = [
        (at, line)
        for at, each in enumerate(entries)
        if not each.spoken
        for line in (each.told(()), *each.written, *each.read)
        if line
    ]
    wrote = {
        name
        for each in entries
        for line in (each.text, *each.written)
        for name in names_in_line(line)
    }
    lines = [(line, set(names_in_line(line))) for _, line in offered]
    named = shown | set(names_in_line(words))
    best, wide = words, _A_TOKEN * (cap - counter.count(words))
    for _ in range(_TRIES):
        taken = best_lines(lines, int(wide), named, preferred=wrote)
        told = sorted([*said, *(offered[at] for at in sorted(taken))], key=itemgetter(0))
        text = "\n".join(line for _, line in told)
        tokens = counter.count(text)
        if tokens > cap:
            wide *= 0.95 * cap / tokens
            continue
        best = max(best, text, key=len)
        if tokens * 20 >= cap * 19 or len(taken) == len(offered):
            break
        wide *= cap / max(tokens, 1)
    return best


def _entries(rounds: Sequence[Sequence[Message]]) -> list[_Entry]:
    found, calls, paths = list[_Entry](), dict[str, _Entry](), _Paths()
    for messages in rounds:
        works = any(message.calls for message in messages)
        for line, used in algorithm.compact_parts(messages):
            if used is None:
                said = _names("", line)
                # Most that is said between calls announces what follows.
                announces = works and not said.startswith("User") and not binds(said)
                found.append(_Entry(written=[said]) if announces else _Entry(said, spoken=True))
                continue
            begin, came = call_line(used)
            written, read = lines_of(used)
            entry = _Entry(begin, came, written=written, read=read)
            if before := calls.get(begin):
                found.remove(before)
                entry.times += before.times
                entry.written = before.written + entry.written
                entry.read = before.read + entry.read
            calls[begin] = entry
            found.append(entry)
    for entry in found:
        entry.text = paths.shortened(entry.text)
    return found


def _told(entries: Sequence[_Entry], taken: Sequence[tuple[int, str]]) -> str:
    lines = dict[int, list[str]]()
    for at, text in taken:
        lines.setdefault(at, []).append(text)
    told = (each.told(lines.get(at, ())) for at, each in enumerate(entries))
    return "\n".join(filter(None, told))


class _Paths:
    """Shortens paths into folders that were named before."""

    def __init__(self) -> None:
        self._folders = set[str]()

    def shortened(self, line: str) -> str:
        return _path(self._short, line)

    def _short(self, found: re.Match[str]) -> str:
        path = found[0]
        *parts, _, _ = path.split("/")
        folders = {"/".join(parts[:end]) for end in range(_DEEP, len(parts) + 1)}
        known = max(folders & self._folders, key=len, default="")
        self._folders |= folders
        return f"…{path[len(known) :]}" if known else path
