"""Which of a client's items are recorded already, which are new, and what the client took back.

A client sends its whole history with each request. It is compared with the *line*: what is recorded
of the conversation, by the identities of parts (`history.message_identity`). Pure: nothing is read
or written here.

* The line is used up: the rest of the items is new. That is the usual case.
* Items are found further on in the line: the client dropped something in between. Nothing is new
  there. A user's words alone prove nothing, since people say the same thing twice; a reply, a tool
  call, a compaction, or two neighbours do.
* A summary appears that is not recorded, or nothing is shared at all: the client compacted. What it
  still has is not new, and nothing is taken back.
* Otherwise the client went back, or edited something: the line behind that point is taken back.

A turn that was forgotten has left a gap in the line, and so has a pause, in which nothing was
recorded. The client still has these words: what it says between what is known before the gap and
behind it is not new (`_forgotten`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from perdure.history.message_identity import is_weak


class Recorded(NamedTuple):
    """One part of the line."""

    identity: str
    turn: int
    round: int
    message: int  # the message's place in its turn
    by_model: bool = False
    compaction: bool = False
    #: It stands for turns whose words were forgotten; see `gap`.
    is_gap: bool = False

    @property
    def place(self) -> tuple[int, int]:
        return self.turn, self.message


def gap(turn: int) -> Recorded:
    """Stands where forgotten words stood, up to this turn; 0: in front of the first."""
    return Recorded(f"forgotten {turn}", turn, 1, -1, by_model=True, is_gap=True)


class ItemFacts(NamedTuple):
    """What is known of a client's item; see `item_facts`."""

    identities: tuple[str, ...] = ()
    #: The client wrote it in place of what it compacted.
    summary: bool = False
    by_model: bool = False


class NewItem(NamedTuple):
    """An item that is not recorded; so many of its identities are, at its beginning."""

    item: int
    known: int = 0


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    """How the items of a request relate to the line."""

    #: Parts of the line that stay; those behind them are taken back.
    kept: int
    new: tuple[NewItem, ...] = ()
    #: For each item the place in the line of its last part; -1 if it is new, or has no identity.
    matched: tuple[int, ...] = ()
    compacted: bool = False

    def extends(self, line: Sequence[Recorded]) -> bool:
        return self.kept == len(line)


class _Said(NamedTuple):
    identity: str
    item: int
    part: int  # its number among the item's identities


class _Pair(NamedTuple):
    at: int  # in the line
    used: int  # strong parts of the line up to there


def align(line: Sequence[Recorded], items: Sequence[ItemFacts]) -> Alignment:
    return _Aligner(line, items).aligned()


