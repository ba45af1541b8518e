"""The files of a project, found by their words at any commit.

Git keeps the texts; the index keeps only which words stand in which part of which *blob*. So what
stands in many commits, branches and work trees is indexed once, and after a commit only what it
changed is read. At a commit, what is found is held against the commit's tree; and the texts of the
best are read from git, to choose the lines that are shown.

A batch of blobs and its documents are one transaction: killed at any moment, indexing goes on
behind the last batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.core.errors import InvalidInput
from perdure.jobs import GoOn, Wake
from perdure.project.file_records import (
    RECIPE,
    FileBatch,
    FileIndexState,
    batch_id,
    index_of,
)
from perdure.project.file_selection import MOST_BYTES, is_wanted, parts_of, text_of
from perdure.project.folder_files import FolderFiles
from perdure.project.git_objects import GitFiles, Tree, TreeFile
from perdure.project.project_location import ProjectLocation, initialised
from perdure.search.engine import Document, engine_of, has_search
from perdure.services import Services
from perdure.storage.records import type_of
from perdure.storage.store import Progress
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    import numpy as np

#: Bytes and blobs that are indexed in one transaction, at most.
_BATCH, _BLOBS = 256 * 1024, 512
#: Trees that are kept in memory: 60,000 files take 15 MB.
_TREES = 4

Files: TypeAlias = GitFiles | FolderFiles


class IndexingReport(msgspec.Struct, frozen=True):
    """What was done, and files of the commit that are not indexed yet."""

    commit: str = ""
    indexed: int = 0
    left: int = 0


class KnownBlobs:
    """The contents that are indexed, in the order of their places."""

    def __init__(self) -> None:
        self.numbers = dict[bytes, int]()
        #: The first place of each, and the place behind the last.
        self.firsts = [0]
        self.batches = 0

    @property
    def places(self) -> int:
        return self.firsts[-1]

    def add(self, digests: Iterable[bytes], parts: Iterable[int]) -> None:
        for digest, count in zip(digests, parts, strict=True):
            self.numbers[digest] = len(self.firsts) - 1
            self.firsts.append(self.firsts[-1] + count)

    def of_places(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The number of the blob that each place belongs to, and of the part in it."""
        import numpy as np

        firsts = np.asarray(self.firsts, dtype=np.int64)
        numbers = np.searchsorted(firsts, places, side="right") - 1
        return numbers, places - firsts[numbers]


class _Moved(Exception):
    """Another process has indexed something meanwhile."""


