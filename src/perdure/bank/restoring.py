"""Whole banks moved: out of a backup, or from one bank to another.

Both go the same way. The large artifacts come first, because a record never refers to one that is
not there. Then all records come in one transaction: the target has everything or what it had
before. In the end the target is verified, as `perdure verify` does it.

Artifacts may be encrypted with data keys, which are records. So they are stored through a bank in
memory that has the keys of the source and the artifacts' place of the target. What is in that place
already, encrypted with other keys, may be needed until the records are replaced: it is put again
after that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perdure.artifacts import ArtifactStore
from perdure.artifacts.artifact import INLINE_BELOW
from perdure.bank.backup import large_artifacts, silent, verify_snapshot
from perdure.bank.bank import Bank
from perdure.bank.target import Target
from perdure.config import Config
from perdure.core.errors import ArtifactMissing, Corrupted, InvalidInput, KeyRefused
from perdure.storage import urls
from perdure.storage.adapter import Capability
from perdure.storage.backups import (
    LATEST,
    BackupFolder,
    KeptArtifact,
    KeptObjects,
    KeptSnapshot,
    Manifest,
    artifacts_of,
    opened,
)
from perdure.storage.backups.files import PIECE, translated
from perdure.storage.snapshots import closing
from perdure.storage.store import Progress
from perdure.storage.threads import in_thread
from perdure.storage.verify import Problem

if TYPE_CHECKING:
    from perdure.storage.encryption.master_keys import Source

#: Gives the content of an artifact.
Content = Callable[[str], AsyncIterator[bytes]]


class Moved(msgspec.Struct, frozen=True):
    """What a restore or a copy did."""

    #: The address of the target, without its password.
    url: str
    rows: int
    #: Large artifacts, and how many of them were not there before.
    artifacts: int
    copied: int
    #: Whether both banks keep their large artifacts in the same place.
    shared_artifacts: bool = False
    #: What the check found in the end; None if it was left out.
    problems: tuple[Problem, ...] | None = None
    #: The snapshot that was restored.
    snapshot: Manifest | None = None


async def restore(
    folder: Path | str,
    url: str | None = None,
    *,
    config: Config | None = None,
    snapshot: str = LATEST,
    overwrite: bool = False,
    skip_damaged: bool = False,
    verify: bool = True,
    master_key: Source | None = None,
    progress: Progress | None = None,
) -> Moved:
    """Bring a bank back from a backup, into a bank of any kind.

    First every file of the snapshot is checked; nothing is changed if one is damaged. With
    `skip_damaged`, artifacts that are damaged or missing in the backup are left out, and named in
    `Moved.problems`; records are all there or none. A bank that holds records is only written to if
    `overwrite` says so: they are all gone then. Nobody may have it open. With `verify`, the
    restored bank is checked, too.

    Interrupted, even by kill -9, the target has all records or is as it was before, apart from
    artifacts that nothing refers to. One case is left: an artifact that the target had already,
    encrypted with the keys of the records that are replaced, is stored anew right after these.
    Interrupted in between, it cannot be read until the same restore is run again.

    Raises `BadBackup`, `KeyRefused`, `Conflict` if the target is not empty, and `Unavailable` if
    others have it open.
    """
    progress = progress or silent
    target = Target(url, config, progress, master_key=master_key)
    place = BackupFolder(Path(folder))
    damaged = dict[str, str]()
    with translated(place.path):
        mark = await in_thread(place.check)
        seal = await opened(mark.key, target.masters)
        manifest = await in_thread(place.choose, snapshot)
        await verify_snapshot(
            place, manifest, seal, progress, damaged=damaged if skip_damaged else None
        )
        await target.refuse(overwrite=overwrite)
        objects = KeptObjects(place.artifacts, place.incoming, seal)
        home = place.place(manifest.id)
        listed = await in_thread(list, artifacts_of(manifest, home, seal))
        kept = {artifact.hash: artifact for artifact in listed}
        source = KeptSnapshot(manifest, home, seal)
        delivery = _Delivery(lambda tagged: _pieces(objects, kept[tagged]), progress)
        async with target.beforehand(source) as (store, complete):
            sound = [(each.hash, each.size) for each in listed if each.hash not in damaged]
            await delivery.deliver(store, sound)
            await delivery.leave_out(store, damaged)
            rows = await target.load(await complete(), overwrite=overwrite)
        await delivery.finish(target)
    return Moved(
        url=target.shown,
        rows=rows,
        artifacts=len(delivery.seen),
        copied=delivery.copied,
        problems=await delivery.problems_in(target, verify=verify),
        snapshot=manifest,
    )


async def copy(
    source: Bank,
    url: str,
    *,
    config: Config | None = None,
    overwrite: bool = False,
    verify: bool = True,
    master_key: Source | None = None,
    progress: Progress | None = None,
) -> Moved:
    """Copy an open bank to another address, as it is at one moment, while others use it.

    The target is treated as by `restore`. `config` is that of the target, without one the source's.
    If both keep their large artifacts in the same place, these are left alone.

    Raises `InvalidInput` if both are the same bank, `Conflict` if the target is not empty, and
    `Unavailable` if others have it open.
    """
    source.store.require(Capability.SNAPSHOTS)
    if config is None:  # a replica follows the source, not its copy
        storage = msgspec.structs.replace(source.config.storage, replica="")
        config = msgspec.structs.replace(source.config, storage=storage)
    progress = progress or silent
    target = Target(url, config, progress, master_key=master_key)
    if _is_same(source.url, target.url):
        raise InvalidInput("A bank cannot be copied to itself.", hint="Name another address.")
    await target.refuse(overwrite=overwrite)
    store = source.artifacts
    shared = target.bank().artifacts.place == store.place
    delivery = _Delivery(lambda tagged: store.stream(tagged, PIECE), progress)
    async with source.store.adapter.snapshot() as early:
        keys = await target.keys_of(early)
    if not shared:  # most of the work, before the snapshot that others may have to bear
        async with target.beforehand(keys) as (place, _):
            await delivery.deliver_all(place, store)
    async with source.store.adapter.snapshot() as snapshot:
        if not keys.holds_the_same_as(await target.keys_of(snapshot)):
            delivery.start_over()
        async with target.beforehand(snapshot) as (place, complete):
            if not shared:  # those that were put since: records of the snapshot may refer to them
                await delivery.deliver_all(place, store)
            rows = await target.load(await complete(), overwrite=overwrite)
    await delivery.finish(target)
    return Moved(
        url=target.shown,
        rows=rows,
        artifacts=len(delivery.seen),
        copied=delivery.copied,
        shared_artifacts=shared,
        problems=await delivery.problems_in(target, verify=verify),
    )


class _Delivery:
    """Large artifacts on their way to another place."""

    def __init__(self, content: Content, progress: Progress) -> None:
        self._content = content
        self._progress = progress
        self._later: list[str] = []
        self.seen: set[str] = set()
        #: How many the target did not have.
        self.copied = 0
        self._problems: list[Problem] = []

    def start_over(self) -> None:
        """The keys have changed: what was delivered may have to be delivered again."""
        self.seen.clear()
        self._later.clear()

    async def deliver_all(self, target: ArtifactStore, source: ArtifactStore) -> None:
        """Deliver every large artifact of a store that was not seen yet."""
        sizes = []
        for tagged in await large_artifacts(source):
            if tagged not in self.seen:
                with suppress(ArtifactMissing):  # deleted since it was listed
                    sizes.append((tagged, await source.size(tagged)))
        await self.deliver(target, sizes)

    async def deliver(self, target: ArtifactStore, artifacts: Sequence[tuple[str, int]]) -> None:
        """Put these, unless they are there. Damaged ones are left out, and named."""
        for done, (tagged, size) in enumerate(artifacts, 1):
            there = await _is_sound(target, tagged)
            # What would be a row today was an object once: rows can only be added in the end.
            if there is False or (there is None and size < INLINE_BELOW):
                self._later.append(tagged)
            elif there is None:
                await self._put(target, tagged)
            self.seen.add(tagged)
            self._progress("copying artifacts", done, len(artifacts))

    async def leave_out(self, target: ArtifactStore, damaged: Mapping[str, str]) -> None:
        """Name those that cannot be had, unless the target has them."""
        for tagged, what in damaged.items():
            if await _is_sound(target, tagged):
                self.seen.add(tagged)
            else:
                self._problems.append(Problem(tagged, f"was not restored: {what}"))

    async def problems_in(self, target: Target, *, verify: bool) -> tuple[Problem, ...] | None:
        """What could not be delivered and, if asked for, what is wrong with the target."""
        try:
            found = await target.verify() if verify else ()
        except KeyRefused as exc:
            # The records are there, as they were; only looking into them takes the key.
            found = (Problem("store", f"was filled, but could not be verified: {exc.message}"),)
        return (*self._problems, *found) if verify or self._problems else None

    async def finish(self, target: Target) -> None:
        """Put what could only be put after the records.

        Run again from the beginning, a restore or copy finds what an interrupted one left to do.
        """
        if self._later:
            async with target.opened() as bank:
                for tagged in self._later:
                    if not await _is_sound(bank.artifacts, tagged):
                        await self._put(bank.artifacts, tagged)

    async def _put(self, target: ArtifactStore, tagged: str) -> None:
        try:
            async with closing(self._content(tagged)) as content:
                await target.put(content)
        except ArtifactMissing:
            return  # deleted since it was listed
        except Corrupted as exc:
            self._problems.append(Problem(tagged, f"was not copied: {exc.message}"))
        else:
            self.copied += 1


async def _is_sound(store: ArtifactStore, tagged: str) -> bool | None:
    """Whether what a store has of an artifact can be read there; None if it has nothing."""
    try:
        async with aclosing(store.stream(tagged, PIECE)) as content:
            async for _ in content:
                pass
    except ArtifactMissing:
        return None
    except (Corrupted, KeyRefused):
        return False
    return True


async def _pieces(objects: KeptObjects, artifact: KeptArtifact) -> AsyncIterator[bytes]:
    pieces = objects.pieces(artifact)
    try:
        while (piece := await in_thread(next, pieces, None)) is not None:
            yield piece
    finally:
        pieces.close()


def _is_same(one: str, other: str) -> bool:
    """Whether two addresses name the same bank, as far as they tell."""
    first, second = urls.parse(one), urls.parse(other)
    if first.scheme == second.scheme == "sqlite":
        return Path(first.path).resolve() == Path(second.path).resolve()
    return one == other
