"""Which of the past a round needs, told by the identifiers that it uses; and whether they stood in
its window.

A round *uses* an identifier if its model writes it: in its words or in the arguments of a tool, not
in its thoughts. The use is *old* if the identifier last appeared at least twenty rounds before, in
anything that was said or that a tool answered, and if neither the prompt nor the results of the
round itself give it. So it came out of the window, or out of thin air.

Identifiers are what facts are (`history.renditions.facts`) without the words of everyday: paths,
addresses, symbols (``head_count``, ``fooBar``, ``a.b``, ``--strict``), codes with a digit
(``E0308``, ``SHIP-12``), numbers of three digits or more, and words in quotes in what the model
says. Names of people and shouted words are none. They are compared without case and as a whole:
``user_id`` does not stand in ``user_id_2``, nor ``src/a.py`` in ``src/a.pyi``; but ``src/a.py``
does in ``/home/me/src/a.py``.

Text that was made (renditions, summaries, what is injected) counts without its bare lists of names,
so that nobody is better for listing everything: see `without_lists`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from perdure.core.messages import Message, Reasoning, ToolCall, words_of
from perdure.history.renditions.facts import mentions

AGE = 20  # Rounds since an identifier last appeared, from which on its use is old.

_LEAST_DIGITS = 3  # Smaller numbers come back by chance.
_SHORTEST, _LONGEST = 3, 200
_RUN = 8  # Neighbouring names that may be a list.

_has_hump = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2,}[a-z]{2}").search
_quoted = re.compile(r"(?<!\w)[\"“‘']([A-Za-z][\w-]{2,40})[\"”’'](?!\w)").findall  # noqa: RUF001 (quotes)
#: Line breaks as JSON writes them: they would seem to begin the next word.
_escapes = re.compile(r"\\[nrt]").sub
_tokens = re.compile(r"[^\s,;|()\[\]{}<>\"'`=]+").finditer
_atoms = re.compile(r"\w+").findall
_has_sign = re.compile(r"[()\[\]{}<>=]").search
_tags = re.compile(r"</?(?:T-[\d.]+(?:-through-[\d.]+)?-[RSCT]|perdure-\w+)>").sub

Round = tuple[Sequence[Message], int, str]
"""The messages of a round, how many of them its model was given, and the text of all."""


def text_of(messages: Iterable[Message]) -> str:
    """The text of messages that identifiers are looked for in: words, arguments, results."""
    return plain("\n".join(_words(messages)))


def plain(text: str) -> str:
    """A text that identifiers are looked for in."""
    return _escapes(" ", text).lower()


def old_uses(rounds: Sequence[Round]) -> list[list[str]]:
    """Of each round, the identifiers of which it makes old use, in order of the alphabet."""
    found, seen = list[list[str]](), set[str]()
    for number, (messages, opening, _) in enumerate(rounds):
        edge = max(number - AGE + 1, 0)
        if number >= AGE:
            seen.update(_atoms(rounds[edge - 1][2]))
        # Most of what is new has a word that is new.
        used = [each for each in identifiers(messages[opening:]) if seen.issuperset(_atoms(each))]
        if not used:
            found.append([])
            continue
        given = [*messages[:opening], *(each for each in messages if each.role != "assistant")]
        near = "\n".join([text_of(given), *(text for _, _, text in rounds[edge:number])])
        far = [text for _, _, text in rounds[:edge]]
        found.append(
            [
                each
                for each in sorted(used)
                if not names(near, each) and any(names(text, each) for text in far)
            ]
        )
    return found


def identifiers(messages: Iterable[Message]) -> set[str]:
    """What a model names in its words and in the arguments of its tools."""
    found = set[str]()
    for message in messages:
        if message.role != "assistant":
            continue
        for part in message.parts:
            text = _escapes(" ", _text(part))
            found.update(each.lower() for each, _ in mentions(text) if _is_identifier(each))
            if not isinstance(part, ToolCall):  # there, quotes are syntax
                found.update(map(str.lower, _quoted(text)))
    return {each.removesuffix("()") for each in found}


def _is_identifier(fact: str) -> bool:
    if not _SHORTEST <= len(fact) <= _LONGEST:
        return False
    if fact.isalpha():
        return _has_hump(fact) is not None
    if not any(map(str.isalpha, fact)):
        return sum(map(str.isdigit, fact)) >= _LEAST_DIGITS
    return not fact.lstrip(".").isalpha() or fact.startswith("..")  # ``.strip``, of any object


def names(text: str, identifier: str) -> bool:
    """Whether a plain text names the identifier as a whole."""
    at = text.find(identifier)
    while at >= 0:
        end = at + len(identifier)
        if _is_whole(text[max(at - 2, 0) : at], identifier, text[end : end + 2]):
            return True
        at = text.find(identifier, at + 1)
    return False


def _is_whole(before: str, identifier: str, behind: str) -> bool:
    if before and _is_word(before[-1]) and _is_word(identifier[0]):
        return False
    if behind and _is_word(behind[0]) and _is_word(identifier[-1]):
        return False
    # What goes on behind a joint: ``a.pyi.bak``, ``fix-12``, ``1.25`` and ``1,250``.
    goes_on = len(behind) > 1 and _is_word(behind[1])
    if goes_on and (behind[0] == "-" or (behind[0] == "." and _ends_name(identifier))):
        return False
    if not identifier[-1].isalpha() and goes_on and behind[0] == ",":
        return not behind[1].isdigit()
    began = len(before) > 1 and before[0].isdigit() and before[1] in ".,-"
    return not (began and identifier[0].isdigit())


def _is_word(character: str) -> bool:
    return character == "_" or character.isalnum()


def _ends_name(identifier: str) -> bool:
    """Whether a dot behind it makes it another: a path's, a number's, not an object's."""
    return "/" in identifier or "." in identifier or identifier[-1].isdigit()


