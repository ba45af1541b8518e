"""Which sentences bind, and which words turn the meaning of a sentence round.

A prohibition, a decision, a deadline, a failure must not get lost; and no sentence may be cut so
that the rest says the opposite: ``Use Redis, unless legal objects`` is not ``Use Redis``.
Knows English best, and the commonest such words of German, French and Spanish.
"""

from __future__ import annotations

import re

from perdure.core.tokens import Counter
from perdure.history.renditions.cutting import truncate

#: Words are compared as sets: a search for a hundred alternatives takes ten times as long. What is
#: left of a shortened ``not`` is a ``t``.
_words = re.compile(r"[^\W\d_]+").findall
_TURN = frozenset(
    """t not never no none nor neither nobody nothing cannot only instead rather unless except
    without if but however although though until otherwise provided assuming whether failed wrong
    retract leave leaves avoid drop dropped remove removed stop reject rejected forbids
    nicht nie niemals kein keine keinen keiner nur statt außer sondern wenn falls aber ohne
    pas jamais sauf sans mais nunca sin pero excepto salvo""".split()  # noqa: SIM905 (a text is easier to read)
)
#: Where a sentence comes to its point.
_VERDICT = frozenset(("recommend", "decided", "agreed", "conclusion", "fails", "failed"))
_OUTCOME = frozenset(
    """fixed added changed created implemented renamed removed updated upgraded deployed merged
    finished wrote built installed moved replaced set""".split()  # noqa: SIM905 (a text is easier to read)
)
_BIND = frozenset(
    """never cannot only instead unless except without must always decided decision
    agree agreed forbid forbids forbidden prohibit prohibits prohibited banned require requires
    required deadline because fail fails failed failing failure failures error errors broke broken
    breaks wrong incorrect recommend recommended recommends retract retracted withdraw withdrawn
    correction mistake approve approved approval confirm confirmed blocked blocks leave keep due
    passes pass pushed merged deployed released
    nicht nie niemals kein keine keinen nur statt stattdessen außer sondern muss müssen darf dürfen
    weil fehler falsch entschieden spätestens jamais sauf seulement doit faut interdit erreur nunca
    solo sólo excepto debe deben prohibido""".split()  # noqa: SIM905 (a text is easier to read)
)
#: These bind with what follows them.
_MAY_BIND = frozenset(
    "t not we no rather root turns at take scratch ask before by until till bis".split()  # noqa: SIM905 (a text is easier to read)
)
_binds = re.compile(
    r"\b(?:(?:(?:do|does|must|should|may|shall|will|is|are) not|(?:do|must|should|ca|wo)n['’]t)"
    r"(?! (?:mind|know|think|care|worry|feel|have|remember|wait))"
    r"|we(?:['’]ll| will)? (?:use|need|go|stay|switch|chose|want)|no longer|rather than|ask me"
    r"|root cause|turns out|at (?:most|least|the latest)|take (?:that|it) back|scratch that"
    r"|before \w+ing|(?:before|by|until|till) (?:the |next |end of )*(?:mon|tues|wednes|thurs|fri"
    r"|satur|sun|tomorrow|tonight|noon|midnight|week\b|month|eod|\d|january|february|march|april|may"
    r"|june|july|august|september|october|november|december)|bis (?:zum|\d))"
).search
_turn = re.compile(
    r"\b(?:" + "|".join(sorted(_TURN - {"t"} | _VERDICT)) + r")\b|n['’]t\b", re.IGNORECASE
)
#: How a sentence begins that takes back, answers or narrows the one before it.
_leans = re.compile(
    r"\W{0,3}(?:instead|otherwise|except|unless|but|however|only|not|no|nope|never|yes|rather"
    r"|scratch that|stattdessen|sonst|außer|aber|nein|nur)\b",
    re.IGNORECASE,
).match
_clause = re.compile(
    r"(?:,|;)\s(?:(?:and|so)\s)?(?=(?:i|i['’]m|i['’]ve|it['’]s|we|they|he|she|there|the|all)\b)"
    r"|;\s|\s[–—]\s",
    re.IGNORECASE,
)
_retracts = re.compile(
    r"\b(?:retract\w*|no longer|not \w+ any ?more|scratch that|correction|changed (?:my|our) minds?"
    r"|take (?:that|it) back|withdr[ae]w\w*|revert\w*|w(?:as|ere) wrong|mistaken|instead"
    r"|actually|superseded|cancel\w*|doch nicht|stattdessen|nicht mehr)\b",
    re.IGNORECASE,
).search
_inline = re.compile(r"(?<=[\s,;:])\(?[1-9a-e][.)]\s(?=\S)")
_break = re.compile(r"[.,;:!?–—]\s")
_LONG_SENTENCE, _SHORTEST_CLAUSE = 60, 20
_LEAST_TAIL = 8
_SHORT_ANSWER = 32


