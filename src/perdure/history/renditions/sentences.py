"""Cuts words into units that can be kept or left out: sentences, list items, headings, code.

    units("See v1.2.3 of a.b.c(). It works, e.g. here.")
    [Unit("See v1.2.3 of a.b.c().", "sentence", 0), Unit("It works, e.g. here.", "sentence", 0)]

Nothing is cut inside a code fence, inline code, a URL, a path, a number, behind an abbreviation.
Works for every script that ends sentences with ``.``, ``!``, ``?``, ``。``, ``؟``, ``।`` or their
wide forms. Takes time in proportion to the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

Kind = Literal["sentence", "item", "heading", "row", "code"]


class Unit(NamedTuple):
    """A piece of a text."""

    text: str
    kind: Kind
    #: Which paragraph or list it belongs to.
    paragraph: int


_fence = re.compile(r" {0,12}(`{3,}|~{3,})").match
_item = re.compile(r"\s*(?:[-*+•▪◦·–]|\d{1,3}[.)]|[a-zA-Z][.)]|\[[ xX]\])\s+").match
_heading = re.compile(r"\s{0,3}#{1,6}\s|\s{0,3}\*\*[^*\n]{1,80}\*\*:?\s*$").match
_row = re.compile(r"\s*\|.*\|\s*$").match
_rule = re.compile(r"[\s|:=*_~#+.─━═│┌┐└┘├┤┬┴┼╭╮╰╯-]*$").match
_code = re.compile(r"`[^`\n]+`")
# Where a sentence may end. Wide marks need no blank behind them.
_end = re.compile(
    r"""[.!?…؟।]["'”’)\]»*_]{0,4}(?=\s)|[。！？｡]["'”’」』）】]{0,4}|[؛；](?=\s)""",  # noqa: RUF001 (ends of sentences)
)
_last_word = re.compile(r"(?:^|[\s(\[\"'“‘])([^\s(\[\"'“‘]{1,12})$").search  # noqa: RUF001
_ABBREVIATIONS = frozenset(
    """e.g i.e eg ie etc vs cf al approx ca no nos fig figs sec ch vol pp p ed eds mr mrs ms dr
    prof sr jr st inc ltd co corp dept est min max avg resp incl excl aka a.k.a u.s u.k a.m p.m
    ph.d viz jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun z.b d.h
    bzw usw ggf evtl u.a sog nr str bspw vgl p.ex env sra srta tel""".split()  # noqa: SIM905 (a text is easier to read)
)
_months = re.compile(
    r"Jan|Feb|Mär|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez|Uhr|Etage|Stock|Klasse|Kapitel"
).match
#: A line this long was broken by a margin, not by a thought.
_FULL_LINE = 56


def sentences(text: str) -> list[str]:
    """The texts of the units."""
    return [unit.text for unit in units(text)]


def units(text: str) -> list[Unit]:
    """The units of a text, in order. Blank lines and lines that only decorate are in none."""
    found: list[Unit] = []
    for number, (kind, block) in enumerate(_blocks(text)):
        if kind in {"code", "heading", "row"}:
            found.append(Unit(block, kind, number))
        else:
            found += (Unit(piece, kind, number) for piece in split(block))
    return found


def split(paragraph: str) -> list[str]:
    """The sentences of one paragraph, without the blanks between them."""
    hidden = [found.span() for found in _code.finditer(paragraph)] if "`" in paragraph else []
    pieces: list[str] = []
    start = at = 0
    for found in _end.finditer(paragraph):
        end = found.end()
        while at < len(hidden) and hidden[at][1] <= found.start():
            at += 1
        if at < len(hidden) and hidden[at][0] < end <= hidden[at][1]:
            continue
        if found[0][0] in ".…" and not _ends(paragraph, start, found.start(), end):
            continue
        piece = paragraph[start:end].strip()
        if piece:
            pieces.append(piece)
        start = end
    rest = paragraph[start:].strip()
    if rest:
        pieces.append(rest)
    return pieces


def _ends(text: str, start: int, dot: int, end: int) -> bool:
    """Whether a sentence ends with this dot."""
    behind = text[end : end + 8].lstrip()
    if not behind or behind[0].islower():
        return not behind
    if text[dot] == "…" and not behind[0].isalpha():
        return False
    before = _last_word(text[max(start, dot - 14) : dot])
    if before is None:
        return True
    word = before[1].casefold().rstrip(".")
    if word.isdigit() and len(word) < 3 and _months(behind):
        return False  # 14. März
    if len(word) == 1 and word.isalpha() and word != "i":
        return False  # an initial
    if word == "no":
        return not behind[0].isdigit()  # an answer, not a number
    return word not in _ABBREVIATIONS and not (dot - max(start, 0) <= 3 and word.isdigit())


def _blocks(text: str) -> Iterator[tuple[Kind, str]]:
    """Code, and paragraphs whose lines are joined."""
    fence = ""
    held: list[str] = []
    kind: Kind = "sentence"
    for line in text.splitlines():
        if fence:
            held.append(line)
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                yield "code", "\n".join(held)
                fence, held = "", []
            continue
        opened = _fence(line) if "```" in line or "~~~" in line else None
        if opened and "`" not in line[opened.end() :]:
            if held:
                yield kind, _joined(held)
            fence, held = opened[1], [line]
            continue
        new = _kind(line)
        if new is None or not (
            held
            and new == "sentence"
            and len(held[-1]) >= _FULL_LINE
            and (kind == "sentence" or line.startswith(" "))
        ):
            if held:
                yield kind, _joined(held)
            held = []
        if new is not None:
            kind = new if not held else kind
            held.append(line)
    if held:
        yield ("code", "\n".join(held)) if fence else (kind, _joined(held))


def _joined(lines: list[str]) -> str:
    return lines[0].strip() if len(lines) == 1 else " ".join(line.strip() for line in lines)


def _kind(line: str) -> Kind | None:
    if not line or line.isspace() or (len(line) < 400 and _rule(line)):
        return None
    if _item(line):
        return "item"
    if line.lstrip()[0] == "|":
        return "row" if _row(line) else "sentence"
    return "heading" if line.lstrip()[0] in "#*" and _heading(line) else "sentence"
