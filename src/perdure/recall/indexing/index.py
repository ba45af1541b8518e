"""The index of a bank: written soon after each turn, filled where it has gaps, rebuilt when asked.

Turns are written when nobody appends, and before somebody asks (`pending_turns`). Vectors follow
(`embedding`), gaps are filled in the background (`filling`), and `check` compares the index with
the log (`checking`). All work in the background is the runner's.

Content that is stored encrypted is not indexed: the index would hold it in clear. A bank whose
whole file is encrypted has an index like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from perdure.core.errors import Corrupted, InvalidInput, PerdureError
from perdure.history.log_records import SessionRecord, TurnPiece
from perdure.history.turn_log import Written
from perdure.history.turn_reader import TurnReader
from perdure.jobs import Runner, Wake
from perdure.recall.embedders import Embedder
from perdure.recall.indexing.groups import Groups
from perdure.recall.indexing.index_filler import RECIPE, Filler
from perdure.recall.indexing.passage_vectors import Embeddings, Waiting
from perdure.recall.indexing.passages import document, of_text
from perdure.recall.indexing.pending_turns import PendingTurns
from perdure.recall.places import INDEX, Spot, spot, turns
from perdure.recall.values import LATE, Note
from perdure.search.engine import SearchState, Withdrawal, engine_of, has_search
from perdure.storage.records import type_of
from perdure.storage.store import Progress, Store
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.config import RecallConfig
    from perdure.recall.values import Recalled
    from perdure.storage.store import Progress

#: Puts again all that it has, with `RecallIndex.put`.
Refill: TypeAlias = Callable[[], Awaitable[object]]

_TURNS = type_of(TurnPiece).name
#: Seconds until the first look whether the index is complete, so that short commands do without;
#: between two looks.
_DELAY, _CARE_EVERY = 0.5, 300.0


class RecallIndex:
    """What recall searches in. Made by the bank; for one event loop."""

    def __init__(
        self,
        store: Store,
        reader: TurnReader,
        jobs: Runner,
        config: RecallConfig,
        embedder: Embedder,
        *,
        encrypts: Callable[[str], bool] | None = None,
        warm: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`encrypts` tells whether records of a collection are stored encrypted.

        `warm` loads what a search needs, in a pause, before somebody waits for it.
        """
        self.store = store
        self.embedder = embedder
        #: Callbacks that put again what is not a turn, when the index is filled.
        self.sources: list[Refill] = []
        self.numbers = Groups(store)
        self.filler = Filler(store, self.numbers)
        self.embeddings = Embeddings(store, embedder, self._texts, warm)
        self._jobs = jobs
        self._is_able = has_search(store.adapter)
        #: Whether the configuration wants turns to be indexed.
        self.is_wanted = config.on
        self._encrypts = encrypts or (lambda _: False)
        #: What this process is still to index; None if turns are not indexed.
        self.pending = (
            PendingTurns(
                store,
                reader,
                jobs,
                groups=self.numbers,
                filler=self.filler,
                embeddings=self.embeddings,
                prepared=self.prepared,
            )
            if self.is_on
            else None
        )
        self._is_prepared = self._is_refilled = False
        #: Whether everything that was there has been indexed, as far as this process knows.
        self.is_complete = False
        self._preparing = asyncio.Lock()
        self._filling = asyncio.Lock()
        #: Whether what is missing is being written now.
        self.is_filling = False
        self._blotting: asyncio.Task[None] | None = None
        #: Looks after the index now; None until it is started.
        self._look: Wake | None = None

    @property
    def is_on(self) -> bool:
        """Whether turns are indexed."""
        return self._is_able and self.is_wanted and not self._encrypts(_TURNS)

    async def exists(self) -> bool:
        """Whether there is an index, even if turns are not indexed any more."""
        return self._is_prepared or await self.filler.state() is not None

    def covers(self, session: str) -> bool:
        """Whether the turns of a session are in the index, or will be; else they are scanned."""
        del session  # it is the same for all of a bank
        return self.is_on

    # Its life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Make the index if it is not there, and begin to fill and to embed in the background."""
        if not self._is_able:
            return
        if not self.is_on:
            if await self._leave():
                self._blotting = asyncio.create_task(self.filler.blot_out(), name="perdure-index")
            return
        await self.prepared()
        self.embeddings.start(self._jobs)
        self._look = self._jobs.every("the search index", _CARE_EVERY, self._care, first=_DELAY)

    async def stop(self) -> None:
        """End what is under way; what is left is done when the bank is next opened.

        What waits to be written is the runner's to write, before it stops.
        """
        if self._blotting is not None:
            self._blotting.cancel()
            await asyncio.wait({self._blotting})
        self._look = None
        await self.embeddings.stop()

    async def settle(self, progress: Progress | None = None) -> None:
        """Fill the index if something is missing, and give everything in it its vector.

        Returns without, if the embedder fails: `check` tells.
        """
        if self.is_on:
            await self.prepared()
            if self.pending is not None:
                await self.pending.write()
            await self._care()
            await self.embeddings.settle(progress)
        elif self._blotting is not None:
            await asyncio.wait({self._blotting})

    async def complete(self, progress: Progress | None = None) -> None:
        """Fill an index that was not filled to its end, of a restored bank, say; without vectors.

        For commands, which do not look after the index in the background.
        """
        if self.is_on:
            await self.prepared()
            if not self.is_complete:
                await self._care(progress)

    async def rebuild(self, progress: Progress | None = None) -> None:
        """Make every document anew, from everything that is in the bank.

        Appends and searches go on: a document is replaced by its successor in one commit. Only an
        index that is damaged is erased first, and searches find more and more of it. Killed, it is
        completed when the bank is next opened. Vectors of models that cannot be reached now come
        later.

        Raises `Unsupported` if the backend has no search indexes.
        """
        engine_of(self.store.adapter)  # raises
        if not self.is_on:
            if await self._leave():
                await self.filler.blot_out()
            return
        await self.prepared()
        async with self._filling:
            if await self.faults(thorough=True):
                await self.erase()
            await self._fill(progress, anew=True)
            if await self.faults():  # damage that only writing came upon, or new one
                await self.erase()
                await self._fill(progress, anew=True)
            await self.filler.remove_orphans()
        await self.embeddings.settle(progress)

    async def check(self, progress: Progress | None = None) -> IndexReport:
        """Compare the index with what it is about. Reads the whole log, changes nothing."""
        return await check_index(self, progress)

    async def faults(self, *, thorough: bool = False) -> tuple[str, ...]:
        """What is wrong with the index itself, in sentences; see `SearchEngine.state`."""
        try:
            state = await engine_of(self.store.adapter).state(INDEX.name, thorough=thorough)
            return state.faults
        except Corrupted as exc:
            return (exc.message,)
        except InvalidInput:
            return ("The index is not there.",)

    @property
    def is_looked_after(self) -> bool:
        """Whether this process mends and fills the index in the background."""
        return self._look is not None

    def mend(self) -> None:
        """Look after the index now, in the background: somebody came upon damage."""
        if self._look is not None:
            self._look()

    async def erase(self) -> None:
        """Remove the index and make an empty one, which has to be filled."""
        await self.filler.begin()
        async with self._preparing, self.embeddings.paused():
            self._is_prepared = self.is_complete = False
            await engine_of(self.store.adapter).erase(INDEX.name)
            await engine_of(self.store.adapter).prepare(INDEX)
            self._is_prepared = True

    async def prepared(self) -> None:
        """Make the index, if that was not done yet; wait while it is being made anew."""
        if not self._is_prepared:
            await self._prepare()

    # Writing ----------------------------------------------------------------------------------

    async def hook(self, transaction: Transaction, written: Written) -> None:
        """Index what an importer appends, in its transaction. See `history.turn_log`."""
        if written.bulk and written.rounds and self.pending is not None:
            await self.prepared()
            await self.pending.index_now(transaction, written)

    async def catch_up(self, record: SessionRecord) -> None:
        """Index all that is written by now, by any process: what this session sees comes first."""
        if self.pending is not None:
            await self.prepared()
            await self.pending.catch_up(record)

    async def put(
        self, transaction: Transaction, group: str, ordinal: int, text: str, note: Note
    ) -> None:
        """Index a text under a number of its own in a group, instead of what stands there."""
        if not self.is_on:
            return
        await self.prepared()
        number = await self.numbers.relied_on(transaction, group)
        made = of_text(text, note)
        if number is None or not made.plain:
            return
        place = Spot(number, ordinal).place
        transaction.include(document(place, made))
        transaction.after_commit(lambda: self.embeddings.add([Waiting(place, made.plain)]))

    async def withdraw(self, transaction: Transaction, group: str, ordinal: int) -> None:
        """Remove a text from the index; no error if it is not there."""
        if not self.is_on:
            return
        await self.prepared()
        number = await self.group(group)
        if number is not None:
            transaction.include(Withdrawal(INDEX.name, *turns(number, ordinal, ordinal)))

    # Groups -----------------------------------------------------------------------------------

    async def group(self, name: str) -> int | None:
        """A group's number; None if it has none, and so nothing in the index."""
        return (await self.groups()).get(name)

    @property
    def forks(self) -> AbstractSet[str]:
        """Sessions that are, or were, forks, as of `groups`."""
        return self.numbers.forks

    async def groups(self) -> Mapping[str, int]:
        """The number of each group by its name. What waits here to be indexed gets one first."""
        if self.pending:
            with suppress(PerdureError):  # whoever searches is told of damage
                await self.pending.write()
        return await self.numbers.all()

    async def numbered(self, executor: Transaction | Store, name: str) -> int | None:
        """A group's number; it gets one if it has none. None for a session that is gone.

        A transaction that is given fails if the group loses its number before it commits.
        """
        if isinstance(executor, Transaction):
            return await self.numbers.relied_on(executor, name)
        return await self.numbers.give(name)

    # ------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        async with self._preparing:
            if self._is_prepared:
                return
            if await engine_of(self.store.adapter).prepare(INDEX):
                begun = await self.filler.begin()
                if await self.filler.has_nothing():  # what comes is indexed as it is written
                    await self.filler.finish(begun)
            state = await self.filler.state()
            self.is_complete = state is not None and state.complete
            self._is_prepared = True

    async def _leave(self) -> bool:
        """What is written from now on is not indexed: so the index is not complete any more.

        One that must not be, because its content is now stored encrypted, is erased. Whether what
        it held has to be blotted out then.
        """
        state = await self.filler.state()
        if state is None:
            return False
        if self._encrypts(_TURNS):
            await engine_of(self.store.adapter).erase(INDEX.name)
            return True
        if state.complete:
            await self.filler.begin()
        return False

    async def _care(self, progress: Progress | None = None) -> None:
        """Fill the index if it is not complete; make it anew if it is damaged."""
        async with self._filling:
            if await self.faults():
                await self.erase()
            state = await self.filler.state()
            anew = state is not None and state.recipe != RECIPE
            if state is None or anew or not state.complete or await self._is_empty():
                await self._fill(progress, anew=anew)

    async def _is_empty(self) -> bool:
        """Nothing is in it: whoever made it may have died before it could say so."""
        return not await engine_of(self.store.adapter).places(INDEX.name, -1, 1)

    async def _fill(self, progress: Progress | None = None, *, anew: bool = False) -> None:
        self.is_filling = True
        try:
            begun = await self.filler.begin(anew=anew)
            await self.filler.fill(self.embeddings, progress, anew=anew)
            for refill in self.sources:
                await refill()
            self.is_complete = await self.filler.finish(begun)
        finally:
            self.is_filling = False
        self.embeddings.look()

    async def _texts(self, places: Sequence[int]) -> Mapping[int, str]:
        """What is to be embedded for these places. Who owns what is no turn puts it again, once."""
        found = await self.filler.texts(places)
        names = await self.numbers.names()
        others = any(names.get(spot(place).group, "").startswith(" ") for place in places)
        if others and not self._is_refilled:
            self._is_refilled = True
            for refill in self.sources:
                await refill()
        return found


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


async def check_index(index: RecallIndex, progress: Progress | None = None) -> IndexReport:
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


async def index_notes(index: RecallIndex, found: Recalled) -> tuple[str, ...]:
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