def binds(text: str) -> int:
    """How much it binds: how many words tell of a constraint, a decision, a reason, a failure."""
    lowered = text.lower()
    words = set(_words(lowered))
    many = len(_BIND & words)
    if not _MAY_BIND.isdisjoint(words) and _binds(lowered) is not None:
        many += 1
    return many + (not _VERDICT.isdisjoint(words))


def decides(text: str) -> bool:
    """Whether the sentence gives a verdict."""
    return not _VERDICT.isdisjoint(_words(text.lower()))


def reports(text: str) -> bool:
    """Whether the sentence gives a verdict, or tells what was done."""
    return not (_VERDICT | _OUTCOME).isdisjoint(_words(text.lower()))


def turns(text: str) -> bool:
    """Whether the sentence holds a word that turns its meaning, or makes it conditional."""
    return not _TURN.isdisjoint(_words(text.lower()))


def leans(text: str) -> bool:
    """Whether the sentence takes back, answers or narrows the one before it."""
    return _leans(text) is not None or ("instead" in text and "instead of" not in text)


def retracts(text: str) -> bool:
    """Whether the text takes back something that was said before."""
    return _retracts(text) is not None


def opens(text: str) -> bool:
    """Whether it is too short to be understood without the next: ``No.``, ``I retract that.``"""
    return len(text) < _SHORT_ANSWER and bool(leans(text) or binds(text))


def clauses(sentence: str, *, fine: bool) -> list[str]:
    """The parts of a long sentence that are each true without the others; mostly, all of it.

    The items of a list that is written as a sentence always are (``1. do this, 2. do that``).
    """
    if len(sentence) < _LONG_SENTENCE:
        return [sentence]
    marks = [found.start() for found in _inline.finditer(sentence)]
    if len(marks) > 1:
        ends = (*marks[1:], len(sentence))
        items = [sentence[start:end].strip() for start, end in zip(marks, ends, strict=True)]
        return [*filter(None, [sentence[: marks[0]].strip()]), *items]
    if not fine or any(mark in sentence for mark in '`"(?') or turns(sentence) or binds(sentence):
        return [sentence]
    parts: list[str] = []
    start = 0
    for found in _clause.finditer(sentence):
        if found.start() - start >= _SHORTEST_CLAUSE <= len(sentence) - found.end():
            parts.append(sentence[start : found.start()].strip())
            start = found.end()
    return [*parts, sentence[start:]]


def cut(sentence: str, room: int, counter: Counter) -> str:
    """The beginning of a sentence and, if its meaning turns behind that, the place where it does.

    Ends with an ellipsis where something is left out. At most `room` tokens.
    """
    head = truncate(sentence, room, counter)
    if head == sentence or not head:
        return head
    if room < 2 * _LEAST_TAIL or _turn.search(sentence, len(head) - 1) is None:
        return _at_break(head)
    half = len(truncate(sentence, room // 2, counter)) - 1
    turn = _turn.search(sentence, half)
    if turn is None:
        return _at_break(head)
    # From the clause that turns it on; the rest of the room is for the beginning.
    before = [found.end() for found in _break.finditer(sentence, 0, turn.start() + 1)]
    start = before[-1] if before and turn.start() - before[-1] < _SHORTEST_CLAUSE else turn.start()
    tail = truncate(sentence[start:], room // 2, counter)
    begin = truncate(sentence[:start].rstrip(), room - counter.count(tail) - 2, counter)
    text = f"{_at_break(begin, 3)} {tail}"
    return text if begin and counter.count(text) <= room else truncate(text, room, counter)


def _at_break(head: str, quarters: int = 1) -> str:
    """A cut sentence, ended where a clause ends, if that is within so many quarters of it."""
    if not head.endswith("…"):
        return head
    at = max((found.start() for found in _break.finditer(head)), default=0)
    if at * 4 <= len(head) * (4 - quarters) or _turn.search(head, at):
        return head
    return f"{head[:at]}…"
