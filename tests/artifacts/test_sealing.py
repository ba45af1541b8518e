"""Encrypted objects: in and out, in clear before, tampered with, and with the wrong key."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.artifacts import (
    INLINE_BELOW,
    Artifact,
    ArtifactStore,
    FaultKind,
    PlaceAddress,
    artifact_encryption,
    folder_objects,
)
from perdure.artifacts.artifact_contents import ArtifactContents, Incoming
from perdure.artifacts.artifact_encryption import CHUNK, MARK, ArtifactSealer
from perdure.artifacts.artifact_places import StoredObject
from perdure.core.errors import Corrupted, KeyRefused, PerdureError, Unavailable
from perdure.storage.store import Store
from tests.artifacts.papers import Paper
from tests.artifacts.places import file_of

SIZES = [INLINE_BELOW, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 17]
TAG = "sha256:" + "0" * 64


class Keys:
    """Data keys, of which the newest is in force."""

    def __init__(self, *names: str) -> None:
        self.keys = {name: os.urandom(32) for name in names}

    async def current(self, scope: str, /) -> tuple[str, bytes]:
        assert scope == "collection:perdure_artifacts"
        return list(self.keys.items())[-1]

    async def key(self, name: str, /) -> bytes:
        if name not in self.keys:
            raise KeyRefused(f"There is no key {name}.")
        return self.keys[name]

    async def is_current(self, name: str, /) -> bool:
        return name == list(self.keys)[-1]


@pytest.fixture
def keys() -> Keys:
    return Keys("K1")


@pytest.fixture
def sealed(store: Store, place: PlaceAddress, keys: Keys) -> ArtifactStore:
    return ArtifactStore(store, place, sealer=ArtifactSealer(keys))


@pytest.mark.parametrize("size", SIZES)
async def test_what_goes_in_comes_out(
    sealed: ArtifactStore, artifacts: ArtifactStore, size: int
) -> None:
    content = os.urandom(size)
    artifact = await sealed.put(io.BytesIO(content))
    assert artifact == Artifact.of(content)
    assert await sealed.read(artifact) == content
    assert await sealed.size(artifact) == size
    assert b"".join([part async for part in sealed.stream(artifact, 70_000)]) == content
    assert await sealed.put(content) == artifact
    assert [fault async for fault in sealed.check()] == []
    (found,) = [found async for found in sealed.located()]
    assert found.bytes > size
    with pytest.raises(KeyRefused, match="encrypted"):
        await artifacts.read(artifact)


async def test_nothing_lies_in_clear(sealed: ArtifactStore, root: Path) -> None:
    artifact = await sealed.put(b"The secret sentence. " * 10_000)
    stored = file_of(root, artifact).read_bytes()
    assert b"secret" not in stored
    assert stored.startswith(MARK)
    other = await sealed.put(b"The secret sentence. " * 10_001)
    assert file_of(root, other).read_bytes()[200:400] != stored[200:400]


async def test_what_was_there_in_clear_is_read_and_sealed_when_put_again(
    sealed: ArtifactStore, artifacts: ArtifactStore, root: Path
) -> None:
    content = b"In clear, from before. " * 10_000
    artifact = await artifacts.put(content)
    assert await sealed.read(artifact) == content
    assert await sealed.size(artifact) == len(content)
    await sealed.put(content)
    assert b"before" not in file_of(root, artifact).read_bytes()
    assert await sealed.read(artifact) == content


async def test_content_that_looks_sealed_is_only_content(
    sealed: ArtifactStore, artifacts: ArtifactStore
) -> None:
    for start in (MARK, MARK + b"\x00", MARK + b"\x01"):
        content = start + os.urandom(INLINE_BELOW)
        artifact = await artifacts.put(content)
        for store in (artifacts, sealed):
            assert await store.read(artifact) == content
            assert await store.size(artifact) == len(content)
        await sealed.put(content)
        assert await sealed.read(artifact) == content
        await sealed.delete(artifact)


async def test_older_keys_stay_in_use(sealed: ArtifactStore, keys: Keys) -> None:
    first = await sealed.put(os.urandom(INLINE_BELOW))
    keys.keys["K2"] = os.urandom(32)
    second = await sealed.put(os.urandom(INLINE_BELOW))
    assert [fault async for fault in sealed.check()] == []
    del keys.keys["K1"]
    with pytest.raises(KeyRefused, match="K1"):
        await sealed.read(first)
    assert await sealed.read(second)
    (fault,) = [fault async for fault in sealed.check()]
    assert (fault.artifact, fault.kind) == (first.hash, FaultKind.UNREADABLE)


async def test_a_wrong_key_is_refused(store: Store, place: PlaceAddress, keys: Keys) -> None:
    artifact = await ArtifactStore(store, place, sealer=ArtifactSealer(keys)).put(os.urandom(CHUNK))
    wrong = ArtifactStore(store, place, sealer=ArtifactSealer(Keys("K1")))
    with pytest.raises(KeyRefused, match="another key") as caught:
        await wrong.read(artifact)
    assert "master key" in caught.value.hint


async def test_sealed_ones_are_collected_and_moved(
    sealed: ArtifactStore, store: Store, tmp_path: Path, keys: Keys
) -> None:
    kept = await sealed.put(content := os.urandom(2 * CHUNK))
    await sealed.put(os.urandom(CHUNK))
    await store.collection(Paper).put(Paper("a", kept))
    assert (await sealed.collect(grace=0)).deleted == 1
    assert (await sealed.move(tmp_path / "new", delete=True)).copied == 1
    there = ArtifactStore(store, tmp_path / "new", sealer=ArtifactSealer(keys))
    assert await there.read(kept) == content
    assert file_of(tmp_path / "new", kept).read_bytes().startswith(MARK)


# The bytes themselves ----------------------------------------------------------------------------


async def pieces(content: bytes, size: int = 300_000) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def seal(keys: Keys, content: bytes) -> bytes:
    return b"".join([piece async for piece in ArtifactSealer(keys).seal(pieces(content))])


async def opened(keys: Keys, stored: bytes) -> bytes:
    return b"".join([piece async for piece in ArtifactSealer(keys).open(pieces(stored), TAG)])


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
async def test_sizes_are_told_from_the_beginning(keys: Keys, size: int) -> None:
    stored = await seal(keys, bytes(size))
    assert artifact_encryption.content_size(len(stored), stored[:600], TAG) == size
    assert await opened(keys, stored) == bytes(size)


async def test_chunks_cannot_be_cut_off_exchanged_or_repeated(keys: Keys) -> None:
    content = b"a" * CHUNK + b"b" * CHUNK + b"c" * CHUNK
    stored, other = await seal(keys, content), await seal(keys, content)
    start = len(stored) - 3 * (CHUNK + 16)
    head, chunks = (
        stored[:start],
        [stored[start + n * (CHUNK + 16) : start + (n + 1) * (CHUNK + 16)] for n in range(3)],
    )
    one, two, three = chunks
    foreign = other[start : start + CHUNK + 16]
    for forged in (
        head + one + two,
        head + one,
        head,
        head + two + one + three,
        head + one + one + two + three,
        head + one + two + three + three,
        head + foreign + two + three,
        stored[:-1],
        stored + b"\x00",
    ):
        with pytest.raises(Corrupted, match="sha256"):
            await opened(keys, forged)
    assert await opened(keys, stored) == content


@settings(max_examples=40)
@given(at=st.integers(0, 10_000_000), bit=st.integers(0, 7), size=st.sampled_from([10, CHUNK + 9]))
def test_any_flipped_bit_is_noticed(at: int, bit: int, size: int) -> None:
    import asyncio

    async def flip() -> None:
        keys = Keys("K1")
        stored = bytearray(await seal(keys, bytes(size)))
        stored[at % len(stored)] ^= 1 << bit
        if not artifact_encryption.is_sealed(bytes(stored)):
            return  # content in clear, then, whose hash is wrong
        with pytest.raises((Corrupted, KeyRefused)):
            await opened(keys, bytes(stored))

    asyncio.run(flip())


async def test_objects_are_encrypted_anew(
    sealed: ArtifactStore, artifacts: ArtifactStore, keys: Keys
) -> None:
    contents = [os.urandom(INLINE_BELOW + n) for n in range(3)]
    in_clear = await artifacts.put(contents[0])
    put = [in_clear, *[await sealed.put(content) for content in contents[1:]]]
    assert await sealed.key_names() == {"", "K1"}
    keys.keys["K2"] = os.urandom(32)
    assert await sealed.seal_again(lambda name: name != "K2") == 3
    assert await sealed.key_names() == {"K2"}
    del keys.keys["K1"]
    assert [await sealed.read(each) for each in put] == contents
    assert await sealed.seal_again(lambda name: name != "K2") == 0


async def test_a_key_that_is_replaced_while_something_is_put(
    sealed: ArtifactStore, keys: Keys
) -> None:
    content = os.urandom(4 * CHUNK)

    async def source(*, destroys: bool) -> AsyncIterator[bytes]:
        for start in range(0, 3 * CHUNK, CHUNK):
            yield content[start : start + CHUNK]  # enough for the encryption to have begun
        newest = f"K{len(keys.keys) + 1}"
        keys.keys[newest] = os.urandom(32)  # a rotation that has seen nothing of this one
        if destroys:
            for name in list(keys.keys)[:-1]:
                del keys.keys[name]
        yield content[3 * CHUNK :]

    artifact = await sealed.put(source(destroys=False))
    assert await sealed.key_names() == {"K2"}
    assert await sealed.read(artifact) == content
    await sealed.delete(artifact)
    with pytest.raises(Unavailable, match="Put it again"):
        await sealed.put(source(destroys=True))
    assert not await sealed.exists(artifact)
    await sealed.put(content)
    assert await sealed.read(artifact) == content


# While others delete -----------------------------------------------------------------------------


class Meddling:
    """Lets something happen once, when content has arrived and is about to be placed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.meddle: Callable[[], Awaitable[object]] | None = None
        receive = ArtifactContents.receive

        @asynccontextmanager
        async def meddled(
            contents: ArtifactContents, source: AsyncIterator[bytes], *, sealed: bool = False
        ) -> AsyncIterator[Incoming]:
            async with receive(contents, source, sealed=sealed) as incoming:
                await self.now()
                yield incoming

        monkeypatch.setattr(ArtifactContents, "receive", meddled)

    async def now(self) -> None:
        meddle, self.meddle = self.meddle, None
        if meddle is not None:
            await meddle()


