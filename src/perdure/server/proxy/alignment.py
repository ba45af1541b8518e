"""Which of a client's items are recorded already, which are new, and what the client took back.

A client sends its whole history with each request. It is compared with the *line*: what is recorded
of the conversation, by the identities of parts (`history.message_identity`). Pure: nothing is read
or written here.

* The line is used up: the rest of the items is new. That is the usual case.
* Items are found further on in the line: the client dropped something in between. Nothing is new
  there. A user's words alone prove nothing, since people say the same thing twice; a reply, a tool
  call, a compaction, or two neighbours do.
* The client has its newest reply in a shorter form, because it was broken off: it is the same.
* A summary appears that is not recorded, or nothing is shared at all: the client compacted. What it
  still has is not new, and nothing is taken back.
* Otherwise the client went back, or edited something: the line behind that point is taken back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
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

    @property
    def place(self) -> tuple[int, int]:
        return self.turn, self.message


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


def align(
    line: Sequence[Recorded],
    items: Sequence[ItemFacts],
    is_cut: Callable[[int], bool] = lambda _: False,
) -> Alignment:
    """Align items with the line. `is_cut` says of an item of the model's whether it is the line's
    newest reply, broken off.
    """
    return _Aligner(line, items, is_cut).aligned()


class _Aligner:
    def __init__(
        self,
        line: Sequence[Recorded],
        items: Sequence[ItemFacts],
        is_cut: Callable[[int], bool],
    ) -> None:
        self._line = line
        self._items = items
        self._is_cut = is_cut
        self._strong = [at for at, part in enumerate(line) if not is_weak(part.identity)]
        self._said = [
            _Said(identity, item, part)
            for item, facts in enumerate(items)
            for part, identity in enumerate(facts.identities)
            if not is_weak(identity)
        ]
        #: Pairs of places in `_said` and `_strong`.
        self._pairs: list[tuple[int, int]] = []

    def aligned(self) -> Alignment:
        self._pairs = self._contiguous()
        if len(self._pairs) < min(len(self._said), len(self._strong)):
            self._pairs = self._found()
        at, used = len(self._pairs), self._used
        left = self._strong[used:]
        if not left:
            return self._result(len(self._line), at)
        if self._is_newest_reply(left):
            same = bool(used) and self._part(used - 1).place == self._line[left[0]].place
            if not same and at < len(self._said) and self._continues_cut(at):
                self._pairs.append((at, len(self._strong) - 1))
                return self._result(len(self._line), at + 1)
            if same:  # the client has less of it
                return self._result(len(self._line), at)
        summaries = [n for n in range(at, len(self._said)) if self._facts(n).summary]
        if at < len(self._said) and (not at or summaries):
            return self._compacted(summaries)
        return self._taken_back()

    def _contiguous(self) -> list[tuple[int, int]]:
        count = 0
        for said, at in zip(self._said, self._strong, strict=False):
            if said.identity != self._line[at].identity:
                break
            count += 1
        return [(n, n) for n in range(count)]

    def _found(self) -> list[tuple[int, int]]:
        """The items' beginning that is in the line, in order; what is skipped must be proved."""
        places: dict[str, list[int]] = {}
        for at, index in enumerate(self._strong):
            places.setdefault(self._line[index].identity, []).append(at)
        pairs: list[tuple[int, int]] = []
        proved, last = 0, -1
        for n, said in enumerate(self._said):
            known = places.get(said.identity)
            after = bisect_left(known, last + 1) if known else 0
            if known is None or after == len(known):
                break
            at = known[after]
            neighbour = at == last + 1
            pairs.append((n, at))
            is_proof = not said.identity.startswith("user ") or self._part(at).compaction
            if is_proof or neighbour:
                proved = len(pairs)
            last = at
        return pairs[:proved]

    @property
    def _used(self) -> int:
        return self._pairs[-1][1] + 1 if self._pairs else 0

    def _part(self, at: int) -> Recorded:
        return self._line[self._strong[at]]

    def _facts(self, n: int) -> ItemFacts:
        return self._items[self._said[n].item]

    def _is_newest_reply(self, left: Sequence[int]) -> bool:
        """Whether what is left of the line is the last message, and the model's."""
        last = self._line[left[-1]]
        return all(self._line[at].by_model and self._line[at].place == last.place for at in left)

    def _continues_cut(self, at: int) -> bool:
        facts = self._facts(at)
        return facts.by_model and self._is_cut(self._said[at].item)

    def _taken_back(self) -> Alignment:
        """From a message on, not from the middle of one."""
        left = self._part(self._used)
        while self._pairs and self._part(self._pairs[-1][1]).place == left.place:
            self._pairs.pop()
        kept = self._strong[self._used]
        while kept and self._line[kept - 1].place == left.place:
            kept -= 1
        return self._result(kept, len(self._pairs))

    def _compacted(self, summaries: Sequence[int]) -> Alignment:
        """In front of the summary, what is in the line is not new. Behind it, only what goes up to
        the line's end.
        """
        summary = summaries[-1] if summaries else -1
        matched = dict[int, int]()
        last = -1
        places: dict[str, list[int]] = {}
        for at, index in enumerate(self._strong):
            places.setdefault(self._line[index].identity, []).append(at)
        for n in range(summary):
            known = places.get(self._said[n].identity, [])
            after = bisect_left(known, last + 1)
            if after < len(known):
                last = matched[n] = known[after]
        matched |= self._up_to_the_end(summary + 1)
        self._pairs = sorted(matched.items())
        old = {self._said[n].item for n in matched}
        weak = {part.identity for part in self._line if is_weak(part.identity)}
        new = [
            NewItem(item)
            for item, facts in enumerate(self._items)
            if item not in old and not (facts.identities and weak.issuperset(facts.identities))
        ]
        return Alignment(
            kept=len(self._line), new=tuple(new), matched=self._matched(), compacted=True
        )

    def _up_to_the_end(self, start: int) -> dict[int, int]:
        """The longest run of items that is the end of the line; with or without a reply that was
        broken off.
        """
        end = len(self._strong)
        best: dict[int, int] = {}
        for n in range(len(self._said) - 1, start - 1, -1):
            if self._said[n].identity != self._part(end - 1).identity:
                continue
            run = 0
            while (
                n - run >= start
                and run < end
                and self._said[n - run].identity == self._part(end - 1 - run).identity
            ):
                run += 1
            by_words = self._said[n].identity.startswith("user ")
            if run > len(best) and (run > 1 or not by_words):
                best = {n - k: end - 1 - k for k in range(run)}
        return best

    def _result(self, kept: int, at: int) -> Alignment:
        """All from the place `at` of what was said on is new."""
        new: list[NewItem] = []
        first = self._said[at - 1].item + 1 if at else 0
        if at < len(self._said) and at and self._said[at].item == first - 1:
            new.append(NewItem(first - 1, self._said[at].part))
        behind = self._strong[self._used - 1] + 1 if self._used else 0
        weak = {part.identity for part in self._line[behind:kept] if is_weak(part.identity)}
        more = at < len(self._said)
        for item in range(first, len(self._items)):
            identities = self._items[item].identities
            if identities and weak.issuperset(identities):
                continue  # said before, and followed by nothing so far
            if identities or more:
                new.append(NewItem(item))
        return Alignment(kept=kept, new=tuple(new), matched=self._matched())

    def _matched(self) -> tuple[int, ...]:
        found = [-1] * len(self._items)
        for n, at in self._pairs:
            found[self._said[n].item] = self._strong[at]
        return tuple(found)
