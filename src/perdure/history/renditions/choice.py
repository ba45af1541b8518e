"""Chooses which units of a text to keep when there is room for a third of them.

The best bargain is taken first, again and again, until the room is full: the unit that is worth the
most for its tokens, where a fact that was kept before is worth nothing. What is taken stands in its
old order. Facts that found no unit to live in are named at the end, as many as there is room for.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from perdure.core.tokens import Counter
from perdure.history.renditions.cutting import truncate
from perdure.history.renditions.weighing import Candidate, Spoken, bounded, candidates, phrases

#: Of the room, units get so much at least; the rest is for facts by themselves, if there are any.
_UNITS = 0.72
#: What a unit costs besides its tokens. The more, the longer the units that are taken.
_ANY_UNIT = 6
#: Of what a unit costs, so much may lie beyond the room: all in all, that evens out.
_BEYOND = 0.2
_STOPS = frozenset(".!?…:;,。！？")  # noqa: RUF001 (wide stops)
#: Nobody counts so many tokens beyond the room, if they make a sentence whole.
_ROUNDED = 4
#: In so little room sentences come first, and long ones.
_LITTLE = 48
#: What is worth less need not be said.
_WORTHY = 0.3
#: A fact that takes more tokens is not named by itself.
_LONGEST_NAME = 24


def chosen(said: Sequence[Spoken], room: int, counter: Counter) -> list[str]:
    """For each speaker's words, what is left of them: together about `room` tokens.

    Empty where nothing is; but a user is never left without a word. Takes time in proportion to the
    words, times a logarithm.
    """
    offered = candidates(said, counter)
    must = _must(offered, said, room)
    taken, named = _taken(offered, room if room < _LITTLE else int(room * _UNITS), must)
    used = sum(offered[at].cost for at in taken)
    loose = _loose(offered, taken, named, counter)
    need = sum(cost for _, _, cost in loose)
    if need < room - used:
        taken, named = _taken(offered, room - need, must)
        used = sum(offered[at].cost for at in taken)
        loose = _loose(offered, taken, named, counter)
    texts: list[list[str]] = [[] for _ in said]
    if taken:
        for at in taken:
            texts[offered[at].who].append(offered[at].text)
        if len(taken) == 1 and used > room:
            only = offered[taken[0]]
            texts[only.who] = [truncate(only.text, room, counter)]
    elif (best := _best(offered, range(len(offered)), room)) is not None:
        cut = truncate(offered[best].text, max(room * 3 // 4, 8), counter)
        texts[offered[best].who].append(cut)
        used = counter.count(cut)
    also: list[list[str]] = [[] for _ in said]
    left = room - used
    shown = "\n".join(text for pieces in texts for text in pieces).casefold()
    for who, name, cost in loose:
        if cost <= left and name.casefold() not in shown:
            left -= cost
            also[who].append(name)
    return [_with_names(flow(text), names) for text, names in zip(texts, also, strict=True)]


def outcome(said: Sequence[Spoken], room: int, counter: Counter) -> str:
    """Who wanted what and what came of it, in at most `room` tokens: T of a turn.

    The request is what the user said first, the outcome what was said last; what was said besides
    leaves its facts.
    """
    wanted = next((spoken for spoken in said if spoken.weight > 1), None)
    done = next((spoken for spoken in reversed(said) if spoken.weight <= 1), None)
    told = [spoken for spoken in (wanted, done) if spoken is not None]
    lines: list[str] = []
    left = int(room * 0.8)
    for number, spoken in enumerate(told, 1):
        share = left if number == len(told) else left * 9 // 20
        text = _sentence(spoken, share - counter.count(spoken.speaker) - 2, counter)
        if text:
            lines.append(f"{spoken.speaker}: {text}")
            left -= counter.count(lines[-1]) + 1
    shown = "\n".join(lines)
    names = _names(said, shown.casefold(), room - counter.count(shown) - 5, counter)
    text = _with_names(shown, names)
    return text if counter.count(text) <= room else truncate(text, room, counter)


def value_of(text: str) -> float:
    """How much a text tells: its facts, and its other words."""
    text = bounded(text)
    return len(phrases(text)) + text.count(" ") * 0.05


def gist_of(text: str, room: int, counter: Counter) -> str:
    """The sentences of a text that say most, or the beginning of the best one."""
    return _sentence(Spoken("", text), room, counter)


def names_of(text: str, shown: str, room: int, counter: Counter) -> list[str]:
    """Facts of a text that are not shown yet, as many as there is room for."""
    return _names([Spoken("", text)], shown.casefold(), room, counter)


def flow(pieces: Sequence[str]) -> str:
    """Pieces on one line, each brought to an end."""
    ended = [piece if piece[-1] in _STOPS else f"{piece};" for piece in pieces[:-1]]
    return " ".join((*ended, *pieces[-1:]))


def _with_names(text: str, names: Sequence[str]) -> str:
    if not names:
        return text
    listed = ", ".join(names)
    return f"{text} (Also: {listed})" if text else f"(About: {listed})"


def _must(offered: Sequence[Candidate], said: Sequence[Spoken], room: int) -> list[int]:
    """What is taken first: the best of a user's words, what opens an answer, the best of it."""
    own: list[list[int]] = [[] for _ in said]
    for at, each in enumerate(offered):
        own[each.who].append(at)
    must: list[int] = []
    users = [who for who, spoken in enumerate(said) if spoken.weight > 1 and own[who]]
    others = [who for who, spoken in enumerate(said) if spoken.weight <= 1 and own[who]]
    share = room * 6 // 10 if others else room
    firsts = [_best(offered, own[who], share // len(users)) for who in users]
    must += [best for best in firsts if best is not None]
    left = room - sum(offered[at].cost for at in must)
    for who in others:
        leads = [at for at in own[who] if offered[at].leads]
        if leads and offered[leads[0]].cost * 8 < len(said[who].text):
            must += leads
        elif (best := _best(offered, own[who], left)) is not None and offered[best].worth > _WORTHY:
            must.append(best)
    return must


def _best(offered: Sequence[Candidate], own: Sequence[int], room: int) -> int | None:
    """The unit that is worth most; if all of them are too long, the shortest."""
    fitting = [at for at in own if offered[at].cost <= room + _ROUNDED]
    if not fitting:
        return min(own, key=lambda at: offered[at].cost, default=None)
    return max(fitting, key=lambda at: (_bargain(offered[at], set(), 24), -at))


def _bargain(candidate: Candidate, named: set[str], extra: int = _ANY_UNIT) -> float:
    new = sum(fact not in named for fact, _ in candidate.facts)
    return (new * candidate.weight + candidate.worth) / (candidate.cost + extra)


def _taken(
    offered: Sequence[Candidate], room: int, must: Sequence[int] = ()
) -> tuple[list[int], set[str]]:
    """The best bargains, in their order, and the facts that they name."""
    named: set[str] = set()
    taken: list[int] = []
    used = 0
    for at in must:
        if used + offered[at].cost <= room + (_ROUNDED if not taken else 0):
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
    offered: Sequence[Candidate], taken: Sequence[int], named: set[str], counter: Counter
) -> list[tuple[int, str, int]]:
    """Facts of units that were not taken: whose, how they are named, their tokens."""
    kept = set(taken)
    seen = set(named)
    names: set[str] = set()
    found: list[tuple[int, str, int]] = []
    for at, candidate in enumerate(offered):
        if at in kept:
            continue
        for fact, name in candidate.facts:
            if fact in seen or name in names or (name.isdigit() and len(name) == 1):
                continue  # a digit alone says nothing
            seen.add(fact)
            names.add(name)
            cost = counter.count(f", {name}") if len(name) < 8 * _LONGEST_NAME else 99
            if cost <= _LONGEST_NAME:
                found.append((candidate.who, name, cost))
    return found


def _sentence(spoken: Spoken, room: int, counter: Counter) -> str:
    """The one or two sentences that say most."""
    offered = candidates([spoken], counter, narrative=True)
    leads = [at for at, each in enumerate(offered) if each.leads]
    best = leads[0] if leads else _best(offered, range(len(offered)), room)
    if best is None or room < 4:
        return ""
    if offered[best].cost > room:
        return truncate(offered[best].text, room, counter)
    taken, _ = _taken(offered, room, [best])
    kept = [at for at in taken if at == best or offered[at].worth > 0.5][: 2 + room // 40]
    while sum(offered[at].cost for at in kept) > room:
        kept.remove(next(at for at in reversed(kept) if at != best))
    return flow([offered[at].text for at in kept])


def _names(said: Sequence[Spoken], shown: str, room: int, counter: Counter) -> list[str]:
    """Facts that are not shown yet: first those that are named often and take few tokens."""
    times: dict[str, int] = {}
    written: dict[str, str] = {}
    for spoken in said:
        for line in bounded(spoken.text).split("\n"):
            for fact, name in phrases(line):
                # A word with a capital may be a name; the others are surely worth naming.
                times[fact] = times.get(fact, 0) + (
                    1 if name[0].isupper() and name[1:].islower() else 2
                )
                written.setdefault(fact, name)
    costs = {
        fact: counter.count(f", {name}") if len(name) < 200 else 99
        for fact, name in written.items()
        if fact not in shown and not (name.isdigit() and len(name) == 1)
    }
    names: list[str] = []
    for fact in sorted(costs, key=lambda each: -times[each] / (costs[each] + 1)):
        if room < 3:
            break
        if costs[fact] <= min(room, 12) and written[fact] not in names:
            room -= costs[fact]
            names.append(written[fact])
    return names
