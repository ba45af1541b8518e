"""Chooses which units of a text to keep when there is room for a third of them.

The best bargain is taken first, again and again, until the room is full: the unit that is worth the
most for its tokens, where a fact that was kept before is worth nothing. What is taken stands in its
old order. What a user wants and what binds comes first. Facts that found no unit to live in are
named at the end, as many as there is room for.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from perdure.core.tokens import Counter
from perdure.history.renditions.sentences import cut, decides, reports
from perdure.history.renditions.unit_weights import STOPS, SpeakerText, UnitCandidate, candidates

_UNITS = 0.72  # The share of the room for units; the rest is for facts by themselves.
_ANY_UNIT, _ANY_TOLD = 6, 24  # Added to each unit's cost in C, and where a story is told.
#: Of what a unit costs, so much may lie beyond the room: all in all, that evens out.
_BEYOND = 0.2
_ROUNDED = 4  # Nobody counts so many tokens beyond the room, if they make a sentence whole.
_LITTLE = 48  # In so little room sentences come first, and long ones.
_WORTHY = 0.3  # What is worth less need not be said.
#: Extra room for what binds: shares, of what settles in all but a user's words, tokens.
_BOUND_USER, _BOUND, _SETTLED, _MOST_BOUND = 0.9, 0.45, 0.9, 40
#: A fact that takes more tokens is not named by itself.
_LONGEST_NAME = 24
_FEW_SPEAKERS = 3  # To say who speaks costs nothing if it is so few.
_WIDE = frozenset("。！？")  # noqa: RUF001 (no blank follows these)
_ALSO = 4  # What it costs to say that names follow.
#: What is worth less is taken only to fill the room; a unit is not cut to fewer tokens than these.
_NOTHING, _LEAST_CUT = 0.01, 8
_LEAST_REQUEST = 12  # If no user has more room than that, they need not all be heard.


class Room(NamedTuple):
    """How many tokens a rendition is to take: about, at least, and at most, even if more of it
    binds. Who speaks counts half: some call it words, some do not.
    """

    aim: int
    least: int
    most: int


def chosen(
    said: Sequence[SpeakerText], room: Room, counter: Counter, *, narrative: bool = False
) -> list[str]:
    """What is left of each speaker's words, nothing where empty. Takes time in proportion to the
    words, times a logarithm.
    """
    offered = candidates(said, counter, narrative=narrative)
    more, others = _more(offered)
    aim = room.aim
    share = more + (aim * 2 // 3 if aim < _LITTLE // 2 else aim // 2)
    aim = min(aim + more + others, room.most)
    few = len(said) <= _FEW_SPEAKERS
    choice = UnitChoice(
        offered, [0 if few else counter.count(f"\n{each.speaker}: ") // 2 for each in said]
    )
    must = _must(offered, said, aim, min(share, aim), counter)
    extra = _ANY_TOLD if narrative else 2 * _ANY_UNIT if aim < _LITTLE else _ANY_UNIT
    choice.take(aim if aim < _LITTLE else int(aim * _UNITS), must, aim, extra)
    loose = _loose(choice, counter)
    if (need := sum(cost for _, _, cost in loose)) < aim - choice.used:
        choice.clear()
        choice.take(aim - need, must, aim, extra)
        loose = _loose(choice, counter)
    if len(choice.taken) == 1 and choice.used > aim:
        choice.shorten(choice.taken[0], aim, counter)
    elif not choice.taken and (best := best_of(offered, range(len(offered)), aim)) is not None:
        choice.shorten(best, max(aim * 3 // 4, 8), counter)
        choice.add(best)
    also: list[list[str]] = [[] for _ in said]
    texts = choice.texts(len(said))
    left = aim - choice.used
    shown = "\n".join(texts).casefold()
    for who, name, alone in loose:
        cost = alone if also[who] else alone + _ALSO + choice.speaker_cost(who)
        if cost <= left and name.casefold() not in shown:
            left -= cost
            also[who].append(name)
    if aim - left < room.least:
        choice.fill(left, counter)
        texts = choice.texts(len(said))
    return [with_names(text, names) for text, names in zip(texts, also, strict=True)]


class UnitChoice:
    """Units that were taken, and what they cost together."""

    def __init__(self, offered: list[UnitCandidate], speakers: Sequence[int]) -> None:
        self.offered = offered
        self._speakers = speakers  # What it costs to say who speaks.
        self.clear()

    def clear(self) -> None:
        self.taken: list[int] = []
        self.named: set[str] = set()
        self.used = 0
        self._heard: set[int] = set()

    def speaker_cost(self, who: int) -> int:
        return 0 if who in self._heard else self._speakers[who]

    def cost(self, at: int) -> int:
        each = self.offered[at]
        return each.cost + self.speaker_cost(each.who)

    def add(self, at: int) -> None:
        self.used += self.cost(at)
        self.taken.append(at)
        self._heard.add(self.offered[at].who)
        self.named.update(fact for fact, _ in self.offered[at].facts)

    def shorten(self, at: int, room: int, counter: Counter) -> None:
        before = self.offered[at].cost
        _shorten(self.offered, at, room, counter)
        if at in self.taken:
            self.used += self.offered[at].cost - before

    def take(self, room: int, must: Sequence[int], most: int, extra: int) -> None:
        """The best bargains, until the room is full; what must be, in at most `most`. What is
        added to each unit's cost is `extra`: the more, the longer the units that are taken.
        """
        for at in must:
            spare = _ROUNDED if not self.taken else _ROUNDED // 2
            if self.used + self.cost(at) <= max(room, most) + spare:
                self.add(at)
        had = set(self.taken)
        queue = [
            (-_bargain(each, self.named, extra), at)
            for at, each in enumerate(self.offered)
            if at not in had
        ]
        heapq.heapify(queue)
        looks = 8 * len(queue) + 64  # what is worth less than it was goes back into the queue
        while queue and self.used < room and looks:
            looks -= 1
            worth, at = heapq.heappop(queue)
            now = -_bargain(self.offered[at], self.named, extra)
            if now > worth and queue and now > queue[0][0]:
                heapq.heappush(queue, (now, at))
                continue
            if self.used + self.cost(at) * (1 - _BEYOND) <= room and now <= -_NOTHING:
                self.add(at)

    def fill(self, room: int, counter: Counter) -> None:
        """Take more, whatever it is worth; the last of it is cut."""
        had = set(self.taken)
        rest = [at for at in range(len(self.offered)) if at not in had]
        rest.sort(key=lambda at: (-_bargain(self.offered[at], self.named), at))
        full = self.used + room
        longer: list[int] = []
        for at in rest:
            if self.used + self.cost(at) <= full:
                self.add(at)
            else:
                longer.append(at)
        for at in longer[:1]:
            left = full - self.used - self.speaker_cost(self.offered[at].who)
            if left >= _LEAST_CUT:
                self.shorten(at, left, counter)
                self.add(at)

    def texts(self, speakers: int) -> list[str]:
        kept: list[list[int]] = [[] for _ in range(speakers)]
        for at in sorted(self.taken):
            kept[self.offered[at].who].append(at)
        return [flow_of(self.offered, own) for own in kept]


def flow_of(offered: Sequence[UnitCandidate], taken: Sequence[int]) -> str:
    """Units on one line, each brought to an end, so that none seems to go on in the next."""
    pieces: list[str] = []
    for number, at in enumerate(taken, 1):
        text = offered[at].text
        following = taken[number] if number < len(taken) else None
        if text[-1] in ":,;" and following != at + 1:
            text = f"{text[:-1]}…"
        elif text[-1] not in STOPS and text[-1] not in ":,;" and following is not None:
            text = f"{text}."
        pieces.append(text if text[-1] in _WIDE else f"{text} ")
    return "".join(pieces).rstrip(" ")


def _shorten(offered: list[UnitCandidate], at: int, room: int, counter: Counter) -> None:
    text = cut(offered[at].text, room, counter)
    if text:
        lowered = text.casefold()
        facts = tuple(each for each in offered[at].facts if each[0] in lowered)
        offered[at] = offered[at]._replace(text=text, cost=counter.count(text), facts=facts)


def _more(offered: Sequence[UnitCandidate]) -> tuple[int, int]:
    """How much more room there is because some of it binds: for users, for others."""
    user = sum(each.cost for each in offered if each.binds and each.weight > 1)
    other = sum(
        each.cost * (_SETTLED if each.settles > 1 else _BOUND)
        for each in offered
        if each.binds and each.weight <= 1
    )
    return min(int(user * _BOUND_USER), _MOST_BOUND), min(int(other), _MOST_BOUND)


def with_names(text: str, names: Sequence[str]) -> str:
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
    own_share = max(share // max(len(users), 1), _LEAST_REQUEST)
    if own_share * len(users) > room:
        users = []  # a chat of many: the best of it is taken, whoever said it
    for who in users:
        first = next((at for at in own[who] if offered[at].worth > _WORTHY), None)
        if first is None:
            first = best_of(offered, own[who], own_share)
        if first is None:
            continue
        # What binds first, but so that the request can be told of as well.
        left = own_share - min(offered[first].cost, max(own_share // 4, 8))
        binding = binding_of(offered, own[who], first, left)
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
            binding = binding_of(offered, own[who], firsts[0], left)
            must += binding
            left -= sum(offered[at].cost for at in binding)
    return must


def _firsts(
    offered: Sequence[UnitCandidate], own: Sequence[int], length: int, room: int
) -> list[int]:
    if (settled := settled_of(offered, own)) is not None:
        return [settled]
    verdicts = [
        at for at in own if offered[at].binds and (offered[at].settles or decides(offered[at].text))
    ]
    leads = [at for at in own if offered[at].leads]
    if verdicts and not (leads and reports(offered[leads[0]].text)):
        return verdicts[-1:]
    if leads and offered[leads[0]].cost * 8 < length:
        return leads
    best = best_of(offered, own, room)
    if best is None or offered[best].worth <= _WORTHY:
        best = max(own, key=lambda at: (offered[at].worth, -at))
    return [best] if offered[best].worth > _WORTHY else []


def binding_of(
    offered: Sequence[UnitCandidate], own: Sequence[int], first: int, room: int
) -> list[int]:
    """What binds besides the first, as much as there is room for; what settles comes before."""
    found: list[int] = []
    ranked = sorted(
        (at for at in own if offered[at].binds and at != first),
        key=lambda at: (-offered[at].settles, -_bargain(offered[at], set(), 1), at),
    )
    for at in ranked:
        if offered[at].cost <= room + _ROUNDED * (not found):
            found.append(at)
            room -= offered[at].cost
    return found


def settled_of(offered: Sequence[UnitCandidate], own: Sequence[int]) -> int | None:
    """What was decided last; None if nothing was."""
    return next((at for at in reversed(own) if offered[at].settles > 1), None)


def best_of(offered: Sequence[UnitCandidate], own: Sequence[int], room: int) -> int | None:
    fitting = [at for at in own if offered[at].cost <= room + _ROUNDED]
    if not fitting:
        return min(own, key=lambda at: offered[at].cost, default=None)
    return max(fitting, key=lambda at: (_bargain(offered[at], set(), 24), -at))


def _bargain(candidate: UnitCandidate, named: set[str], extra: int = _ANY_UNIT) -> float:
    new = sum(fact not in named for fact, _ in candidate.facts)
    return (new * candidate.weight + candidate.worth) / (candidate.cost + extra)


def _loose(choice: UnitChoice, counter: Counter) -> list[tuple[int, str, int]]:
    kept = set(choice.taken)
    seen = set(choice.named)
    names: set[str] = set()
    found: list[tuple[int, str, int]] = []
    for at, candidate in enumerate(choice.offered):
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
