"""``perdure bank backup``, ``backups``, ``restore`` and ``copy``."""

from __future__ import annotations

from pathlib import Path

import pytest

import perdure
from perdure.storage.encryption import make_file
from tests.cli.conftest import Ask, Note, Run


def test_a_bank_is_kept_and_brought_back(run: Run, ask: Ask, notes: str, tmp_path: Path) -> None:
    folder, other = str(tmp_path / "kept"), f"sqlite:///{tmp_path / 'other.db'}"
    code, made = ask("bank", "backup", folder, "--bank", notes)
    assert code == 0
    assert (made["records"], made["artifacts"], made["copied"]) == (made["records"], 1, 1)
    assert made["records"] >= 601
    assert made["encrypted"] is False
    told = run("bank", "backup", folder, "--bank", notes, "--keep", "1")
    assert "1 large artifact (0 new)" in told.stdout
    assert "Removed 1 older snapshot." in told.stdout
    assert "not encrypted" in told.stderr
    code, listed = ask("bank", "backups", folder)
    (snapshot,) = listed["snapshots"]
    assert (code, snapshot["ok"], snapshot["records"]) == (0, True, made["records"])
    assert snapshot["snapshot"] in run("bank", "backups", folder).stdout
    told = run("bank", "restore", folder, "--bank", other, "--snapshot", snapshot["snapshot"])
    assert told.exit_code == 0, told.stderr
    assert "and checked it" in told.stdout
    with perdure.open_sync(other) as bank:
        note = bank.collection(Note).get("ada/599")
    assert note is not None
    assert note.text == "note 599 of six hundred"
    assert run("verify", "--bank", other).exit_code == 0


def test_conversations_come_back(run: Run, ask: Ask, chat: str, tmp_path: Path) -> None:
    before = ask("sessions")[1]
    assert run("bank", "backup", "kept").exit_code == 0
    other = f"sqlite:///{tmp_path / 'other.db'}"
    code, moved = ask("bank", "restore", "kept", "--bank", other)
    assert (code, moved["problems"], moved["verified"]) == (0, [], True)
    assert ask("sessions", "--bank", other)[1] == before


def test_a_target_with_records_is_not_overwritten_unasked(
    run: Run, ask: Ask, notes: str, chat: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "kept")
    run("bank", "backup", folder)
    for command in (("restore", folder, "--bank", notes), ("copy", notes)):
        told = run("bank", *command)
        assert told.exit_code == 1
        assert "--overwrite" in told.stderr
        code, answer = ask("bank", *command)
        assert (code, answer["error"]["type"]) == (1, "Conflict")
    with perdure.open_sync(notes) as bank:
        assert bank.collection(Note).get("ada/000") is not None
    code, moved = ask("bank", "restore", folder, "--bank", notes, "--overwrite", "--no-verify")
    assert (code, moved["verified"]) == (0, False)
    with perdure.open_sync(notes) as bank:
        assert bank.collection(Note).query().count() == 0


