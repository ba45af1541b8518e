"""Why an answer may lack something, in a sentence: who asks should not have to guess."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.core.errors import PerdureError
from perdure.recall.places import INDEX
from perdure.recall.values import LATE
from perdure.search.engine import engine_of, has_search

if TYPE_CHECKING:
    from perdure.recall.indexing.index import RecallIndex
    from perdure.recall.values import Recalled

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
