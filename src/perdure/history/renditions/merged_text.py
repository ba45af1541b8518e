"""Says in one text what happened in several neighbouring renditions.

Every part gets its share of the room, so that the whole stretch is told, not only its head. Where
there is no room for all parts, neighbours send the one that says most: requests and what binds say
more than chatter, and what takes something back more than what it takes back. What is kept stands
in order and carries the id of its turn, by which the rest can be fetched::

    T-50: User: Add OAuth. Assistant: PKCE was chosen, tokens live in `auth.db`.
    T-53: Assistant: Login failed with `invalid_grant` until the clock was set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from perdure.core.messages import sound
from perdure.core.tokens import Counter
from perdure.history.reduce_messages import level
from perdure.history.renditions.facts import facts
from perdure.history.renditions.sentences import binds, retracts, truncate
from perdure.history.renditions.tiny_text import gist_of, names_of, value_of
from perdure.history.renditions.unit_weights import bounded, is_idle

_LEAST = 26  # With less room than that, a part says nothing.
_NAMES_FROM = 40  # With so much room, a cut part names facts that are not in its sentences.
#: So many of a run of neighbours are compared.
_HEARD = 24
_REQUEST, _NEARLY, _LONGEST_CHATTER = 2.0, 0.6, 80
_id = re.compile(r"T-\d+(?:\.\d+)?(?:-through-(?:T-)?\d+(?:\.\d+)?)?(?:-T)?:\s*", re.ASCII).match
_speaker = re.compile(r"[^\s:`][^:`\n]{0,50}: ").match
_names = re.compile(r"\s*\((?:Also|About): [^\n]*$")
_TOOL = "` was called"


class _Item(NamedTuple):
    id: str  # with the colon and the blank behind it
    text: str
    tokens: int


def merge(parts: Sequence[str], cap: int, counter: Counter) -> str:
    """One text of at most `cap` tokens for several, in their order. Never more than they have. A
    line that begins with an id (``T-50: …``) begins that turn, round or range. Linear time.
    """
    seats = max(1, cap // _LEAST)
    if len(parts) > seats * _HEARD * 2:
        parts = parts[:: len(parts) // (seats * _HEARD)]
    items = [item for part in parts for item in _items(str(sound(part)), counter)]
    whole = "\n".join(f"{item.id}{item.text}" for item in items)
    if sum(item.tokens for item in items) <= cap * 2 and counter.count(whole) <= cap:
        return whole
    if len(items) > seats:
        items = _delegates(items, seats)
    best = ""
    room = cap
    for _ in range(4):
        text = "\n".join(_told(items, room, counter))
        tokens = counter.count(text)
        if tokens <= cap:
            best = max(best, text, key=len)
            if tokens * 10 >= cap * 9:
                break
            # What sentences leave of their shares is shared out again.
            room += cap - tokens
        else:
            room -= tokens - cap + cap // 50 + 1
    return best or truncate(whole, cap, counter)


def _items(part: str, counter: Counter) -> list[_Item]:
    found: list[tuple[str, list[str]]] = []
    for line in part.splitlines():
        if not line.strip():
            continue
        begin = _id(line)
        if begin or not found:
            found.append((begin[0] if begin else "", [line[begin.end() if begin else 0 :]]))
        else:
            found[-1][1].append(line)
    texts = ((id, bounded("\n".join(lines))) for id, lines in found)
    return [_Item(id, text, counter.count(f"{id}{text}") + 1) for id, text in texts]


def _delegates(items: list[_Item], seats: int) -> list[_Item]:
    many = len(items)
    runs = (items[seat * many // seats : (seat + 1) * many // seats] for seat in range(seats))
    # Of a long run some are heard: it makes no difference which of a thousand turns is named.
    heard = (run[:: -(-len(run) // _HEARD)] for run in runs)
    return [_delegate(run) for run in heard]


def _delegate(run: Sequence[_Item]) -> _Item:
    worths = [_worth(item.text) for item in run]
    best = max(range(len(run)), key=lambda at: (worths[at], -at))
    for at in range(best + 1, len(run)):
        text = run[at].text
        again = retracts(text)
        if again or worths[at] >= worths[best] * _NEARLY:
            named, before = set(facts(text)), set(facts(run[best].text))
            shared = len(named & before)
            if shared and (again or shared * 2 >= len(named)):
                best = at
    return run[best]


def _worth(text: str) -> float:
    said = [line for line in text.split("\n") if _TOOL not in line]
    plain = _names.sub("", "\n".join(said))
    failed = " failed" in text
    worth = value_of(plain) + 0.1 * value_of(text) + 2 * failed + min(binds(plain), 4)
    if any(_chatter(line) for line in said):
        said = [line for line in said if not _chatter(line)]
        worth = worth if said else worth * 0.2
    return worth + _REQUEST * any(line.startswith("User") for line in said)


def _chatter(line: str) -> bool:
    begin = _speaker(line)
    words = line[begin.end() :] if begin else line
    return len(words) < _LONGEST_CHATTER and (is_idle(words) or words.count(" ") < 2)


def _told(items: list[_Item], room: int, counter: Counter) -> list[str]:
    share = level([item.tokens for item in items], room)
    lines: list[str] = []
    for item in items:
        if item.tokens <= share:
            lines.append(f"{item.id}{item.text}")
            continue
        text = _shortened(item.text, share - counter.count(item.id) - 1, counter)
        if text:
            lines.append(f"{item.id}{text}")
    return lines


def _shortened(text: str, room: int, counter: Counter) -> str:
    lines = [line for line in (_names.sub("", each) for each in text.split("\n")) if line.strip()]
    if not lines or room < 4:
        return truncate(text, room, counter)
    if len(lines) * _LEAST > 2 * room:
        keep = max(1, 2 * room // _LEAST)
        ranked = sorted(range(len(lines)), key=lambda at: (-_worth(lines[at]), at))
        lines = [lines[at] for at in sorted(ranked[:keep])]
    left = room
    told: list[str] = []
    for number, line in enumerate(lines):
        short = _line(line, left // (len(lines) - number) - 1, counter)
        if short:
            told.append(short)
            left -= counter.count(short) + 1
    short = "\n".join(told)
    if left >= _NAMES_FROM // 4 and room >= _NAMES_FROM:
        names = names_of(text, short, left - 5, counter)
        if names:
            short = f"{short} (Also: {', '.join(names)})"
    return short if counter.count(short) <= room else truncate(short, room, counter)


def _line(line: str, room: int, counter: Counter) -> str:
    if counter.count(line) <= room:
        return line
    if _TOOL in line:
        return truncate(line, room, counter)
    begin = _speaker(line)
    who = begin[0] if begin else ""
    text = gist_of(line[len(who) :], room - counter.count(who), counter)
    return f"{who}{text}" if text else ""
