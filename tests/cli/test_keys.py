from __future__ import annotations

import stat
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

import perdure
from tests.cli.conftest import Ask, Run


@perdure.record("diaries")
class Diary(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    text: Annotated[str, perdure.Encrypted()]


@pytest.fixture
def key(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A master key, which the configuration names."""
    file = tmp_path / "master.key"
    assert run("keys", "make", str(file)).exit_code == 0
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEY", f"file:{file}")
    return file


@pytest.fixture
def bank(key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bank with encrypted records, which is the default of the test."""
    url = f"sqlite:///{tmp_path / 'diaries.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)
    with perdure.open_sync(url) as bank:
        bank.collection(Diary).put_many(Diary(f"ada/{n}", f"dear diary {n}") for n in range(30))
    return url


def read(url: str) -> list[str]:
    with perdure.open_sync(url) as bank:
        return [each.text for each in bank.collection(Diary).query().order_by("key").values()]


def test_make_writes_a_key_for_this_user_alone(run: Run, ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "key"
    made = run("keys", "make", str(file))
    assert made.exit_code == 0
    assert f"in {file}." in made.stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    content = file.read_text()
    assert len(content) == 45
    assert content.strip() not in made.stdout + made.stderr
    again = run("keys", "make", str(file))
    assert again.exit_code == 1
    assert "already" in again.stderr
    assert file.read_text() == content
    code, told = ask("keys", "make", str(tmp_path / "other"))
    assert (code, sorted(told)) == (0, ["file", "fingerprint"])
    assert run("keys", "make", str(tmp_path / "nowhere" / "key")).exit_code == 1


def test_list_shows_scopes_and_master_keys(run: Run, ask: Ask, bank: str) -> None:
    code, found = ask("keys", "list", "--rows")
    assert code == 0
    (scope,) = found["scopes"]
    (generation,) = scope["generations"]
    assert scope["scope"] == "collection:diaries"
    assert (generation["state"], generation["rows"]) == ("current", 30)
    assert found["masters"] == [generation["master"]]
    shown = run("keys", "list").stdout
    assert "collection:diaries" in shown
    assert generation["master"] in shown


def test_data_keys_are_rotated(run: Run, ask: Ask, bank: str) -> None:
    before = read(bank)
    code, done = ask("keys", "rotate")
    assert (code, done["rewritten"], done["destroyed"], done["failed"]) == (0, 30, 1, 0)
    result = run("keys", "rotate", "--scope", "collection:diaries")
    assert result.stdout == "1 scope: 30 records encrypted anew, 1 old key destroyed.\n"
    assert read(bank) == before
    unknown = run("keys", "rotate", "--scope", "agent:eve")
    assert unknown.exit_code == 1
    assert "There are no data keys of agent:eve." in unknown.stderr
    assert run("keys", "rotate", "--scope", "agent:eve", "--master").exit_code == 2


def test_the_master_key_is_rotated(
    run: Run, ask: Ask, bank: str, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read(bank)
    new = key.with_name("new.key")
    run("keys", "make", str(new))
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEY", f"file:{new}")
    wrong = run("keys", "rotate", "--master")
    assert wrong.exit_code == 1
    assert "is wrapped with the master key" in wrong.stderr
    config = key.with_name("config.toml")
    config.write_text(f'[encryption]\nformer_keys = ["file:{key}"]\n')
    code, done = ask("keys", "rotate", "--master", "--config", str(config))
    assert (code, done["rewrapped"]) == (0, 1)
    assert read(bank) == before  # without the former key
    assert ask("keys", "list")[1]["masters"] == [done["master"]]


def test_shredding_asks_first(run: Run, ask: Ask, bank: str) -> None:
    refused = run("keys", "shred", "collection:diaries", answer="n\n")
    assert refused.exit_code == 1
    assert "Nothing was destroyed." in refused.stderr
    assert ask("keys", "shred", "collection:diaries")[1]["error"]["type"] == "InvalidInput"
    assert len(read(bank)) == 30
    assert ask("keys", "shred", "collection:diaries", "--yes") == (
        0,
        {"scope": "collection:diaries", "shredded": True, "erased": True},
    )
    with pytest.raises(perdure.Corrupted, match="is forgotten"):
        read(bank)
    shown = run("keys", "list", "--rows").stdout
    assert "shredded" in shown
    assert "30" in shown


def test_without_a_key(run: Run, bank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_ENCRYPTION_KEY")
    for command in (["rotate"], ["rotate", "--master"]):
        result = run("keys", *command)
        assert result.exit_code == 1
        assert "master key" in result.stderr
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEY", "file:nowhere")
    result = run("keys", "rotate")
    assert result.exit_code == 1
    assert "The file nowhere with the master key cannot be read" in result.stderr
