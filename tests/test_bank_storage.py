"""A whole bank with everything that its storage can be asked for, at once."""

from __future__ import annotations

import secrets
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


def _said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}
