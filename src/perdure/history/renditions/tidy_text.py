"""Removes noise from words, and nothing else: blanks, repetition, decoration.

Code, inline code, URLs, paths, identifiers and quoted output come out byte for byte; so do tables
and whatever is laid out with blanks. Takes time in proportion to the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib import resources

#: What no correction may touch: fences (the last may be open), inline code, quoted or indented
#: lines, lines of a shell, quotes, and every word with a sign of code in it.
protected = re.compile(
    r"""(?P<fence>^[ ]{0,12}(?P<mark>`{3,}|~{3,})(?s:.*?)(?:^[ ]*(?P=mark)[`~]*[ ]*$|\Z))
      | ^(?:[ ]{4,}|\t|[ ]{0,3}>|[ ]*(?:\$|%|>>>|\#!)[ ]).*$
      | `[^`\n]+`
      | "[^"\n]{1,400}" | “[^”\n]{1,400}” | «[^»\n]{1,400}» | „[^“”\n]{1,400}[“”]
      | (?<!\w)'[^'\n]{1,200}'(?!\w) | (?<!\w)‘[^’\n]{1,200}’(?!\w)
      | (?<!\S)[^\s]{0,400}?[/\\_@$=<>{}\[\]|~^&%\d]\S*
    """,  # noqa: RUF001 (quotation marks)
    re.VERBOSE | re.MULTILINE,
)
_trailing = re.compile(r"[ \t]+$", re.MULTILINE)
_blank_lines = re.compile(r"\n{3,}")
_marks = re.compile(r"!{2,}|\?{2,}|(?:[!?]{3,})|\.{4,}|,{2,}(?=\s)|;{2,}(?=\s)|…{2,}")
# A line of prose with one gap in it: several gaps are a table.
_gap = re.compile(r"^(\S+(?: \S+){3,}) {2,}(\S+(?: \S+){2,})$", re.MULTILINE)
_rule = re.compile(r"^[ \t]*(?:[-=*_~#+]{4,}|[─━═]{3,})[ \t]*\n?", re.MULTILINE)


def outside(text: str, change: Callable[[str], str]) -> str:
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
    """Tidying again changes nothing that a reader would see."""
    if not text:
        return text
    fenced = "```" in text or "~~~" in text
    changed = outside_fences(text, _tidied_lines) if fenced else _tidied_lines(text)
    return changed.strip("\n")


_fences = re.compile(r"^[ ]{0,12}(`{3,}|~{3,})(?s:.*?)(?:^[ ]*\1[`~]*[ ]*$|\Z)", re.MULTILINE)


def outside_fences(text: str, change: Callable[[str], str]) -> str:
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
    if times == 2 and len(kept[-1]) < 8:
        kept.append(kept[-1])
    else:
        kept[-1] = f"{kept[-1]} (×{times})"


_LOOKED_AT = 4_000
_letters = re.compile(r"[^\W\d_]+").findall

_COMMON: dict[str, frozenset[str]] = {
    "en": frozenset(
        """the and is are was were to of in it that for with this on you not have be can will from
        but what when how we they there would should if or an my your so do does did has had been
        i just please which than then them some about into out up all""".split()  # noqa: SIM905 (a text is easier to read)
    ),
    "de": frozenset(
        """der die das und ist nicht ich wir sie mit auf für ein eine den dem im zu von es bitte
        auch wie wenn aber oder noch nur bei sind wird kann""".split()  # noqa: SIM905 (a text is easier to read)
    ),
    "fr": frozenset(
        """le la les et est pas je nous vous avec sur pour un une des du dans que qui il elle ne
        au aux mais ou où ce cette sont peut""".split()  # noqa: SIM905 (a text is easier to read)
    ),
    "es": frozenset(
        """el la los las y es no yo con en para un una de del que por se lo al pero como más este
        esta son puede muy""".split()  # noqa: SIM905 (a text is easier to read)
    ),
    "it": frozenset(
        """il lo la gli le e è non io noi con su per un una di del della che si ma come più questo
        questa sono può""".split()  # noqa: SIM905 (a text is easier to read)
    ),
    "pt": frozenset(
        """o a os as e é não eu nós com em para um uma de do da que por se mas como mais este esta
        são pode você""".split()  # noqa: SIM905 (a text is easier to read)
    ),
    "nl": frozenset(
        """de het een en is niet ik wij met op voor van dat die te zijn maar ook als bij naar
        wordt kan""".split()  # noqa: SIM905 (a text is easier to read)
    ),
}


def is_english(text: str) -> bool:
    """Whether the text is English, or too short to tell and written in plain Latin letters."""
    return language_of(text) in {"en", ""}


def language_of(text: str) -> str:
    """``en``, ``de``, …; the name of a script if that is not Latin (``CJK``); empty if unknown."""
    words = _letters(text[:_LOOKED_AT].lower())
    if not words:
        return ""
    script = script_of(text)
    if script != "LATIN":
        return script
    counts = Counter(words)
    hits = {name: sum(counts[word] for word in common) for name, common in _COMMON.items()}
    best = max(hits, key=lambda name: hits[name])  # the first of equals: English
    if hits[best] * 20 >= len(words) and hits[best] >= 2:
        return best
    foreign = sum(1 for word in words if not word.isascii())
    return "other" if foreign * 8 > len(words) else ""


def script_of(text: str) -> str:
    """The script of most letters: ``LATIN``, ``CYRILLIC``, ``CJK``; Kana and Hangul are ``CJK``."""
    letters = "".join(_letters(text[:_LOOKED_AT]))
    if not letters or letters.isascii():
        return "LATIN"
    scripts: Counter[str] = Counter()
    for letter in letters[:: max(1, len(letters) // 200)]:
        name = unicodedata.name(letter, "LATIN").partition(" ")[0]
        scripts[
            "CJK" if name in {"HIRAGANA", "KATAKANA", "HANGUL", "KATAKANA-HIRAGANA"} else name
        ] += 1
    return max(scripts, key=lambda name: (scripts[name], name))


_words = re.compile(r"[a-z]{3,24}").findall
LONGEST = 200_000  # more is not typed by anyone
# ``i`` is a variable, too: so only before what a person does.
_lonely_i = re.compile(
    r"(?<![^\s(])i(?=(?:['’](?:m|ve|ll|d)|[ ](?:am|was|have|had|will|would|can|can't|could|should"
    r"|think|want|wanted|need|needed|do|don't|did|didn't|know|like|see|saw|guess|mean|tried|got|just"
    r"|also|really|still|already|believe|hope|wish|feel|understand|suppose|wonder))\b)"
)


def corrected(text: str) -> str:
    """Corrects sure misspellings. Never raises."""
    if len(text) > LONGEST:
        return text
    wrong = _misspellings().keys() & set(_words(text.lower()))
    lonely = " i " in text or " i'" in text or text.startswith(("i ", "i'"))
    if not (wrong or lonely) or not is_english(text):
        return text
    if wrong:
        either = "|".join(sorted(re.escape(word) for word in wrong))
        alone = rf"(?<![^\s(\"'“—])(?:{either})(?=[\s,;:!?)\"'”’—]|\.(?:\s|$)|$)"
        pattern = re.compile(alone, re.IGNORECASE)
        text = outside(f"\n{text}", lambda piece: pattern.sub(_right, piece))[1:]
    return outside(text, lambda piece: _lonely_i.sub("I", piece)) if lonely else text


def _right(found: re.Match[str]) -> str:
    word = found[0]
    if word.islower():
        return _misspellings()[word]
    if word[1:].islower() and found.string[found.start() - 1 : found.start()] == "\n":
        return _misspellings()[word.lower()].capitalize()
    return word  # a name, or shouting


@cache
def _misspellings() -> dict[str, str]:
    text = resources.files(__package__).joinpath("misspellings.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and line[0] != "#"]
    return {wrong: right for wrong, _, right in (line.partition(" ") for line in lines)}
