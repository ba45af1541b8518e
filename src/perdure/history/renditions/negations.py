"""Finds negations, what they negate, and obligations, in some twenty languages.

Words that negate are looked up by language; in a language that is not told apart, those of all that
are written in its letters count. Where words are not parted by blanks, signs are looked for, and
what they negate is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

_LATIN: dict[str, str] = {
    "en": """not no never none nothing nobody nowhere neither nor cannot without dont doesnt didnt
    cant wont isnt arent wasnt mustnt shouldnt""",
    "de": "nicht nichts nie niemals niemand weder ohne kein keine keinen keinem keiner keines",
    "fr": "ne pas jamais rien aucun aucune sans ni non",
    "es": "no nunca jamás nada nadie ningún ninguno ninguna sin ni tampoco",
    "it": "non mai niente nulla nessun nessuno nessuna senza né",
    "pt": "não nunca nada nenhum nenhuma ninguém sem nem jamais",
    "nl": "niet niets nooit geen niemand zonder noch",
    "": """nie nigdy nic żaden bez inte aldrig ingen inget inga utan ikke ikkje aldri uten uden
    ei ingenting değil yok asla olmadan nu fără nem soha nélkül není bez žádný tidak bukan jangan
    không đừng chưa""",
}
#: What a paraphrase may say instead, and what tells of failure: they keep a negation, and are none.
_INSTEAD: dict[str, str] = {
    "en": """avoid avoids avoided avoiding forbid forbids forbidden prohibit prohibited ban banned
    refuse refused refuses reject rejected rejects exclude excluded excluding except unless only
    instead untouched unchanged intact alone skip skipped omit omitted stop stopped prevent
    prevented prevents unable impossible fail fails failed failing failure failures error errors
    broken broke missing lack lacks lacked lacking unknown unclear incomplete unfinished unresolved
    open pending blocked denied absent undefined invalid wrong off keep keeps kept leave leaves
    left rather neither hardly barely rarely few little against""",
    "de": """vermeiden vermeide verboten untersagt ablehnen abgelehnt außer statt nur unverändert
    unberührt fehlt fehlte fehlen fehler unklar unbekannt offen scheitert gescheitert fehlgeschlagen
    schlägt unmöglich lassen gelassen kaum gegen stoppen verhindern""",
    "fr": """éviter évite évitez interdit interdire refuser refusé sauf seulement impossible échec
    échoue échoué manque manquant inconnu erreur inchangé intact plutôt contre""",
    "es": """evitar evita evite prohibido prohibir rechazar rechazado excepto salvo solo sólo falta
    faltan fallo falla fallar error imposible desconocido intacto contra dejar""",
    "it": """evitare vietato rifiutare tranne solo fallito fallisce errore manca impossibile ignoto
    intatto contro""",
    "pt": """evitar proibido recusar exceto só falha falhou erro falta impossível desconhecido
    intacto contra""",
    "nl": """vermijden verboden weigeren behalve alleen mislukt fout ontbreekt onmogelijk onbekend
    tegen""",
    "": "",
}
#: Signs, where words are not parted; words, elsewhere.
_SIGNS = """不 没 沒 无 無 别 別 勿 未 非 禁 ない なく なか ません ずに ぬ 안 않 못 없 말 아니 금지
    ไม่ อย่า ไร้"""
_OTHER = """не нет ни нельзя без никогда ничего никто нигде ничто никак ні немає ніколи нічого няма
    никой لا لم لن ليس ليست بدون غير دون نہیں مت نیست نه नहीं मत न बिना ना לא אין בלי אל ללא
    δεν μην μη όχι χωρίς ποτέ τίποτα κανένας"""
#: These oblige, whoever says them; `_EVER`, unless it tells what somebody does.
_MUST = """must shall mustn't required requires requirement forbidden prohibited deadline decided
    agreed mandatory muss müssen darf dürfen soll sollen spätestens höchstens mindestens verboten
    entschieden doit doivent faut interdit décidé debe deben prohibido decidido deve devono vietato
    devem proibido decidimos moet moeten verboden нужно должен должны нельзя"""
_must = re.compile(
    r"\b(?:make sure|at most|at least|no more than|not more than|have to be|has to be|needs? to be"
    r"|by (?:mon|tues|wednes|thurs|fri|satur|sun)day)\b"
).search
#: Words without which nothing is decided: a look at them spares the search below.
_DECIDING = """decision conclusion verdict resolution decided decide agreed agreement settled settle
    opted going go let we instead rather favor favour chose chosen entscheidung entschieden
    beschlossen wir stattdessen anstatt décision décidé décidons decisión decidido decidimos
    decisione deciso decisão besluit besloten"""
_chooses = (
    r"(?:use|go (?:with|for|ahead)|keep|stay (?:on|at|with)|stick (?:with|to)|switch|move to|adopt"
    r"|drop|pin|support|ship|target|leave)\b"
)
_decides = re.compile(
    r"\b(?:(?:decision|conclusion|verdict|resolution|agreement|entscheidung|décision|decisión|decisione"
    r"|decisão|besluit)\b[^.:!?\n]{0,48}(?::|\bis\b|\bist\b)"
    r"|decided|agreed\b(?! with (?:you|her|him|them|that)\b)|settled? (?:on|for)\b|opted for"
    r"|(?:have|has|had|['’]ve|was|were|we) (?:chose|chosen)\b"
    r"|(?:we|i)(?:['’]re| are|['’]m| am) going with\b|i(?:['’]ll| will) go with\b"
    rf"|we(?:['’]ll| will| shall|['’]re going to| are going to) {_chooses}"
    rf"|let(?:['’]s| us) {_chooses}"
    r"|entschieden|beschlossen|wir (?:nehmen|verwenden|bleiben bei|setzen auf)\b"
    r"|décidé|décidons|decidido|decidimos|deciso|besloten)"
).search
_prefers = re.compile(r"\b(?:instead of|rather than|in favou?r of|stattdessen|anstatt)\b").search
_EVER = """ensure always only immer nur toujours seulement siempre solo sólo sempre altijd"""
_TELLS = """i he she it they there that this who what why how because yeah yes well ich er sie es
    das je j il elle ils on ça c yo él ella ellos io lui lei eu ele ela ik hij я он она они"""
_breaks = re.compile(r"[,;:()–—]").split
_clauses = re.compile(r"[,;:()–—]|\b(?:and|but|und|aber|et|mais|y|pero|ma|mas|en|maar)\b").split
_idiom = re.compile(
    r"\b(?:can(?:no|['’])t wait|long time no|no (?:problem|worries|idea|doubt|wonder)|why not"
    r"|if not|not (?:bad|that long|yet|really|sure))\b"
).search
_states = re.compile(r"\b(?:did|does|was|were|has|have|had)(?: not|n['’]?t)\b").search
_PALE = """that this these those with from have has had will would should could shall might must
    need please there their them then than what when where which while about into just also only
    very some your yours they were been does doing done make makes made sure want wants wanted like
    user assistant said says tell tells asked asks here more most much many such thing things
    bitte nicht auch eine einen einem einer aber oder dass wenn haben hatte wird werden wurde sind
    sich noch mehr nach über beim zum zur dann denn avec pour dans mais plus cette elle nous vous
    leur être sont como pero para esta este esto esos más muy con por ser estar questo questa
    sono anche come della delle degli voor niet deze zijn naar maar"""
_word = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_word_parts = re.compile(r"[^\W\d_]+").findall
_shortened = re.compile(r"n['’]t$").search
_elided = re.compile(r"n['’]").match
_wide = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]")
_pairs = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]{2,}").findall
_STEM, _SHORTEST = 5, 4  # Letters of a word that are compared; of one that says something.
_REACH = 2  # Words behind, or before, a negation that it may negate.


def is_negated(sentence: str, language: str) -> bool:
    known = _negating(language)
    return any(_negates(word, known) for word in _all(sentence)) or _has_sign(sentence)


def obliges(sentence: str, language: str) -> bool:
    """Whether it tells what has to be, must not be, or was decided; not what merely is, or is not
    (``I don't have a cat.``), and not a question.
    """
    words = _all(sentence)
    if settles(sentence) > 1:
        return True
    if not _set(_MUST).isdisjoint(words) or _must(sentence.casefold()):
        return True
    if _asks(sentence) or _idiom(sentence.casefold()):
        return False
    known, tells = _negating(language), _set(_TELLS)
    for clause in _clauses(sentence.casefold()):
        if _states(clause):
            continue
        for word in _all(clause):
            if word in tells or word.split("'")[0] in tells:
                break
            if _negates(word, known) or word in _set(_EVER):
                return True
    return _has_sign(sentence)


def settles(sentence: str) -> int:
    """2 if it tells what was decided (``Decision: we stay on 3.11``, ``let's go with Redis``), 1 if
    it prefers one thing to another (``a queue instead of a lock``), else 0; questions do neither.
    """
    lowered = sentence.casefold()
    if _set(_DECIDING).isdisjoint(_word_parts(lowered)) or _asks(sentence):
        return 0
    return 2 if _decides(lowered) else int(_prefers(lowered) is not None)


def is_negative(sentence: str, language: str) -> bool:
    """Whether it is negated, or says so by other words: ``avoid``, ``failed``, ``left alone``."""
    return is_negated(sentence, language) or not _instead(language).isdisjoint(_all(sentence))


def stems(text: str) -> frozenset[str]:
    """The beginnings of the words that say something, to be compared with those of others. Where
    words are not parted, pairs of signs.
    """
    found = {word[:_STEM] for word in _all(text) if _says(word)}
    for run in _pairs(text):
        found |= {run[at : at + 2] for at in range(len(run) - 1)}
    return frozenset(found)


def negated_words(sentences: Iterable[str], language: str) -> dict[str, str]:
    """By stem, the words that are negated wherever they stand, each with its sentence: ``finish``
    in ``The build did not finish.``
    """
    negated, plain = dict[str, str](), set[str]()
    known = _negating(language)
    for sentence in sentences:
        words = [word for clause in _breaks(sentence) for word in (*_all(clause), "")]
        ruled = set[int]()
        for at, word in enumerate(words):
            if _negates(word, known):
                ruled.update(_ruled(words, at))
        for at, word in enumerate(words):
            if not _says(word):
                continue
            if at in ruled:
                negated.setdefault(word[:_STEM], sentence)
            else:
                plain.add(word[:_STEM])
    return {stem: sentence for stem, sentence in negated.items() if stem not in plain}


def _ruled(words: Sequence[str], at: int) -> Iterable[int]:
    """Of a negation, the word that it negates: the next that says something, or the last."""
    for place in range(at + 1, min(at + 1 + _REACH, len(words))):
        if not words[place]:
            break
        if _says(words[place]):
            return (place,)
    for place in range(at - 1, max(at - 1 - _REACH, -1), -1):
        if not words[place]:
            break
        if _says(words[place]):
            return (place,)
    return ()


def _asks(sentence: str) -> bool:
    return sentence.rstrip().endswith(("?", "？", "؟"))  # noqa: RUF001


def _says(word: str) -> bool:
    return len(word) >= _SHORTEST and word not in _set(_PALE) and not _wide.match(word)


def _all(text: str) -> list[str]:
    return [found[0] for found in _word.finditer(text.casefold())]


def _negates(word: str, known: frozenset[str]) -> bool:
    return word in known or bool(_shortened(word) or _elided(word))


def _has_sign(text: str) -> bool:
    if text.isascii():
        return False
    if not _set(_OTHER).isdisjoint(_all(text)):
        return True
    return bool(_wide.search(text)) and any(sign in text for sign in _set(_SIGNS))


@cache
def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


@cache
def _negating(language: str) -> frozenset[str]:
    return _words_of(_LATIN, language)


@cache
def _instead(language: str) -> frozenset[str]:
    return _words_of(_INSTEAD, language)


def _words_of(lists: dict[str, str], language: str) -> frozenset[str]:
    """Those of the language; of all, if it is not told apart. English ones are known everywhere."""
    chosen = (lists["en"], lists[language]) if lists.get(language) else lists.values()
    return _set(" ".join(chosen))
