from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

import perdure
from perdure.artifacts import Artifact
from tests.cli.conftest import Ask, Run

LARGE = 100_000


@perdure.record("reports")
class Report(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    body: Artifact


@pytest.fixture
def reports(tmp_path: Path) -> str:
    """The address of a bank with two reports, and two artifacts to which nothing refers."""
    url = f"sqlite:///{tmp_path / 'reports.db'}"
    with perdure.open_sync(url) as bank:
        for name, size in (("small", 100), ("large", LARGE)):
            bank.collection(Report).put(Report(name, bank.artifacts.put(os.urandom(size))))
            bank.artifacts.put(os.urandom(size))
    return url


def test_listing(run: Run, ask: Ask, reports: str) -> None:
    code, found = ask("artifacts", "list", "--bank", reports)
    assert (code, found["count"]) == (0, 4)
    assert found["bytes"] > 2 * LARGE
    assert sorted(each["references"] for each in found["artifacts"]) == [0, 0, 1, 1]
    assert {each["place"] for each in found["artifacts"]} == {"row", "disk"}
    shown = run("artifacts", "list", "--bank", reports, "--limit", "1")
    assert shown.exit_code == 0
    assert shown.stdout.count("sha256:") == 1
    assert "3 are not shown" in shown.stderr


def test_collecting(run: Run, ask: Ask, reports: str) -> None:
    assert ask("artifacts", "collect", "--bank", reports)[1]["deleted"] == 0  # all are young
    result = run("artifacts", "collect", "--bank", reports, "--grace", "0", "--dry-run")
    assert result.stdout.startswith("2 artifacts of 4 would be deleted: ")
    code, done = ask("artifacts", "collect", "--bank", reports, "--grace", "0")
    assert (code, done["seen"], done["kept"], done["deleted"]) == (0, 4, 2, 2)
    assert done["bytes"] > LARGE
    assert run("artifacts", "collect", "--bank", reports, "--grace", "soon").exit_code == 1
    with perdure.open_sync(reports) as bank:
        for name in ("small", "large"):
            report = bank.collection(Report).get(name)
            assert report is not None
            assert len(bank.artifacts.read(report.body)) == report.body.size


def test_checking(run: Run, ask: Ask, reports: str, tmp_path: Path) -> None:
    assert run("artifacts", "check", "--bank", reports).stdout == "The artifacts are sound.\n"
    code, found = ask("artifacts", "check", "--bank", reports, "--orphans")
    assert (code, found["ok"]) == (0, True)
    assert [fault["kind"] for fault in found["faults"]] == ["orphan", "orphan"]
    for file in (tmp_path / "reports.db.artifacts" / "sha256").rglob("*"):
        if file.is_file():
            os.truncate(file, 10)
    with perdure.open_sync(reports) as bank:
        report = bank.collection(Report).get("small")
        assert report is not None
        bank.artifacts.delete(report.body)
    code, found = ask("artifacts", "check", "--bank", reports)
    assert (code, found["ok"]) == (1, False)
    kinds = sorted((fault["kind"], fault["referrer"]) for fault in found["faults"])
    assert kinds == [("damaged", ""), ("damaged", ""), ("missing", "reports/small")]
    result = run("artifacts", "check", "--bank", reports)
    assert result.exit_code == 1
    assert "reports/small refers to" in result.stdout


def test_moving_to_s3_and_back(
    run: Run, ask: Ask, reports: str, s3_url: str, tmp_path: Path
) -> None:
    result = run("artifacts", "move", s3_url, "--bank", reports)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("2 artifacts copied (")
    assert ask("artifacts", "move", s3_url, "--bank", reports)[1]["skipped"] == 2
    folder = str(tmp_path / "elsewhere")
    code, done = ask("artifacts", "move", folder, "--from", s3_url, "--delete", "--bank", reports)
    assert (code, done["copied"], done["deleted"], done["damaged"]) == (0, 2, 2, [])
    again = ask("artifacts", "move", folder, "--from", s3_url, "--bank", reports)[1]
    assert (again["copied"], again["skipped"]) == (0, 0)


def test_a_place_that_is_none(run: Run, reports: str) -> None:
    for place in ("ftp://x", "s3://key:secret@bucket", "s3://bucket?endpoint=http://example.com"):
        result = run("artifacts", "move", place, "--bank", reports)
        assert result.exit_code == 1
        assert "secret" not in result.stderr
