"""Copies whole banks: from one address to another, or out of a backup.

Large artifacts come first, because a record never refers to one that is not there. Then all records
come in one transaction: the target has everything or what it had before. At the end the target is
verified, as by `perdure verify`.

Artifacts may be encrypted with data keys, which are records. So they are stored through a bank in
memory with the keys of the source and the artifacts' place of the target. Artifacts already there,
encrypted with other keys, may be needed until the records are replaced: they are put again after
that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perdure import config as configuration
from perdure.artifacts import ArtifactStore
from perdure.artifacts.artifact import INLINE_BELOW, PIECE, ArtifactPlace
from perdure.artifacts.artifact_errors import translated
from perdure.artifacts.artifact_places import PlaceAddress, S3Address
from perdure.bank.artifact_location import make_folder
from perdure.bank.backup_folder import LATEST, BackupFolder
from perdure.bank.backup_manifest import BackupManifest
from perdure.bank.wiring import make_services, verify_services
from perdure.config import Config
from perdure.core.errors import ArtifactMissing, Corrupted, InvalidInput, KeyRefused
from perdure.core.input_types import require_path
from perdure.services import Services
from perdure.storage import assembly, registry
from perdure.storage.adapter import Capability, Snapshot, not_empty
from perdure.storage.concurrency import in_thread
from perdure.storage.snapshots import HeldCollection, HeldSnapshot, WatchedSnapshot, closing
from perdure.storage.store import Progress, Store
from perdure.storage.verify import Problem

if TYPE_CHECKING:
    from perdure.storage.encryption.master_keys import Source

_KEYS = "perdure_keys"  # The collection of data keys.
Content = Callable[[str], AsyncIterator[bytes]]  # Gives the content of an artifact.


class BankCopy(msgspec.Struct, frozen=True):
    """The result of a restore or a copy."""

    #: The address of the target, without its password.
    url: str
    rows: int
    #: Large artifacts, and how many of them were not there before.
    artifacts: int
    copied: int
    shared_artifacts: bool = False  # Both banks keep their large artifacts in the same place.
    #: What the check found in the end; None if it was left out.
    problems: tuple[Problem, ...] | None = None
    snapshot: BackupManifest | None = None  # The backup that was restored.


def silent(what: str, done: int, total: int) -> None: ...


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
) -> BankCopy:
    """Restore a bank from a backup, into a bank of any kind.

    First every file of the backup is checked; nothing is changed if one is damaged. With
    `skip_damaged`, artifacts that are damaged or missing in the backup are left out, and named in
    `BankCopy.problems`. A bank that holds records is only replaced if `overwrite` says so. Nobody
    may have it open. `verify` checks the restored bank.

    Interrupted, even by kill -9, the target has all records or is as it was before, apart from
    artifacts that nothing refers to. One exception: an artifact that the target had already,
    encrypted with keys that are replaced, is stored anew right after the records. Interrupted in
    between, it cannot be read until the same restore is run again.

    Raises `BadBackup`, `KeyRefused`, `Conflict` if the target is not empty, and `Unavailable` if
    others have it open.
    """
    target = _CopyTarget(url, config, progress or silent, master_key)
    place, faults = BackupFolder(require_path(folder, "folder")), dict[str, str]()
    with translated(place.path):
        await place.unlock(assembly.master_keys(target.config, master_key))
        manifest = await in_thread(place.choose, snapshot)
        await place.verify(manifest, target.progress, faults=faults if skip_damaged else None)
        await target.refuse(overwrite=overwrite)
        sizes = {tagged: n for tagged, n in manifest.artifacts.items() if tagged not in faults}
        content: Content = lambda tagged: place.contents.chunks(tagged, PIECE)  # noqa: E731
        async with place.records(manifest.id, manifest.taken) as records:
            made = await target.fill(records, sizes, content, faults, overwrite=overwrite)
    return await target.checked(made, verify=verify, snapshot=manifest)


async def copy_bank(
    source: Services,
    url: str,
    *,
    config: Config | None = None,
    overwrite: bool = False,
    verify: bool = True,
    master_key: Source | None = None,
    progress: Progress | None = None,
) -> BankCopy:
    """Copy an open bank to another address, as it is at one moment, while others use it.

    The target is treated as by `restore`. `config` is the target's, by default the source's. Large
    artifacts are not copied if both banks keep them in the same place. Raises `InvalidInput` if
    both are the same bank, `Conflict` if the target is not empty, and `Unavailable` if others have
    it open.
    """
    source.store.require(Capability.SNAPSHOTS)
    if config is None:  # a replica follows the source, not its copy
        storage = msgspec.structs.replace(source.config.storage, replica="")
        config = msgspec.structs.replace(source.config, storage=storage)
    target = _CopyTarget(url, config, progress or silent, master_key)
    if _is_same(source.url, target.url):
        raise InvalidInput("A bank cannot be copied to itself.", hint="Name another address.")
    await target.refuse(overwrite=overwrite)
    store, sizes = source.artifacts, dict[str, int]()
    shared = target.bank().artifacts.place == store.place
    content: Content = lambda tagged: store.stream(tagged, PIECE)  # noqa: E731
    async with source.store.adapter.snapshot() as records:
        # Listed now: what records of the snapshot refer to was put before.
        for tagged in [] if shared else await large_artifacts(store):
            with suppress(ArtifactMissing):  # deleted since it was listed
                sizes[tagged] = await store.size(tagged)
        made = await target.fill(records, sizes, content, {}, overwrite=overwrite)
    return await target.checked(made, verify=verify, shared_artifacts=shared)


async def large_artifacts(store: ArtifactStore) -> list[str]:
    """The artifacts that are not rows. Listed before any is copied: else a steady writer could keep
    the copy running for ever.
    """
    found = [each async for each in store.located() if each.place is not ArtifactPlace.ROW]
    return list(dict.fromkeys(each.artifact for each in found))


class _CopyTarget:
    """The bank to be filled. Opened anew for each step: loading wants it closed. Raises
    `InvalidInput` if its backend cannot take over a snapshot, or does not last.
    """

    def __init__(
        self, url: str | None, config: Config | None, progress: Progress, master_key: Source | None
    ) -> None:
        self.config = config if config is not None else configuration.load()
        self._master_key = master_key
        self._is_default = url is None and not self.config.bank
        self.url = self.config.bank_url() if url is None else url
        self.progress = progress
        self._problems: list[Problem] = []
        capabilities = self._store().adapter.capabilities
        if not {Capability.SNAPSHOTS, Capability.DURABLE} <= capabilities:
            raise InvalidInput(
                f"A bank at {registry.shown(self.url)} cannot be filled from another one.",
                hint="Use sqlite:///… or postgresql://….",
            )

    def bank(self) -> Services:
        return make_services(self.url, self.config, master_key=self._master_key)

    async def refuse(self, *, overwrite: bool) -> None:
        """Raises `Conflict` if it holds records that may not be overwritten. A first check, so that
        nothing is done in vain: loading checks again, in its transaction.
        """
        if self._is_default:
            make_folder(configuration.data_folder())
        store = self._store()
        if overwrite or not await store.adapter.exists():
            return
        async with store:
            for size in await store.adapter.sizes():
                if size.rows:
                    raise not_empty(size.collection)

    async def fill(
        self,
        source: Snapshot,
        sizes: Mapping[str, int],
        content: Content,
        faults: Mapping[str, str],
        *,
        overwrite: bool,
    ) -> BankCopy:
        """Put the artifacts of these sizes, then the records: all of them or nothing. Damaged
        artifacts, and those with `faults`, are left out and named, unless the target has them.
        """
        later: list[str] = []
        copied = found = 0
        async with self._with_keys(source) as beforehand:
            for done, (tagged, size) in enumerate(sizes.items(), 1):
                there = await _is_sound(beforehand.artifacts, tagged)
                # What would be a row today was an object once: rows can only be added in the end.
                if there is False or (there is None and size < INLINE_BELOW):
                    later.append(tagged)
                elif there is None:
                    copied += await self._put(beforehand.artifacts, tagged, content)
                self.progress("copying artifacts", done, len(sizes))
            for tagged, what in faults.items():
                if await _is_sound(beforehand.artifacts, tagged):
                    found += 1
                else:
                    self._problems.append(Problem(tagged, f"was not restored: {what}"))
            async with beforehand.store.adapter.snapshot() as held:
                keys = await _keys_of(held)  # with those that were made for artifacts meanwhile
            rows = await self._load(source, keys, overwrite=overwrite)
        if later:  # run again from the beginning, it finds what an interrupted one left to do
            async with self._opened() as bank:
                for tagged in later:
                    if not await _is_sound(bank.artifacts, tagged):
                        copied += await self._put(bank.artifacts, tagged, content)
        return BankCopy(registry.shown(self.url), rows, len(sizes) + found, copied)

    async def checked(
        self,
        made: BankCopy,
        *,
        verify: bool,
        shared_artifacts: bool = False,
        snapshot: BackupManifest | None = None,
    ) -> BankCopy:
        found = list(self._problems)
        if verify:
            try:
                async with self._opened() as bank:
                    found += [problem async for problem in verify_services(bank, self.progress)]
            except KeyRefused as exc:
                # The records are there, as they were; only looking into them takes the key.
                what = f"was filled, but could not be verified: {exc.message}"
                found.append(Problem("store", what))
        return msgspec.structs.replace(
            made,
            problems=tuple(found) if verify or found else None,
            shared_artifacts=shared_artifacts,
            snapshot=snapshot,
        )

    def _store(self) -> Store:
        """Its records as they are stored. Opening it writes nothing."""
        storage = msgspec.structs.replace(self.config.storage, replica="")
        config = Config(storage=storage, encryption=self.config.encryption)
        chain = assembly.Chain(config)
        return assembly.store(self.url, config, chain, master_key=self._master_key)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Services]:
        bank = self.bank()
        async with bank.store:
            yield bank

    @asynccontextmanager
    async def _with_keys(self, source: Snapshot) -> AsyncIterator[Services]:
        """A bank in memory with the data keys of a snapshot, and the artifacts of the target.
        Objects put there are in the target's place; nothing else of the target is touched.
        """
        config = self._in_memory(self.bank().artifacts.place)
        bank = make_services("memory://", config, master_key=self._master_key)
        await bank.store.adapter.load(await _keys_of(source))
        async with bank.store:
            yield bank

    async def _load(self, source: Snapshot, keys: Snapshot, *, overwrite: bool) -> int:
        watched = WatchedSnapshot(source, self.progress, instead=keys)
        async with self._store() as store:
            return await store.adapter.load(watched, replace=overwrite)

    async def _put(self, target: ArtifactStore, tagged: str, content: Content) -> bool:
        try:
            async with closing(content(tagged)) as pieces:
                await target.put(pieces)
        except ArtifactMissing:
            return False  # deleted since it was listed
        except Corrupted as exc:
            self._problems.append(Problem(tagged, f"was not copied: {exc.message}"))
            return False
        return True

    def _in_memory(self, place: PlaceAddress) -> Config:
        artifacts, encryption = self.config.artifacts, self.config.encryption
        if not isinstance(place, S3Address):
            artifacts = msgspec.structs.replace(artifacts, folder=str(place))
        if encryption.whole_file:  # there is no file here; artifacts are encrypted all the same
            encryption = msgspec.structs.replace(encryption, whole_file=False, everything=True)
        return Config(artifacts=artifacts, encryption=encryption)


async def _keys_of(source: Snapshot) -> HeldSnapshot:
    for layout in await source.layouts():
        if layout.name == _KEYS:
            async with closing(source.entries(_KEYS)) as pages:
                entries = [entry async for page in pages for entry in page]
            return HeldSnapshot([HeldCollection(layout, entries)])
    return HeldSnapshot([])


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


def _is_same(one: str, other: str) -> bool:
    first, second = registry.parse(one), registry.parse(other)
    if first.scheme == second.scheme == "sqlite":
        return Path(first.path).resolve() == Path(second.path).resolve()
    return one == other
