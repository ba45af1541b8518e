"""Mends what was typed in haste: spacing around punctuation, doubled words, agreement, shouting.

    mended("HEY   ,  CAN YOU LOOK AT THIS ? we was told the the API is down")
    "Hey, can you look at this? we were told the API is down"

Only what is wrong wherever it stands is mended, from closed lists, and in English. Code, quotes in
any kind of quotation marks, identifiers, paths, constants, abbreviations, error messages and what
is laid out with blanks come out byte for byte. Takes time in proportion to the text.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from perdure.history.renditions.tidy_text import (
    LONGEST,
    is_english,
    outside,
    outside_fences,
    protected,
)

#: Words without which there is hardly an English sentence.
_SMALL = frozenset(
    """the a an and is are was were to of in it that for with this on you not have be can will from
    but what when how we they there would should if or my your so do does did has had been i just
    please why which than then them some about into out up all no now me don't can't
    isn't""".split()  # noqa: SIM905 (a text is easier to read)
)
_DATES = frozenset(
    """monday tuesday wednesday thursday friday saturday sunday january february april june july
    august september october november december english""".split()  # noqa: SIM905 (a text is easier to read)
)
_letters = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")

# Spacing
_spaced = re.compile(r"(?<=[^\W\d_]{2}) +(?:(,)|([;!?]{1,3}))(?=\s|$)", re.MULTILINE)
_gap = re.compile(r"(?<=\S) {2,}(?=[^\s#/])")  # not before the comment of a line of code
#: Fewer words before the only gap of a line are the left of two columns.
_COLUMN = 3
_after_comma = re.compile(r"(?<=[^\W\d_],) {2,}(?=\S)")
_joined = re.compile(r"(?<!\S)([a-z]{2,}),([a-z]{2,})(?=[\s.!?]|$)")
_ended = re.compile(r"(?<=[a-z]{2})([!?])(?=[A-Z][a-z])")
_wide = re.compile(r"  +(?=\S)").finditer
_close = re.compile(r",[a-z]|[!?][A-Z]").search
#: How options of a program are listed, and what is laid out.
_laid_out = re.compile(r"\s{2,}|\t|-{1,2}\w|\||.*\t").match

# Words
_ONCE = tuple("the a an to of and or with for from my your our their we they he she".split())  # noqa: SIM905
_doubled = re.compile(rf"\b({'|'.join(_ONCE)})( \1\b)+(?!['’-])", re.IGNORECASE)
_AGREES = {
    "was": "were",
    "is": "are",
    "has": "have",
    "doesn": "don",
    "wasn": "weren",
    "isn": "aren",
    "hasn": "haven",
}
_plural = re.compile(
    r"\b([Ww]e|[Tt]hey) (?:(was|is|has)(?![\w'’])|(doesn|wasn|isn|hasn)(?=['’]t\b))"
)
_singular = re.compile(r"\b([Hh]e|[Ss]he) (?:don(?=['’]t\b))")
# `did he have` is right.
_has = re.compile(
    r"(^\s*|[.,;!?]\s+|\b(?:and|but|because|since|so|now|while|when)\s+)([Hh]e|[Ss]he) have\b",
    re.MULTILINE,
)
_of = re.compile(r"\b(could|should|would|might|must) of\b(?! course)")
_PAST = {
    "went": "go",
    "saw": "see",
    "came": "come",
    "knew": "know",
    "took": "take",
    "gave": "give",
    "wrote": "write",
    "ran": "run",
    "broke": "break",
    "made": "make",
    "got": "get",
    "did": "do",
}
_did = re.compile(rf"\b(did(?:n['’]t| not)) ({'|'.join(_PAST)})\b")
_slips = (
    (_doubled, lambda found: found[1]),
    (_plural, lambda found: f"{found[1]} {_AGREES[found[2] or found[3]]}"),
    (_singular, lambda found: f"{found[1]} doesn"),
    (_has, lambda found: f"{found[1]}{found[2]} has"),
    (_of, lambda found: f"{found[1]} have"),
    (_did, lambda found: f"{found[1]} {_PAST[found[2]]}"),
)
#: One of these stands in every text with such a slip, in small letters.
_SIGNS = (
    *(f" {word} {word} " for word in _ONCE),
    *(f"{who} {verb}" for who in ("we", "they") for verb in _AGREES),
    *(f"{verb} of" for verb in ("could", "should", "would", "might", "must")),
    *(f"{no} {verb}" for no in ("not", "n't", "n’t") for verb in _PAST),
    *("he don", "he have"),
)

# Shouting
_loud = re.compile(r"[A-Z][ ,]{1,2}[A-Z]{2,}['’ ,.!?\n]").search
_sentence = re.compile(r"[^.!?\n]+")
_QUERY = frozenset(
    """SELECT INSERT WHERE JOIN VALUES TABLE CREATE ALTER GRANT DROP UPDATE DELETE INTO INDEX KEY
    TEXT UNIQUE NULL PRIMARY USING INTEGER""".split()  # noqa: SIM905 (a text is easier to read)
)
_reported = re.compile(r"\W*(?:ERROR|WARN(?:ING)?|INFO|DEBUG|FATAL|CRITICAL|TRACE|FAILED)\b").match
_SHOUTED, _SHOUTED_INSIDE = 3, 4  # words
#: How words end that hardly are names.
_ending = re.compile(
    r"(?:[st]ions?|ments?|ness|[ai]ble|ful|less|ous|ive|[ae]nces?|.{3}(?:ing|ed|ly|ity|ities))$"
).search
_SHORTEST_STEM = 5
_KNOWN = 0.6  # The share of them that are words, not names or abbreviations.


