"""Chooses which units of a text to keep when there is room for a third of them.

The best bargain is taken first, again and again, until the room is full: the unit that is worth the
most for its tokens, where a fact that was kept before is worth nothing. What is taken stands in its
old order. What a user wants and what binds comes first. Facts that found no unit to live in are
named at the end, as many as there is room for.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from perdure.core.tokens import Counter
from perdure.history.renditions.sentences import (
    cut,
    decides,
    reports,
    split,
    truncate,
    turns,
    units,
)
from perdure.history.renditions.tidy_text import is_english
from perdure.history.renditions.unit_weights import (
    SpeakerText,
    UnitCandidate,
    bounded,
    candidates,
    is_idle,
    lean,
    phrases,
)

_UNITS = 0.72  # The share of the room for units; the rest is for facts by themselves.
_ANY_UNIT = 6  # Added to each unit's cost. The more, the longer the units that are taken.
#: Of what a unit costs, so much may lie beyond the room: all in all, that evens out.
_BEYOND = 0.2
_STOPS = frozenset(".!?…]。！？")  # noqa: RUF001 (wide stops)
_ROUNDED = 4  # Nobody counts so many tokens beyond the room, if they make a sentence whole.
_LITTLE = 48  # In so little room sentences come first, and long ones.
_WORTHY = 0.3  # What is worth less need not be said.
_BOUND_USER, _BOUND, _MOST_BOUND = 0.9, 0.45, 40  # Extra room for what binds: shares, tokens.
#: A fact that takes more tokens is not named by itself.
_LONGEST_NAME = 24
_LONGEST_IDLE = 160
#: A sentence that is worth nearly as much may stand for one that does not fit; one that is worth
#: far more, for the first.
_WHOLE, _FAR_MORE = 0.8, 4


def chosen(said: Sequence[SpeakerText], room: int, counter: Counter) -> list[str]:
    """What is left of each speaker's words: together about `room` tokens, nothing where empty; but
    a user always keeps a word. Takes time in proportion to the words, times a logarithm.
    """
    offered = candidates(said, counter)
    more, others = _more(offered)
    share = more + (room * 2 // 3 if room < _LITTLE // 2 else room // 2)
    room += more + others
    must = _must(offered, said, room, share, counter)
    taken, named = _taken(offered, room if room < _LITTLE else int(room * _UNITS), must, room)
    used = sum(offered[at].cost for at in taken)
    loose = _loose(offered, taken, named, counter)
    need = sum(cost for _, _, cost in loose)
    if need < room - used:
        taken, named = _taken(offered, room - need, must, room)
        used = sum(offered[at].cost for at in taken)
        loose = _loose(offered, taken, named, counter)
    if len(taken) == 1 and used > room:
        _shorten(offered, taken[0], room, counter)
    elif not taken and (best := _best(offered, range(len(offered)), room)) is not None:
        _shorten(offered, best, max(room * 3 // 4, 8), counter)
        taken = [best]
    used = sum(offered[at].cost for at in taken)
    kept: list[list[int]] = [[] for _ in said]
    for at in taken:
        kept[offered[at].who].append(at)
    texts = [_flow_of(offered, own) for own in kept]
    also: list[list[str]] = [[] for _ in said]
    left = room - used
    shown = "\n".join(texts).casefold()
    for who, name, cost in loose:
        if cost <= left and name.casefold() not in shown:
            left -= cost
            also[who].append(name)
    return [_with_names(text, names) for text, names in zip(texts, also, strict=True)]


def outcome(said: Sequence[SpeakerText], room: int, counter: Counter) -> str:
    """Who wanted what and what came of it, in at most `room` tokens: T of a turn. The request is
    what the user said first, the outcome what was said last; the rest leaves its facts.
    """
    asked = [spoken for spoken in said if spoken.weight > 1]
    told = [asked[0]._replace(text="\n\n".join(each.text for each in asked))] if asked else []
    others = [spoken for spoken in reversed(said) if spoken.weight <= 1]
    told += [spoken for spoken in others if _tells(spoken.text)][:1] or others[:1]
    lines: list[str] = []
    left = int(room * 0.9)
    for number, spoken in enumerate(told, 1):
        share = left if number == len(told) else left // 2
        text = _sentence(spoken, share - counter.count(spoken.speaker) - 2, counter)
        if text:
            lines.append(f"{spoken.speaker}: {text}")
            left -= counter.count(lines[-1]) + 1
    shown = "\n".join(lines)
    names = _names(said, shown.casefold(), room - counter.count(shown) - 5, counter)
    text = _with_names(shown, names)
    return text if counter.count(text) <= room else truncate(text, room, counter)


def value_of(text: str) -> float:
    text = bounded(text)
    return len(phrases(text)) + text.count(" ") * 0.05


def gist_of(text: str, room: int, counter: Counter) -> str:
    return _sentence(SpeakerText("", text), room, counter)


def names_of(text: str, shown: str, room: int, counter: Counter) -> list[str]:
    return _names([SpeakerText("", text)], shown.casefold(), room, counter)


def _flow_of(offered: Sequence[UnitCandidate], taken: Sequence[int]) -> str:
    """Units on one line, each brought to an end, so that none seems to go on in the next."""
    pieces: list[str] = []
    for number, at in enumerate(taken, 1):
        text = offered[at].text
        following = taken[number] if number < len(taken) else None
        if text[-1] in ":,;" and following != at + 1:
            text = f"{text[:-1]}…"
        elif text[-1] not in _STOPS and text[-1] not in ":,;" and following is not None:
            text = f"{text}."
        pieces.append(text)
    return " ".join(pieces)


def _tells(text: str) -> bool:
    if len(text) >= _LONGEST_IDLE:
        return True
    return any(not is_idle(lean(unit)) and " " in unit.text for unit in units(text))


def _shorten(offered: list[UnitCandidate], at: int, room: int, counter: Counter) -> None:
    text = cut(offered[at].text, room, counter)
    if text:
        offered[at] = offered[at]._replace(text=text, cost=counter.count(text) + 1)


def _more(offered: Sequence[UnitCandidate]) -> tuple[int, int]:
    """How much more room there is because some of it binds: for users, for others."""
    user = sum(each.cost for each in offered if each.binds and each.weight > 1)
    other = sum(each.cost for each in offered if each.binds and each.weight <= 1)
    return min(int(user * _BOUND_USER), _MOST_BOUND), min(int(other * _BOUND), _MOST_BOUND)


def _with_names(text: str, names: Sequence[str]) -> str:
    if not names:
        return text
    listed = ", ".join(names)
    return f"{text} (Also: {listed})" if text else f"(About: {listed})"


def _must(
    offered: list[UnitCandidate],
    said: Sequence[SpeakerText],
    room: int,
    share: int,
    counter: Counter,
) -> list[int]:
    """What is taken first: a user's request and what binds in it, what opens an answer. Users get
    their share of the room; a request that is too long is cut.
    """
    own: list[list[int]] = [[] for _ in said]
    for at, each in enumerate(offered):
        own[each.who].append(at)
    must: list[int] = []
    users = [who for who, spoken in enumerate(said) if spoken.weight > 1 and own[who]]
    others = [who for who, spoken in enumerate(said) if spoken.weight <= 1 and own[who]]
    share = share if others else room
    for who in users:
        own_share = max(share // len(users), 12)
        first = next((at for at in own[who] if offered[at].worth > _WORTHY), None)
        if first is None:
            first = _best(offered, own[who], own_share)
        if first is None:
            continue
        # What binds first, but so that the request can be told of as well.
        left = own_share - min(offered[first].cost, max(own_share // 4, 8))
        binding = _binding(offered, own[who], first, left)
        must += binding
        left = own_share - sum(offered[at].cost for at in binding)
        if offered[first].cost > left + _ROUNDED:
            _shorten(offered, first, max(left, 12), counter)
        must.append(first)
    left = room - sum(offered[at].cost for at in must)
    for who in reversed(others):  # what was said last stands
        firsts = _firsts(offered, own[who], len(said[who].text), left)
        last = who == others[-1]
        if firsts and last and offered[firsts[0]].cost > max(left, 8) + _ROUNDED:
            _shorten(offered, firsts[0], max(left, 8), counter)
        must += firsts
        left -= sum(offered[at].cost for at in firsts)
        if firsts and last and left > 0:
            binding = _binding(offered, own[who], firsts[0], left)
            must += binding
            left -= sum(offered[at].cost for at in binding)
    return must


def _firsts(
    offered: Sequence[UnitCandidate], own: Sequence[int], length: int, room: int
) -> list[int]:
    verdicts = [at for at in own if offered[at].binds and decides(offered[at].text)]
    leads = [at for at in own if offered[at].leads]
    if verdicts and not (leads and reports(offered[leads[0]].text)):
        return verdicts[-1:]
    if leads and offered[leads[0]].cost * 8 < length:
        return leads
    best = _best(offered, own, room)
    if best is None or offered[best].worth <= _WORTHY:
        best = max(own, key=lambda at: (offered[at].worth, -at))
    return [best] if offered[best].worth > _WORTHY else []


def _binding(
    offered: Sequence[UnitCandidate], own: Sequence[int], first: int, room: int
) -> list[int]:
    found: list[int] = []
    ranked = sorted(
        (at for at in own if offered[at].binds and at != first),
        key=lambda at: (-offered[at].worth / offered[at].cost, at),
    )
    for at in ranked:
        if offered[at].cost <= room + _ROUNDED * (not found):
            found.append(at)
            room -= offered[at].cost
    return found


def _best(offered: Sequence[UnitCandidate], own: Sequence[int], room: int) -> int | None:
    fitting = [at for at in own if offered[at].cost <= room + _ROUNDED]
    if not fitting:
        return min(own, key=lambda at: offered[at].cost, default=None)
    return max(fitting, key=lambda at: (_bargain(offered[at], set(), 24), -at))


def _bargain(candidate: UnitCandidate, named: set[str], extra: int = _ANY_UNIT) -> float:
    new = sum(fact not in named for fact, _ in candidate.facts)
    return (new * candidate.weight + candidate.worth) / (candidate.cost + extra)


def _taken(
    offered: Sequence[UnitCandidate], room: int, must: Sequence[int] = (), most: int = 0
) -> tuple[list[int], set[str]]:
    named: set[str] = set()
    taken: list[int] = []
    used = 0
    for at in must:
        if used + offered[at].cost <= max(room, most) + (_ROUNDED if not taken else _ROUNDED // 2):
            taken.append(at)
            used += offered[at].cost
            named.update(fact for fact, _ in offered[at].facts)
    had = set(taken)
    extra = 2 * _ANY_UNIT if room < _LITTLE else _ANY_UNIT
    queue = [
        (-_bargain(each, named, extra), at) for at, each in enumerate(offered) if at not in had
    ]
    heapq.heapify(queue)
    looks = 8 * len(queue) + 64  # what is worth less than it was goes back into the queue
    while queue and used < room and looks:
        looks -= 1
        worth, at = heapq.heappop(queue)
        candidate = offered[at]
        now = -_bargain(candidate, named, extra)
        if now > worth and queue and now > queue[0][0]:
            heapq.heappush(queue, (now, at))
            continue
        if used + candidate.cost * (1 - _BEYOND) > room or now > -0.01:
            continue
        taken.append(at)
        used += candidate.cost
        named.update(fact for fact, _ in candidate.facts)
    return sorted(taken), named


def _loose(
    offered: Sequence[UnitCandidate], taken: Sequence[int], named: set[str], counter: Counter
) -> list[tuple[int, str, int]]:
    kept = set(taken)
    seen = set(named)
    names: set[str] = set()
    found: list[tuple[int, str, int]] = []
    for at, candidate in enumerate(offered):
        if at in kept:
            continue
        for fact, name in candidate.facts:
            if not name or fact in seen or name in names:
                continue
            seen.add(fact)
            names.add(name)
            cost = counter.count(f", {name}") if len(name) < 8 * _LONGEST_NAME else 99
            if cost <= _LONGEST_NAME:
                found.append((candidate.who, name, cost))
    return found


def _sentence(spoken: SpeakerText, room: int, counter: Counter) -> str:
    offered = candidates([spoken], counter, narrative=True)
    leads = [at for at, each in enumerate(offered) if each.leads]
    best = leads[0] if leads else _best(offered, range(len(offered)), room)
    if best is None or room < 4:
        return ""
    verdicts = [at for at, each in enumerate(offered) if each.binds and decides(each.text)]
    if spoken.weight <= 1 and verdicts and not reports(offered[best].text):
        best = verdicts[-1]
    for at, each in enumerate(offered if spoken.weight > 1 else ()):
        if each.binds and each.worth > max(_FAR_MORE * offered[best].worth, _FAR_MORE):
            best = at  # the first was an introduction
    if offered[best].cost > room:
        # Of an answer, rather another sentence that is worth as much and binds; a request is cut.
        least = offered[best].worth * _WHOLE
        whole = [
            at
            for at, each in enumerate(offered)
            if each.binds and each.cost <= room and each.worth >= least
        ]
        if not whole or spoken.weight > 1 or offered[best].binds:
            return cut(offered[best].text, room, counter)
        best = max(whole, key=lambda at: (offered[at].worth, -at))
    taken, _ = _taken(offered, room, [best])
    # Of the rest, those that say most.
    rest = sorted((at for at in taken if at != best), key=lambda at: (-offered[at].worth, at))
    kept = [best, *(at for at in rest if offered[at].worth > 0.5)][: 3 + room // 40]
    while sum(offered[at].cost for at in kept) > room:
        kept.pop()
    return _flow_of(offered, sorted(kept))


def _is_word(name: str) -> bool:
    return name.replace(" ", "").isalpha()


def _names(said: Sequence[SpeakerText], shown: str, room: int, counter: Counter) -> list[str]:
    times: dict[str, int] = {}
    written: dict[str, str] = {}
    against: set[str] = set()
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
        if name and fact not in shown and fact not in against
    }
    names: list[str] = []
    for fact in sorted(costs, key=lambda each: -times[each] / (costs[each] + 1)):
        if room < 3:
            break
        if costs[fact] <= min(room, 12) and written[fact] not in names:
            room -= costs[fact]
            names.append(written[fact])
    return names
