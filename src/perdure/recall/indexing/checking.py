"""Is the index what the log says it should be? What `perdure index check` tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from perdure.core.errors import Corrupted, InvalidInput, PerdureError
from perdure.recall.places import INDEX
from perdure.storage.adapter import Capability
from perdure.storage.searching import SearchState

if TYPE_CHECKING:
    from perdure.recall.indexing.index import RecallIndex
    from perdure.storage.store import Progress

_REBUILD = "Run `perdure index rebuild`."


class IndexReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the index stands."""

    #: Whether turns are indexed; else why not.
    on: bool = True
    why: str = ""
    #: Documents in the index: of turns, memories and reference layers.
    documents: int = 0
    #: Passages that the log has, those of them that are not in the index, and documents of what is
    #: not in the log.
    expected: int = 0
    missing: int = 0
    orphans: int = 0
    #: The embedder's model, and vectors by model. Vectors of other models are not searched.
    model: str = ""
    vectors: dict[str, int] = {}
    #: Documents that have no vector of this model yet; those of them that wait in this process.
    unembedded: int = 0
    waiting: int = 0
    #: Documents that wait to be filed where they are found fast.
    unfiled: int = 0
    #: What is wrong, in sentences that say what to do. A wait is nothing wrong.
    problems: tuple[str, ...] = ()


async def check(index: RecallIndex, progress: Progress | None = None) -> IndexReport:
    """Compare the index with the log, session by session. Changes nothing."""
    if why := _why_off(index):
        return IndexReport(on=False, why=why)
    if not await index.exists():
        async for _ in index.filler.sessions():
            return IndexReport(problems=(f"There is no index yet. {_REBUILD}",))
        return IndexReport()  # nor is there anything to find
    try:
        await index.prepared()
        state = await index.store.adapter.search_state(INDEX.name)
    except (Corrupted, InvalidInput) as exc:
        return IndexReport(problems=(f"The index cannot be read: {exc.message} {_REBUILD}",))
    try:
        expected, missing, orphans = await _counted(index, progress)
    except Corrupted as exc:
        damage = f"The index cannot be read: {exc.message} {_REBUILD}"
        return IndexReport(documents=state.documents, vectors=state.vectors, problems=(damage,))
    model, problem = _model(index)
    vectors = state.vectors.get(model, 0)
    return IndexReport(
        documents=state.documents,
        expected=expected,
        missing=missing,
        orphans=orphans,
        model=model,
        vectors=state.vectors,
        unembedded=max(0, state.documents - vectors),
        waiting=index.embeddings.waiting,
        unfiled=state.unfiled,
        problems=tuple(_problems(index, state, missing, orphans, problem)),
    )


def _why_off(index: RecallIndex) -> str:
    if Capability.FULL_TEXT not in index.store.capabilities:
        return "The backend has no search indexes."
    if not index.is_wanted:
        return "recall.on is off: turns are not indexed."
    if not index.is_on:
        return "Turns are stored encrypted: they are not indexed in clear, but scanned."
    return ""


async def _counted(index: RecallIndex, progress: Progress | None) -> tuple[int, int, int]:
    """Passages in the log, those that are missing in the index, and documents too many."""
    expected = missing = sessions = 0
    orphans = 0
    async for record, found in index.filler.compared():
        sessions += 1
        expected += found.expected
        missing += len(found.missing)
        orphans += len(found.orphans)
        if progress is not None:
            progress(f"checking {record.id}", sessions, 0)
    return expected, missing, orphans + await index.filler.count_strays()


def _model(index: RecallIndex) -> tuple[str, str]:
    """The embedder's model, or why there is none."""
    try:
        return index.embedder.name, ""
    except PerdureError as exc:
        return "", f"Texts cannot be embedded: {exc}"


def _problems(
    index: RecallIndex, state: SearchState, missing: int, orphans: int, problem: str
) -> list[str]:
    found = [f"{fault} {_REBUILD}" for fault in state.faults]
    if missing and not index.is_filling:
        found.append(f"Not in the index: passages of turns: {missing:,}. {_REBUILD}")
    if orphans:
        found.append(f"In the index, but not in the log: documents: {orphans:,}. {_REBUILD}")
    if problem:
        found.append(problem)
    elif index.embeddings.failure:
        found.append(f"Texts cannot be embedded: {index.embeddings.failure}")
    return found
