from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Ask, Run


def test_a_sound_bank(run: Run, ask: Ask, notes: str) -> None:
    result = run("verify", "--bank", notes)
    assert result.exit_code == 0
    assert "sound" in result.stdout
    code, found = ask("verify", "--bank", notes)
    assert code == 0
    assert found["ok"]
    assert found["records"] >= 600
    assert found["problems"] == []


def test_damaged_records_are_named(run: Run, ask: Ask, notes: str, tmp_path: Path) -> None:
    for number in (123, 456):
        spoil(tmp_path / "notes.db", f"note {number} of".encode())
    result = run("verify", "--bank", notes)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == ["notes/ada/123", "notes/ada/456"]
    assert lines[-1].startswith("2 problems in 60")
    code, found = ask("verify", "--bank", notes)
    assert code == 1
    assert not found["ok"]
    assert found["records"] >= 600
    assert [each["subject"] for each in found["problems"]] == ["notes/ada/123", "notes/ada/456"]
    assert all("checksum" in each["what"] for each in found["problems"])


def test_a_damaged_artifact_is_named(ask: Ask, notes: str, tmp_path: Path) -> None:
    (file,) = (
        path
        for path in (tmp_path / "notes.db.artifacts").rglob("*")
        if path.is_file() and path.stat().st_size == 100_000
    )
    spoil(file, b"largelarge")
    code, found = ask("verify", "--bank", notes)
    assert code == 1
    (problem,) = found["problems"]
    assert problem["subject"] == f"sha256:{file.name}"


def test_a_bank_in_ruins_is_a_problem_not_a_traceback(
    run: Run, ask: Ask, notes: str, tmp_path: Path
) -> None:
    file = tmp_path / "notes.db"
    content = file.read_bytes()
    file.write_bytes(content[:4096] + bytes(len(content) - 4096))
    code, found = ask("verify", "--bank", notes)
    assert code == 1
    assert not found["ok"]
    assert found["problems"][0]["subject"] == "store"
    result = run("verify", "--bank", notes)
    assert result.exit_code == 1
    assert result.stdout.startswith("store: ")


def spoil(file: Path, where: bytes) -> None:
    """Flip one bit behind the first place that holds these bytes."""
    content = bytearray(file.read_bytes())
    content[content.index(where) + 2] ^= 1
    file.write_bytes(content)
