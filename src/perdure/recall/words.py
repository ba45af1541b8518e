"""Text to terms, the same way for what is written and for what is asked.

A term is a word without case, accents and endings, see `languages`; irregular forms of an English
verb are the verb, see `english`. What programmers write as one (``getUserToken``,
``src/auth/token.py``, ``FIN-20``) is a term as it stands, and so are its parts.
Scripts that put no space between words become pairs of characters. Dates get a term that is the
same however they were written: ``2023-05-07``, and ``2023-05`` for their month. Each emoji has one.

Stop words of English and Russian are left out, here and there, those of other languages in
questions: one of nothing else finds nothing by words, and is left to what it means.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from itertools import islice
from typing import NamedTuple

from perdure.history.turn_search import folded
from perdure.recall import languages
from perdure.recall.languages import CHATTER, ENGLISH_ONLY, STOP_WORDS

#: Terms of one text, and characters of it that are looked at. What is behind is not found by words.
MOST_TERMS, MOST_TEXT = 20_000, 400_000
#: Bytes of a term; what is longer is cut, and told apart by a few letters of its hash.
LONGEST = 64
_HASHED = 10
#: Parts of an identifier, at most: nobody asks for the middle of a blob.
_MOST_PARTS = 12
#: Pieces whose terms are remembered: an English vocabulary and the names of a project.
_REMEMBERED = 60_000

#: What stands behind an apostrophe without being a word.
_ENDINGS = frozenset({"s", "t", "d", "m", "ll", "re", "ve", "em"})

_pieces = re.compile(r"\w++(?:[-./:@'’]++\w++)*+").findall
#: One character each, without what changes its colour or joins it with others.
_emoji = re.compile("[\u2600-\u27bf\u2b50\U0001f300-\U0001f3fa\U0001f400-\U0001faff]").findall
_apostrophe = re.compile("['’]").split
_joints = re.compile(r"[-./:@_]+").split
#: Humps of an identifier: HTTPServer, getUserToken, token2.
_humps = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+").findall
_has_hump = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]").search
_word_and_number = re.compile(r"([a-z]{3,})\d+").fullmatch
_not_spaced = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_scripts = re.compile(f"[{_not_spaced}]+|[^{_not_spaced}]+").findall
_is_not_spaced = re.compile(f"[{_not_spaced}]").match

_MONTHS = "january february march april may june july august september october november december"
MONTHS = tuple(_MONTHS.split())
#: Expressions for a month's name, short or not, and for a year.
MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" if name != "may" else name for name in MONTHS)
MONTH = MONTH.replace("sep(?:tember)?", "sept?(?:ember)?")
YEAR = "(?:19|20)[0-9][0-9]"
_has_year = re.compile(rf"(?<![\w.]){YEAR}(?!\w)").search
_written_dates = re.compile(
    rf"\b(?:(?:(?P<day>[0-9]{{1,2}})(?:st|nd|rd|th)?(?:\s+of)?\s+)?(?P<month>{MONTH})\.?,?"
    rf"(?:\s+(?P<late>[0-9]{{1,2}})(?:st|nd|rd|th)?)?,?(?:\s+of)?\s+(?P<year>{YEAR}))\b",
    re.IGNORECASE,
).finditer
_iso = re.compile(rf"({YEAR})[-/.]([01]?[0-9])[-/.]([0-3]?[0-9])(?:t.*)?").fullmatch
_dotted = re.compile(rf"([0-3]?[0-9])\.([01]?[0-9])\.({YEAR})").fullmatch

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
#: Words that say when. One expression for all of them would take four times as long.
_TELLING = frozenset(
    """
    yesterday today tonight tomorrow last next ago week weeks weekend month months year years
    summer winter spring autumn
    """.split()  # noqa: SIM905 - as a list it would take a page
).union(
    (month for month in MONTHS if month != "may"),
    (f"{day}{s}" for day in _DAYS for s in ("", "s")),
    map(str, range(1900, 2100)),
)
_words = re.compile(r"\w+").findall
# "Always" and "never" only where a sentence begins with them: "I never saw that" is no rule.
_rule = re.compile(
    r"(?:^|[.!;:\n]\s*)(?:please )?(?:always|never)\b"
    r"|\bfrom now on\b|\bwhen(?:ever)? i ask\b|\b(?:each|every) time i\b"
    r"|\bi(?:['’]d| would)? prefer\b|\bi(?:['’]d| would) rather\b"
).search
#: One of them stands in every such text. To look for them takes a tenth of the time.
_RULE_SIGNS = ("always", "never", "from now on", " i ask", "time i", "prefer", "rather")
_is_the_month = re.compile(r"\bin may\b|\bmay \d").search


class Asked(NamedTuple):
    """The terms of a question."""

    #: In order, with repetitions, without small words of its language.
    terms: list[str]
    #: By term, another one that stands for the same word in texts of that language.
    forms: dict[str, str]
    #: Its small words told which language it is in: English, or another one.
    told: bool


def terms(text: str) -> list[str]:
    """The terms of a text that may be found, in order, with repetitions; behind them its forms.

    They have letters and digits of any script and ``_ = : . / -``. At most `MOST_TERMS`, of the
    first `MOST_TEXT` characters; never more than `LONGEST` bytes in one.
    """
    text = plain(text)
    pieces = _pieces(text)[:MOST_TERMS]
    found = _terms(text, pieces)
    if language := languages.told(pieces):
        forms = (form for word in _distinct(text) for form in languages.forms(word, language))
        found += dict.fromkeys(forms)
    if not text.isascii():
        found += emoji(text).values()
    del found[MOST_TERMS:]
    return found


def emoji(text: str) -> dict[str, str]:
    """The different emoji of a text, each with its term."""
    return {each: f"e-{ord(each):x}" for each in _emoji(text)}


def terms_alone(text: str) -> list[str]:
    """The terms of a text without its forms: what stood side by side does so among them."""
    text = plain(text)
    return _terms(text, _pieces(text)[:MOST_TERMS])


def asked(text: str) -> Asked:
    """The terms of a question, and what else they are looked for by."""
    text = plain(text)
    pieces = _pieces(text)[:MOST_TERMS]
    found = _terms(text, pieces)
    language = languages.told(pieces)
    if not language:
        return Asked(found, {}, told=not ENGLISH_ONLY.isdisjoint(map(folded, pieces)))
    small = _small_terms(language)
    forms = dict[str, str]()
    for word in _distinct(text):
        form, *parts = languages.forms(word, language) or ("",)
        term, *more = _learnt(word) or ("",)
        if form and not more:
            forms[term] = form
        for part in parts:
            found.append(part.removeprefix(languages.MARK))
            forms[found[-1]] = part
    return Asked([each for each in found if each not in small], forms, told=True)


def identifiers(text: str) -> frozenset[str]:
    """The terms of what programmers write as one: ``head_count``, ``fooBar``, ``a/b.py``.

    Not of words with a hyphen or an apostrophe, which are everybody's, nor of numbers and dates.
    """
    pieces = (piece for piece in _pieces(plain(text))[:MOST_TERMS] if _is_identifier(piece))
    return frozenset(terms[0] for piece in pieces if len(terms := _learnt(piece)) > 1)


def _is_identifier(piece: str) -> bool:
    if _has_hump(piece) is not None:
        return True
    has_letter = any(character.isalpha() for character in piece)
    return has_letter and not piece.replace("-", "").replace("'", "").replace("’", "").isalpha()


def plain(text: str) -> str:
    """The text without accents and marks, but with its case."""
    text = text[:MOST_TEXT]
    if text.isascii():
        return text
    apart = unicodedata.normalize("NFKD", text)
    if "\u0306" in apart:
        # A letter of its own, which endings of Russian are known by; no accent was added to it.
        apart = apart.replace("и\u0306", "й").replace("И\u0306", "Й")
    return unicodedata.normalize("NFC", _marks()("", apart))


def tells_time(text: str) -> bool:
    """Whether a text says when something was or will be."""
    text = text[:MOST_TEXT].lower()
    if not _TELLING.isdisjoint(_words(text)):
        return True
    return "may" in text and _is_the_month(text) is not None


def sets_rule(text: str) -> bool:
    """Whether somebody tells how things are to be done from now on, or what they prefer."""
    text = text[:MOST_TEXT].lower()
    return any(sign in text for sign in _RULE_SIGNS) and _rule(text) is not None


def is_name(term: str) -> bool:
    """Whether a term was written as programmers write names: it has a digit or a joint."""
    return not term.isalpha()


# Pieces


def _terms(text: str, pieces: list[str]) -> list[str]:
    """The terms of pieces of a plain text."""
    found = list[str]()
    known = _known
    for piece in pieces:
        try:
            found += known[piece]
        except KeyError:
            found += _learnt(piece)
    if ("19" in text or "20" in text) and _has_year(text) is not None:
        found += _dates(text)
    del found[MOST_TERMS:]
    return found


def _distinct(text: str) -> list[str]:
    """Words in small letters, each once."""
    return list(dict.fromkeys(_words(folded(text))))[:MOST_TERMS]


@cache
def _small_terms(language: str) -> frozenset[str]:
    return frozenset(term for word in languages.small_words(language) for term in _learnt(word))


#: The terms of pieces that were seen before. Stemming a word takes longer than all else.
_known = dict[str, tuple[str, ...]]()


def _learnt(piece: str) -> tuple[str, ...]:
    made = tuple(dict.fromkeys(_of_piece(piece)))
    if len(piece) <= LONGEST:
        if len(_known) >= _REMEMBERED:
            _known.clear()
        _known[piece] = made
    return made


def _of_piece(piece: str) -> list[str]:
    if "'" not in piece and "’" not in piece:
        return _of_name(piece)
    head, *tails = _apostrophe(piece)
    found = _of_name(head)
    for tail in tails:
        if tail.lower() not in _ENDINGS:
            found += _of_name(tail)
    return found


def _of_name(name: str) -> list[str]:
    """The terms of what was written as one."""
    if name.isascii():
        return _of_spaced(name)
    found = list[str]()
    for run in _scripts(name):
        found += _pairs(folded(run)) if _is_not_spaced(run) else _of_spaced(run)
    return found


def _of_spaced(name: str) -> list[str]:
    name = name.strip("-./:@_")
    if name.isalpha() and _has_hump(name) is None:
        return [*_of_word(name)]
    whole = folded(name)
    if (date := _iso(whole)) is not None:
        return _of_date(date[1], date[2], date[3])
    if (date := _dotted(whole)) is not None:
        return _of_date(date[3], date[2], date[1])
    # A letter alone is no word of a name: OAuth, a/b.
    several = (part for part in _parts(name) if len(part) > 1 or not part.isalpha())
    parts = list(islice(several, _MOST_PARTS))
    if whole in STOP_WORDS or (not parts and not whole.isalnum()):
        return []  # e.g., and/or
    found = [_bounded(whole.replace("@", "="))]
    if "/" in whole and (last := whole.rsplit("/", 1)[1]) and not last.isalpha():
        found.append(_bounded(last.replace("@", "=")))
    return found + parts


def _parts(name: str) -> Iterator[str]:
    for segment in _joints(name):
        if not segment:
            continue
        if segment.isascii() and _has_hump(segment) is not None:
            for hump in _humps(segment):
                yield from _of_word(hump)
        elif segment != name:
            yield from _of_word(segment)
        if (found := _word_and_number(segment.lower())) is not None:
            yield from _of_word(found[1])


@lru_cache(maxsize=_REMEMBERED)
def _of_word(word: str) -> tuple[str, ...]:
    """Its term; nothing for a stop word. Names are new again and again, their words are not."""
    low = folded(word)
    if low in STOP_WORDS and not _is_meant(word):
        return ()
    if not low.isascii():
        return (_bounded(folded(languages.stemmed(word))),)
    return (_bounded(_stem(low) if len(low) > 2 and low.isalpha() else low),)


def _is_meant(word: str) -> bool:
    """Written so that it is no stop word: the month, IT, the WHO."""
    return word == "May" or (len(word) > 1 and word.isupper() and word.lower() not in CHATTER)


def _pairs(run: str) -> list[str]:
    if len(run) == 1:
        return [run]
    return [run[start : start + 2] for start in range(len(run) - 1)]


def _bounded(term: str) -> str:
    data = term.encode()
    if len(data) <= LONGEST:
        return term
    told = hashlib.blake2b(data, digest_size=_HASHED // 2).hexdigest()
    return data[: LONGEST - _HASHED - 1].decode(errors="ignore") + "-" + told


@cache
def _stemmer() -> Callable[[str], str]:
    # With the first append, not with the command. In C: half a microsecond for a word, not forty.
    import Stemmer  # type: ignore[import-not-found,import-untyped,unused-ignore]

    stem: Callable[[str], str] = Stemmer.Stemmer("english").stemWord
    return stem


def _stem(word: str) -> str:
    return _stemmer()(one_form(word)) if len(word) <= LONGEST else word


@cache
def _marks() -> Callable[[str, str], str]:
    """Replaces accents and vowel signs, and what joins characters unseen; not those of kana."""
    unseen = "\xad\u200b\u200c\u200d\u2060\ufeff"
    kana = {0x3099, 0x309A}
    signs = (
        chr(code)
        for code in range(0x300, 0xAC00)
        if unicodedata.category(chr(code)) in {"Mn", "Mc"} and code not in kana
    )
    # An expression takes a fifth of what `str.translate` takes.
    return re.compile(f"[{''.join(signs)}{unseen}]+").sub


# Dates


def _dates(text: str) -> list[str]:
    found = list[str]()
    for date in _written_dates(text):
        number = month_number(date["month"])
        day = date["day"] or date["late"]
        found += _of_date(date["year"], str(number), day)
    return found


def month_number(name: str) -> int:
    """1 for ``Jan`` and ``january``."""
    return next(number for number, month in enumerate(MONTHS, 1) if month[:3] == name[:3].lower())


def _of_date(year: str, month: str, day: str | None) -> list[str]:
    if not 1 <= int(month) <= len(MONTHS):
        return [year]
    whole = f"{year}-{int(month):02}"
    return [whole] if day is None else [f"{whole}-{int(day):02}", whole]


#: A verb, and the forms that do not begin like it.
_VERBS = """
    arise arose arisen; awake awoke awoken; beat beaten; become became; begin began begun;
    bend bent; bite bit bitten; bleed bled; blow blew blown; break broke broken; breed bred;
    bring brought; build built; burn burnt; buy bought; catch caught; choose chose chosen;
    cling clung; come came; creep crept; deal dealt; dig dug; draw drew drawn; dream dreamt;
    drink drank drunk; drive drove driven; eat ate eaten; fall fallen; feed fed; fight fought;
    find found; flee fled; fly flew flown; forbid forbade forbidden; forget forgot forgotten;
    forgive forgave forgiven; freeze froze frozen; give gave given; go went gone; grow grew grown;
    hang hung; hear heard; hide hid hidden; hold held; keep kept; kneel knelt; know knew known;
    lay laid; lead led; leap leapt; learn learnt; leave left; lend lent; lie lain; light lit;
    lose lost; make made; mean meant; meet met; mistake mistook mistaken; overcome overcame;
    pay paid; prove proven; rebuild rebuilt; redo redid redone; rewrite rewrote rewritten;
    ride rode ridden; ring rang rung; rise risen; run ran; say said; see seen; seek sought;
    sell sold; send sent; sew sewn; shake shook shaken; shine shone; shoot shot; show shown;
    shrink shrank shrunk; sing sang sung; sink sank sunk; sit sat; sleep slept; slide slid;
    speak spoke spoken; spend spent; spin spun; spring sprang sprung; stand stood;
    steal stole stolen; stick stuck; sting stung; strike struck; strive strove striven;
    swear swore sworn; sweep swept; swim swam swum; swing swung; take took taken; teach taught;
    tear tore torn; tell told; think thought; throw threw thrown; understand understood;
    undo undid undone; wake woke woken; wear wore worn; weave wove woven; weep wept; win won;
    withdraw withdrew withdrawn; write wrote written
"""
_VERB_OF = {
    form: verb for verb, *forms in (line.split() for line in _VERBS.split(";")) for form in forms
}
#: British spellings, as far as they follow a rule: colour, favourite; organise, initialisation.
_our = re.compile(r"(?<=[a-z][^aeou])our(?=(?:s|al|ed|ing|ful|less|abl[ey]|ites?)?$)").sub
_ise = re.compile(
    r"(?<=[a-z](?:al|an|ar|at|em|er|et|ic|il|im|in|it|od|og|ol|on|or))is(?=(?:e(?:d|rs?|s)?|ing|ations?)$)"
).sub
_LEAST = 6


def one_form(word: str) -> str:
    """The verb of an irregular form, the American spelling of a British one; else the word.

    The word is in lower case. Its other endings are left to the stemmer.
    """
    if (verb := _VERB_OF.get(word)) is not None:
        return verb
    if len(word) < _LEAST:
        return word
    if "our" in word:
        return _our("or", word)
    return _ise("iz", word) if "is" in word else word
