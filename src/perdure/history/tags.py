"""The names that turns, rounds and ranges have in a prompt, and the elements that wrap them.

    <T-183-C>…</T-183-C>                             a turn
    <T-183.4-S>…</T-183.4-S>                         a round
    <T-50-through-100-T>…</T-50-through-100-T>       turns, merged into one
    <T-183.1-through-183.40-C>…                      rounds of a long turn

What stands inside is escaped, so that no text can close an element or open another. What a model
writes is never trusted to hold no tags: `history.leaks` hides them in views and counts them.
"""

from __future__ import annotations

import re
from functools import cache

from perdure.core.levels import Level
from perdure.core.turns import Position

#: Elements of ours besides those of turns; escaped like them.
OURS = ("perdure-board", "perdure-memory", "perdure-note", "perdure-history")

_ID = r"T-\d+(?:\.\d+)?(?:-through-\d+(?:\.\d+)?)?-[RSCT]"
_TAG = rf"</?\s*(?:{_ID}|{'|'.join(OURS)})\b"
# A tag that is not complete could be completed by what follows it in the prompt: so its beginning
# is enough to be escaped.
_begins_tag = re.compile(rf"<(?=[\s/]*(?:T-\d|{'|'.join(OURS)}))", re.IGNORECASE)
_ESCAPED = rf"&lt;(?=[\s/]*(?:T-\d|{'|'.join(OURS)}))"
# What stands behind a name ends with the line: a tag that is never closed hides no other words.
_WHOLE = rf"{_TAG}[^<>\n]*>"
# A line that holds nothing else goes with its tags; from a line with words, one blank beside each
# goes. Each pattern begins where only few places can match: a long run of blanks takes no longer.
_TAG_LINES = rf"^[ \t]*(?:{_WHOLE}[ \t]*)+(?:\r?\n|\Z)"
_TAG_BESIDE = rf"(?:^|(?<=[ \t])){_WHOLE}[ \t]?|{_WHOLE}"


def name_of(first: Position, last: Position) -> str:
    """``T-183``, ``T-183.4``, ``T-50-through-100``, ``T-183.1-through-183.40``."""
    return str(first) if first == last else f"{first}-through-{str(last)[2:]}"


def opening(name: str, level: Level) -> str:
    return f"<{name}-{level}>"


def closing(name: str, level: Level) -> str:
    return f"</{name}-{level}>"


def element(name: str, level: Level, text: str) -> str:
    """The text, escaped, in its element."""
    return f"{opening(name, level)}\n{escape(text)}\n{closing(name, level)}"


def escape(text: str) -> str:
    """The text with ``<`` of everything that looks like a tag of ours written ``&lt;``.

    Nothing else changes. Escaping again changes nothing.
    """
    return _begins_tag.sub("&lt;", text) if "<" in text else text


def unescape(text: str) -> str:
    """What `escape` was given, unless that held such escapes itself."""
    return _compiled(_ESCAPED).sub("<", text) if "&lt;" in text else text


def without_tags(text: str) -> tuple[str, int]:
    """The text without tags of ours, and how many there were: for showing what a model said."""
    count = sum(1 for _ in _compiled(_WHOLE).finditer(text)) if "<" in text else 0
    if not count:
        return text, 0
    return _compiled(_TAG_BESIDE).sub("", _compiled(_TAG_LINES).sub("", text)), count


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # When first used: most processes never see a tag where none should be.
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)