class _Aligner:
    """Compactions stand apart: a client puts its summary in front of what it kept, while the log
    has it behind that. `_strong` are the parts of the line without them.
    """

    def __init__(self, line: Sequence[Recorded], items: Sequence[ItemFacts]) -> None:
        self._line = line
        self._items = items
        self._strong: list[int] = []
        #: Compactions: their place in the line, and how many strong parts are in front of them.
        self._compactions: dict[str, tuple[int, int]] = {}
        gaps: list[int] = []
        for at, part in enumerate(line):
            if part.is_gap:
                gaps.append(len(self._strong))
            if part.compaction:
                self._compactions[part.identity] = at, len(self._strong)
            elif not is_weak(part.identity):
                self._strong.append(at)
        self._said = [
            _Said(identity, item, part)
            for item, facts in enumerate(items)
            for part, identity in enumerate(facts.identities)
            if not is_weak(identity)
        ]
        #: Items whose words were forgotten, with the place of the gap in the line.
        self._gone: dict[int, int] = {}
        for at, end in pairwise([*gaps, len(self._strong)]):
            self._forgotten(at, end)
        self._pairs: list[_Pair] = []

    def _forgotten(self, at: int, end: int) -> None:
        """Let the gap, a strong part, stand for what the client says in its place: from behind what
        is known before the gap to what is known behind it, up to the next gap at `end`. If the
        client has nothing of that, to the last reply: what it says now is behind that.
        """
        start = self._behind_known(at)
        stop = self._begin_of(at + 1, end, start or 0)
        if start is None:  # it dropped, or changed, what stood before the gap
            if stop is None:
                return
            start = self._behind_replies(at, stop)
        elif stop is None:
            stop = self._behind_last_reply(at + 1, end, start)
        for n in range(start, stop):
            if self._facts(n).summary:  # in place of more than was forgotten
                start = n + 1
        if start >= stop:
            return
        part, last = self._part(at), self._said[stop - 1]
        for item in range(self._said[start].item, last.item + 1):
            self._gone[item] = self._strong[at]
        self._said[start:stop] = [last._replace(identity=part.identity)]

    def _behind_known(self, at: int) -> int | None:
        """Where what was said goes on behind the parts before a gap; None if it has no such."""
        if not at:
            return 0
        before = [self._part(n).identity for n in range(at - 1, -1, -1)]
        runs = _matches(before, [said.identity for said in reversed(self._said)])[::-1]
        longest = max(runs, default=0)
        if longest:
            return runs.index(longest) + 1
        for n, said in enumerate(self._said):
            if self._compactions.get(said.identity, (0, -1))[1] == at:
                return n + 1  # the client compacted right before it
        return None

    def _behind_replies(self, at: int, stop: int) -> int:
        """Where what was said before `stop` goes on behind the replies before a gap."""
        known = {self._part(n).identity for n in range(at)}
        places = [n + 1 for n in range(stop) if self._said[n].identity in known]
        return max((n for n in places if not _is_users(self._said[n - 1].identity)), default=0)

    def _begin_of(self, first: int, end: int, start: int) -> int | None:
        """Where the parts from `first` to `end` begin in what was said from `start` on, if they do.
        The same words may have been said before, in what was forgotten: the longest match counts.
        """
        known = [self._part(at).identity for at in range(first, end)]
        proof = next((n for n, each in enumerate(known, 1) if not _is_users(each)), len(known))
        best, found = 0, None
        for n, run in enumerate(_matches(known, [said.identity for said in self._said[start:]])):
            if run >= max(proof, best, 1):
                best, found = run, start + n
        return found

    def _behind_last_reply(self, first: int, end: int, start: int) -> int:
        """Behind the last reply from `start` on that is none of the parts from `first` to `end`,
        nor behind one.
        """
        known = {self._part(at).identity for at in range(first, end)}
        stop = start
        for n in range(start, len(self._said)):
            identity = self._said[n].identity
            if identity in known and not _is_users(identity):
                return n
            if self._facts(n).by_model:
                stop = n + 1
        return stop

    def aligned(self) -> Alignment:
        self._pairs = self._contiguous()
        if len(self._pairs) < min(len(self._said), len(self._strong)):
            self._pairs = self._found(0)
        at, used = len(self._pairs), self._used
        left = self._strong[used:]
        if not left:
            return self._result(len(self._line), at)
        if self._is_rest_of_reply(left):
            return self._result(len(self._line), at)  # the client has less of it
        summaries = [n for n in range(at, len(self._said)) if self._facts(n).summary]
        if at < len(self._said) and (not at or summaries):
            return self._compacted(summaries)
        return self._taken_back()

    def _contiguous(self) -> list[_Pair]:
        pairs: list[_Pair] = []
        for said, at in zip(self._said, self._strong, strict=False):
            if said.identity != self._line[at].identity:
                break
            pairs.append(_Pair(at, len(pairs) + 1))
        return pairs

    def _found(self, start: int) -> list[_Pair]:
        """What was said from a place on, as far as it is in the line, in order; what is skipped
        must be proved.
        """
        places = self._places()
        pairs: list[_Pair] = []
        proved, last, expected, kept = 0, 0, 0, -1
        for said in self._said[start:]:
            compaction = self._compactions.get(said.identity)
            if compaction is not None:
                pairs.append(_Pair(*compaction))
                proved = len(pairs)
                expected = kept = compaction[1]
                continue
            at = self._next(places, said.identity, last)
            if expected < len(self._strong) and self._part(expected).identity == said.identity:
                at = expected
            if at is None:
                break
            pairs.append(_Pair(self._strong[at], at + 1))
            # What a client keeps goes up to where it compacted.
            if at == expected or at + 1 == kept or not _is_users(said.identity):
                proved = len(pairs)
            last = expected = at + 1
        return pairs[:proved]

    def _places(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for at, index in enumerate(self._strong):
            found.setdefault(self._line[index].identity, []).append(at)
        return found

    def _next(self, places: dict[str, list[int]], identity: str, start: int) -> int | None:
        known = places.get(identity, ())
        after = bisect_left(known, start)
        return known[after] if after < len(known) else None

    @property
    def _used(self) -> int:
        return self._pairs[-1].used if self._pairs else 0

    def _part(self, at: int) -> Recorded:
        return self._line[self._strong[at]]

    def _facts(self, n: int) -> ItemFacts:
        return self._items[self._said[n].item]

    def _is_rest_of_reply(self, left: Sequence[int]) -> bool:
        """Whether what is left is of the last message, the model's, whose beginning was found."""
        if not self._pairs:
            return False
        place = self._line[self._pairs[-1].at].place
        return all(self._line[at].by_model and self._line[at].place == place for at in left)

    def _taken_back(self) -> Alignment:
        """From a message on, not from the middle of one."""
        left = self._part(self._used)
        while self._pairs and self._line[self._pairs[-1].at].place == left.place:
            self._pairs.pop()
        kept = self._strong[self._used]
        while kept and self._line[kept - 1].place == left.place:
            kept -= 1
        return self._result(kept, len(self._pairs))

    def _compacted(self, summaries: Sequence[int]) -> Alignment:
        """In front of the summary, what is in the line is not new. Behind it, what goes up to the
        line's end; else what is surely in it.
        """
        summary = summaries[-1] if summaries else -1
        matched = dict[int, int]()
        places, last = self._places(), 0
        for n in range(summary):
            identity = self._said[n].identity
            compaction = self._compactions.get(identity)
            if compaction is not None:
                matched[n] = compaction[0]
                continue
            at = self._next(places, identity, last)
            if at is not None:
                matched[n], last = self._strong[at], at + 1
        behind = self._up_to_the_end(summary + 1)
        if not behind and summaries:
            found = self._found(summary + 1)
            behind = {n: pair.at for n, pair in enumerate(found, summary + 1)}
        matched |= behind
        old = {self._said[n].item for n in matched}
        weak = {part.identity for part in self._line if is_weak(part.identity)}
        new = [
            NewItem(item)
            for item, facts in enumerate(self._items)
            if item not in old
            and item not in self._gone
            and not (facts.identities and weak.issuperset(facts.identities))
        ]
        places_of = self._places_of_gone()
        for n, index in sorted(matched.items()):
            places_of[self._said[n].item] = index
        return Alignment(
            kept=len(self._line), new=tuple(new), matched=tuple(places_of), compacted=True
        )

    def _up_to_the_end(self, start: int) -> dict[int, int]:
        """The longest run of items that is the end of the line."""
        line = [self._part(at).identity for at in range(len(self._strong) - 1, -1, -1)]
        runs = _matches(line, [said.identity for said in reversed(self._said[start:])])
        run = max(runs, default=0)
        last = len(self._said) - 1 - runs.index(run) if run else 0
        return {last - k: self._strong[-1 - k] for k in range(run)}

    def _result(self, kept: int, at: int) -> Alignment:
        """All from the place `at` of what was said on is new."""
        new: list[NewItem] = []
        first = self._said[at - 1].item + 1 if at else 0
        if at < len(self._said) and at and self._said[at].item == first - 1:
            new.append(NewItem(first - 1, self._said[at].part))
        behind = self._pairs[-1].at + 1 if self._pairs else 0
        weak = {part.identity for part in self._line[behind:kept] if is_weak(part.identity)}
        more = at < len(self._said)
        for item in range(first, len(self._items)):
            identities = self._items[item].identities
            if identities and weak.issuperset(identities):
                continue  # said before, and followed by nothing so far
            if identities or more:
                new.append(NewItem(item))
        matched = self._places_of_gone()
        for said, pair in zip(self._said, self._pairs, strict=False):
            matched[said.item] = pair.at
        return Alignment(kept=kept, new=tuple(new), matched=tuple(matched))

    def _places_of_gone(self) -> list[int]:
        return [self._gone.get(item, -1) for item in range(len(self._items))]


def _is_users(identity: str) -> bool:
    """People say the same thing twice; models and tools hardly do."""
    return identity.startswith("user ")


def _matches(pattern: Sequence[str], text: Sequence[str]) -> list[int]:
    """For each place in a text how much of it, from there on, is the beginning of a pattern. In
    linear time (the Z algorithm): a client may say the same thing a thousand times.
    """
    both = [*pattern, None, *text]
    lengths = [0] * len(both)
    left = right = 0  # the match that reaches furthest
    for at in range(1, len(both)):
        length = min(lengths[at - left], right - at) if at < right else 0
        while at + length < len(both) and both[length] == both[at + length]:
            length += 1
        lengths[at] = length
        if at + length > right:
            left, right = at, at + length
    return lengths[len(pattern) + 1 :]
