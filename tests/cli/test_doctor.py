from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import perdure
from perdure.cli import diagnosis
from tests.cli.conftest import Ask, Run


def test_all_is_well(run: Run, ask: Ask, notes: str, home: Path, tmp_path: Path) -> None:
    code, found = ask("doctor", "--bank", notes)
    assert code == 0
    assert found["ok"]
    assert found["versions"]["perdure"] == perdure.__version__
    assert found["versions"]["sqlite"] == apsw.sqlite_lib_version()
    assert all(check["ok"] for check in found["checks"])
    assert not found["config"]["found"]
    assert Path(found["data_folder"]).is_relative_to(home)
    assert found["bank"]["reachable"]
    assert {"notes", "perdure_artifacts"} <= {
        each["collection"] for each in found["bank"]["collections"]
    }
    assert found["bank"]["bytes"] > 10_000
    assert found["artifacts"]["bytes"] == 100_000
    assert found["disk"]["free"] > 0

    text = run("doctor", "--bank", notes)
    assert text.exit_code == 0
    assert "not ok" not in text.stdout
    assert "notes " in text.stdout


def test_no_bank_yet_is_no_fault(run: Run, ask: Ask) -> None:
    code, found = ask("doctor")
    assert (code, found["ok"]) == (0, True)
    (bank,) = (check for check in found["checks"] if check["part"] == "Bank")
    assert bank["what"].startswith("There is none at ")
    assert bank["advice"] == "Make one with `perdure bank init`."
    assert not found["bank"]["reachable"]
    assert bank["advice"] in run("doctor").stdout


def test_what_is_wrong_comes_with_what_to_do(run: Run, ask: Ask) -> None:
    args = ("doctor", "--bank", "sqlite:///gone.db")
    code, found = ask(*args)
    assert code == 1
    assert not found["ok"]
    (fault,) = (check for check in found["checks"] if not check["ok"])
    assert fault["part"] == "Bank"
    assert fault["what"].startswith("There is no bank at ")
    assert fault["advice"] == "Make one with `perdure bank init --bank sqlite:///gone.db`."
    assert found["bank"]["error"]["type"] == "Unavailable"
    (line,) = (line for line in run(*args).stdout.splitlines() if line.startswith("not ok"))
    assert line.split()[2] == "Bank"
    assert fault["advice"] in line


def test_a_configuration_that_cannot_be_used(ask: Ask, notes: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[jobs]\nconcurrency = 'many'")
    code, found = ask("doctor", "--config", str(config), "--bank", notes)
    assert code == 1
    (fault,) = (check for check in found["checks"] if not check["ok"])
    assert fault["part"] == "Configuration"
    assert "jobs.concurrency" in fault["what"]
    assert found["config"] == {"file": str(config), "found": True}


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "etcd://localhost",
        "postgresql://ada@127.0.0.1:1/bank",
        "sqlite:///",
        "sqlite:////dev/null/below.db",
    ],
)
def test_no_bank_makes_the_doctor_fail(url: str, ask: Ask) -> None:
    code, found = ask("doctor", "--bank", url)
    assert code == 1
    assert [check["part"] for check in found["checks"] if not check["ok"]] in (
        ["Bank"],
        ["Configuration"],
    )


def test_any_error_of_the_bank_is_reported(
    ask: Ask, run: Run, notes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: object) -> None:
        raise ZeroDivisionError("by the test")

    monkeypatch.setattr(perdure.Bank, "info", fail)
    code, found = ask("doctor", "--bank", notes)
    assert code == 1
    assert found["bank"]["error"]["message"] == "ZeroDivisionError: by the test."
    assert "Traceback" in run("doctor", "--bank", notes, "--debug").stderr


def test_a_disk_that_is_nearly_full(ask: Ask, notes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_FREE_BYTES", 2**80)
    code, found = ask("doctor", "--bank", notes)
    assert code == 1
    assert [check["part"] for check in found["checks"] if not check["ok"]] == ["Free space"]


def test_a_library_of_sqlite_that_is_too_old(
    ask: Ask, notes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.45.1")
    code, found = ask("doctor", "--bank", notes)
    assert code == 1
    (fault,) = (check for check in found["checks"] if not check["ok"])
    assert (fault["part"], fault["what"]) == ("SQLite", "3.45.1 can damage a bank.")
