"""T of a turn: who wanted what, and what came of it.

The request is what the user said first, the outcome what was said last; of the rest only names,
numbers and paths are told, as many as there is room for. Where several people talk, what they said
that matters most is told, each by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.tokens import Counter
from perdure.history.renditions.negations import obliges
from perdure.history.renditions.sentences import (
    cut,
    decides,
    reports,
    split,
    truncate,
    turns,
    units,
    without_reason,
)
from perdure.history.renditions.tidy_text import is_english, language_of
from perdure.history.renditions.unit_choice import (
    Room,
    UnitChoice,
    best_of,
    binding_of,
    chosen,
    flow_of,
    settled_of,
    with_names,
)
from perdure.history.renditions.unit_weights import (
    SETTLES,
    SpeakerText,
    UnitCandidate,
    bounded,
    candidates,
    is_idle,
    lean,
    phrases,
)

_LONGEST_IDLE = 160
#: A request is not cut to fewer tokens; what fits but for so many is taken to fit.
_LEAST_REQUEST, _ROUNDED = 8, 4
#: A sentence that is worth nearly as much may stand for one that does not fit; one that is worth
#: far more, for the first.
_WHOLE, _FAR_MORE = 0.8, 4


def outcome(said: Sequence[SpeakerText], room: int, counter: Counter) -> str:
    """Who wanted what and what came of it, in at most `room` tokens: T of a turn. The request is
    what the user said first, the outcome what was said last; the rest leaves its facts.
    """
    if len({spoken.speaker for spoken in said if spoken.weight > 1}) > 1:
        return _talk(said, room, counter)
    asked = [spoken for spoken in said if spoken.weight > 1]
    told = [asked[0]._replace(text="\n\n".join(each.text for each in asked))] if asked else []
    others = [spoken for spoken in reversed(said) if spoken.weight <= 1]
    told += [spoken for spoken in others if _tells(spoken.text)][:1] or others[:1]
    lines: list[str] = []
    left = int(room * 0.9)
    first = left // 2
    if len(told) > 1 and (decided := _settles(told[0])) != _settles(told[1]):
        first = left * (4 if decided else 2) // 6  # who decides, or obliges, has twice the room
    for number, spoken in enumerate(told, 1):
        share = left if number == len(told) else first
        text = _sentence(spoken, share - counter.count(spoken.speaker) - 2, counter)
        if text:
            lines.append(f"{spoken.speaker}: {text}")
            left -= counter.count(lines[-1]) + 1
    return _and_names(said, "\n".join(lines), room, counter)


def _talk(said: Sequence[SpeakerText], room: int, counter: Counter) -> str:
    """Several people at once: what is worth most of what they said, each by name."""
    aim = room * 2 // 3
    texts = chosen(said, Room(aim, 0, aim), counter, narrative=True)
    lines = [f"{who.speaker}: {text}" for who, text in zip(said, texts, strict=True) if text]
    return _and_names(said, "\n".join(lines), room, counter)


def _and_names(said: Sequence[SpeakerText], shown: str, room: int, counter: Counter) -> str:
    left = room - counter.count(shown) - 5
    text = with_names(shown, _names(said, shown.casefold(), left, counter))
    return text if counter.count(text) <= room else truncate(text, room, counter)


def gist_of(text: str, room: int, counter: Counter) -> str:
    return _sentence(SpeakerText("", text), room, counter)


def names_of(text: str, shown: str, room: int, counter: Counter) -> list[str]:
    return _names([SpeakerText("", text)], shown.casefold(), room, counter)


def value_of(text: str) -> float:
    text = bounded(text)
    return len(phrases(text)) + text.count(" ") * 0.05


def _tells(text: str) -> bool:
    if len(text) >= _LONGEST_IDLE:
        return True
    return any(not is_idle(lean(unit)) and " " in unit.text for unit in units(text))


def _settles(spoken: SpeakerText) -> bool:
    words = bounded(spoken.text)
    if spoken.weight <= 1:
        return any(decides(unit.text) for unit in units(words))
    language = language_of(words) or "en"
    return any(obliges(unit.text, language) for unit in units(words) if unit.kind != "code")


def _sentence(spoken: SpeakerText, room: int, counter: Counter) -> str:
    offered = candidates([spoken], counter, narrative=True)
    leads = [at for at, each in enumerate(offered) if each.leads]
    best = leads[0] if leads else best_of(offered, range(len(offered)), room)
    if best is None or room < 4:
        return ""
    if spoken.weight > 1:
        if text := _with_rules(offered, best, room, counter):
            return text
        for at, each in enumerate(offered):
            worth = each.worth - each.settles * SETTLES * each.weight
            if each.binds and worth > max(_FAR_MORE * offered[best].worth, _FAR_MORE):
                best = at  # the first was an introduction
    else:
        if text := _done_and_decided(offered, best, room, counter):
            return text
        best = _verdict(offered, best)
    if offered[best].cost > room:
        # Of an answer, rather another sentence that is worth as much and binds; a request is cut.
        least = offered[best].worth * _WHOLE
        whole = [
            at
            for at, each in enumerate(offered)
            if each.binds and each.cost <= room and each.worth >= least
        ]
        if not whole or spoken.weight > 1 or offered[best].binds:
            text = offered[best].text
            return cut(without_reason(text) if offered[best].settles else text, room, counter)
        best = max(whole, key=lambda at: (offered[at].worth, -at))
    choice = UnitChoice(offered, [0])
    choice.take(room, [best], room, 12 if room < 48 else 6)
    # Of the rest, those that say most.
    rest = sorted(
        (at for at in choice.taken if at != best), key=lambda at: (-offered[at].worth, at)
    )
    kept = [best, *(at for at in rest if offered[at].worth > 0.5)][: 3 + room // 40]
    while sum(offered[at].cost for at in kept) > room:
        kept.pop()
    return flow_of(offered, sorted(kept))


def _with_rules(offered: list[UnitCandidate], request: int, room: int, counter: Counter) -> str:
    """A user's request with what it obliges to, for which it is cut; empty if that has no room."""
    bound = [at for at, each in enumerate(offered) if each.settles > 1]
    least = min(offered[request].cost, _LEAST_REQUEST)
    rules = binding_of(offered, bound, request, room - least - _ROUNDED)
    if not rules:
        return ""
    text = cut(offered[request].text, room - sum(offered[at].cost for at in rules), counter)
    offered[request] = offered[request]._replace(text=text)
    return flow_of(offered, sorted((request, *rules) if text else rules))


