"""Who may see what: the places of the index that may answer a question.

By default a session sees

* its own line of turns: its own, and its ancestors' up to where it left them, whoever's they are;
* the other sessions of its agent, archived ones included. Of its family, the sessions that are
  forks of one another, it sees its own line and nothing else;
* the sessions of other agents that are shared with its agent, or with everybody (see `sharing`),
  also if they are of its family: sharing says so;
* the memories of its agent, and those of others that are shared; all reference layers.

A turn that was taken back is not seen, neither in this session nor in another, and what is
forgotten is gone. Of a turn of its own line a session sees what its line has, whatever others see
of it: not what was added to it after the fork left, and nothing if it took it back itself.

A turn is its owner's, the session in whose log it lies. What a fork has from another agent's
session is seen by that fork alone, not by its agent's other sessions. A sub-agent's session is its
own agent's: whoever started it sees it only if they are of the same name, or it is shared.

On request (`Question.wide`) all sessions of the agent are seen, the forks that left this line and
what its ancestors went on with included; of other agents no more than by default.

A session is seen from its first indexed turn on: by this process at once, by others as soon as
`Directory.groups` tells of it. Sharing is read anew for every question.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Protocol, TypeAlias

import msgspec

from perdure.core.errors import Corrupted, InvalidInput
from perdure.history.log_records import Head
from perdure.recall import places
from perdure.recall.memory_records import Memory
from perdure.recall.places import (
    REFERENCES,
    TURN_BITS,
    common,
    covers,
    joined,
    memories_of,
    without,
)
from perdure.recall.scoping.lines import LAST_TURN, Families, Lines, turns_of, undone_of, whole_line
from perdure.recall.sharing import Sharing
from perdure.recall.values import Filters, Kind, Question
from perdure.search.engine import Range
from perdure.storage.options import STRONG
from perdure.storage.store import Store

_MEMORIES = memories_of("")


class Directory(Protocol):
    """What a scope needs of the index: the numbers of its groups."""

    async def groups(self) -> Mapping[str, int]:
        """All of them, by name; perhaps with some that were forgotten, and have no documents."""

    @property
    def forks(self) -> AbstractSet[str]:
        """Sessions that are, or were, forks of others, as of `groups`."""


class GroupNumbers:
    """The groups of an index, by name, by number, by agent."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self.numbers = numbers
        self.names = {number: name for name, number in numbers.items()}
        #: Numbers of those that have no order, which are not sessions; in order.
        self.alone = tuple(
            sorted(number for name, number in numbers.items() if name.startswith(" "))
        )
        self._sessions = dict[str, set[str]]()
        for name in numbers:
            if not name.startswith(" "):
                self._sessions.setdefault(name.partition("/")[0], set()).add(name)
        self._ranges = dict[str, tuple[Range, ...]]()
        #: By agent, for the family that was asked for last.
        self._besides = dict[str, tuple[frozenset[str], tuple[Range, ...]]]()

    def sessions(self, agent: str) -> set[str]:
        """The sessions of an agent. Not to be changed."""
        return self._sessions.get(agent, set())

    def turns(self, agent: str) -> tuple[Range, ...]:
        """All places of an agent's turns."""
        if agent not in self._ranges:
            self._ranges[agent] = self.whole(self.sessions(agent))
        return self._ranges[agent]

    def besides(self, agent: str, family: frozenset[str]) -> tuple[Range, ...]:
        """All places of an agent's turns, but for those of a family."""
        kept = self._besides.get(agent)
        if kept is None or kept[0] is not family:
            found = without(self.turns(agent), self.whole(family & self.sessions(agent)))
            kept = self._besides[agent] = family, found
        return kept[1]

    def whole(self, names: Iterable[str]) -> tuple[Range, ...]:
        """All places of groups, as far as they have a number."""
        return joined(_whole(self.numbers[name]) for name in names if name in self.numbers)


