"""Is the index what the log says it should be? What `perdure index check` tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from perdure.core.errors import Corrupted, InvalidInput, PerdureError
from perdure.recall.places import INDEX
from perdure.recall.values import LATE
from perdure.search.engine import SearchState, engine_of, has_search

if TYPE_CHECKING:
    from perdure.recall.indexing.index import RecallIndex
    from perdure.recall.values import Recalled
    from perdure.storage.store import Progress

#: All turns are there; whether the rest is, nobody can tell.
_UNFINISHED = "It was not filled to its end: memories and reference layers may not be found."


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
    #: What is wrong, in sentences. A wait is nothing wrong.
    problems: tuple[str, ...] = ()
    #: Whether the numbers could be read; and whether a rebuild mends something of what is wrong.
    is_read: bool = True
    is_mendable: bool = True

    @property
    def others(self) -> int:
        """Documents of memories and reference layers."""
        return max(0, self.documents - self.orphans - (self.expected - self.missing))


async def check(index: RecallIndex, progress: Progress | None = None) -> IndexReport:
    """Compare the index with the log, session by session. Changes nothing."""
    if why := _why_off(index):
        return IndexReport(on=False, why=why)
    if not await index.exists():
        async for _ in index.filler.sessions():
            return IndexReport(problems=("There is no index yet.",), is_read=False)
        return IndexReport()  # nor is there anything to find
    try:
        await index.prepared()
        state = await engine_of(index.store.adapter).state(INDEX.name, thorough=True)
    except (Corrupted, InvalidInput) as exc:
        return IndexReport(problems=(exc.message,), is_read=False)
    try:
        expected, missing, orphans = await _counted(index, progress)
    except Corrupted as exc:
        return IndexReport(
            documents=state.documents,
            vectors=state.vectors,
            problems=state.faults or (exc.message,),
            is_read=False,
        )
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
        is_mendable=bool(state.faults or missing or orphans or not index.is_complete),
    )


def _why_off(index: RecallIndex) -> str:
    if not has_search(index.store.adapter):
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
    """The embedder's model, if there is one, and why it does not embed."""
    try:
        model, failure = index.embedder.name, index.embeddings.failure
    except PerdureError as exc:
        model, failure = "", str(exc)
    return model, f"Texts get no vectors: {failure}" if failure else ""


def _problems(
    index: RecallIndex, state: SearchState, missing: int, orphans: int, problem: str
) -> list[str]:
    found = [f"The index is damaged: {_lowered(fault)}" for fault in state.faults]
    if missing and not index.is_filling:
        found.append(f"Passages of turns that are not in the index, and so not found: {missing:,}.")
    elif not (index.is_complete or index.is_filling or index.is_looked_after):
        found.append(_UNFINISHED)
    if orphans:
        found.append(f"Passages in the index that are no longer in the bank: {orphans:,}.")
    return [*found, problem] if problem else found


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


REBUILD = "Run `perdure index rebuild`."


async def notes(index: RecallIndex, found: Recalled) -> tuple[str, ...]:
    """What is wrong with the index that this answer came from, and what mends it.

    Looks at nothing if every step went well. Damage that is found is mended in the background, if
    this process looks after the index. Never raises.
    """
    # A step that only lacked time is no fault of the index.
    failed = {step.name for step in found.steps if step.failed not in {"", LATE}}
    if not index.is_on:
        return ()
    try:
        if "keyword" in failed:
            return await _damage(index)
        if index.is_filling or not index.is_complete:
            return _gaps(index, found)
        return await _lack_of_vectors(index) if "vector" in failed else ()
    except PerdureError:
        return ()  # whoever asks has an answer already


def _gaps(index: RecallIndex, found: Recalled) -> tuple[str, ...]:
    """That not all is indexed; not if something was found and the rest comes in a moment."""
    if not index.is_looked_after:
        return (f"The index is not complete yet. {REBUILD}",)
    if index.is_filling or not found.hits:
        return ("The index is not complete yet: more may be found later.",)
    return ()


async def _damage(index: RecallIndex) -> tuple[str, ...]:
    faults = await index.faults()
    if not faults:
        return ()
    index.mend()
    how = "It is being made anew." if index.is_looked_after else REBUILD
    return (f"The index is damaged: only the newest turns were looked through. {how}",)


async def _lack_of_vectors(index: RecallIndex) -> tuple[str, ...]:
    if not has_search(index.store.adapter):
        return ()
    model = index.embedder.name
    state = await engine_of(index.store.adapter).state(INDEX.name)
    if not state.documents or state.vectors.get(model):
        return ()
    others = f", but of {', '.join(state.vectors)}" if state.vectors else ""
    how = (
        "They are being made."
        if index.is_looked_after
        else "They are made while a program has the bank open, or by `perdure index rebuild`."
    )
    return (f"Found by words only: nothing has a vector of {model} yet{others}. {how}",)
