"""The middleware: values are compressed on their way in and expanded on their way out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import zstandard

from perdure.core.errors import Conflict, Corrupted, InvalidInput
from perdure.storage.adapter import Capability
from perdure.storage.compression import renewal
from perdure.storage.compression.dictionaries import (
    WORTH_IT,
    Edition,
    Host,
    Samples,
    Shelf,
    form,
    stock_of,
    train,
)
from perdure.storage.compression.renewal import Renewal
from perdure.storage.compression.states import State, States
from perdure.storage.compression.values import compressed, compressed_again, expanded
from perdure.storage.deadlines import TimeLeft
from perdure.storage.middleware import (
    Call,
    Commit,
    Find,
    Get,
    Handler,
    Resident,
    Rewrite,
    Stage,
    collection_of,
)
from perdure.storage.options import Options
from perdure.storage.records import RecordType
from perdure.storage.rows import Batch, Check, Delete, Put, Recode, Row
from perdure.storage.store import Progress

#: What dictionaries need of a backend: the check in every commit, and lists of them.
_NEEDED = frozenset({Capability.TRANSACTIONS, Capability.VERSIONS, Capability.LISTING})


class Compression(Resident):
    """The middleware.

    With ``writing=False`` it compresses nothing: what was compressed before stays readable, and can
    still be renewed.

    On a backend that cannot check a row along with a commit, values are compressed without
    dictionaries.

    `scope_of` tells which key a record is encrypted with (see `encryption`), "" if it is not:
    records of one agent's key share dictionaries with no others.
    """

    stage: ClassVar[Stage] = Stage.COMPRESS

    def __init__(
        self, *, writing: bool = True, scope_of: Callable[[str, str], str] | None = None
    ) -> None:
        self._writing = writing
        self._scope_of = scope_of
        self._host: Host | None = None
        self._trains = False
        self._states = States()
        self._training = asyncio.Lock()
        #: Called when a dictionary could be trained; somebody then calls `train`.
        self.on_due: Callable[[], None] = lambda: None

    def attach(self, store: Host) -> None:
        """Say where dictionaries are kept and record types are known."""
        self._host = store
        self._trains = store.adapter.capabilities >= _NEEDED

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        if isinstance(call, Commit):
            if self._writing and self._concerns(call.batch):
                return await self._commit(call, proceed)
            return await proceed(call)
        if isinstance(call, Rewrite):
            return await self._rewrite(call, proceed)
        if isinstance(call, Get | Find):
            time_left = TimeLeft(call.options)
            return await self._expanded(call, await proceed(call), proceed, time_left)
        return await proceed(call)

    def is_due(self, declared: RecordType[Any], row: Row) -> bool:
        """Whether a row was stored as it is, but would be compressed now."""
        if not (self._writing and declared.compressed) or ";" in row.content_type:
            return False
        known = self._states.get(self._stock(declared.name, row.key))
        compress = known.edition.compress if known else zstandard.ZstdCompressor().compress
        return len(row.value) >= WORTH_IT and len(compress(row.value)) < len(row.value)

    # Dictionaries -----------------------------------------------------------------------------

    async def train(self, collection: str | None = None) -> int:
        """Make dictionaries for the collections that are due, or a new one for this collection.

        Returns how many were tried. The work is done in a thread; what is under way already is
        waited for.
        """
        async with self._training:
            if collection is not None:
                await self._state(collection)
                due = self._states.of(collection)
                for name, state in due.items():
                    if state.edition.train_at is None:  # nothing was noted
                        await renewal.sample(self._source(name), self._shelf, state.samples)
                due = {name: state for name, state in due.items() if state.samples.values}
            else:
                due = {name: state for name, state in self._states.items() if state.due}
            for name, state in due.items():
                await self._train(name, state)
            return len(due)

    async def renew(self, collection: str, progress: Progress | None = None) -> Renewal:
        """Replace the dictionaries of a collection, so that they hold nothing but what is there.

        To be called after content was deleted that must not be found again. A new dictionary is
        trained on the values that the collection holds now, unless there are too few; values that
        need an older one are written anew, and the older ones are deleted. Versions and times of
        records stay; others may read and write meanwhile.

        Returns when all of it is done. Interrupted, even by kill -9, it leaves everything
        readable; call it again, or `finish`. Records that are damaged are left as they are.

        The bytes of what was deleted can still be in the store's files: `Adapter.scrub` is next.
        """
        if not self._trains or await self._is_plain(collection):
            return Renewal(collection)
        # First the collection: from then on, no first dictionary of one of its scopes can be made
        # from what was noted before.
        await self._begin(collection, progress)
        for stock in self._states.of(collection):
            (await self._reload(stock)).samples = Samples()
        stocks = [each for each in await self._shelf.stocks(collection) if each != collection]
        for stock in stocks:
            await self._begin(stock, progress)
        done = [await self._finish(stock, progress) for stock in (collection, *stocks)]
        return Renewal(
            collection, sum(each.rewritten for each in done), sum(each.deleted for each in done)
        )

    async def finish(self, progress: Progress | None = None) -> list[Renewal]:
        """Carry renewals to their end that were interrupted; returns what was done."""
        if not self._trains:
            return []
        done = [await self._finish(stock, progress) for stock in await self._shelf.stocks()]
        return [each for each in done if each.deleted]

    async def _is_plain(self, collection: str) -> bool:
        """Whether a collection has no dictionary and will not get one: its type asks for none."""
        declared = self._attached().declared.get(collection)
        if declared is None or declared.compressed:
            return False
        return not await self._shelf.stocks(collection)

    async def _begin(self, stock: str, progress: Progress | None) -> None:
        await renewal.begin(self._source(stock), self._shelf, progress)
        await self._reload(stock)

    async def _finish(self, stock: str, progress: Progress | None) -> Renewal:
        async def edition() -> Edition:
            return (await self._reload(stock)).edition

        return await renewal.finish(self._source(stock), self._shelf, edition, progress)

    def _source(self, stock: str) -> renewal.Source:
        host, collection = self._attached(), stock.partition("/")[0]

        def belongs(key: str) -> bool:
            return self._stock(collection, key) == stock

        secret = self._scope_of is not None and bool(self._scope_of(collection, ""))
        return renewal.Source(host.adapter, host.below(self), stock, belongs, keeps_secrets=secret)

    async def _train(self, name: str, state: State) -> None:
        state.training = True
        edition, samples = state.edition, state.samples
        state.samples = Samples()
        try:
            content = await asyncio.to_thread(train, samples.values)
            if not content:
                return  # too little variety: try again with other samples
            with suppress(Conflict):  # another process was first: its dictionary is as good
                await self._shelf.publish(name, edition, content, samples, only=False)
                state.follow(await self._shelf.edition(name), edition, samples.seen)
                return
            state.adopt(await self._shelf.edition(name))
        finally:
            state.training = False

    def _stock(self, collection: str, key: str) -> str:
        """The stock that a record is written from."""
        if self._scope_of is None:
            return collection
        own = self._scope_of(collection, key).startswith("agent:")
        return stock_of(collection, key, own=own)

    async def _state(self, stock: str) -> State:
        """What is known about a stock; at first, its edition is looked up."""
        known = self._states.get(stock)
        if known is None:
            edition = await self._shelf.edition(stock)
            known = self._states.keep(stock, State(edition))
        return known

    async def _reload(self, stock: str) -> State:
        state = await self._state(stock)
        edition = await self._shelf.edition(stock)
        if (edition.row, edition.above) != (state.edition.row, state.edition.above):
            state.adopt(edition)
        return state

    # On the way in ----------------------------------------------------------------------------

    async def _commit(self, commit: Commit, proceed: Handler) -> Any:
        own, time_left = len(commit.batch.checks), TimeLeft(commit.options)
        first = True
        while True:
            packed = await self._compressed(commit, time_left.options(), noting=first)
            try:
                return await proceed(packed)
            except Conflict as conflict:
                # If it is one of our checks, dictionaries were replaced since: compress again.
                mine = _check_of(conflict, packed.batch.checks[own:])
                if mine is None or (await self._reload(mine.key)).edition.row == mine:
                    raise
                first = False

    async def _rewrite(self, rewrite: Rewrite, proceed: Handler) -> Any:
        declared = self._attached().declared.get(rewrite.collection)
        if not self._writing or declared is None or not declared.compressed:
            return await proceed(rewrite)
        time_left = TimeLeft(rewrite.options)
        while True:
            recodes: list[Recode] = []
            checks: dict[Check, None] = {}
            for recode in rewrite.recodes:
                stock = self._stock(rewrite.collection, recode.row.key)
                edition = (self._states.get(stock) or await self._state(stock)).edition
                recodes.append(compressed_again(recode, edition))
                checks |= dict.fromkeys(edition.checks)
            try:
                return await proceed(
                    Rewrite(
                        rewrite.collection,
                        tuple(recodes),
                        time_left.options(),
                        (*rewrite.checks, *checks),
                    )
                )
            except Conflict as conflict:
                mine = _check_of(conflict, tuple(checks))
                if mine is None or (await self._reload(mine.key)).edition.row == mine:
                    raise

    def _concerns(self, batch: Batch) -> bool:
        declared = self._attached().declared
        for write in batch.writes:  # noqa: SIM110  # any() would cost more than it looks at
            if declared[write.collection].compressed:
                return True
        return False

    async def _compressed(self, commit: Commit, options: Options, *, noting: bool) -> Commit:
        declared = self._attached().declared
        batch = commit.batch
        writes: list[Put | Delete] = []
        checks: tuple[Check, ...] = ()
        for write in batch.writes:
            if (
                isinstance(write, Put)
                and len(write.value) >= WORTH_IT
                and declared[write.collection].compressed
            ):
                stock = self._stock(write.collection, write.key)
                state = self._states.get(stock) or await self._state(stock)
                if noting and self._trains and state.note(write.value):
                    self.on_due()
                edition = state.edition
                writes.append(compressed(write, edition))
                if edition.checks and edition.checks[0] not in checks:
                    checks = checks + edition.checks if checks else edition.checks
            else:
                writes.append(write)
        if batch.checks:
            checks = batch.checks + checks
        return Commit(Batch(tuple(writes), checks, batch.events, batch.changes), options)

    # On the way out ---------------------------------------------------------------------------

    async def _expanded(
        self, call: Get | Find, rows: list[Row | None], proceed: Handler, time_left: TimeLeft
    ) -> list[Row | None]:
        collection = collection_of(call)
        missing: set[tuple[str, int]] = set()
        while True:
            answer: list[Row | None] = []
            for row in rows:
                made = None if row is None else form(row.content_type)
                if row is None or made is None:
                    answer.append(row)
                    continue
                number = made.number
                stock = stock_of(collection, row.key, own=True) if made.own else collection
                state = self._states.get(stock) or await self._state(stock)
                tool = state.decompressors.get(number) or await self._load(state, stock, number)
                if tool is None:
                    break
                answer.append(expanded(collection, row, made.content_type, tool))
            else:
                return answer
            if (stock, number) in missing:
                raise Corrupted(
                    f"Dictionary {number} of the collection {stock!r} is missing; records that"
                    " were compressed with it cannot be read.",
                    hint="Restore the collection perdure_dictionaries from a backup.",
                )
            # A dictionary is deleted when no row needs it. So this row was written anew after we
            # read it, and reading it again helps: once, for each dictionary.
            missing.add((stock, number))
            rows = await proceed(time_left.from_primary(call))

    async def _load(
        self, state: State, stock: str, number: int
    ) -> zstandard.ZstdDecompressor | None:
        content = await self._shelf.content(stock, number)
        if not content:
            return None
        data = zstandard.ZstdCompressionDict(content)
        tool = state.decompressors[number] = zstandard.ZstdDecompressor(dict_data=data)
        return tool

    @property
    def _shelf(self) -> Shelf:
        return Shelf(self._attached())

    def _attached(self) -> Host:
        if self._host is None:
            raise InvalidInput(
                "This compression belongs to no store.", hint="Put it in a store's chain."
            )
        return self._host


def _check_of(conflict: Conflict, checks: tuple[Check, ...]) -> Check | None:
    for check in checks:
        if (check.collection, check.key) == (conflict.collection, conflict.key):
            return check
    return None