class Scope(msgspec.Struct, frozen=True, dict=True):
    """The places that may answer a question. It is for this question: it is not kept."""

    groups: GroupNumbers
    #: Of turns: those of the session's own line are among them.
    turns: tuple[Range, ...] = ()
    line: tuple[Range, ...] = ()
    memories: tuple[Range, ...] = ()
    references: tuple[Range, ...] = ()
    #: The session that asks.
    session: str = ""

    @functools.cached_property
    def ranges(self) -> tuple[Range, ...]:
        """All of them, for the storage layer: in order, without overlap."""
        return joined(self.turns, self.memories, self.references)

    def allows(self, place: int) -> bool:
        """Whether the document of a place may be seen."""
        return covers(self.ranges, place)

    def is_own(self, place: int) -> bool:
        """Whether it is a turn of the session's own line."""
        return covers(self.line, place)

    def shows(self, session: str, turn: int, round: int = 1) -> bool:
        """Whether a turn of a session's own log, and so a round of it, may be seen by its key.

        Only if all of it may: of a turn that its line has in part, a session reads what that has.
        Not if it was never indexed.
        """
        del round  # the parts of a turn are not told apart by those who read it
        number = self.groups.numbers.get(session)
        if number is None or not 0 < turn < LAST_TURN:
            return False
        whole = (places.turns(number, turn, turn),)
        return common(self.ranges, whole) == whole

    def name(self, place: int) -> tuple[Kind, str]:
        """What stands in a place, and whose it is: the session of a turn, the agent of a memory.

        Raises `InvalidInput` if no group has this number.
        """
        found = self.groups.names.get(place >> TURN_BITS)
        if found is None:
            raise InvalidInput(f"There is nothing in place {place}.", hint="Search again.")
        if found == REFERENCES:
            return "reference", ""
        if found.startswith(_MEMORIES):
            return "memory", found.removeprefix(_MEMORIES)
        return "turn", found

    def only(self, ranges: Sequence[Range]) -> Scope:
        """The same without what lies elsewhere."""
        return Scope(
            self.groups,
            common(self.turns, ranges),
            common(self.line, ranges),
            common(self.memories, ranges),
            common(self.references, ranges),
            self.session,
        )


def narrowed(scope: Scope, filters: Filters) -> Scope:
    """The scope without what cannot pass, whatever it says.

    With agents and sessions, what is of one of either passes. The name of the session that asks
    stands for its whole line; that of another one for the turns in its own log. Reference layers
    are nobody's, and memories no session's.
    """
    keep = msgspec.structs.replace
    if filters.line:
        scope = keep(scope, turns=scope.line, memories=(), references=())
    if filters.kinds and "turn" not in filters.kinds:
        scope = keep(scope, turns=(), line=())
    if filters.kinds and "memory" not in filters.kinds:
        scope = keep(scope, memories=())
    if filters.kinds and "reference" not in filters.kinds:
        scope = keep(scope, references=())
    if filters.agents or filters.sessions:
        scope = scope.only(_of_these(scope, filters))
    return scope


def _of_these(scope: Scope, filters: Filters) -> tuple[Range, ...]:
    """The places of the agents and sessions that are asked for."""
    groups = scope.groups
    names = [*filters.sessions, *(memories_of(agent) for agent in filters.agents)]
    own = scope.line if scope.session in filters.sessions else ()
    return joined(groups.whole(names), own, *(groups.turns(agent) for agent in filters.agents))


def _of_turns(groups: GroupNumbers, only: Iterable[tuple[str, int]]) -> tuple[Range, ...]:
    return joined(
        places.turns(groups.numbers[session], turn, turn)
        for session, turn in only
        if session in groups.numbers and 0 < turn < LAST_TURN
    )


#: The numbers of reference layers that an agent may not see.
HiddenLayers: TypeAlias = Callable[[str], Awaitable[Collection[int]]]