def _done_and_decided(offered: list[UnitCandidate], done: int, room: int, counter: Counter) -> str:
    """Both, if the first tells what was done, and there is room; otherwise empty."""
    decided = settled_of(offered, range(len(offered)))
    if decided is None or decided == done or not reports(offered[done].text):
        return ""
    text = without_reason(offered[decided].text)
    if offered[done].cost + counter.count(text) > room:
        return ""
    offered[decided] = offered[decided]._replace(text=text)
    return flow_of(offered, sorted((done, decided)))


def _verdict(offered: Sequence[UnitCandidate], best: int) -> int:
    """What was decided last; otherwise the last verdict, unless the best tells what was done."""
    decided = settled_of(offered, range(len(offered)))
    if decided is not None or reports(offered[best].text):
        return best if decided is None else decided
    verdicts = (
        at
        for at in reversed(range(len(offered)))
        if offered[at].binds and decides(offered[at].text) and not is_idle(offered[at].text)
    )
    return next(verdicts, best)


def _is_word(name: str) -> bool:
    return name.replace(" ", "").isalpha()


def _names(said: Sequence[SpeakerText], shown: str, room: int, counter: Counter) -> list[str]:
    times: dict[str, int] = {}
    written: dict[str, str] = {}
    against: set[str] = set()
    speakers = {spoken.speaker.casefold() for spoken in said}
    for spoken in said:
        words = bounded(spoken.text)
        foreign = not is_english(words)
        for line in words.split("\n"):
            for sentence in split(line):
                named = phrases(sentence)
                if foreign:  # where many words have capitals, those are no names
                    named = tuple((fact, name) for fact, name in named if not _is_word(name))
                if line.startswith("|"):  # of a number, nobody would know to whom it belongs
                    named = tuple((fact, name) for fact, name in named if _is_word(name))
                if named and turns(sentence):
                    # Alone, these names would seem to be for what they are against.
                    against.update(fact for fact, _ in named)
                    continue
                for fact, name in named:
                    # A word with a capital may be a name; the others are surely worth naming.
                    times[fact] = times.get(fact, 0) + (
                        1 if name[:1].isupper() and name[1:].islower() else 2
                    )
                    written.setdefault(fact, name)
    costs = {
        fact: counter.count(f", {name}") if len(name) < 200 else 99
        for fact, name in written.items()
        if name and fact not in shown and fact not in against and fact not in speakers
    }
    names: list[str] = []
    for fact in sorted(costs, key=lambda each: -times[each] / (costs[each] + 1)):
        if room < 3:
            break
        if costs[fact] <= min(room, 12) and written[fact] not in names:
            room -= costs[fact]
            names.append(written[fact])
    return names
