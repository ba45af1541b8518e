"""Where memories and reference layers are fetched from, when they are to be shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from perdure.core.clock import SECOND
from perdure.recall.indexing.documents import read_notes
from perdure.recall.memories.reading import MemoryReader
from perdure.recall.memories.records import shown
from perdure.recall.memories.wording import leader, said
from perdure.recall.places import INDEX, LAST_PART, REFERENCES, Spot, spot
from perdure.recall.references.layers import fitting, wait_for_tools
from perdure.recall.references.references import References
from perdure.recall.scoping.scope import Directory
from perdure.recall.values import Candidate, Note, Question, Reason
from perdure.storage.store import Store

#: Seconds for which the files of the folder are believed to be as they were.
_SYNCED = 5.0
#: Rounds of the newest turn whose tools call for layers: the last ones. And parts of these.
_ROUNDS, _PARTS = 8, 128


class Kept(NamedTuple):
    """What was kept: its words, the key that it is fetched by, when it was last changed."""

    key: str
    text: str
    #: Microseconds; 0 if unknown.
    time: int = 0
    #: The key of what is to be read before it: a memory that contradicts it, and holds.
    behind: str = ""


#: Fetches what a candidate is; None if it is not there any more, or not for whoever asks.
Cabinet: TypeAlias = Callable[[Question, Candidate], Awaitable[Kept | None]]

#: Candidates by other means than the index: layers that a prompt calls for; turns, by reading them.
Finds: TypeAlias = Callable[[Question], Awaitable[Sequence[Candidate]]]


def memories(reader: MemoryReader) -> Cabinet:
    """The active memories that the asking agent may see, with what contradicts them."""

    async def fetch(question: Question, candidate: Candidate) -> Kept | None:
        agent = question.record.agent
        found = await reader.get(candidate.key, agent=agent)
        if found is None or not found.is_active or not found.is_visible_to(agent):
            return None
        rivals = await reader.rivals([found], agent=agent) if found.contradicts else {}
        holds = leader(found, rivals.values())
        behind = "" if holds.id == found.id else shown(holds.id, agent)
        text = said(found, rivals.values(), agent=agent)
        return Kept(candidate.key, text, found.last, behind)

    return fetch


def layers(references: References) -> Cabinet:
    """Reference layers, which the index knows by number."""

    async def fetch(_: Question, candidate: Candidate) -> Kept | None:
        names = await references.names([spot(candidate.place).turn])
        found = [await references.get(name) for name in names.values()]
        return Kept(found[0].name, found[0].text) if found and found[0] is not None else None

    return fetch


def called_for(references: References, index: Directory, store: Store) -> Finds:
    """Layers that the words of a question, or the tools of the newest turn, call for."""

    async def tools(question: Question) -> set[str]:
        mark, group = question.head.mark, (await index.groups()).get(question.record.id)
        if group is None or question.head.is_undone(mark.turn):
            return set()
        first = Spot(group, mark.turn, max(1, mark.round - _ROUNDS + 1)).place
        last = Spot(group, mark.turn, mark.round, LAST_PART).place
        there = await store.adapter.places(INDEX.name, first - 1, _PARTS)
        places = [place for place in there if place <= last]
        notes = read_notes(await store.adapter.notes(INDEX.name, places))
        return {tool for note in notes if note is not None for tool in note.tools}

    async def find(question: Question) -> list[Candidate]:
        await references.sync(max_age=_SYNCED)
        every = await references.list()
        used = await tools(question) if wait_for_tools(every) else ()
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
                reasons=(Reason(why, 1.0),),
                note=Note(time=record.updated // SECOND),
            )
            for record, why in called
        ]

    return find
