"""S3: wrong keys and buckets, and a line on which things go wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.artifacts import Artifact, ArtifactPlace, ArtifactStore, FaultKind, place_of
from perdure.core.errors import AccessDenied, ArtifactMissing, InvalidURL, Unavailable
from perdure.storage.store import Store
from tests.s3_server import ACCESS_KEY, READER_KEY, SECRET_KEY, BadLine, S3Server

LARGE = 3 * 1024 * 1024
#: More than goes up in one request.
HUGE = 20 * 1024 * 1024
ABSENT = Artifact.of(b"absent")


@pytest.fixture
def patient(store: Store, s3_server: S3Server, bad_line: BadLine) -> ArtifactStore:
    """A store behind the bad line that tries for five seconds."""
    url = s3_server.url(port=bad_line.port, options="&timeout=1.5&retry=8")
    return ArtifactStore(store, place_of(url))


@pytest.fixture
def hasty_url(s3_server: S3Server, bad_line: BadLine) -> str:
    return s3_server.url(port=bad_line.port, options="&timeout=0.5&retry=0.5")


@pytest.fixture
def hasty(store: Store, hasty_url: str) -> ArtifactStore:
    """A store behind the bad line that gives up after half a second."""
    return ArtifactStore(store, place_of(hasty_url))


@pytest.fixture
def unhurried(store: Store, hasty_url: str) -> ArtifactStore:
    """The same place, for what has to succeed on a slow machine, too."""
    return ArtifactStore(store, place_of(hasty_url.replace("=0.5", "=30")))


async def listed(artifacts: ArtifactStore) -> list[str]:
    return [found.artifact async for found in artifacts.located()]


# Who may -----------------------------------------------------------------------------------------


async def assert_denied(artifacts: ArtifactStore, match: str) -> None:
    with pytest.raises(AccessDenied, match=match) as caught:
        await artifacts.put(os.urandom(LARGE))
    assert caught.value.hint
    assert SECRET_KEY not in str(caught.value)
    for door in (artifacts.read, artifacts.exists, artifacts.size, artifacts.delete):
        with pytest.raises(AccessDenied, match=match):
            await door(ABSENT)
    with pytest.raises(AccessDenied, match=match):
        await listed(artifacts)


async def test_a_bucket_that_is_not_there(store: Store, s3_server: S3Server, s3_keys: None) -> None:
    artifacts = ArtifactStore(store, place_of(s3_server.address("absent-bucket")))
    with pytest.raises(AccessDenied, match="no bucket 'absent-bucket'"):
        await artifacts.put(os.urandom(LARGE))
    for door in (artifacts.read, artifacts.exists):
        with pytest.raises(AccessDenied, match="no bucket"):
            await door(ABSENT)
    assert await artifacts.read(await artifacts.put(b"small ones need no bucket"))


@pytest.mark.parametrize(("key", "secret"), [("AKIAOTHER", SECRET_KEY), (ACCESS_KEY, "wrong")])
async def test_a_wrong_key(
    store: Store, s3_url: str, monkeypatch: pytest.MonkeyPatch, key: str, secret: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    await assert_denied(ArtifactStore(store, place_of(s3_url)), "does not let this key in")


async def test_a_key_that_may_only_read(
    store: Store, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(LARGE)
    artifact = await ArtifactStore(store, place_of(s3_url)).put(content)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER_KEY)
    artifacts = ArtifactStore(store, place_of(s3_url))
    assert await artifacts.read(artifact) == content
    assert await artifacts.put(content) == artifact  # nothing needs to be written
    with pytest.raises(AccessDenied):
        await artifacts.put(os.urandom(LARGE))
    with pytest.raises(AccessDenied):
        await artifacts.delete(artifact)
    assert await listed(artifacts) == [artifact.hash]


async def test_keys_from_the_users_file(
    store: Store, s3_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    file.write_text(
        "[default]\naws_access_key_id = AKIAOTHER\naws_secret_access_key = wrong\n"
        f"[work]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    await assert_denied(ArtifactStore(store, place_of(s3_url)), "does not let this key in")
    monkeypatch.setenv("AWS_PROFILE", "work")
    artifacts = ArtifactStore(store, place_of(s3_url))
    artifact = await artifacts.put(os.urandom(LARGE))
    assert len(await artifacts.read(artifact)) == LARGE


async def test_an_endpoint_of_the_environment_needs_tls_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://s3.example.com")
    with pytest.raises(InvalidURL, match="without TLS"):
        await ArtifactStore(store, place_of("s3://bucket")).exists(ABSENT)


async def test_the_folder_of_a_place_on_s3(store: Store, s3_url: str) -> None:
    artifacts = ArtifactStore(store, place_of(s3_url))
    assert str(artifacts.place) == s3_url
    with pytest.raises(Exception, match="not in a folder"):
        _ = artifacts.root
    assert await artifacts.open() == 0


# A bad line --------------------------------------------------------------------------------------

TROUBLES = [
    ("status", {"status": 500, "times": 2}),
    ("status", {"status": 503, "times": 2}),
    ("reset", {"times": 2}),
    ("lost", {"times": 1}),
    ("slow", {"seconds": 2, "times": 1}),
    ("cut", {"bytes": 1000, "times": 2, "methods": ("GET",)}),
]


@pytest.mark.parametrize(("kind", "how"), TROUBLES, ids=[f"{k}-{h}" for k, h in TROUBLES])
async def test_passing_trouble_is_not_noticed(
    patient: ArtifactStore, bad_line: BadLine, kind: str, how: dict[str, object]
) -> None:
    content = os.urandom(LARGE)
    bad_line.happen(kind, **how)
    artifact = await patient.put(content)
    bad_line.happen(kind, **how)
    assert await patient.read(artifact) == content
    bad_line.happen(kind, **how)
    assert await listed(patient) == [artifact.hash]
    bad_line.happen(kind, **how)
    await patient.delete(artifact)
    assert {fault for _, _, fault in bad_line.seen} >= {kind}
    assert await listed(patient) == []


async def test_trouble_in_the_middle_of_many_parts(
    patient: ArtifactStore, bad_line: BadLine
) -> None:
    content = os.urandom(HUGE)
    for kind in ("status", "reset", "lost"):
        bad_line.happen(kind, times=1, methods=("PUT",))
    artifact = await patient.put(content)
    assert [fault for method, _, fault in bad_line.seen if method == "PUT"].count("") >= 3
    bad_line.happen("cut", bytes=100_000, times=2, methods=("GET",))
    assert await patient.read(artifact) == content


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("status", {"status": 500}),
        ("status", {"status": 503}),
        ("reset", {}),
        ("slow", {"seconds": 1}),
    ],
)
async def test_lasting_trouble_is_a_clear_error_in_bounded_time(
    hasty: ArtifactStore,
    unhurried: ArtifactStore,
    bad_line: BadLine,
    kind: str,
    how: dict[str, object],
) -> None:
    content = os.urandom(LARGE)
    artifact = await unhurried.put(content)
    bad_line.happen(kind, times=1_000_000, **how)
    for attempt in (
        hasty.put(os.urandom(LARGE)),
        hasty.read(artifact),
        hasty.exists(ABSENT),
        hasty.delete(artifact),
        listed(hasty),
    ):
        async with asyncio.timeout(100):
            with pytest.raises(Unavailable, match=r"answers with 50|does not answer") as caught:
                await attempt
        assert "try again" in caught.value.hint
    bad_line.faults.clear()
    assert await listed(unhurried) == [artifact.hash]  # the one that failed left nothing
    assert await unhurried.read(artifact) == content


async def test_a_body_that_is_always_cut_is_never_taken_for_whole(
    hasty: ArtifactStore, unhurried: ArtifactStore, bad_line: BadLine
) -> None:
    artifact = await unhurried.put(os.urandom(LARGE))
    bad_line.happen("cut", bytes=1000, times=1_000_000, methods=("GET",))
    with pytest.raises(Unavailable):
        await hasty.read(artifact)


async def test_nothing_half_written_is_seen(
    store: Store, s3_server: S3Server, bad_line: BadLine
) -> None:
    """The server takes the first parts of an upload, and then nothing more."""
    url = s3_server.url(port=bad_line.port, options="&timeout=10&retry=0.5")
    hasty = ArtifactStore(store, place_of(url))
    content = os.urandom(HUGE)
    bad_line.happen("pass", times=3)  # the look whether it is there, the beginning, one part
    bad_line.happen("status", times=1_000_000)
    with pytest.raises(Unavailable):
        await hasty.put(stream_of(content))
    bad_line.faults.clear()
    assert await listed(hasty) == []
    assert not await hasty.exists(Artifact.of(content))
    artifact = await hasty.put(content)
    assert await hasty.read(artifact) == content


async def stream_of(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 500_000):
        yield content[start : start + 500_000]


async def test_a_cancelled_upload_is_not_seen(patient: ArtifactStore, bad_line: BadLine) -> None:
    bad_line.happen("slow", seconds=1.5, times=100, methods=("PUT", "POST"))
    task = asyncio.create_task(patient.put(os.urandom(LARGE)))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    bad_line.faults.clear()
    assert await listed(patient) == []


async def test_damage_on_s3_is_found_and_mended(
    store: Store, s3_server: S3Server, s3_url: str
) -> None:
    artifacts = ArtifactStore(store, place_of(s3_url))
    content, other = os.urandom(LARGE), os.urandom(LARGE)
    artifact = await artifacts.put(content)
    await s3_server.overwrite(s3_url, artifact, other)
    (fault,) = [fault async for fault in artifacts.check()]
    assert (fault.artifact, fault.place, fault.kind) == (
        artifact.hash,
        ArtifactPlace.S3,
        FaultKind.DAMAGED,
    )
    await artifacts.put(content)
    assert [fault async for fault in artifacts.check()] == []
    await artifacts.delete(artifact)
    with pytest.raises(ArtifactMissing):
        await artifacts.read(artifact)