def mended(text: str) -> str:
    """Mending again changes nothing. Never raises."""
    if len(text) > LONGEST:
        return text
    loud, spaced, slip = _loud(text), _badly_spaced(text), _may_slip(text)
    if not (loud or spaced or slip) or not is_english(text):
        return text
    if loud:
        text = _calmed(text)
    if spaced:
        text = outside_fences(text, _respaced_lines)
    for pattern, right in _slips:
        if pattern.search(text):
            text = outside(text, lambda piece: pattern.sub(right, piece))  # noqa: B023 (used at once)
    return text


def _may_slip(text: str) -> bool:
    lowered = f" {text.lower()} ".replace("\n", " ")
    return any(sign in lowered for sign in _SIGNS)


def _badly_spaced(text: str) -> bool:
    if " ," in text or " ?" in text or " !" in text or " ;" in text or _close(text):
        return True
    return any(at.start() and text[at.start() - 1] not in "\n\t" for at in _wide(text))


def _respaced_lines(text: str) -> str:
    lines = text.split("\n")
    gaps = [{at.end() for at in _gap.finditer(line)} if "  " in line else set() for line in lines]
    above, below = [set(), *gaps[:-1]], [*gaps[1:], set()]
    return "\n".join(
        _respaced(line, columns=bool(own & (before | after)) or _two_columns(line, own))
        for line, own, before, after in zip(lines, gaps, above, below, strict=True)
    )


def _two_columns(line: str, gaps: set[int]) -> bool:
    return len(gaps) == 1 and len(_letters.findall(line, 0, *gaps)) < _COLUMN


def _respaced(line: str, *, columns: bool) -> str:
    if not _badly_spaced(line) or _laid_out(line):
        return line
    small = sum(word in _SMALL for word in _letters.findall(line.lower()))
    prose = not columns and small > 1 and small * 8 > line.count(" ") - 8
    ternary = " : " in line
    slip = False

    def change(piece: str) -> str:
        nonlocal slip
        new = _spaced.sub(lambda m: m[0] if m[2] and ternary else m[1] or m[2], piece)
        slip = slip or new != piece
        if slip:
            new = _after_comma.sub(" ", new)
        if prose:
            new = _joined.sub(_parted, _gap.sub(" ", new))
            new = new if ternary else _ended.sub(r"\1 ", new)
        return new

    return outside(line, change)


def _parted(found: re.Match[str]) -> str:
    # ``hey,can you``, but not ``name,size``
    known = found[1] in _SMALL or found[2] in _SMALL
    return f"{found[1]}, {found[2]}" if known else found[0]


def _calmed(text: str) -> str:
    """With small letters where a sentence shouts. The length stays."""
    hidden = protected.sub(lambda found: "\0" * len(found[0]), f"\n{text}")[1:]
    letters = list(text)
    for sentence in _sentence.finditer(hidden):
        words = list(_letters.finditer(hidden, sentence.start(), sentence.end()))
        if len(words) < _SHOUTED or _reported(sentence[0]):
            continue
        run: list[re.Match[str]] = []
        for word in (*words, None):
            if word is not None and word[0].isupper():
                run.append(word)
                continue
            if len(run) >= (_SHOUTED if len(run) == len(words) else _SHOUTED_INSIDE):
                _calm(run, letters, first=run[0] is words[0])
            run = []
    return "".join(letters)


def _calm(run: list[re.Match[str]], letters: list[str], *, first: bool) -> None:
    written = [word[0] for word in run]
    lowered = [word.lower() for word in written]
    known = [_is_common(word) for word in lowered]
    if (
        sum(known) < max(2, len(run) * _KNOWN)
        or _SMALL.isdisjoint(lowered)
        or len(_QUERY.intersection(written)) > 1
    ):
        return
    for number, (word, low) in enumerate(zip(run, lowered, strict=True)):
        if not known[number] and low not in _DATES:
            continue  # a name, an abbreviation, a code
        capital = low in _DATES or low == "i" or low[:2] in {"i'", "i’"} or (first and not number)
        letters[word.start() : word.end()] = low.capitalize() if capital else low


def _is_common(word: str) -> bool:
    words = _common_words()
    stem = re.split(r"['’]", word, maxsplit=1)[0]
    if word in words or (stem != word and (stem in words or f"{stem[:-1]}" in words)):
        return True
    if len(word) < _SHORTEST_STEM:
        return False
    return _ending(word) is not None or any(
        word.endswith(end) and word.removesuffix(end) in words for end in ("s", "ed", "er", "ing")
    )


@cache
def _common_words() -> frozenset[str]:
    text = resources.files(__package__).joinpath("common_words.txt").read_text(encoding="utf-8")
    return frozenset(word for line in text.splitlines() if line[0] != "#" for word in line.split())
