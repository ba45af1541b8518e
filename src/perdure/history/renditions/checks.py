"""Judges what a model made of a text: whether it can stand as its rendition.

A model may return nothing, too much, an apology, another language, a path that never was. Each
fault is named, so that it can be counted and shown; any of them means that the algorithm's own
rendition stands instead.
"""

from __future__ import annotations

import re

from perdure.core.levels import Level
from perdure.core.tokens import Counter
from perdure.history.renditions.facts import holds, names_in
from perdure.history.renditions.language import language_of, script_of
from perdure.history.tags import without_tags

#: Of the source's tokens, a rendition may have so many; below the second figure, all of them.
_MOST: dict[Level, tuple[float, int]] = {
    "R": (1.0, 0),
    "S": (1.02, 20),
    "C": (0.5, 60),
    "T": (0.2, 40),
}
_chatter = re.compile(
    r"\W*(?:sure|certainly|of course|absolutely|okay|ok|here(?:'s| is| are)|below is|the following"
    r"(?: is)?"
    r"|i(?:'ll| will| have|'ve) (?:summari[sz]e|compress|shorten|rewrit|condens))[^\n]{0,80}"
    r"(?:summary|version|rendition|rewrit|compress|shorten|condens|smooth|text|result|:)",
    re.IGNORECASE,
).match
_refusal = re.compile(
    r"\W*(?:i(?:'m| am) (?:sorry|unable|not able)|sorry,|i (?:cannot|can't|can not|won't|am unable)"
    r"|as an ai|i apologi[sz]e|unfortunately, i (?:cannot|can't))",
    re.IGNORECASE,
).match
_closing_chatter = re.compile(
    r"(?:let me know if|i hope this helps|feel free to ask|would you like me to)[^\n]{0,200}\W*\Z",
    re.IGNORECASE,
).search
#: Numbers that an algorithm counted: what was left out, how often a line was there.
_counted = re.compile(
    r"\[… [^\]\n]{0,300}\]|\(×\d+\)|\b[\d,]{1,12} (?:lines?|characters|files found)\b"
).sub
#: Too short to tell a language by.
_FEW = 40


def faults(
    source: str, text: str, level: Level, counter: Counter, *, limit: int | None = None
) -> list[str]:
    """What is wrong with a text that should say the source's words at a level; empty if nothing.

    `limit` is how many tokens it may have; without it, a generous share of the source's. Invented
    are paths, URLs and numbers that the source does not hold; numbers up to ten may be words there.
    Catches no false statement made of true names.
    """
    if not text.strip():
        return ["empty"]
    found = []
    tokens = counter.count(text)
    if limit is None:
        share, least = _MOST[level]
        whole = counter.count(source)
        limit = max(int(whole * share), min(whole, least))
    if tokens > limit:
        found.append(f"too long: {tokens:,} tokens instead of {limit:,}")
    found += _manners(source, text)
    if not _same_language(source, text):
        found.append("another language")
    if without_tags(text)[1] > without_tags(source)[1]:
        found.append("tags of ours")
    invented = _invented(source, text)
    if invented:
        found.append(f"invented: {', '.join(invented[:5])}")
    return found


def _manners(source: str, text: str) -> list[str]:
    found = []
    if _refusal(text) and not _refusal(source) and not _holds_start(source, text):
        found.append("a refusal")
    if _chatter(text) and not _holds_start(source, text):
        found.append("chatter before it")
    last = _closing_chatter(text, max(0, len(text) - 300))
    if last and last[0][:14].casefold() not in source.casefold():
        found.append("chatter behind it")
    return found


def _holds_start(source: str, text: str) -> bool:
    """Whether the source itself says this, with or without a speaker before it."""
    start = text.strip()[:24].casefold()
    return start in source.casefold()


def _same_language(source: str, text: str) -> bool:
    if min(len(source), len(text)) < _FEW:
        return True
    one, other = language_of(source), language_of(text)
    if script_of(source) != script_of(text):
        return False
    return not one or not other or one == other


def _invented(source: str, text: str) -> list[str]:
    text = _counted(" ", text)
    lowered = source.casefold()
    plain = lowered.replace(",", "")
    return [
        name
        for name in names_in(text)
        if not holds(lowered, name)
        and not holds(plain, name.replace(",", ""))
        and not (name.isdigit() and int(name) <= 10)
    ]
