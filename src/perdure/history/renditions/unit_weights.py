"""What a unit of words is worth keeping for, and what it costs.

Worth are facts, words that carry meaning, signs of a decision or a failure, and being said first;
worth little are pleasantries, announcements and headings. Before it is weighed, a unit loses its
list mark, its bold print and its opening courtesies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perdure.core.tokens import Counter
from perdure.history.renditions.facts import mentions
from perdure.history.renditions.negations import obliges, settles
from perdure.history.renditions.sentences import Unit, binds, clauses, leans, opens, turns, units
from perdure.history.renditions.tidy_text import language_of

_decision = re.compile(
    r"\b(?:decid|decision|chose|agreed|must|should|never|always|instead|because|root cause"
    r"|turns out"
    r"|conclusion|result|found|fix|works?\b|working|broke|fail|error|bug|crash|block|need|want"
    r"|prefer"
    r"|important|todo|remember|deadline|change|added|removed|renamed|created|pass|done\b|complete"
    r"|wrong|cannot|can't|won't|not )"
).search
_failure = re.compile(r"\w(?:Error|Exception)\b|\b(?:error|fatal|FAILED|failed|denied)\b:?").search
_courtesy = re.compile(
    r"\W*(?:let me know|feel free|would you like|do you want me|want me to|shall i|i hope|happy to"
    r"|if you(?:'d| would)? (?:like|want|need|have)|if (?:helpful|useful|needed|desired)"
    r"|thank|sure\b|of course|certainly|great\b"
    r"|perfect"
    r"|excellent|awesome|you['’]re (?:absolutely )?(?:right|welcome)|no problem|sounds good"
    r"|tell me which"
    r"|hello|hi\b|hey\b|good (?:morning|luck)|i understand|got it|absolutely|congrat|take care"
    r"|wow\b"
    r"|how(?:['’]s it going|['’]re you|['’]s everything| are (?:you|things)| have you been"
    r"| about you)"
    r"|what['’]s (?:up|new)|see you|talk (?:to you )?soon|nice to|glad to|good to (?:hear|see)"
    r"|bye\b"
    r"|(?:that|it)(?:['’]s| is| was| sounds) (?:really |so |very )?(?:great|awesome|amazing"
    r"|cool|nice|good)"
    r"(?:,? [A-Z]\w+)?\W*$)",
    re.IGNORECASE,
).match
#: What an assistant says before it does it; what it did is told by what follows.
_announcement = re.compile(
    r"\W*(?:here(?:'s| is| are)\b|(?:(?:now|first|next|then|so|good|ok(?:ay)?"
    r"|alright)[,.!]? )*(?:let me"
    r"|let's|let’s|i'll|i’ll|i will|i'm going to|i’m going to|i am going to|i need to|now i))",
    re.IGNORECASE,
).match
_opener = re.compile(
    r"(?:(?:hey|hi|hello|thanks|wow),? (?-i:[A-Z])[a-z]{1,14}[,!.]\s+"
    r"|(?:great|perfect|excellent|awesome|sure|ok(?:ay)?|alright|absolutely|certainly|of course"
    r"|got it|thanks(?: a lot| so much)?|thank you(?: so much| very much)?|yes please|wow|oh"
    r"|well|hey"
    r"|hi|hello|please|now|so|also|basically|i see"
    r"|you['’]re (?:absolutely "
    r")?right)(?:\s*[,!.…:—–-]{1,3}\s+|\s+(?=i\b|let\b|we\b|the\b|please\b)))+",
    re.IGNORECASE,
).match

_bold = re.compile(r"\*\*(?=\S)([^*\n]{1,200}?)(?<=\S)\*\*")
_marker = re.compile(r"\s*(?:#{1,6}\s+|[-*+•▪◦·]\s+(?:\[[ xX]\]\s+)?)").match
_cells = re.compile(r"\s*[|\t]\s*")
_meaning = re.compile(r"[^\W\d_]{4,}").findall
#: Words that say little wherever they stand.
_PALE = frozenset(
    """about above actually after again also always amazing another anything around awesome back
    because been before being best better both bring came cannot come coming could definitely didn
    does doesn doing done down each either else enough even ever every everyone everything feel
    feeling find from gave getting give given going gonna good gotten great have having hear help
    here hope into isn't just keep kind know lately least less like likely little long look
    looking looks lots love made make makes making many maybe mean might more most much must need
    never next nice okay once only other over part perhaps please pretty quite rather really right
    said same seem seems seen should since some something soon sort sounds still stuff such super
    sure take taking tell than thank thanks that their them then there these they thing things
    think this those though through time together took totally tried trying until upon used very
    want wanted wasn well went were what when where which while will with without wonderful would
    yeah your yourself""".split()  # noqa: SIM905 (a text is easier to read)
)
_spoken = re.compile(r"[^\W_]").search
#: What a unit may end with; behind others, a stop is set.
STOPS = frozenset(".!?…]。！？")  # noqa: RUF001 (wide stops)
# Nothing else is taken out of a sentence: more would change what it says.
_filler = re.compile(
    r"(?<=\s)(?:really|very|basically|actually|simply|certainly|definitely|obviously|essentially"
    r"|literally|kindly)\s+(?=[a-z])"
)
#: A line of code that names what it is about: of most languages.
_defines = re.compile(
    r"(?:(?:export|public|private|protected|static|async|pub|abstract|default|final) )*"
    r"(?:def|class|func|fn|function|interface|struct|enum|trait|impl|type|module|package|namespace|const|CREATE|ALTER"
    r"|INSERT|SELECT|UPDATE|DELETE|@\w+)\b"
).match
_DEFINES, _CODE, _CODE_RUN = 0.4, 0.002, 4  # worth; worth of a token; lines
_error_line = re.compile(r"(?:E\s+)?[\w.]{0,80}(?:Error|Exception)\b: ").match
_digit = re.compile(r"\d").search
#: What a sentence that binds is worth besides, and what is worth less says nothing.
_BINDS_USER, _BINDS, _BINDS_MOST, _SAYS = 1.6, 0.8, 3, 0.1
#: What it is worth besides that it settles something, for each degree.
SETTLES = 1.2
_open = re.compile(
    r"\W*(?:should|shall|would|could|can|may|might|do you|want|next)\b", re.IGNORECASE
).match
_LONGEST_PAIR, _LONGEST_CONDITION = 180, 60
#: A first sentence that is worth more is taken to say what all is about.
_LEAD = 0.4
_LONGEST_ANNOUNCEMENT = 160
_FEW = 600
_PASTED, _MOST_UNITS = 48_000, 2_400
_LABEL = 5  # words of a line without a fact that only says what follows


class SpeakerText(NamedTuple):
    """Words of one speaker."""

    speaker: str
    text: str
    weight: float = 1.0  # Worth relative to others: more than 1 for a user's.


class UnitCandidate(NamedTuple):
    """A unit that may be kept."""

    who: int
    text: str
    cost: int  # in tokens
    facts: tuple[tuple[str, str], ...]  # In lower case, and how they are named by themselves.
    #: What it is worth without its facts.
    worth: float
    weight: float
    leads: bool  # It opens what its speaker says, and says something.
    binds: bool = False  # It is a constraint, a decision, a deadline, a reason, a failure.
    settles: int = 0  # 2: it decides, or obliges whoever hears it; 1: it prefers.


def candidates(
    said: Sequence[SpeakerText], counter: Counter, *, narrative: bool = False
) -> list[UnitCandidate]:
    """In order. For a narrative, whole sentences are worth more."""
    found: list[UnitCandidate] = []
    speakers = {name for spoken in said for name in _meaning(spoken.speaker.casefold())}
    # Among several people, hardly anybody gives orders.
    ordered = len({spoken.speaker for spoken in said if spoken.weight > 1}) == 1
    for who, spoken in enumerate(said):
        weight = spoken.weight
        words = bounded(spoken.text)
        language = language_of(words) or "en"
        foreign = language != "en"
        # Few words: what can be left out of them are parts of sentences.
        fine = len(words) <= _FEW and not narrative and not foreign
        led = False
        for number, unit in enumerate(_few(_whole(_with_condition(units(words))))):
            for text in clauses(lean(unit), fine=fine):
                if not _spoken(text):
                    continue
                named = phrases(text)
                bound, settled = _bound(unit, text, language if ordered and weight > 1 else "")
                worth = _worth(unit, text, bool(named), weight > 1)
                if bound and (worth > _SAYS or weight > 1):
                    worth += min(bound, _BINDS_MOST) * (_BINDS_USER if weight > 1 else _BINDS)
                    worth += settled * SETTLES
                if foreign and unit.kind != "code":
                    # Its words tell little to one who has no list of those that say nothing.
                    worth += max(0.0, 1.5 - 0.5 * number) + 2 * bool(_digit(text))
                    bound = bound or bool(_digit(text))
                    named = tuple((fact, "" if name.isalpha() else name) for fact, name in named)
                if narrative and unit.kind != "sentence":
                    worth *= 0.35
                enough = _LEAD / 2 if weight > 1 else _LEAD
                leads = not led and number < 3 and worth > enough and unit.kind == "sentence"
                led = led or leads
                if named:
                    named = _worth_naming(unit, text, named, speakers)
                if bound or turns(text):
                    # By themselves, these names would seem to be for what they are against.
                    named = tuple((fact, "") for fact, _ in named)
                elif unit.kind == "row":
                    # And of a number nobody would know to whom it belongs.
                    named = tuple((fact, "" if _digit(name) else name) for fact, name in named)
                cost = counter.count(text) + (text[-1] not in STOPS)
                found.append(
                    UnitCandidate(
                        who,
                        text,
                        cost,
                        named,
                        worth * weight,
                        weight,
                        leads,
                        bool(bound),
                        settled,
                    )
                )
            if unit.kind == "code" and not narrative:
                found += _of_code(who, unit.text, weight, counter)
    return found


def _bound(unit: Unit, text: str, ordered: str) -> tuple[int, int]:
    """By how many words it binds, and to what degree it settles something. Where `ordered` is the
    language of a user's words, orders settle as well.
    """
    if unit.kind in {"heading", "code"}:
        return 0, 0
    many = binds(text)
    degree = settles(text) if many else 0
    if ordered and degree < 2 and unit.kind != "row" and obliges(text, ordered):
        return max(many, 1), 2
    return many, degree


def _of_code(who: int, text: str, weight: float, counter: Counter) -> Iterator[UnitCandidate]:
    """More of it than its first line: what it defines, and where there is room, the rest."""
    pieces = _code_pieces(text)
    for number, (piece, defines) in enumerate(pieces):
        cost = counter.count(piece)
        worth = _DEFINES if defines else _CODE * cost * (1 - number / len(pieces))
        yield UnitCandidate(who, piece, cost, (), worth * weight, weight, leads=False)


def _code_pieces(text: str) -> list[tuple[str, bool]]:
    lines = [line.strip() for line in text.splitlines()[1:]]
    lines = [line for line in lines if _spoken(line)][1:]  # the first is a unit already
    found: list[tuple[str, bool]] = []
    run: list[str] = []
    for line in (*lines, ""):
        defines = _defines(line) is not None
        if run and (defines or not line or len(run) == _CODE_RUN):
            found.append((f"{' '.join(run)} …", False))
            run = []
        if defines:
            found.append((f"{line} …", True))
        elif line:
            run.append(line)
    return found


def _worth_naming(
    unit: Unit, text: str, named: tuple[tuple[str, str], ...], speakers: set[str]
) -> tuple[tuple[str, str], ...]:
    if _courtesy(text):
        return ()  # the name of who is greeted
    if unit.kind == "heading":  # there, most words have capitals
        return tuple(each for each in named if not each[0].isalpha())
    return tuple(each for each in named if each[0] not in speakers)  # they are named anyway


def _with_condition(pieces: list[Unit]) -> list[Unit]:
    """The units; items of a list that is asked or denied, not told, with the words that do so."""
    found: list[Unit] = []
    before = ""
    for unit in pieces:
        if unit.kind != "item":
            conditional = unit.text.endswith(":") and len(unit.text) < _LONGEST_CONDITION
            before = unit.text if conditional and (_open(unit.text) or turns(unit.text)) else ""
        elif before:
            marked = _marker(unit.text)
            text = f"{before} {unit.text[marked.end() :] if marked else unit.text}"
            found.append(Unit(text, unit.kind, unit.paragraph))
            continue
        found.append(unit)
    return found


def _whole(pieces: list[Unit]) -> list[Unit]:
    """The units, each with the one behind it without which it would mislead, or say nothing."""
    whole: list[Unit] = []
    paired = False
    for unit in pieces:
        last = whole[-1] if whole and not paired else None
        paired = (
            last is not None
            and unit.kind == "sentence" == last.kind
            and last.paragraph == unit.paragraph
            and len(last.text) + len(unit.text) < _LONGEST_PAIR
            and (leans(unit.text) or opens(last.text))
        )
        if last is not None and paired:
            whole[-1] = Unit(f"{last.text} {unit.text}", last.kind, last.paragraph)
        else:
            whole.append(unit)
    return whole


def bounded(text: str) -> str:
    """The text, or the ends of one that nobody typed: pasted data, told from its ends."""
    if len(text) <= _PASTED:
        return text
    return f"{text[: _PASTED * 2 // 3]}\n…\n{text[-_PASTED // 3 :]}"


def _few(pieces: list[Unit]) -> list[Unit]:
    if len(pieces) <= _MOST_UNITS:
        return pieces
    return pieces[: _MOST_UNITS * 2 // 3] + pieces[-_MOST_UNITS // 3 :]


def announces(text: str) -> bool:
    """Whether an assistant only says what it is about to do, and names nothing."""
    return (
        len(text) < _LONGEST_ANNOUNCEMENT
        and _announcement(text) is not None
        and next(mentions(text), None) is None
    )


def is_idle(text: str) -> bool:
    """Whether the text opens with a courtesy, or with what is about to be done."""
    return bool(_courtesy(text) or _announcement(text))


def _worth(unit: Unit, text: str, facts: bool, asks: bool) -> float:  # noqa: FBT001
    if unit.kind == "row" and not _digit(text):
        return 0.0  # mostly, the head of a table
    words = set(_meaning(text.lower()))
    many = len(words) - len(words & _PALE)
    if not text.isascii() and len(words) * 20 < len(text):
        many = len(text) // 8  # a script without blanks
    if unit.kind in {"heading", "code"} or (not facts and text.count(" ") < _LABEL and many < 4):
        return 0.05 * many
    worth = 0.12 * min(many, 24)
    if _decision(text.lower()):
        worth += 0.5
    if _failure(text):
        worth += 2.5 if _error_line(text) else 0.8
    if _courtesy(text) or (not asks and _announcement(text)) or text.endswith(":"):
        worth *= 0.25
    return worth


def lean(unit: Unit) -> str:
    """A unit without marks and courtesies. Of code, the first line."""
    if unit.kind == "code":
        return _lean_code(unit.text)
    text = unit.text
    if marked := _marker(text):
        text = text[marked.end() :]
    if unit.kind == "row" or "\t" in text:
        cells = [cell.strip() for cell in _cells.split(text.strip().strip("|")) if cell.strip()]
        return f"[{' | '.join(cells)}]" if cells else ""
    if "**" in text:
        text = _bold.sub(r"\1", text)
    opened = _opener(text)
    rest = text[opened.end() :] if opened else ""
    if " " in rest:
        text = rest[0].upper() + rest[1:] if text[0].isupper() and rest[0].islower() else rest
    if "`" not in text and '"' not in text:
        text = _filler.sub("", text)
    return text.strip()


def _lean_code(text: str) -> str:
    lines = [line.strip() for line in text[:2_000].splitlines()[1:4] if line.strip()]
    lines = [line for line in lines if not line.startswith(("```", "~~~"))]
    if not lines:
        return ""
    return lines[0] if len(lines) == 1 else f"{lines[0]} …"


def phrases(text: str) -> tuple[tuple[str, str], ...]:
    """The facts of a text, and how to name each by itself (empty if that would say nothing): a
    number with its unit (``90 seconds``, ``$1,200/month``) or if its form tells what it is (a time,
    a date, a version), words of one name together (``Rocky Mountains``).
    """
    named: dict[str, str] = {}
    run: list[str] = []
    end = -2
    for written, at in mentions(text):
        fact = written.casefold()
        joins = at == end + 1 and text[end] == " " and written[0].isupper() and len(run) < 4
        end = at + len(written)
        if joins and run:
            run.append(fact)
            name = f"{named[run[0]]} {written}"
            named.update(dict.fromkeys(run, name))
            continue
        if fact in named:
            run = []
            continue
        named[fact] = _with_unit(text, written, at) if written[0].isdigit() else written
        run = [fact] if written[0].isupper() else []
    return tuple(named.items())


_unit = re.compile(
    r"\s?(?:%|°[CF]|(?:[kKMGT]i?B|ms|s|h|km|cm|mm|kg|px|[ap]\.?m|EUR|USD|GBP|CHF|Uhr|euros?|dollars?"
    r"|bytes?|tokens?|sec(?:ond)?s?|min(?:ute)?s?|hours?|days?|weeks?|months?|years?|miles?)\b|€)"
    r"|/(?:month|year|day|hour|week)\b"
).match
_own_form = re.compile(r"\d{1,2}:\d\d|\d{4}-\d\d|\d+\.\d+\.\d|[\d.,]+(?:%|[a-zA-Z])").match
_CURRENCIES = frozenset("$€£¥#")


def _with_unit(text: str, number: str, at: int) -> str:
    start = at - 1 if at and text[at - 1] in _CURRENCIES else at
    end = at + len(number)
    while unit := _unit(text, end):
        end = unit.end()
    return text[start:end] if end - start > len(number) or _own_form(number) else ""
