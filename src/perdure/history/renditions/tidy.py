"""Removes noise from words, and nothing else: blanks, repetition, decoration.

Code, inline code, URLs, paths, identifiers and quoted output come out byte for byte; so do tables
and whatever is laid out with blanks. Takes time in proportion to the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

#: What no correction may touch: fences (the last may be open), inline code, quoted or indented
#: lines, lines of a shell, strings in double quotes, and every word with a sign of code in it.
protected = re.compile(
    r"""(?P<fence>^[ ]{0,12}(?P<mark>`{3,}|~{3,})(?s:.*?)(?:^[ ]*(?P=mark)[`~]*[ ]*$|\Z))
      | ^(?:[ ]{4,}|\t|[ ]{0,3}>|[ ]*(?:\$|%|>>>|\#!)[ ]).*$
      | `[^`\n]+`
      | "[^"\n]{1,400}"
      | (?<!\S)[^\s]{0,400}?[/\\_@$=<>{}\[\]|~^&%\d]\S*
    """,
    re.VERBOSE | re.MULTILINE,
)
_trailing = re.compile(r"[ \t]+$", re.MULTILINE)
_blank_lines = re.compile(r"\n{3,}")
_marks = re.compile(r"!{2,}|\?{2,}|(?:[!?]{3,})|\.{4,}|,{2,}(?=\s)|;{2,}(?=\s)|…{2,}")
_stretched = re.compile(r"([a-z])\1{4,}", re.IGNORECASE)
# A line of prose with one gap in it: several gaps are a table.
_gap = re.compile(r"^(\S+(?: \S+){3,}) {2,}(\S+(?: \S+){2,})$", re.MULTILINE)
_rule = re.compile(r"^[ \t]*(?:[-=*_~#+]{4,}|[─━═]{3,})[ \t]*\n?", re.MULTILINE)


def outside(text: str, change: Callable[[str], str]) -> str:
    """The text, with what is not protected changed."""
    pieces: list[str] = []
    at = 0
    for found in protected.finditer(text):
        if found.start() > at:
            pieces.append(change(text[at : found.start()]))
        pieces.append(found[0])
        at = found.end()
    if not at:
        return change(text)
    if at < len(text):
        pieces.append(change(text[at:]))
    return "".join(pieces)


def tidied(text: str) -> str:
    """The text without noise. Tidying again changes nothing that a reader would see."""
    if not text:
        return text
    fenced = "```" in text or "~~~" in text
    changed = _outside_fences(text, _tidied_lines) if fenced else _tidied_lines(text)
    return changed.strip("\n")


_fences = re.compile(r"^[ ]{0,12}(`{3,}|~{3,})(?s:.*?)(?:^[ ]*\1[`~]*[ ]*$|\Z)", re.MULTILINE)


def _outside_fences(text: str, change: Callable[[str], str]) -> str:
    pieces: list[str] = []
    at = 0
    for found in _fences.finditer(text):
        pieces += (change(text[at : found.start()]), found[0])
        at = found.end()
    return "".join((*pieces, change(text[at:])))


def _tidied_lines(text: str) -> str:
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    text = _trailing.sub("", text)
    text = _rule.sub("", text)
    text = _blank_lines.sub("\n\n", text)
    text = _without_repetition(text)
    if "  " in text:
        text = _gap.sub(r"\1 \2", text)
    if _marks.search(text):
        text = outside(text, _plain_marks)
    return text


def _plain_marks(text: str) -> str:
    return _marks.sub(_mark, text)


def _mark(found: re.Match[str]) -> str:
    marks = found[0]
    if marks[0] == ".":
        return "..."
    return "?!" if "?" in marks and "!" in marks else marks[0]


def _without_repetition(text: str) -> str:
    """Of several equal lines in a row, one, and how many there were."""
    lines = text.split("\n")
    if len(lines) < 3:
        return text
    kept: list[str] = []
    times = 1
    for line in lines:
        if kept and line == kept[-1] and line.strip():
            times += 1
            continue
        if times > 1:
            _close(kept, times)
            times = 1
        kept.append(line)
    if times > 1:
        _close(kept, times)
    return "\n".join(kept)


def _close(kept: list[str], times: int) -> None:
    """Ends a run of equal lines. A short line twice costs less than saying that it was twice."""
    if times == 2 and len(kept[-1]) < 8:
        kept.append(kept[-1])
    else:
        kept[-1] = f"{kept[-1]} (×{times})"