@pytest.fixture
def meddling(monkeypatch: pytest.MonkeyPatch) -> Meddling:
    return Meddling(monkeypatch)


async def test_what_is_deleted_while_it_is_encrypted_anew_does_not_come_back(
    sealed: ArtifactStore, keys: Keys, meddling: Meddling
) -> None:
    artifact = await sealed.put(os.urandom(INLINE_BELOW))
    keys.keys["K2"] = os.urandom(32)
    meddling.meddle = lambda: sealed.delete(artifact)
    assert await sealed.seal_again(lambda name: name != "K2") == 0
    assert meddling.meddle is None
    assert not await sealed.exists(artifact)
    assert [found async for found in sealed.located()] == []


def test_a_file_is_not_replaced_at_the_moment_in_which_it_is_removed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = root / "sha256/00/a", root / "incoming/b"
    for file in (old, new):
        file.parent.mkdir(parents=True)
        file.write_bytes(b"content")
    removing = threading.Thread(target=folder_objects.remove, args=(root, "sha256/00/a"))
    look = os.lstat

    def looked(path: Path) -> os.stat_result:
        found = look(path)
        if path == old:
            removing.start()
            removing.join(0.1)
        return found

    monkeypatch.setattr(os, "lstat", looked)
    assert folder_objects.replace(root, "incoming/b", "sha256/00/a")
    removing.join()
    assert not old.exists()
    monkeypatch.undo()
    assert not folder_objects.replace(root, "incoming/b", "sha256/00/a")
    assert not old.exists()


