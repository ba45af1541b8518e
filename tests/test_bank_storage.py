"""A whole bank with everything that its storage can be asked for, at once."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import perdure
from perdure.config import (
    AlertConfig,
    AuditConfig,
    CacheConfig,
    Config,
    EncryptionConfig,
    MetricsConfig,
)
from perdure.storage.options import STRONG

KEY = secrets.token_bytes(32)
SECRET = "the harbour master keeps a parrot"


@perdure.record("letters")
class Letter(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    to: Annotated[str, perdure.Indexed()]
    text: Annotated[str, perdure.Encrypted(), perdure.Compressed()]


def config(**parts: Any) -> Config:
    return Config(
        **{
            "cache": CacheConfig(entries=100),
            "audit": AuditConfig(collections=("*",)),
            "encryption": EncryptionConfig(),
            "metrics": MetricsConfig(
                alerts=(AlertConfig(name="busy", measure="calls", over=5, collection="letters"),)
            ),
            **parts,
        }
    )


def everything() -> Config:
    return config(encryption=EncryptionConfig(key="env:PERDURE_TEST_MASTER", everything=True))


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_TEST_MASTER", KEY.hex())


def bytes_of(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file())


async def test_a_bank_that_encrypts_everything(tmp_path: Path, master: None) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    long = f"{SECRET} " * 5_000  # an artifact, outside of the database
    async with perdure.open(url, config=everything()) as bank:
        session = await bank.session("ada/harbour")
        await session.append([_said("user", long), _said("assistant", "long")])
        for number in range(30):
            await session.append([_said("user", f"{SECRET}? {number}"), _said("assistant", SECRET)])
        await bank.settle()
        context = await session.context("And the parrot?", budget=5_000)
        assert SECRET in str(context.to_chat())
        large = await bank.artifacts.put(long.encode() * 2)
    assert SECRET.encode() not in bytes_of(tmp_path)
    assert b"parrot" not in bytes_of(tmp_path)
    async with perdure.open(url, config=everything()) as bank:
        session = await bank.existing_session("ada/harbour")
        turns = await session.turns()
        assert turns[0].prompt.startswith(SECRET)
        assert await bank.artifacts.read(large) == long.encode() * 2
        assert [problem async for problem in bank.verify()] == []
        done = await bank.encryption.rotate_data_keys()
        assert done.rewritten
        assert done.kept == 0  # artifacts were encrypted anew, too
        assert (await session.turns())[0].prompt == turns[0].prompt
        assert await bank.artifacts.read(large) == long.encode() * 2
        assert [problem async for problem in bank.verify()] == []
        await bank.forget("ada/harbour")
        assert [problem async for problem in bank.verify()] == []


async def test_without_the_key_nothing_is_read_and_nothing_is_lost(
    tmp_path: Path, master: None
) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    async with perdure.open(url, config=everything()) as bank:
        session = await bank.session("ada/harbour")
        await session.append([_said("user", SECRET), _said("assistant", "yes")])
    for broken in (config(), config(encryption=EncryptionConfig(key="env:PERDURE_OTHER"))):
        with pytest.raises(perdure.KeyRefused):
            async with perdure.open(url, config=broken) as bank:
                await (await bank.existing_session("ada/harbour")).turns()
    async with perdure.open(url, config=everything()) as bank:
        (turn,) = await (await bank.existing_session("ada/harbour")).turns()
        assert turn.prompt == SECRET


async def test_marked_types_are_encrypted_audited_and_cached(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    alerts: list[perdure.EventReceived] = []
    async with perdure.open(url, config=config(), master_key=lambda: KEY) as bank:
        await bank.subscribe("ops", alerts.append, ["perdure.alert"])
        letters = bank.collection(Letter)
        with perdure.acting_as("ada", reason="a test"):
            for number in range(20):
                await letters.put(Letter(f"ada/{number:02d}", "bob", f"{SECRET} {number}"))
        for _ in range(3):
            found = await letters.get("ada/07")
            assert found is not None
            assert found.text == f"{SECRET} 7"
        assert bank.cache is not None
        assert bank.cache.stats.hits == 2
        assert await letters.query().where("to", "=", "bob").count() == 20
        (entry,) = await bank.audit.history_of("letters", "ada/07")
        assert (entry.actor, entry.reason, entry.version_after) == ("ada", "a test", 1)
        await bank.settle()
    assert SECRET.encode() not in bytes_of(tmp_path)
    assert [event.payload["name"] for event in alerts] == ["busy"]
    async with perdure.open(url, config=config()) as bank:
        with pytest.raises(perdure.KeyRefused):
            await bank.collection(Letter).put(Letter("ada/99", "bob", "in clear"))


async def test_a_backend_that_cannot_hold_a_bank_is_refused(valkey_url: str) -> None:
    with pytest.raises(perdure.Unsupported, match=r"cannot hold a bank.*open_store"):
        perdure.open(valkey_url)
    async with perdure.open_store(valkey_url, master_key=lambda: KEY) as store:
        letters = store.collection(Letter)
        await letters.put(Letter("ada/1", "bob", SECRET))
        found = await letters.get("ada/1")
        assert found is not None
        assert found.text == SECRET


async def test_a_put_whose_keys_are_destroyed_meanwhile_is_not_acknowledged(
    tmp_path: Path, master: None
) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    scope = "collection:perdure_artifacts"
    async with (
        perdure.open(url, config=everything()) as bank,
        perdure.open(url, config=everything()) as other,
    ):
        await bank.artifacts.put(os.urandom(100_000))

        async def source() -> AsyncIterator[bytes]:
            yield os.urandom(3_000_000)  # enough for the encryption to have begun
            await other.encryption.shred(scope, confirm=scope)
            yield os.urandom(3_000_000)

        with pytest.raises(perdure.Unavailable, match="Put it again"):
            await bank.artifacts.put(source())
        artifact = await bank.artifacts.put(content := os.urandom(100_000))
        assert await other.artifacts.read(artifact) == content


async def test_a_damaged_artifact_does_not_stop_a_rotation(tmp_path: Path, master: None) -> None:
    async with perdure.open(f"sqlite:///{tmp_path}/bank.db", config=everything()) as bank:
        await bank.artifacts.put(os.urandom(100_000))
        damaged = await bank.artifacts.put(os.urandom(200_000))
        (file,) = [file for file in _files(bank.artifacts.root) if file.name in damaged.hash]
        _flip(file)
        for number in (1, 2):
            done = await bank.encryption.rotate_data_keys()
            assert (done.objects, done.failed, done.kept) == (1, 1, 1), number
            (failure,) = done.failures
            assert failure.key == f"perdure_artifacts/{damaged.hash}"
            assert "is damaged" in failure.what
            standing = await bank.encryption.status()
            assert not any(each.rotating for each in standing)
            # All scopes have one key left; artifacts also have the one that is needed.
            assert sorted(len(each.generations) for each in standing)[-2:] == [1, 2]
        await bank.artifacts.delete(damaged)
        done = await bank.encryption.rotate_data_keys()
        assert (done.failed, done.kept) == (0, 0)


async def test_artifacts_stay_readable_when_not_everything_is_encrypted_any_more(
    tmp_path: Path, master: None
) -> None:
    url, content = f"sqlite:///{tmp_path}/bank.db", os.urandom(100_000)
    async with perdure.open(url, config=everything()) as bank:
        artifact = await bank.artifacts.put(content)
    marked = config(encryption=EncryptionConfig(key="env:PERDURE_TEST_MASTER"))
    async with perdure.open(url, config=marked) as bank:
        assert await bank.artifacts.read(artifact) == content
        assert (await bank.encryption.rotate_data_keys()).objects == 1
        clear = await bank.artifacts.put(f"{SECRET} ".encode() * 5_000)
        assert (await bank.encryption.rotate_data_keys()).objects == 1
        assert [problem async for problem in bank.verify()] == []
    assert SECRET.encode() in bytes_of(tmp_path)
    async with perdure.open(url, config=everything()) as bank:
        assert await bank.artifacts.read(artifact) == content
        assert (await bank.encryption.rotate_data_keys()).objects == 2
        assert (await bank.artifacts.read(clear)).startswith(SECRET.encode())
    assert SECRET.encode() not in bytes_of(tmp_path / "bank.artifacts")


async def test_a_key_from_a_function_encrypts_everything(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    whole = config(encryption=EncryptionConfig(everything=True))
    async with perdure.open(url, config=whole, master_key=lambda: KEY) as bank:
        await (await bank.session("ada/x")).append([_said("user", SECRET), _said("assistant", "")])
    assert SECRET.encode() not in bytes_of(tmp_path)


@pytest.mark.parametrize(
    "encryption", [EncryptionConfig(everything=True), EncryptionConfig(whole_file=True)]
)
def test_without_any_key_nothing_can_be_encrypted(
    tmp_path: Path, encryption: EncryptionConfig
) -> None:
    wanted = config(encryption=encryption)
    for opening in (perdure.open, perdure.open_store):
        with pytest.raises(perdure.InvalidConfig, match="no master key to encrypt with"):
            opening(f"sqlite:///{tmp_path}/bank.db", config=wanted)


def test_a_shared_cache_does_not_go_with_an_encrypted_file(tmp_path: Path) -> None:
    both = config(
        encryption=EncryptionConfig(whole_file=True),
        cache=CacheConfig(entries=10, shared="valkey://127.0.0.1:1/0"),
    )
    with pytest.raises(perdure.InvalidConfig, match="in clear"):
        perdure.open(f"sqlite:///{tmp_path}/bank.db", config=both, master_key=lambda: KEY)


async def test_artifacts_beside_an_encrypted_file_are_encrypted(tmp_path: Path) -> None:
    """In a process of its own, which loads the other SQLite."""
    other = Path(sys.prefix) / "sqlite3mc"
    path = os.pathsep.join([str(other), *(part or str(Path.cwd()) for part in sys.path)])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.test_bank_storage", str(tmp_path)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": path},
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode(errors="replace")


async def in_an_encrypted_file(folder: Path) -> None:
    url, whole = f"sqlite:///{folder}/bank.db", config(encryption=EncryptionConfig(whole_file=True))
    content = f"{SECRET} ".encode() * 5_000
    async with perdure.open(url, config=whole, master_key=lambda: KEY) as bank:
        artifact = await bank.artifacts.put(content)
        await bank.collection(Letter).put(Letter("ada/1", "bob", SECRET))
        (row,) = await bank.store.adapter.get("letters", ["ada/1"], STRONG)
        assert row is not None
        assert "aesgcm" not in row.content_type  # once is enough
    assert SECRET.encode() not in bytes_of(folder)
    async with perdure.open(url, config=whole, master_key=lambda: KEY) as bank:
        assert await bank.artifacts.read(artifact) == content
        done = await bank.encryption.rotate_data_keys()
        assert (done.scopes, done.objects, done.rewritten) == (
            ("collection:perdure_artifacts",),
            1,
            0,
        )
        assert await bank.artifacts.read(artifact) == content
        letter = await bank.collection(Letter).get("ada/1")
        assert letter == Letter("ada/1", "bob", SECRET)
        assert [problem async for problem in bank.verify()] == []
    assert SECRET.encode() not in bytes_of(folder)


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def _flip(file: Path) -> None:
    stored = bytearray(file.read_bytes())
    stored[-100] ^= 1
    file.write_bytes(stored)


def _said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


if __name__ == "__main__":
    asyncio.run(in_an_encrypted_file(Path(sys.argv[1])))
