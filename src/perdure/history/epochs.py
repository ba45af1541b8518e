"""Epochs: the recorded moments when a session's gradient was recalculated.

An epoch is a manifest, stored as its difference to the one before. Only the newest is kept with the
text of its elements (`PrefixText`), so that a new process reads one row and sends. Texts of older
manifests stay in renditions and ranges, so any past prompt can be rebuilt.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import Annotated, Literal

import msgspec

from perdure.core.errors import Conflict, Corrupted
from perdure.core.levels import Level
from perdure.history.forget_sessions import ForgetScope, Prefixed
from perdure.history.log_records import Head, SessionRecord, TurnSpan
from perdure.history.manifest import Element, EpochManifest, RoundId
from perdure.storage.options import Options
from perdure.storage.record_keys import numbered
from perdure.storage.records import Compressed, Key, system_record
from perdure.storage.store import Store

#: Why an epoch was made.
#:
#: ``budget``     what was there did not fit any more
#: ``mark``       the raw tier was over its high mark
#: ``turns``      ten turns, and it paid
#: ``cold``       the provider had surely forgotten the prefix
#: ``asked``      somebody wanted a turn at another level, now
#: ``model``      another model: what the one before thought is void
#: ``changed``    turns were taken back, forgotten, or completed late
#: ``fork``       adopted from the session that it was forked from
Reason = Literal["budget", "mark", "turns", "cold", "asked", "model", "changed", "fork"]

#: Every so many epochs a manifest is kept whole: so many rows are read at most to rebuild one.
_WHOLE_EVERY = 32
_DIGEST = 8


def digest_of(text: str) -> bytes:
    """Not stored except in the prefix: see `lasting`."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=_DIGEST).digest()


def new_digest() -> bytes:
    """Random, because it outlives the range's text when that is forgotten."""
    return os.urandom(_DIGEST)


def lasting(element: Element) -> Element:
    """Without its digest: a hash of a forgotten text could still identify it."""
    return element if element.generation else msgspec.structs.replace(element, digest=b"")


class FidelityWish(msgspec.Struct, frozen=True, array_like=True):
    """A turn is to be shown at this level instead of the gradient's."""

    turn: int
    level: Level


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """The elements of a manifest that differ from those of another one."""

    #: From where, how many: at least 0 counts in the other's elements, -1 takes new ones.
    order: tuple[tuple[int, int], ...]
    new: tuple[Element, ...]

    @classmethod
    def between(cls, before: EpochManifest, after: EpochManifest) -> Delta:
        known = {lasting(element): at for at, element in enumerate(before.elements)}
        order, new = list[tuple[int, int]](), list[Element]()
        for element in map(lasting, after.elements):
            at = known.get(element, -1)
            if at < 0:
                new.append(element)
            start, count = order[-1] if order else (-2, 0)
            follows = at == start + count if start >= 0 else at == start == -1
            if follows:
                order[-1] = (start, count + 1)
            else:
                order.append((at, 1))
        return cls(tuple(order), tuple(new))

    def applied(self, before: EpochManifest) -> tuple[Element, ...]:
        new, found = iter(self.new), list[Element]()
        for start, count in self.order:
            if start >= 0:
                found += map(lasting, before.elements[start : start + count])
            else:
                found += [next(new) for _ in range(count)]
        return tuple(found)


@system_record("epochs")
class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """One recalculation: its reason and its result."""

    id: Annotated[str, Key()]  # session/number
    reason: Reason
    #: It could not wait for the turn to end.
    forced: bool = False
    budget: int
    #: What the window took before and after, in tokens.
    before: int
    after: int
    #: Microseconds.
    time: int
    model: str = ""
    #: The manifest without its elements, and those, on top of the epoch `base` (0: of nothing).
    manifest: EpochManifest
    base: int = 0
    delta: Delta
    undone: tuple[TurnSpan, ...] = ()  # Turns that were taken back at that time.

    @property
    def number(self) -> int:
        return int(self.id[-8:])

    @property
    def session(self) -> str:
        return self.id[:-9]

    @property
    def at(self) -> RoundId:
        return self.manifest.at


@system_record("prefixes")
class Prefix(msgspec.Struct, frozen=True, kw_only=True):
    """The newest epoch without its text. Small: it is read with each request."""

    id: Annotated[str, Key()]  # session
    #: The epoch's number; 0 if there was none, and only wishes are kept here.
    epoch: int = 0
    model: str = ""
    undone: tuple[TurnSpan, ...] = ()
    #: What the next epoch will take into account, and whether it is wanted now.
    wishes: tuple[FidelityWish, ...] = ()
    asked: bool = False
    #: Turns that had been written when it was made.
    turns: int = 0
    budget: int = 0


@system_record("prefix_texts")
class PrefixText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a session's newest epoch."""

    id: Annotated[str, Key()]  # session
    epoch: int
    manifest: EpochManifest
    texts: Annotated[bytes, Compressed()] = b"\x90"  # The elements' texts, in order: msgpack.

    def by_digest(self) -> dict[bytes, str]:
        texts = msgspec.msgpack.decode(self.texts, type=list[str])
        digests = [element.digest for element in self.manifest.shown()]
        return dict(zip(digests, texts, strict=True))


@system_record("ranges")
class RangeText(msgspec.Struct, frozen=True, kw_only=True):
    """What a range says: kept, because a manifest names it."""

    id: Annotated[str, Key()]  # session/digest
    first: int
    last: int
    text: Annotated[str, Compressed()]


