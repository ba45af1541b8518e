"""Words of languages other than English.

Where letters tell the language, or one whose endings are near enough, words lose their endings by
the rules of that language: Cyrillic by those of Russian, Greek, Arabic, Armenian by their own. The
vowel signs of Indic scripts are left out with all marks, and most endings go with them.

In Latin letters a word does not say what it is. A text does, by the small words that every sentence
has: `told`. Words of such a text get a further term, their *form*, beside the one that they would
have in English; so nothing that is found without forms is lost, and English text has none of them.
Forms begin with a mark, so that none is taken for an English word: the German form of “stripe” is
what is left of “strip”, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

from perdure.history.turn_search import folded

#: What forms begin with.
MARK = "="
#: Forms that are remembered, over all languages.
_REMEMBERED = 30_000
#: Pieces of a text that are looked at to tell its language.
_LOOKED_AT = 400
#: Shorter and longer words have no endings; those that were made of two are longer than this.
_SHORTEST, _LONGEST, _LONG = 3, 60, 10
#: Small words that tell a language although none does by itself.
_SURE = 3

#: The language whose rules hold for letters from the first of these to the last.
_SCRIPTS = (
    ("\u0370", "\u03ff", "greek"),
    ("\u0400", "\u04ff", "russian"),
    ("\u0530", "\u058f", "armenian"),
    ("\u0600", "\u06ff", "arabic"),
)

_words = re.compile(r"[^\W_]+").findall
#: Where German makes one word of two, there is an s behind these endings.
_joined = re.compile(r"(\w{2,}(?:ung|heit|keit|schaft|ion|tat))s(\w{4,})").fullmatch


def told(pieces: Sequence[str]) -> str:
    """The language that pieces of a text are in, by its small words; empty if that is English.

    It takes one that is nothing else, or three that may be; and more than there are of English.
    What is too short to tell, or in a language that is not known here, is empty, too.
    """
    some = pieces[:_LOOKED_AT]
    if _worth_a_look().isdisjoint(some):
        return ""
    low = set(_words(folded(" ".join(some))))
    best, most = "", 0
    for language, (own, english) in _signs().items():
        there = low & own
        is_sure = len(there) >= _SURE or not _telling().isdisjoint(there)
        if is_sure and len(there) > max(most, len(low & english)):
            best, most = language, len(there)
    return best


def small_words(language: str) -> frozenset[str]:
    """What says nothing by itself in a language that was told; nothing for none."""
    return OTHERS.get(language, frozenset())


@lru_cache(maxsize=_REMEMBERED)
def forms(word: str, language: str) -> tuple[str, ...]:
    """Further terms of a word in small letters, in a language that was told: none of a small word.

    The first is what is left of it without the endings of that language. If German made the word
    of two, these follow.
    """
    if not _has_endings(word) or word in OTHERS[language]:
        return ()
    stem = _stemmer(language)
    parts = _joined(word) if language == "german" and len(word) > _LONG else None
    whole = (word, *(() if parts is None else parts.groups()))
    return tuple(MARK + stem(each) for each in whole)


def any_form(word: str) -> tuple[str, ...]:
    """What would be left of a word, in small letters, in each of the languages in Latin letters."""
    if not _has_endings(word):
        return ()
    return tuple(dict.fromkeys(MARK + _stemmer(each)(word) for each in OTHERS))


def stemmed(word: str) -> str:
    """A word without its endings, if its letters tell the language; in small letters."""
    word = word.casefold()
    if _SHORTEST <= len(word) <= _LONGEST:
        for first, last, language in _SCRIPTS:
            if first <= word[0] <= last:
                return _stemmer(language)(word) or word
    return word


def _has_endings(word: str) -> bool:
    return word.isascii() and word.isalpha() and _SHORTEST <= len(word) <= _LONGEST


# What is known of languages: read when it is first needed


@cache
def _signs() -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """By language: the small words that English does not have, and those of English alone."""
    return {
        language: (frozenset(word for word in own - ENGLISH if len(word) > 1), ENGLISH - own)
        for language, own in OTHERS.items()
    }


@cache
def _telling() -> frozenset[str]:
    """The small words that tell a language, each by itself."""
    words = {word for own in OTHERS.values() for word in own - ENGLISH - AMBIGUOUS}
    return frozenset(word for word in words if len(word) >= _SHORTEST)


@cache
def _worth_a_look() -> frozenset[str]:
    """What a text has that may be in one of them, as it stands there or begins a sentence."""
    return frozenset(form for word in _telling() | ARTICLES for form in (word, word.title()))


@cache
def _stemmer(language: str) -> Callable[[str], str]:
    import Stemmer  # type: ignore[import-not-found,import-untyped,unused-ignore]

    stem: Callable[[str], str] = Stemmer.Stemmer(language).stemWord
    return stem


# ruff: noqa: RUF001 - letters that look like others are meant


_ENGLISH = """
    a about after again all also am an and any are aren as at be been before being between both but
    by can could couldn d did didn do does doesn doing don down e.g each few for from further get
    got had hadn has hasn have haven having he her here hers him his how i i.e if in into is isn it
    its just like ll m may me might mine more most must my no nor not now of off on once only or
    other our ours out over own re s same shall she should shouldn so some such t than that the
    their theirs them then there these they this those to too up us ve very was wasn we were weren
    what when where which who whom whose why will with won would wouldn you your yours
