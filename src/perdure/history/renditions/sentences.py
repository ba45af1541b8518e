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

from perdure.core.messages import sound
from perdure.core.tokens import Counter
from perdure.history.renditions.negations import settles

Kind = Literal["sentence", "item", "heading", "row", "code"]


class Unit(NamedTuple):
    """A piece of a text."""

    text: str
    kind: Kind
    paragraph: int  # Which paragraph or list it belongs to.


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
_FULL_LINE = 56  # A line this long was broken by a margin, not by a thought.


def units(text: str) -> list[Unit]:
    """In order. Blank lines and lines that only decorate are in none."""
    found: list[Unit] = []
    for number, (kind, block) in enumerate(_blocks(text)):
        if kind in {"code", "heading", "row"}:
            found.append(Unit(block, kind, number))
        else:
            found += (Unit(piece, kind, number) for piece in split(block))
    return found


def split(paragraph: str) -> list[str]:
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


_LONGEST_TOKEN = 128  # No token of o200k is longer.


def truncate(text: str, cap: int, counter: Counter) -> str:
    """The beginning of a text, at most `cap` tokens, cut between words where there are any, marked
    by an ellipsis if there is room. Takes time in proportion to the cap, not to the text.
    """
    if cap <= 0:
        return ""
    text = str(sound(text[: cap * _LONGEST_TOKEN + 1]))
    if len(text) <= cap * _LONGEST_TOKEN and counter.count(text) <= cap:
        return text
    low, high, guess = 0, len(text), cap * 4
    # Grows until it is too much, then halves what lies between.
    while high - low > max(2, low // 64):
        guess = min(guess, high)
        if counter.count(f"{text[:guess]}…") <= cap:
            low = guess
            guess *= 2
        else:
            high = guess - 1
        if high < guess:
            guess = (low + high + 1) // 2
    cut = text[:low]
    space = max(cut.rfind(" "), cut.rfind("\n"))
    if space > low * 2 // 3:
        cut = cut[:space]
    cut = cut.rstrip(" \n\t,;:–—-")
    # Cutting at another place can take another token.
    while cut and counter.count(f"{cut}…") > cap:
        cut = cut[: len(cut) * 7 // 8]
    return f"{cut}…" if cut else ""


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
#: Said to be kind.
_encourages = re.compile(r"\bkeep (?:it |them |that )?(?:up|going|in touch|at it|me posted)\b")
_turn = re.compile(
    r"\b(?:" + "|".join(sorted(_TURN - {"t"} | _VERDICT)) + r")\b|n['’]t\b", re.IGNORECASE
)
#: How a sentence begins that takes back, answers or narrows the one before it.
_leans = re.compile(
    r"\W{0,3}(?:instead|otherwise|except|unless|but|however|only|not|no|nope|never(?! \w+ \w+)|yes"
    r"|rather|scratch that|stattdessen|sonst|außer|aber|nein|nur)\b",
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
_reason = re.compile(
    r",? (?:because|given that|weil|parce que|porque)\b|, (?:since|as|so that|da|damit|car)\b"
).search
_narrows = re.compile(
    r"\b(?:unless|except|but|however|although|otherwise|if|until|provided|außer|aber|wenn|sauf|mais"
    r"|salvo|pero)\b"
).search
_LONG_SENTENCE, _SHORTEST_CLAUSE = 60, 20
_LEAST_TAIL = 8
_LEAST_DECISION = 32  # characters
_SHORT_ANSWER, _ANSWER_BLANKS = 32, 3  # characters, blanks


def binds(text: str) -> int:
    """How many words tell of a constraint, a decision, a reason, a failure."""
    lowered = text.lower()
    if "keep" in lowered:
        lowered = _encourages.sub("", lowered)
    words = set(_words(lowered))
    many = len(_BIND & words)
    if not _MAY_BIND.isdisjoint(words) and _binds(lowered) is not None:
        many += 1
    return many + (not _VERDICT.isdisjoint(words)) + settles(text)


def decides(text: str) -> bool:
    """Whether the sentence decides, or gives a verdict."""
    return not _VERDICT.isdisjoint(_words(text.lower())) or settles(text) > 1


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
    return _retracts(text) is not None


def opens(text: str) -> bool:
    """Whether it is too short to be understood without the next: ``No.``, ``I retract that.``, but
    not ``Never push to main.``
    """
    if len(text) >= _SHORT_ANSWER:
        return False
    return leans(text) or (bool(binds(text)) and text.count(" ") < _ANSWER_BLANKS)


def clauses(sentence: str, *, fine: bool) -> list[str]:
    """The parts of a long sentence that are each true without the others; mostly, all of it. Items
    of a list written as a sentence always are (``1. do this, 2. do that``).
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
    """The beginning of a sentence, in at most `room` tokens, and the place where its meaning turns,
    if it does. Ends with an ellipsis where something is left out.
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


def without_reason(sentence: str) -> str:
    """What was decided, without why, marked by an ellipsis; all of it if it would say too little,
    or if something behind the reason narrows it.
    """
    found = _reason(sentence, _LEAST_DECISION)
    if found is None or _narrows(sentence, found.start()):
        return sentence
    return f"{sentence[: found.start()]}…"


def _at_break(head: str, quarters: int = 1) -> str:
    if not head.endswith("…"):
        return head
    at = max((found.start() for found in _break.finditer(head)), default=0)
    if at * 4 <= len(head) * (4 - quarters) or _turn.search(head, at):
        return head
    return f"{head[:at]}…"