class Epochs:
    """The epochs of all sessions in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._epochs = store.collection(Epoch)
        self._prefixes = store.collection(Prefix)
        self._texts = store.collection(PrefixText)
        self._ranges = store.collection(RangeText)
        self._heads = store.collection(Head)

    async def newest(self, session: str) -> tuple[Prefix | None, int]:
        """The newest epoch and its version; version 0 if there is none."""
        found = await self._prefixes.fetch(session)
        return (None, 0) if found is None else (found.value, found.version)

    async def text(self, session: str, epoch: int) -> PrefixText | None:
        """None if another epoch is the newest by now."""
        found = await self._texts.get(session)
        return found if found is not None and found.epoch == epoch else None

    async def count(self, session: str) -> int:
        finder = self._epochs.query().prefix(f"{session}/").order_by("-id").limit(1)
        found = await finder.values()
        return found[0].number if found else 0

    async def record(
        self,
        epoch: Epoch,
        prefix: Prefix,
        text: PrefixText,
        *,
        before: EpochManifest | None,
        ranges: list[RangeText],
        version: int,
        forgets: int,
    ) -> int:
        """Make an epoch the newest; returns the prefix's version. `before` is the manifest of the
        epoch that it follows. Raises `Conflict` if another process made one first, or if turns were
        forgotten since `forgets` times.
        """
        number, manifest = epoch.number, text.manifest
        if before is None or number % _WHOLE_EVERY == 1:
            base, delta = 0, Delta.between(EpochManifest(), manifest)
        else:
            base, delta = number - 1, Delta.between(before, manifest)
        epoch = msgspec.structs.replace(
            epoch,
            manifest=msgspec.structs.replace(
                manifest, elements=(), pins=tuple(map(lasting, manifest.pins))
            ),
            base=base,
            delta=delta,
        )
        async with self._store.transaction() as transaction:
            head = await transaction.collection(Head).get(prefix.id)
            if head is None or head.forgets != forgets:
                raise Conflict("perdure_heads", prefix.id)
            await transaction.collection(Prefix).put(prefix, Options(expected=version))
            await transaction.collection(PrefixText).put(text)
            await transaction.collection(Epoch).put(epoch, Options(expected=0))
            if ranges:
                await transaction.collection(RangeText).put_many(ranges)
        return transaction.version("perdure_prefixes", prefix.id)

    async def keep(self, prefix: Prefix, version: int) -> int:
        """Change the prefix without an epoch: for wishes. Raises `Conflict`."""
        async with self._store.transaction() as transaction:
            await transaction.collection(Prefix).put(prefix, Options(expected=version))
        return transaction.version("perdure_prefixes", prefix.id)

    async def all(self, session: str) -> list[Epoch]:
        return await self._epochs.query().prefix(f"{session}/").order_by("id").values()

    async def in_force(self, session: str, place: RoundId) -> tuple[Epoch, EpochManifest] | None:
        """The epoch that a round's request was made under; None if there was none."""
        made = [epoch for epoch in await self.all(session) if epoch.at <= place]
        if not made:
            return None
        manifest, at = EpochManifest(), made[-1].number
        by_number = {epoch.number: epoch for epoch in made}
        chain = list[Epoch]()
        while at:
            epoch = by_number.get(at)
            if epoch is None:
                raise Corrupted(
                    f"Epoch {at} of {session} is missing.",
                    hint="Run `perdure verify`; restore the bank from a backup.",
                )
            chain.append(epoch)
            at = epoch.base
        for epoch in reversed(chain):
            elements = epoch.delta.applied(manifest)
            manifest = msgspec.structs.replace(epoch.manifest, elements=elements)
        return made[-1], manifest

    async def forget(self, scope: ForgetScope) -> None:
        """Delete what shows the scope's turns; past prompts then have tombstones in their place."""
        if not scope.turns:
            await Prefixed(self._store, Epoch, Prefix, PrefixText, RangeText).forget(scope)
            return
        for session in scope.sessions:
            for name in await self.line(session):
                # The window is planned anew, from what is left.
                async with self._store.transaction() as transaction:
                    await transaction.collection(Prefix).delete(name)
                    await transaction.collection(PrefixText).delete(name)
                for row in await self._ranges.query().prefix(f"{name}/").values():
                    if any(row.first <= turn <= row.last for turn in scope.turns):
                        await self._ranges.delete(row.id)
                # Processes that have read the turns read them again.
                if await self._heads.get(name) is not None:
                    await self._heads.change(name, _forgotten)

    @property
    def collections(self) -> frozenset[str]:
        places = (self._epochs, self._prefixes, self._texts, self._ranges)
        return frozenset(each.name for each in places)

    async def line(self, session: str) -> list[str]:
        records, found = self._store.collection(SessionRecord), [session]
        for name in found:
            forks = await records.query().where("parent", "=", name).values()
            found += [fork.id for fork in forks]
        return found

    async def range_texts(self, session: str, digests: list[bytes]) -> dict[bytes, str]:
        keys = [f"{session}/{digest.hex()}" for digest in digests]
        found = await self._ranges.get_many(keys)
        return {
            digest: row.text for digest, row in zip(digests, found, strict=True) if row is not None
        }


def _forgotten(head: Head | None) -> Head:
    assert head is not None  # noqa: S101 (it was there a moment ago)
    return msgspec.structs.replace(head, forgets=head.forgets + 1)


def epoch_key(session: str, number: int) -> str:
    return f"{session}/{numbered(number)}"
