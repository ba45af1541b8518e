"""Tells English from other languages, and scripts from each other: cheaply, by words that are in
every text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

_LOOKED_AT = 4_000
_words = re.compile(r"[^\W\d_]+").findall

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
    words = _words(text[:_LOOKED_AT].lower())
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
    letters = "".join(_words(text[:_LOOKED_AT]))
    if not letters or letters.isascii():
        return "LATIN"
    scripts: Counter[str] = Counter()
    for letter in letters[:: max(1, len(letters) // 200)]:
        name = unicodedata.name(letter, "LATIN").partition(" ")[0]
        scripts[
            "CJK" if name in {"HIRAGANA", "KATAKANA", "HANGUL", "KATAKANA-HIRAGANA"} else name
        ] += 1
    return max(scripts, key=lambda name: (scripts[name], name))