class Scopes:
    """Makes scopes. One for a bank: what it learned about groups and families is used again."""

    def __init__(
        self, store: Store, index: Directory, hidden_layers: HiddenLayers | None = None
    ) -> None:
        self._store = store
        self._index = index
        self._hidden_layers = hidden_layers
        self._sharing = Sharing(store)
        self._families = Families(store)
        self._lines = Lines(store)
        self._shared_with_others = store.collection(Memory).query().where("is_shared", "=", True)
        self._groups = GroupNumbers({})

    async def of(self, question: Question) -> Scope:
        """What may be seen on behalf of whoever asks, as it is now, and may pass the filters."""
        # First of all: what has a number by now was made before the rest is looked up.
        groups = self._learned(await self._index.groups())
        record = question.record
        line = await self._lines.ranges(record, question.head.undone, groups.numbers)
        own = await self._of_agent(question, groups)
        shared = await self._shared(record.agent, groups)
        others = joined(own, shared) if shared else own
        scope = Scope(
            groups,
            turns=joined(line, without(others, whole_line(record, groups.numbers))),
            line=line,
            memories=await self._of_memories(record.agent, groups),
            references=await self._of_references(record.agent, groups),
            session=record.id,
        )
        if question.only is not None:
            scope = scope.only(_of_turns(groups, question.only))
        return narrowed(scope, question.filters)

    def _learned(self, numbers: Mapping[str, int]) -> GroupNumbers:
        known = self._groups
        if numbers != known.numbers:
            if not known.numbers.items() <= numbers.items():
                self._families.forget()
            self._groups = GroupNumbers(
                dict(numbers)
            )  # whoever gave them to us may go on with theirs
        return self._groups

    async def _of_agent(self, question: Question, groups: GroupNumbers) -> tuple[Range, ...]:
        """The turns of the agent's other sessions."""
        record = question.record
        sessions = groups.sessions(record.agent)
        family = frozenset[str]()
        if not question.wide:
            family = await self._families.relatives(record, sessions, self._index.forks)
        found = groups.besides(record.agent, family)
        holes = list[Range]()
        for undone in await undone_of(self._store, record.agent):
            if undone.id in sessions and undone.id not in family:
                holes += turns_of(groups.numbers[undone.id], undone.spans)
        return without(found, joined(holes))

    async def _shared(self, agent: str, groups: GroupNumbers) -> tuple[Range, ...]:
        """The turns of others' sessions that are shared with an agent."""
        names = [name for name in await self._sharing.sessions_for(agent) if name in groups.numbers]
        holes = list[Range]()
        heads = await self._heads(names)
        for head in heads:
            holes += turns_of(groups.numbers[head.id], head.undone)
        return without(groups.whole(head.id for head in heads), joined(holes))

    async def _heads(self, names: Sequence[str]) -> list[Head]:
        """The heads of the sessions that are there, and not about to be forgotten.

        One whose agent's keys were destroyed is not there any more, and hides no other.
        """
        try:
            found = await self._store.collection(Head).get_many(names, STRONG)
        except Corrupted:
            if len(names) == 1:
                return []
            return [head for name in names for head in await self._heads((name,))]
        return [head for head in found if head is not None]

    async def _of_memories(self, agent: str, groups: GroupNumbers) -> tuple[Range, ...]:
        """The agent's memories, and those that are shared with it."""
        own = memories_of(agent)
        found = list(groups.whole((own,)))
        if not any(name.startswith(_MEMORIES) and name != own for name in groups.numbers):
            return joined(found)  # nobody else has any
        for memory in await self._shared_memories():
            number = groups.numbers.get(memories_of(memory.agent))
            if number is not None and memory.is_visible_to(agent) and memory.number < LAST_TURN:
                found.append(places.turns(number, memory.number, memory.number))
        return joined(found)

    async def _of_references(self, agent: str, groups: GroupNumbers) -> tuple[Range, ...]:
        """The reference layers, without entries of the canon that are for others."""
        found, number = groups.whole((REFERENCES,)), groups.numbers.get(REFERENCES)
        if number is None or self._hidden_layers is None:
            return found
        hidden = await self._hidden_layers(agent)
        return without(found, joined(places.turns(number, each, each) for each in hidden))

    async def _shared_memories(self) -> list[Memory]:
        """The memories of all agents that are shared with others."""
        shared = self._shared_with_others
        try:
            return await shared.values(STRONG)
        except Corrupted:  # the keys of one of the agents were destroyed
            owners = await shared.group_by("agent").aggregate(memories="count")
            found = list[Memory]()
            for owner in owners:
                with suppress(Corrupted):
                    found += await shared.where("agent", "=", owner["agent"]).values(STRONG)
            return found


def _whole(number: int) -> Range:
    """All places of a group: `places.turns`, for thousands of them."""
    first = number << TURN_BITS
    return first, first | (1 << TURN_BITS) - 1


async def scope_of(store: Store, index: Directory, question: Question) -> Scope:
    """What may be seen on behalf of whoever asks. Who asks often keeps a `Scopes`."""
    return await Scopes(store, index).of(question)