"""
_RUSSIAN = """
    а без более бы был была были было быть в вам вас весь во вот все всего вы где да даже для до
    его ее если есть еще же за здесь и из или им их к как какая какие какого какое какой какую
    ко когда кого кто ли либо мне может мои мой моя мы на над надо нам нас наш наша не него нее
    нет ни них но ну о об однако он она они оно от очень по под после почему при про с
    свой себя сколько со так также там тебя тем теперь то того тоже только ты у уже хотя
    чего чей чем через что чтобы чье чья эта эти это этого этой этом этот я
"""
#: What is said to agree or to greet, and says nothing about anything.
CHATTER = frozenset({"hello", "hey", "hi", "ok", "okay", "please", "thank", "thanks", "yes"})
ENGLISH = CHATTER.union(_ENGLISH.split())
#: Of languages that letters tell, or that most texts are in; without accents.
STOP_WORDS = ENGLISH.union(_RUSSIAN.replace("й", "и").split())

#: Of others that are written in Latin letters, by language; without accents.
_OTHERS = {
    "german": """
        aber alle als also am an auch auf aus bei beim bin bis da damit dann das dass dein dem den
        denn der des die dies diese dieser doch du durch ein eine einem einen einer eines er es
        etwas euch fur ganz gab haben habe hast hat hatte hatten ich ihr ihre im in ins ist ja jetzt
        kann kein keine konnen man mein meine mich mir mit muss nach nicht noch nun nur ob oder ohne
        schon sein seine sich sie sind so soll uber um und uns unser unsere unter vom von vor wann
        war waren warum was welche welchem welchen welcher welches wenn wer werden wie wieder wir
        wird wo woran woruber wurde wurden zu zum zur zwischen
    """,
    "french": """
        afin ai as au aussi autre aux avec avez avons c ca car ce ceci cela ces cet cette chez
        comme comment d dans de depuis des deux donc dont du elle elles en encore est et etaient
        etait ete etes etre eux fait ils il j je l la le les leur leurs lui m ma mais me meme mes
        moi mon n ne ni nos notre nous on ont ou par parce pas peut plus pour pourquoi qu quand que
        quel quelle quelles quels qui quoi s sa sans se sera ses si son sont sous sur t ta tes toi
        ton tous tout toute toutes tres tu un une va vers vos votre vous y
    """,
    "spanish": """
        a al algo alguna algun ante antes aqui asi aun aunque cada como con cual cuales cuando
        cuanto de del desde donde dos el ella ellas ellos en entre era eran eres es esa ese eso
        esta estaba estan estas este esto estos fue fueron ha habia han hasta hay he la las le les
        lo los mas me mi mis mucho muy nada ni no nos nosotros nuestra nuestro o os otra otro para
        pero por porque puede que quien se segun ser si sido sin sobre solo son soy su sus tambien
        te tenia tiene tienen todo todos tras tu tus un una unas uno unos y ya yo
    """,
    "italian": """
        a abbiamo ai al alla alle allo anche ancora avere aveva c che chi ci cio col come con cosa
        cui d da dai dal dalla dalle degli dei del della delle dello di dopo dove e ed era erano
        essere fa fino fra gia gli ha hai hanno ho i il in io l la le lei li lo loro lui ma me mi
        mia mie miei mio molto ne nei nel nella nelle no noi non nostra nostro o ogni per perche piu
        po poi prima quale quali quando quanto quella quello questa queste questi questo qui se sei
        senza si sia sono sta stata stato su sua sue sui sul sulla suo tra tu tua tuo tutti tutto un
        una uno vi
    """,
    "portuguese": """
        a agora ainda ao aos as ate cada com como da das de dela dele depois do dos e ela elas ele
        eles em entre era essa esse esta estao estava este eu foi foram ha isso isto ja la lhe mais
        mas me mesmo meu meus minha muito na nao nas nem no nos nossa nosso num numa o onde os ou
        para pela pelas pelo pelos por porque qual quais quando que quem se sem ser seu seus so
        sobre sua suas tambem te tem tinha tudo um uma voce
    """,
    "dutch": """
        aan al als bij dan dat de deze die dit door een en er geen had heb hebben heeft het hier
        hij hoe hun ik in is je jij kan kon maar me meer met mij mijn na naar niet niets nog nu of
        om omdat onder ons onze ook op over te tegen toch toen tot u uit uw van veel voor waar
        waarom wanneer want waren was wat we welke werd wie wij worden wordt zal ze zich zij zijn zo
        zonder zou
    """,
    "swedish": """
        alla allt att av bara blev bli da dar de dem den denna deras dess det detta dig din du efter
        ej eller en ett fran for ha hade han har hon hur i icke in inga ingen inte ja jag kan kunde
        man med mellan men mig min mina mitt mot mycket nar nagon nagot ni nu nar och om oss pa sa
        sedan sig sin sina skulle som till upp ut vad var vara varit varje varfor vem vi vilka
        vilken vilket
    """,
    "danish": """
        af alle at blev blive da de den denne der deres det dette dig din du efter eller en end er
        et for fra ham han har havde hende her hun hvad hvem hvilke hvilken hvis hvor hvorfor
        hvordan i ikke ind jeg jer kan kunne man med meget men mig min mine mit mod nar noget nogle
        nu og ogsa om op os pa sig sin skal skulle som til ud under var vi vil ville vores
    """,
    "polish": """
        a aby ale bardzo bedzie bez byc byl byla bylo byly ci co czy dla do gdy gdzie go i ich ile
        ja jak jaki jakie jako jest jeszcze jego jej juz kiedy kto ktora ktore ktory ma mi mnie moj
        moja moje moze my na nad nam nas nasz nie nic o od on ona one oni oraz po pod przed przez
        przy sa sie ta tak tam te tego tej ten to tu tylko tym w we wiec wszystko z za ze
    """,
    "turkish": """
        ama ancak bana ben beni bile bir biz bu bunu cok da daha de degil diye en gibi hangi hem
        hep her icin ile ise iste kadar kim ki mi mu nasil ne neden nerede niye o olan olarak oldu
        olur onu sana sen siz son sonra su var ve veya ya yok zaman
    """,
}
OTHERS = {language: frozenset(words.split()) for language, words in _OTHERS.items()}
ENGLISH_ONLY = ENGLISH.difference(*OTHERS.values())
#: What English, names and programs are full of, too: it tells nothing.
AMBIGUOUS = frozenset(
    """
    ai al ante ate aux ben bile bin car com come comment con da dan data dem des die dies dig door
    dos elle end era est fin fra fun hade ham han has hat hay her hun id il ins kan las los ma
    man mas me men met mi min mine mod more most mot no non nos num om one os over par pas per
    plus po pod pour pro qui san sans sera sin sol solo son sub sur sus tam ten till ton top tot
    under van var via ville von want war
    """.split()  # noqa: SIM905 - as a list it would take a page
)
#: Too short to tell, but English text hardly has them.
ARTICLES = frozenset({"di", "du", "el", "et", "il", "im", "la", "le", "zu"})