@pytest.mark.parametrize("way", ["delete", "release", "collect"])
async def test_what_is_deleted_during_the_upload_does_not_come_back(
    sealed: ArtifactStore, keys: Keys, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """As on S3, in any place: when it is looked for it is there, and gone before it is placed."""
    artifact = await sealed.put(os.urandom(INLINE_BELOW))
    keys.keys["K2"] = os.urandom(32)
    ways: dict[str, Callable[[], Awaitable[object]]] = {
        "delete": lambda: sealed.delete(artifact),
        "release": lambda: sealed.release(artifact),
        "collect": lambda: sealed.collect(grace=0),
    }

    async def late(contents: ArtifactContents, tagged: str, found: StoredObject) -> None:
        async with contents.receive(contents.chunks(tagged, CHUNK), sealed=True) as incoming:
            await ways[way]()
            await incoming.received.place(found.path)

    monkeypatch.setattr(ArtifactContents, "seal_again", late)
    await sealed.seal_again(lambda name: name != "K2")
    assert not await sealed.exists(artifact)


async def test_a_put_whose_object_is_deleted_when_its_key_is_replaced(
    sealed: ArtifactStore, keys: Keys, meddling: Meddling
) -> None:
    content = os.urandom(INLINE_BELOW)

    async def replace_key() -> None:
        keys.keys["K2"] = os.urandom(32)
        meddling.meddle = lambda: sealed.delete(Artifact.of(content))

    meddling.meddle = replace_key
    artifact = await sealed.put(content)
    assert meddling.meddle is None
    assert await sealed.read(artifact) == content
    assert await sealed.key_names() == {"K2"}


async def test_a_damaged_one_does_not_keep_others_from_a_new_key(
    sealed: ArtifactStore, keys: Keys, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put = [await sealed.put(os.urandom(INLINE_BELOW + n)) for n in range(5)]
    stored = bytearray(file_of(root, put[2]).read_bytes())
    stored[-100] ^= 1
    file_of(root, put[2]).write_bytes(stored)
    keys.keys["K2"] = os.urandom(32)
    told: list[tuple[str, PerdureError]] = []
    done = await sealed.seal_again(lambda name: name != "K2", None, lambda *what: told.append(what))
    assert done == 4
    assert [(tagged, type(error)) for tagged, error in told] == [(put[2].hash, Corrupted)]
    assert put[2].hash in caplog.text
    assert await sealed.key_names() == {"K1", "K2"}  # the damaged one still needs its own


# No longer encrypting ----------------------------------------------------------------------------


async def test_what_is_encrypted_stays_so_when_new_ones_are_not(
    sealed: ArtifactStore, store: Store, place: PlaceAddress, keys: Keys, tmp_path: Path
) -> None:
    content, clear = os.urandom(INLINE_BELOW), b"In clear from now on. " * 10_000
    old = await sealed.put(content)
    later = ArtifactStore(store, place, sealer=ArtifactSealer(keys, writing=False))
    new = await later.put(clear)
    assert await later.put(content) == old
    assert await later.read(old) == content
    assert await later.key_names() == {"", "K1"}
    keys.keys["K2"] = os.urandom(32)
    assert await later.seal_again(lambda name: name != "K2") == 1
    assert await later.key_names() == {"", "K2"}
    await later.move(tmp_path / "new")
    moved = ArtifactStore(store, tmp_path / "new", sealer=ArtifactSealer(keys, writing=False))
    assert await moved.key_names() == {"", "K2"}
    assert [await moved.read(each) for each in (old, new)] == [content, clear]
