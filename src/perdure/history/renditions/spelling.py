"""Corrects misspelt English where only one word can be meant.

The words are in `misspellings.txt`, one pair a line. Nothing else is a mistake here: correctors
that guess turn ``kubectl`` into ``puberty``. Code, inline code, URLs, paths, identifiers, quoted
text, words with a capital inside a sentence, and text in other languages are never touched.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from perdure.history.renditions.language import is_english
from perdure.history.renditions.tidy import outside

_words = re.compile(r"[a-z]{3,24}").findall
_LONGEST = 200_000  # more is not typed by anyone
# ``i`` is a variable, too: so only before what a person does.
_lonely_i = re.compile(
    r"(?<![^\s(])i(?=(?:['’](?:m|ve|ll|d)|[ ](?:am|was|have|had|will|would|can|can't|could|should"
    r"|think|want|wanted|need|needed|do|don't|did|didn't|know|like|see|saw|guess|mean|tried|got|just"
    r"|also|really|still|already|believe|hope|wish|feel|understand|suppose|wonder))\b)"
)


def corrected(text: str) -> str:
    """The text with what is surely misspelt put right. Never raises."""
    if len(text) > _LONGEST:
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