class FileIndex:
    """The index of one project. For one event loop."""

    def __init__(self, services: Services, location: ProjectLocation) -> None:
        """Raises `NotFound` if the project was not initialised."""
        self.services = services
        self.location = location
        self.project = initialised(location).project
        self.index = index_of(self.project)
        self.files: Files = (
            FolderFiles(location.root) if location.git is None else GitFiles(location.git)
        )
        self.known = KnownBlobs()
        self._store = services.store
        self._states = services.store.collection(FileIndexState)
        self._batches = services.store.collection(FileBatch)
        self._trees = dict[str, Tree]()
        self._is_prepared = False
        self._lock = asyncio.Lock()
        self._wake: Wake | None = None

    @property
    def is_on(self) -> bool:
        """Whether files are indexed: the project's setting ``vectors``, unless the store has no
        search or keeps such records encrypted, which an index would not.
        """
        encryption = self.services.chain.encryption
        return (
            initialised(self.location).vectors
            and has_search(self._store.adapter)
            and not (encryption is not None and encryption.encrypts(type_of(FileBatch).name))
        )

    # Indexing ---------------------------------------------------------------------------------

    async def refresh(self, seconds: float | None = None) -> IndexingReport:
        """Index what changed since this work tree was last looked at. What takes longer than
        `seconds` is left to `start`, or to the next time. If files are not indexed any more, the
        index goes.
        """
        if not self.is_on:
            if await self._states.get(self.project) is not None:
                await self.forget()
            return IndexingReport()
        report = await self.index_commit(await self.files.head(), seconds=seconds)
        if report.left and self._wake is not None:
            self._wake()
        return report

    async def index_commit(
        self,
        commit: str,
        *,
        seconds: float | None = None,
        go_on: GoOn | None = None,
        progress: Progress | None = None,
        rank: Callable[[TreeFile], float] | None = None,
    ) -> IndexingReport:
        """Index the files of a commit, as far as they are not; those that `rank` puts first.

        Ends between two batches when the seconds are over or `go_on` says so. Raises `GitFailed` if
        the commit is not here, `Unavailable`.
        """
        if not commit:
            return IndexingReport()
        until = None if seconds is None else time.monotonic() + seconds
        async with self._lock:
            state = await self.load()
            wanted = await self._missing(state, commit)
            if rank is not None:
                wanted.sort(key=rank)
            left = await self._index(wanted, until, go_on, progress)
            if not left:
                await self._note_whole(commit)
            return IndexingReport(commit, len(wanted) - left, left)

    def start(self) -> None:
        """Index the work tree in pauses, as long as the bank is open with its background work."""
        if self._wake is None and self.is_on:
            name = f"files of {self.project} in {self.location.root}"
            try:
                self._wake = self.services.jobs.idle(name, self._in_a_pause)
            except InvalidInput:
                return  # another `Project` of this process does so
            self._wake()

    async def _in_a_pause(self, go_on: GoOn) -> bool:
        report = await self.index_commit(await self.files.head(), go_on=go_on)
        return bool(report.left)

    async def _missing(self, state: FileIndexState, commit: str) -> list[TreeFile]:
        """Files of a commit that are not indexed. If another one is, only their difference is
        looked at.
        """
        known = list(
            dict.fromkeys((state.commits.get(self.location.worktree), *state.commits.values()))
        )
        if commit in known:
            return []
        for other in known:
            if other is not None:
                changed = await self.files.changed(other, commit)
                if changed is not None:
                    return self._unknown(changed)
        return self._unknown((await self.tree(commit)).files)

    def _unknown(self, files: Iterable[TreeFile]) -> list[TreeFile]:
        """Those that are not indexed and may be, each content once."""
        numbers, found = self.known.numbers, dict[bytes, TreeFile]()
        for file in files:
            if file.digest not in numbers and file.digest not in found and is_wanted(file.path):
                found[file.digest] = file
        return list(found.values())

    async def _index(
        self,
        wanted: Sequence[TreeFile],
        until: float | None,
        go_on: GoOn | None,
        progress: Progress | None,
    ) -> int:
        """How many are left."""
        if not wanted:
            return 0
        aside = await self.files.set_aside([file.path for file in wanted])
        read = [file.digest for file in wanted if file.path not in aside]
        done = 0
        if aside:  # noted, so that they are not asked for again
            skipped = [file.digest for file in wanted if file.path in aside]
            await self._write(skipped, [()] * len(skipped))
            done = len(skipped)
        async with self.files.reader(MOST_BYTES) as reader:
            digests, contents, size = list[bytes](), list[bytes](), 0
            async for digest, content in reader.read(read):
                digests.append(digest)
                contents.append(content or b"")
                size += len(content or b"")
                if size < _BATCH and len(digests) < _BLOBS:
                    continue
                await self._write(digests, await asyncio.to_thread(self._documents, contents))
                done += len(digests)
                digests, contents, size = [], [], 0
                if progress is not None:
                    progress("indexing files", done, len(wanted))
                if (until is not None and time.monotonic() >= until) or (go_on and not go_on()):
                    return len(wanted) - done
            if digests:
                await self._write(digests, await asyncio.to_thread(self._documents, contents))
        if progress is not None:
            progress("indexing files", len(wanted), len(wanted))
        return 0

    def _documents(self, contents: Sequence[bytes]) -> list[tuple[str, ...]]:
        """The terms of each part of each content. In a thread."""
        from perdure.recall import words

        made = list[tuple[str, ...]]()
        for content in contents:
            parts = parts_of(self.readable(content))
            made.append(tuple(" ".join(dict.fromkeys(words.terms(part))) for part in parts))
        return made

    def readable(self, content: bytes) -> str:
        """The text of a file without secrets; empty if it is none that is indexed."""
        text = text_of(content)
        masker = self.services.masker
        return text if masker is None or not text else masker.text(text)[0]

    async def _write(self, digests: Sequence[bytes], documents: Sequence[Sequence[str]]) -> None:
        made = dict(zip(digests, documents, strict=True))
        while True:
            try:
                await self._store.transact(lambda transaction: self._put(transaction, made))
                return
            except _Moved:
                await self.load()

    async def _put(self, transaction: Transaction, made: dict[bytes, Sequence[str]]) -> None:
        known = self.known
        states, batches = transaction.collection(FileIndexState), transaction.collection(FileBatch)
        state = await states.get(self.project) or FileIndexState(self.project)
        if (state.places, state.batches) != (known.places, known.batches):
            raise _Moved
        new = {digest: texts for digest, texts in made.items() if digest not in known.numbers}
        if not new:
            return
        place, digests, parts = state.places, list(new), [len(texts) for texts in new.values()]
        for texts in new.values():
            for text in texts:
                transaction.include(Document(self.index.name, place, (text,)))
                place += 1
        last = FileBatch(batch_id(self.project, state.batches))
        number = state.batches
        if number:
            former = await batches.get(batch_id(self.project, number))
            last = former or last
        if not number or len(last.parts) + len(parts) > _BLOBS:
            number += 1
            last = FileBatch(batch_id(self.project, number))
        await batches.put(
            replace(last, digests=last.digests + b"".join(digests), parts=last.parts + bytes(parts))
        )
        await states.put(replace(state, places=place, batches=number))

        def remember() -> None:
            known.add(digests, parts)
            known.batches = number

        transaction.after_commit(remember)

    async def _note_whole(self, commit: str) -> None:
        """All files of this commit are indexed; noted for the work tree if it is checked out."""
        if commit != await self.files.head():
            return
        worktree = self.location.worktree

        async def note(transaction: Transaction) -> None:
            states = transaction.collection(FileIndexState)
            state = await states.get(self.project) or FileIndexState(self.project)
            if state.commits.get(worktree) != commit:
                await states.put(replace(state, commits={**state.commits, worktree: commit}))

        await self._store.transact(note)
        await self._tend()

    async def _tend(self) -> None:
        """Put words where they are found fast."""
        engine, more = engine_of(self._store.adapter), True
        while more:
            more = await engine.tend(self.index.name)

    # Reading ----------------------------------------------------------------------------------

    async def load(self) -> FileIndexState:
        """How far files are indexed, by any process. Makes the index if it is not there."""
        await self._prepare()
        state = await self._states.get(self.project) or FileIndexState(self.project)
        if state.recipe != RECIPE:
            await self.forget()
            await self._prepare()
            return FileIndexState(self.project)
        known = self.known
        if state.places < known.places or state.batches < known.batches:
            known = self.known = KnownBlobs()
        if (state.places, state.batches) != (known.places, known.batches):
            # The last batch may have grown.
            keys = [
                batch_id(self.project, n) for n in range(max(known.batches, 1), state.batches + 1)
            ]
            for batch in await self._batches.get_many(keys):
                if batch is not None:
                    self._add(batch)
            known.batches = state.batches
        return state

    def _add(self, batch: FileBatch) -> None:
        count = len(batch.parts)
        size = len(batch.digests) // count if count else 0
        digests = (
            [batch.digests[at : at + size] for at in range(0, count * size, size)] if size else []
        )
        new = [
            (digest, parts)
            for digest, parts in zip(digests, batch.parts, strict=True)
            if digest not in self.known.numbers
        ]
        self.known.add((digest for digest, _ in new), (parts for _, parts in new))

    async def tree(self, commit: str) -> Tree:
        """The files of a commit. Raises `GitFailed`."""
        tree = self._trees.pop(commit, None) or await self.files.tree(commit)
        self._trees[commit] = tree
        while len(self._trees) > _TREES:
            self._trees.pop(next(iter(self._trees)))
        return tree

    def missing_in(self, tree: Tree) -> int:
        """How many files of a tree are not indexed."""
        return len(self._unknown(tree.files))

    async def forget(self) -> None:
        """Remove the index, of all work trees."""
        await forget_files(self.services, self.project)
        self.known, self._is_prepared = KnownBlobs(), False

    async def _prepare(self) -> None:
        if self._is_prepared:
            return
        if await engine_of(self._store.adapter).prepare(self.index):
            # Made just now: whatever is noted about it was of one that is gone.
            await _forget_records(self.services, self.project)
            self.known = KnownBlobs()
        self._is_prepared = True


async def forget_files(services: Services, project: str) -> None:
    """Remove what is kept of a project's files: its index, with every word, and its records."""
    if has_search(services.store.adapter):
        await engine_of(services.store.adapter).erase(index_of(project).name)
    await _forget_records(services, project)


async def _forget_records(services: Services, project: str) -> None:
    batches = services.store.collection(FileBatch)
    keys = [each.id async for each in batches.walk(f"{project}/")]
    await batches.delete_many(keys)
    await services.store.collection(FileIndexState).delete(project)
