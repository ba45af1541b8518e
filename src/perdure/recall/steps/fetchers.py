"""Where memories and reference layers are fetched from, when they are to be shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from perdure.core.clock import SECOND
from perdure.history.log_records import newest
from perdure.recall.hit_keys import owner_of
from perdure.recall.indexing.passages import read_notes
from perdure.recall.memories.contradictions import leader, said
from perdure.recall.memories.memories import Memories
from perdure.recall.memory_records import shown
from perdure.recall.places import INDEX, REFERENCES, Spot, covers, spot, turns
from perdure.recall.references.layers import fitting, wait_for_tools
from perdure.recall.references.references import References
from perdure.recall.scoping.lines import Lines
from perdure.recall.scoping.scope import Directory
from perdure.recall.values import Candidate, Note, Question, Reason, because
from perdure.search.engine import engine_of
from perdure.storage.store import Store

#: Seconds for which the files of the folder are believed to be as they were.
_SYNCED = 5.0
#: Rounds of the newest turn whose tools call for layers: the last ones. Places read at a time.
_ROUNDS, _PAGE = 8, 1_000


class Kept(NamedTuple):
    """What was kept: its words, the key that it is fetched by, when it was last changed."""

    key: str
    text: str
    #: Microseconds; 0 if unknown.
    time: int = 0
    #: The key of what is to be read before it: a memory that contradicts it, and holds.
    behind: str = ""


#: Fetches what candidates are, by place; without what is gone, or not for whoever asks.
Cabinet: TypeAlias = Callable[[Question, Sequence[Candidate]], Awaitable[Mapping[int, Kept]]]

#: Candidates by other means than the index: layers that a prompt calls for; turns, by reading them.
Finds: TypeAlias = Callable[[Question], Awaitable[Sequence[Candidate]]]


def memories(reader: Memories) -> Cabinet:
    """The active memories that the asking agent may see, with what contradicts them."""

    async def fetch(question: Question, candidates: Sequence[Candidate]) -> dict[int, Kept]:
        agent = question.record.agent
        got = await reader.get_many([each.key for each in candidates], agent=agent)
        found = {
            each.place: (each.key, memory)
            for each, memory in zip(candidates, got, strict=True)
            if memory is not None and memory.is_active and memory.is_visible_to(agent)
        }
        every = [memory for _, memory in found.values() if memory.contradicts]
        rivals = await reader.rivals(every, agent=agent) if every else {}
        kept = dict[int, Kept]()
        for place, (key, memory) in found.items():
            holds = leader(memory, rivals.values())
            behind = "" if holds.id == memory.id else shown(holds.id, agent)
            text = said(memory, rivals.values(), agent=agent)
            kept[place] = Kept(key, text, memory.last, behind)
        return kept

    return fetch


def layers(references: References) -> Cabinet:
    """Reference layers that the asking agent may see, which the index knows by number."""

    async def fetch(question: Question, candidates: Sequence[Candidate]) -> dict[int, Kept]:
        wanted = {spot(each.place).turn for each in candidates}
        hidden = await references.hidden_from(question.record.agent)
        found = await references.numbered(wanted.difference(hidden))
        layers = {each.place: found.get(spot(each.place).turn) for each in candidates}
        return {place: Kept(one.name, one.text) for place, one in layers.items() if one}

    return fetch


def called_for(references: References, index: Directory, store: Store) -> Finds:
    """Layers that the words of a question, or the tools of the newest turn, call for."""
    lately = _Lately(index, store)

    async def find(question: Question) -> list[Candidate]:
        await references.sync(max_age=_SYNCED)
        agent = question.record.agent
        every = [each for each in await references.list() if each.is_visible_to(agent)]
        used = await lately.tools(question) if wait_for_tools(every) else ()
        called = fitting(every, question.text, used)
        group = (await index.groups()).get(REFERENCES) if called else None
        if group is None:
            return []
        return [
            Candidate(
                kind="reference",
                place=Spot(group, record.ordinal).place,
                key=record.name,
                score=record.weight,
                tell=because(Reason(why, 1.0)),
                note=Note(time=record.updated // SECOND),
            )
            for record, why in called
        ]

    return find


class _Lately:
    """Which tools were used in the turn that a session stands on.

    That is the newest that was not taken back; of a fork that has none of its own, its parent's as
    the fork has it.
    """

    def __init__(self, index: Directory, store: Store) -> None:
        self._index = index
        self._store = store
        self._lines = Lines(store)

    async def tools(self, question: Question) -> set[str]:
        """Those of its last rounds."""
        record, head = question.record, question.head
        turn, numbers = newest(head), await self._index.groups()
        group = numbers.get(owner_of(record, turn)) if turn else None
        if group is None:
            return set()
        is_last = turn == head.turn and not head.mark.fresh
        found = await self._places(group, turn, head.mark.round - _ROUNDS if is_last else 0)
        if turn <= record.forked_at:  # what others added to it since is not the fork's
            line = await self._lines.ranges(record, head.undone, numbers)
            found = [place for place in found if covers(line, place)]
        rounds = sorted({spot(place).round for place in found})[-_ROUNDS:]
        wanted = [place for place in found if spot(place).round in rounds]
        notes = read_notes(await engine_of(self._store.adapter).notes(INDEX.name, wanted))
        return {tool for note in notes if note is not None for tool in note.tools}

    async def _places(self, group: int, turn: int, after: int) -> list[int]:
        """All that is indexed of a turn behind this round."""
        found, last = list[int](), turns(group, turn, turn)[1]
        at = Spot(group, turn, max(after, 0) + 1).place - 1
        while page := await engine_of(self._store.adapter).places(INDEX.name, at, _PAGE):
            found += [place for place in page if place <= last]
            at = page[-1]
            if at >= last:
                break
        return found
