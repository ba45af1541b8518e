"""Recall of one bank, put together: `make_recall`. Nothing is read or written by it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.config import Config, data_folder
from perdure.history.renditions.rendition_service import RenditionService
from perdure.history.turn_reader import TurnReader
from perdure.jobs import Runner
from perdure.recall.background_tasks import Ahead
from perdure.recall.embedders import embedder
from perdure.recall.indexing.index import RecallIndex
from perdure.recall.memories.memories import Memories
from perdure.recall.recall import Recall
from perdure.recall.references.references import References
from perdure.recall.scoping.scope import Scopes
from perdure.recall.searching.searcher import Searcher, load_once
from perdure.recall.searching.turn_scan import Scan
from perdure.recall.steps import fetchers, key_lookup
from perdure.recall.steps.hit_texts import Showing
from perdure.recall.steps.pipeline import Pipeline
from perdure.storage.store import Store

if TYPE_CHECKING:
    from perdure.core.tokens import Counter
    from perdure.gateway.gateway import Gateway

#: Reference layers lie here, beside the default bank, unless the configuration says where.
_FOLDER = "references"


def make_recall(
    store: Store,
    reader: TurnReader,
    renditions: RenditionService,
    jobs: Runner,
    config: Config,
    *,
    gateway: Callable[[], Gateway],
    counter: Callable[[], Counter],
    plain: Callable[[Mapping[str, Any]], dict[str, Any]],
    scrub: Callable[[], Awaitable[bool]],
    withdraw: Callable[[Iterable[str]], Awaitable[None]],
    encrypts: Callable[[str], bool] | None,
) -> Recall:
    """Recall as this configuration wants it.

    `gateway` and `counter` are made when they are first needed. `plain` masks secrets, `scrub`
    destroys the bytes of what was deleted, `withdraw` takes deleted memories out of prompts,
    `encrypts` tells whether records of a collection are stored encrypted.
    """
    settings, models = config.recall, config.gateway.models
    ahead = Ahead(embedder(settings, gateway, config.gateway))
    index = RecallIndex(store, reader, jobs, settings, ahead, encrypts=encrypts, warm=load_once)
    memories = Memories(store, index, plain=plain, scrub=scrub, withdraw=withdraw, embedder=ahead)
    references = References(
        store,
        Path(settings.references) if settings.references else data_folder() / _FOLDER,
        counter,
        index,
        plain=plain,
        scrub=scrub,
        needs_folder=bool(settings.references),
    )
    index.sources += [memories.refill, references.refill]
    scopes = Scopes(store, index, references.hidden_from)
    pipeline = Pipeline(
        Searcher(store, ahead),
        scopes.of,
        Showing(renditions, reader, fetchers.memories(memories), fetchers.layers(references)),
        settings,
        gateway=gateway if models.filter or models.judge else None,
        scan=Scan(reader),
        covers=index.covers,
        catch_up=index.catch_up,
        is_behind=lambda: not index.is_complete,
        triggered=fetchers.called_for(references, index, store),
        named=key_lookup.names(store),
        expect=ahead.expect,
    )
    return Recall(
        store,
        settings,
        index=index,
        scopes=scopes,
        pipeline=pipeline,
        memories=memories,
        references=references,
        embedder=ahead,
        counter=counter,
    )
