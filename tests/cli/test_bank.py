from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Ask, Run


def test_init_makes_a_bank_and_says_where(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    made = run("bank", "init", "--bank", f"sqlite:///{file}")
    assert (made.exit_code, made.stdout) == (0, f"Made a bank at {file}.\n")
    assert file.exists()
    again = run("bank", "init", "--bank", f"sqlite:///{file}")
    assert (again.exit_code, again.stdout) == (0, f"The bank at {file} is already there.\n")


def test_init_as_json(ask: Ask, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    made = {"url": url, "location": str(tmp_path / "new.db"), "created": True}
    assert ask("bank", "init", "--bank", url) == (0, made)
    assert ask("bank", "init", "--bank", url) == (0, {**made, "created": False})


def test_info_says_what_a_bank_holds(run: Run, ask: Ask, notes: str, tmp_path: Path) -> None:
    code, found = ask("bank", "info", "--bank", notes)
    assert code == 0
    assert (found["url"], found["backend"]) == (notes, "SQLiteAdapter")
    assert "transactions" in found["capabilities"]
    collections = {each["collection"]: each for each in found["collections"]}
    assert collections["notes"]["rows"] == 600
    assert collections["notes"]["bytes"] > 10_000
    assert found["artifacts"] == {
        "folder": str(tmp_path / "notes.db.artifacts"),
        "exists": True,
        "files": 1,
        "bytes": 100_000,
    }
    lines = [line.split() for line in run("bank", "info", "--bank", notes).stdout.splitlines()]
    assert ["Bank", notes] in lines
    assert any(line[:2] == ["notes", "600"] for line in lines)
    assert any(line[0] == "Artifacts" and "100.0" in line for line in lines if line)


def test_plain_output_is_neither_cut_nor_padded(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 50)
    folder.mkdir()
    url = f"sqlite:///{folder / 'bank.db'}"
    run("bank", "init", "--bank", url)
    lines = run("bank", "info", "--bank", url).stdout.splitlines()
    assert any(line.endswith(url) for line in lines)
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.parametrize("command", [["bank", "info"], ["verify"], ["doctor"]])
def test_looking_makes_nothing(command: list[str], run: Run, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    url = f"sqlite:///{tmp_path / 'absent.db'}"
    result = run(*command, "--bank", url)
    assert result.exit_code == 1
    told = result.stderr + result.stdout
    assert f"There is no bank at {tmp_path / 'absent.db'}." in told
    assert f"`perdure bank init --bank {url}`" in told
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_file_is_no_bank_yet(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    assert run("bank", "info", "--bank", url).exit_code == 1
    assert not (tmp_path / "empty.db").read_bytes()
    assert run("bank", "init", "--bank", url).exit_code == 0


def test_where_the_bank_is_taken_from(
    ask: Ask, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*args: str) -> str:
        code, answer = ask(*args)
        assert code == 0
        assert answer["created"]
        return str(answer["location"])

    default = made("bank", "init")
    assert Path(default).is_relative_to(home)
    config = tmp_path / "config.toml"
    config.write_text(f'bank = "sqlite:///{tmp_path / "file.db"}"')
    assert made("bank", "init", "--config", str(config)) == str(tmp_path / "file.db")
    monkeypatch.setenv("PERDURE_BANK", f"sqlite:///{tmp_path / 'variable.db'}")
    assert made("--config", str(config), "bank", "init") == str(tmp_path / "variable.db")
    assert made("--bank", "sqlite:///before.db", "bank", "init") == str(home / "before.db")
    after = ["--bank", "sqlite:///before.db", "bank", "init", "--bank", "sqlite:///after.db"]
    assert made(*after) == str(home / "after.db")


def test_a_password_is_not_shown(run: Run) -> None:
    url = "postgresql://ada:lovelace@127.0.0.1:1/bank"
    for command in (["bank", "info"], ["bank", "init"], ["verify"], ["doctor"]):
        for flags in ([], ["--json"]):
            result = run(*command, "--bank", url, *flags)
            assert result.exit_code == 1
            assert "lovelace" not in result.stdout + result.stderr


def test_a_bank_on_postgresql(run: Run, ask: Ask, postgres_url: str) -> None:
    assert run("bank", "init", "--bank", postgres_url).exit_code == 0
    code, found = ask("bank", "info", "--bank", postgres_url)
    assert (code, found["backend"]) == (0, "PostgresAdapter")
    assert ask("verify", "--bank", postgres_url)[1]["ok"]