def test_a_bank_is_copied(run: Run, ask: Ask, notes: str, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    code, moved = ask("bank", "copy", other, "--bank", notes)
    assert (code, moved["problems"], moved["copied"]) == (0, [], 1)
    told = run("bank", "copy", other, "--bank", notes, "--overwrite")
    assert "1 large artifact, and checked it" in told.stdout
    with perdure.open_sync(other) as bank:
        assert bank.collection(Note).query().count() == 600
    (tmp_path / "target.toml").write_text(f'[artifacts]\nfolder = "{tmp_path / "apart"}"\n')
    third = f"sqlite:///{tmp_path / 'third.db'}"
    given = ("--target-config", str(tmp_path / "target.toml"))
    assert run("bank", "copy", third, "--bank", notes, *given).exit_code == 0
    assert [each for each in (tmp_path / "apart").rglob("*") if each.is_file()]
    assert "itself" in run("bank", "copy", notes, "--bank", notes).stderr


def test_one_folder_for_the_artifacts_of_both_is_told(
    run: Run, notes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_ARTIFACTS_FOLDER", str(tmp_path / "notes.db.artifacts"))
    told = run("bank", "copy", f"sqlite:///{tmp_path / 'other.db'}", "--bank", notes)
    assert told.exit_code == 0, told.stderr
    assert "the same place" in told.stderr


def test_damage_is_told(run: Run, ask: Ask, notes: str, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    run("bank", "backup", str(folder), "--bank", notes)
    (file,) = folder.rglob("bank.db")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    told = run("bank", "backups", str(folder))
    assert told.exit_code == 1
    assert "not ok" in told.stdout
    assert "bank.db" in told.stdout
    code, listed = ask("bank", "backups", str(folder))
    assert (code, [each["ok"] for each in listed["snapshots"]]) == (1, [False])
    assert run("bank", "backups", str(folder), "--no-verify").exit_code == 0
    told = run("bank", "restore", str(folder), "--bank", f"sqlite:///{tmp_path / 'other.db'}")
    assert told.exit_code == 1
    assert "bank.db" in told.stderr
    assert not (tmp_path / "other.db").exists()


def test_damage_in_the_bank_is_told(run: Run, ask: Ask, notes: str, tmp_path: Path) -> None:
    (artifact,) = (tmp_path / "notes.db.artifacts").rglob("sha256/*/*")
    artifact.write_bytes(b"something else")
    told = run("bank", "backup", str(tmp_path / "kept"), "--bank", notes)
    assert told.exit_code == 1
    assert "Kept 60" in told.stdout
    assert f"Damaged in the bank already: sha256:{artifact.name}" in told.stdout
    code, made = ask("bank", "backup", str(tmp_path / "kept"), "--bank", notes)
    assert (code, made["damaged"]) == (1, [f"sha256:{artifact.name}"])
    told = run("bank", "backup", str(tmp_path / "kept"), "--keep", "1", "--bank", notes)
    assert "No older snapshot was removed" in told.stdout
    code, made = ask("bank", "backup", str(tmp_path / "kept"), "--keep", "1", "--bank", notes)
    assert (code, made["removed"]) == (1, [])
    assert "damaged" in made["not_removed"]


def test_what_is_damaged_can_be_left_out(run: Run, ask: Ask, notes: str, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    _, made = ask("bank", "backup", str(folder), "--bank", notes)
    (artifact,) = (folder / "artifacts").rglob("sha256/*/*")
    artifact.write_bytes(b"something else")
    restore = ("bank", "restore", str(folder), "--bank", f"sqlite:///{tmp_path / 'other.db'}")
    assert "--skip-damaged" in run(*restore).stderr
    code, moved = ask(*restore, "--skip-damaged")
    assert (code, moved["records"]) == (1, made["records"])
    assert f"sha256:{artifact.name}" in [each["subject"] for each in moved["problems"]]


def test_what_is_not_there(run: Run, tmp_path: Path) -> None:
    kept, nothing = str(tmp_path / "kept"), f"sqlite:///{tmp_path / 'no.db'}"
    told = run("bank", "backup", kept, "--bank", nothing)
    assert told.exit_code == 1
    assert "There is no bank" in told.stderr
    assert not (tmp_path / "kept").exists()
    told = run("bank", "backups", str(tmp_path))
    assert told.exit_code == 1
    assert "not a folder of Perdure backups" in told.stderr
    assert run("bank", "backup", str(tmp_path / "kept"), "--keep", "0").exit_code == 2


def test_an_encrypted_backup_needs_its_key(
    run: Run, ask: Ask, notes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "kept")
    make_file(tmp_path / "key")
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEY", f"file:{tmp_path / 'key'}")
    assert ask("bank", "backup", folder, "--bank", notes)[1]["encrypted"] is True
    assert run("bank", "backups", folder).exit_code == 0
    plain = run("bank", "backup", folder, "--bank", notes, "--plain")
    assert plain.exit_code == 0  # the folder is encrypted already
    monkeypatch.delenv("PERDURE_ENCRYPTION_KEY")
    told = run("bank", "restore", folder, "--bank", f"sqlite:///{tmp_path / 'other.db'}")
    assert told.exit_code == 1
    assert "master key" in told.stderr