def without_lists(text: str) -> str:
    """A made text, plain, without its bare lists of names. Eight names in a row (or all, if there
    are fewer) are a list if most of them follow the one before without a word in between, and
    without a sign that would make it code: only blanks, commas, bullets, quotes. Tags of ours are
    left out.
    """
    text = _escapes(" ", _tags(" ", text)).replace("()", "")
    spans, says = list[tuple[int, int]](), [False]  # of names; whether something is said before
    at = 0
    for token in _tokens(text):
        written = token[0].strip(".:!?*#->…—–")
        says[-1] = says[-1] or _has_sign(text, at, token.start()) is not None
        at = token.end()
        if written and _is_written_as_name(written):
            spans.append(token.span())
            says.append(False)
        elif len(written) > 1 and written.replace("-", "").replace("’", "").isalpha():
            says[-1] = True
    kept, at = list[str](), 0
    for first, last in _lists(says, len(spans)):
        kept.append(text[at : spans[first][0]])
        at = spans[last][1]
    return " ".join([*kept, text[at:]]).lower()


def _lists(says: Sequence[bool], many: int) -> Iterator[tuple[int, int]]:
    """The first and the last name of each list; `says` has an entry before each name, and one
    behind them all.
    """
    size = min(_RUN, many)
    if many and many == size:
        if sum(says) * 2 < many:
            yield 0, many - 1
        return
    lists = [
        (first, first + size - 1)
        for first in range(many - size + 1)
        if sum(says[first + 1 : first + size]) * 2 < size - 1
    ]
    while lists:
        first, last = lists.pop(0)
        while lists and lists[0][0] <= last:
            last = lists.pop(0)[1]
        while first < last and says[first + 1]:
            first += 1
        while first < last and says[last]:
            last -= 1
        yield first, last


def _is_written_as_name(word: str) -> bool:
    if word.isalpha():
        return _has_hump(word) is not None
    return not word.replace("-", "").replace("’", "").isalpha()


def _words(messages: Iterable[Message]) -> Iterator[str]:
    for message in messages:
        for part in message.parts:
            if text := _text(part):
                yield text


def _text(part: Any) -> str:
    if isinstance(part, Reasoning):
        return ""
    if not isinstance(part, ToolCall):
        return words_of(part)
    try:
        return "\n".join(_values(json.loads(part.arguments)))
    except (ValueError, RecursionError):  # models write anything
        return words_of(part)


def _values(given: Any) -> Iterator[str]:
    """What a model passes to a tool, without the names of its parameters."""
    if isinstance(given, dict):
        given = list(given.values())
    if isinstance(given, list):
        for each in given:
            yield from _values(each)
    elif isinstance(given, str):
        yield given
    elif isinstance(given, int | float) and not isinstance(given, bool):
        yield str(given)
