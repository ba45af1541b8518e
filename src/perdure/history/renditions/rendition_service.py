"""Makes S and C of every round and T of every turn.

Renditions are made in the background, when nothing is being written; marks of the log tell what a
killed process left undone. Nobody waits for that: `sizes`, `tinies` and `texts` make what is
missing at once. What a model could make better waits as a job: see `model_renditions`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from perdure.artifacts import ArtifactStore
from perdure.config import RenditionsConfig
from perdure.core.errors import Corrupted
from perdure.core.levels import Level
from perdure.core.messages import Message
from perdure.history.log_records import Head, Owned, SessionRecord, TurnCount, turn_key
from perdure.history.manifest import RoundId
from perdure.history.renditions.rendition_maker import RenditionMaker
from perdure.history.renditions.rendition_records import (
    BY_MODEL,
    EVERY_LEVEL,
    PROMPT,
    TASK,
    Tiny,
    rendition_key,
    unmade,
)
from perdure.history.renditions.rendition_store import (
    KEYS_AT_ONCE,
    MakeRequest,
    RenditionStore,
    RoundAtLevel,
    RoundRun,
    RoundSizes,
    TinySize,
    portions,
    runs,
)
from perdure.history.token_counts import TokenCounts
from perdure.history.turn_log import TURNS, Written
from perdure.history.turn_reader import TurnReader
from perdure.jobs import GoOn, Job, Runner
from perdure.storage.store import Progress, Store

if TYPE_CHECKING:
    from perdure.gateway.gateway import Gateway
    from perdure.history.renditions.model_renditions import ModelRenditions
    from perdure.history.renditions.rendition_status import RenditionStatus

__all__ = ["RenditionService", "RoundAtLevel", "RoundRun", "RoundSizes", "TinySize"]

_ROWS, _BATCH = 256, 24  # Turns whose rows are read together; turns in one transaction.
_IDLE_BATCH = 4  # The same while appends come: one may have to wait for the commit.
_LAST_MOMENT = 0.25  # Seconds of work when the bank is closed; the mark tells of the rest.
#: Seconds that a model may take for a turn, and before it is asked again after a failure.
_TIMEOUT, _BACK_OFF = 3_600.0, 120.0

_log = logging.getLogger(__name__)


class RenditionService:
    """Makes renditions for one bank. `gateway` is called when a model is first needed; None if
    there is none. `levels` are those that models are configured for.
    """

    def __init__(  # noqa: PLR0917 (the rooms that it works in)
        self,
        store: Store,
        reader: TurnReader,
        artifacts: ArtifactStore,
        counts: TokenCounts,
        jobs: Runner,
        config: RenditionsConfig | None = None,
        gateway: Callable[[], Gateway] | None = None,
        levels: frozenset[Level] = EVERY_LEVEL,
    ) -> None:
        self._store = store
        self._maker = RenditionMaker(store, reader, artifacts, counts, jobs)
        self._renditions = RenditionStore(store, self._maker, counts)
        self.texts, self.tiny_texts = self._renditions.texts, self._renditions.tiny_texts
        self.shortened, self.tiny_of = self._renditions.shortened, self._renditions.tiny_of
        self.merged = self._maker.merged
        self.run_texts, self.scattered = self._renditions.run_texts, self._maker.scattered
        self._config = config or RenditionsConfig()
        self._gateway = gateway
        self._levels = levels
        self._tinies = store.collection(Tiny)
        self._counts = store.collection(TurnCount)
        self._heads = store.collection(Head)
        self._noted: dict[str, tuple[SessionRecord, set[int]]] = {}  # Turns written to.
        self._bulk: dict[str, tuple[int, int]] = {}  # Imported: first, last missing.
        #: Where the newest round of an open turn begins: its number, and that of its piece.
        self._open: dict[tuple[str, int], tuple[int, int]] = {}
        self._met: set[str] = set()
        #: Sessions with turns that cannot be read.
        self._damaged: set[str] = set()
        self._jobs = jobs
        self._wake = jobs.idle("making renditions", self.work, covers=TURNS, closing=_LAST_MOMENT)

    async def start(self) -> None:
        """Let models work on what waits for them."""
        if self.uses_models:
            retries = self._config.attempts - 1
            self._jobs.register(
                TASK, self._ask_model, retries=retries, timeout=_TIMEOUT, pause=_BACK_OFF
            )

    async def stop(self) -> None:
        """Cancel running calls. What is not done is found again: by its mark, or by its job."""
        await self._jobs.unregister(TASK)

    @property
    def uses_models(self) -> bool:
        return self._config.model and self._gateway is not None and bool(self._levels)

    @functools.cached_property
    def models(self) -> ModelRenditions:
        """Only if `uses_models`; loaded when first needed."""
        from perdure.history.renditions.model_renditions import ModelRenditions

        assert self._gateway is not None  # noqa: S101 (for the type checker)
        return ModelRenditions(
            self._store, self._maker, self._config.concurrency, self._gateway, self._levels
        )

    async def _ask_model(self, job: Job) -> None:
        await self.models.work(job)

    @property
    def _prompt(self) -> str | None:
        """The current beginning of models' recipes; None if no model is asked."""
        return PROMPT if self.uses_models else None

    def note(self, written: Written) -> None:
        if written.bulk:
            self._missed_bulk(written.session.id, written.first, written.last)
        else:
            self.missed(written.session, written.first, written.last)

    def missed(self, record: SessionRecord, first: int, last: int) -> None:
        _, turns = self._noted.setdefault(record.id, (record, set()))
        turns.update(range(first, last + 1))
        # A turn that was open is closed by the next one.
        if record.id not in self._met or (record.id, first - 1) in self._open:
            self._met.add(record.id)
            turns.add(first - 1)
        self._wake()

    def _missed_bulk(self, session: str, first: int, last: int) -> None:
        """Turns of an importer are made last, and no model is asked for them: a history of years
        would cost a fortune.
        """
        begun, end = self._bulk.get(session, (first, last))
        self._bulk[session] = min(begun, first), max(end, last)
        self._wake()

    async def work(self, go_on: GoOn) -> bool:
        is_first = not self._noted
        await self._work_on_noted(go_on)
        while self._bulk and (is_first or go_on()):
            is_first = False
            await self._work_on_bulk(go_on)
        return bool(self._noted or self._bulk)

    async def _work_on_bulk(self, go_on: GoOn) -> None:
        name, (first, end) = next(iter(self._bulk.items()))
        head = await self._heads.get(name)
        many = 1 if name in self._damaged else _BATCH
        last = min(first + many - 1, end, head.turn if head is not None else 0)
        if head is None or last < first:
            self._bulk.pop(name, None)
            return
        done = last + 1
        try:
            found = await self._renditions.make(
                Owned(name, first, last), head, MakeRequest(tiny=True), go_on
            )
            done = min([each.told.number for each in found if each.left], default=done)
        except Corrupted as exc:
            self._damaged.add(name)
            if first == last:
                _log.warning("T-%d of %s cannot be shortened: %s", first, name, exc)
            else:
                done = first
        begun, end = self._bulk.get(name, (first, end))
        if begun == first:
            self._bulk[name] = done, end

    async def _work_on_noted(self, go_on: GoOn) -> None:
        some = 1  # whoever has but a moment reads no more than it can use
        while self._noted and (some == 1 or go_on()):
            some = min(some * 2, _IDLE_BATCH)
            name, (record, turns) = next(iter(self._noted.items()))
            head = await self._heads.get(name)
            if head is None:
                turns.clear()  # it was forgotten
            else:
                own = {n for n in turns if record.forked_at < n <= head.turn}
                wanted = sorted(n for n in own if not head.is_undone(n))
                turns.intersection_update(wanted)
            if head is None or not turns:
                self._noted.pop(name, None)
                continue
            # One turn after the other, if some of them cannot be read.
            most = 1 if name in self._damaged else some
            first, last = next(runs(sorted(turns), most))
            try:
                done = await self._make_noted(name, head, (first, last), go_on)
            except Corrupted as exc:
                done = [first] if first == last else []
                self._damaged.add(name)
                if done:
                    _log.warning("T-%d of %s cannot be shortened: %s", first, name, exc)
            turns.difference_update(done)

    async def _make_noted(
        self, session: str, head: Head, run: tuple[int, int], go_on: GoOn
    ) -> Iterable[int]:
        first, last = run
        asked = self._levels if self.uses_models else frozenset[Level]()
        wish = MakeRequest(tiny=True, models=asked)
        if (session, first) in self._open:
            # A long turn is not read from its beginning for each new round.
            last = first
            round, piece = self._open[session, first]
            wish = wish._replace(tiny=False, round=round, piece=piece)
        found = await self._renditions.make(Owned(session, first, last), head, wish, go_on)
        left = set[int]()
        for each in found:
            number = each.told.number
            if each.left:
                left.add(number)
            elif not each.closed:
                newest = max(each.told.rounds)
                self._open[session, number] = newest, each.told.begins[newest]
            elif self._open.pop((session, number), None):
                left.add(number)  # its T needs all of it
        return set(range(first, last + 1)) - left

    async def sizes(
        self,
        record: SessionRecord,
        head: Head,
        first: RoundId,
        last: RoundId,
        progress: Progress | None = None,
    ) -> list[RoundSizes]:
        """The sizes of the rounds from `first` to `last` of a session's line, in order. Makes what
        is missing. Leaves out undone and forgotten turns.
        """
        found = list[RoundSizes]()
        wish, turns = MakeRequest(incomplete=True), (first.turn, last.turn)
        async for made in self._walk(record, head, turns, wish, progress):
            found += made
        return [made for made in found if first <= made.place <= last]

    async def tinies(
        self,
        record: SessionRecord,
        head: Head,
        turns: Iterable[int],
    ) -> dict[int, TinySize]:
        """The sizes of these turns at T. Makes what is missing. Leaves out undone and forgotten
        turns.
        """
        wanted = sorted({n for n in turns if 0 < n <= head.turn and not head.is_undone(n)})
        found = dict[int, TinySize]()
        for stretch in await self._renditions.stretches(record, head, wanted):
            owned = stretch.owned
            numbers = [n for n in wanted if owned.first <= n <= owned.last]
            for some in portions(numbers, KEYS_AT_ONCE):
                keys = [turn_key(owned.session, number) for number in some]
                counts, rows = await self._counts.get_many(keys), await self._tinies.get_many(keys)
                unknown = list[int]()
                for number, count, row in zip(some, counts, rows, strict=True):
                    at = None
                    if count is not None and row is not None and number < stretch.doubtful:
                        at = row.best(sum(each.messages for each in count.counted))
                    if at is None or row is None:
                        unknown.append(number)
                    else:
                        found[number] = TinySize(row.variants[at].tokens, at)
                for a, b in runs(unknown, _BATCH):
                    part = msgspec.structs.replace(owned, first=a, last=b)
                    made = await self._renditions.make(
                        part, head, MakeRequest(tiny=True, open_tiny=True)
                    )
                    found |= {t.told.number: t.tiny for t in made if t.tiny is not None}
        return found

    async def raw(self, messages: tuple[Message, ...]) -> str:
        """The words of a round at R."""
        await self._maker.load()
        from perdure.history.renditions import algorithm

        return algorithm.raw(await self._maker.full(messages))

    async def catch_up(self, record: SessionRecord, progress: Progress | None = None) -> int:
        """Make whatever is missing of a session's own turns; returns how many turns were checked.
        Finds also imported turns and lost rows. Gives way to writers.
        """
        head = await self._heads.get(record.id)
        if head is None:
            return 0
        first, last = record.forked_at + 1, head.turn
        wish = MakeRequest(tiny=True, polite=True)
        async for _ in self._walk(record, head, (first, last), wish, progress):
            pass
        turns = [n for n in range(first, last + 1) if not head.is_undone(n)]
        closed = turns if head.closed or head.mark.closed or head.mark.fresh else turns[:-1]
        for some in portions(closed, KEYS_AT_ONCE):
            await self.tinies(record, head, some)
        return len(turns)

    def could_be_better(self, made: RoundSizes) -> bool:
        if made.recipe.startswith(BY_MODEL):
            return self.uses_models and bool(unmade(made.recipe) & self._levels)
        from perdure.history.renditions import algorithm

        return self.uses_models or made.recipe != algorithm.RECIPE

    async def refresh(self, record: SessionRecord, head: Head, places: Iterable[RoundId]) -> int:
        """Make again what an older recipe made of these rounds; returns how many are new. Called at
        an epoch, for what it is about to show: so a new recipe costs nothing for the rest. Models
        are asked for what has no model's variant yet; that shows at a later epoch.
        """
        wanted = {place.turn for place in places if not head.is_undone(place.turn)}
        numbers = sorted(number for number in wanted if 0 < number <= head.turn)
        done = 0
        for stretch in await self._renditions.stretches(record, head, numbers):
            owned = stretch.owned
            here = [n for n in numbers if owned.first <= n <= owned.last]
            for a, b in runs(here, _BATCH):
                part = msgspec.structs.replace(owned, first=a, last=b)
                before = {row.id: row for row in await self._renditions.rows_of(part)}
                wish = MakeRequest(tiny=True, stale=True)
                for each in await self._renditions.make(part, head, wish):
                    for made in each.rounds:
                        key = rendition_key(owned.session, made.place.turn, made.place.round)
                        row = before.get(key)
                        done += row is None or len(row.variants) <= made.variant
                if self.uses_models:
                    await self.models.want(part)
        return done

    async def status(self, session: str | None = None) -> list[RenditionStatus]:
        from perdure.history.renditions.rendition_status import rendition_status

        # Who has no models sees what became of those of others.
        levels = self._levels or EVERY_LEVEL
        return await rendition_status(self._store, session, self._prompt, levels)

    async def _walk(
        self,
        record: SessionRecord,
        head: Head,
        turns: tuple[int, int],
        wish: MakeRequest,
        progress: Progress | None,
    ) -> AsyncIterator[list[RoundSizes]]:
        first, last = turns
        numbers = range(max(first, 1), min(last, head.turn) + 1)
        for stretch in await self._renditions.stretches(record, head, numbers):
            owned = stretch.owned
            for a in range(owned.first, owned.last + 1, _ROWS):
                b = min(a + _ROWS - 1, owned.last)
                part = msgspec.structs.replace(owned, first=a, last=b)
                known = await self._renditions.known(part, stretch.doubtful)
                live = [n for n in range(a, b + 1) if not head.is_undone(n)]
                for c, d in runs([n for n in live if n not in known], _BATCH):
                    if progress is not None:
                        progress("making renditions", c - first, last - first + 1)
                    some = msgspec.structs.replace(owned, first=c, last=d)
                    for each in await self._renditions.make(some, head, wish):
                        known[each.told.number] = each.rounds
                yield [made for number in live for made in known.get(number, ())]
