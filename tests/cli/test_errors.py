"""Each way to go wrong gives one line that says what to do, and changes nothing."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from perdure.cli.terminal import printable
from tests.cli.conftest import Ask, Run

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="There is no /proc.")
COMMANDS = (["bank", "init"], ["bank", "info"], ["verify"])


def text_file(file: Path) -> None:
    file.write_text("Dear diary,\n" * 1_000)


def foreign_database(file: Path) -> None:
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE recipes(name)")
        db.commit()


def newer_bank(file: Path) -> None:
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE perdure_future(name)")
        db.execute("PRAGMA application_id = 0x50657264")
        db.execute("PRAGMA user_version = 999")
        db.commit()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (text_file, "NotAStore", "not a SQLite database"),
        (foreign_database, "NotAStore", "another program"),
        (newer_bank, "NewerSchema", "has format 999"),
    ],
)
def test_files_that_are_something_else(  # noqa: PLR0917  (fixtures)
    make: Callable[[Path], None], error: str, words: str, run: Run, ask: Ask, tmp_path: Path
) -> None:
    file = tmp_path / "other.db"
    make(file)
    before = file.read_bytes()
    for command in COMMANDS:
        result = run(*command, "--bank", f"sqlite:///{file}")
        one_line(result.exit_code, result.stdout, result.stderr, words)
        code, answer = ask(*command, "--bank", f"sqlite:///{file}")
        assert (code, answer["error"]["type"]) == (1, error)
        assert answer["error"]["hint"]
    assert file.read_bytes() == before


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "'' is not the address of a bank"),
        ("memory.db", "'memory.db' is not the address of a bank"),
        ("sqlite:///", "names no file"),
        ("://nothing", "cannot be the address"),
        ("etcd://localhost", "No storage backend is registered for etcd://"),
        ("postgresql://ada@127.0.0.1:1/bank", "cannot be reached"),
    ],
)
def test_addresses_that_lead_nowhere(command: list[str], url: str, words: str, run: Run) -> None:
    result = run(*command, "--bank", url)
    one_line(result.exit_code, result.stdout, result.stderr, words)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("absent/bank.db", "folder of the bank"),
        ("file/bank.db", "Not a directory"),
        ("folder", "Is a directory"),
        pytest.param("/proc/bank.db", "/proc/bank.db cannot be written", marks=LINUX),
    ],
)
def test_places_where_no_bank_can_be_made(place: str, words: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    result = run("bank", "init", "--bank", f"sqlite:///{tmp_path / place}")
    one_line(result.exit_code, result.stdout, result.stderr, words)
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("bank = [", "is not TOML"),
        ("bnak = 'sqlite:///x.db'", "bnak is not a setting"),
        ("[storage]\nsweep_every = -1", "storage.sweep_every"),
        (None, "There is no configuration file"),
    ],
)
def test_configurations_that_cannot_be_used(
    content: str | None, words: str, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    if content is not None:
        file.write_text(content)
    result = run("bank", "info", "--config", str(file))
    one_line(result.exit_code, result.stdout, result.stderr, words)


def test_a_bank_that_would_not_last_is_not_made(run: Run) -> None:
    result = run("bank", "init", "--bank", "memory://")
    one_line(result.exit_code, result.stdout, result.stderr, "ends with the program")


def test_debug_shows_where_an_error_comes_from(run: Run) -> None:
    with pytest.raises(Exception, match="There is no bank"):
        run("--debug", "bank", "info")
    with pytest.raises(Exception, match="There is no bank"):
        run("bank", "info", "--debug")


def test_nothing_that_is_printed_can_steer_a_terminal() -> None:
    assert printable("a\x1b[2Jb\rc\nd\x00 é") == r"a\x1b[2Jb\rc d\x00 é"


def one_line(code: int, stdout: str, stderr: str, words: str) -> None:
    assert code == 1
    assert not stdout
    assert stderr.startswith("perdure: ")
    assert stderr.count("\n") == 1
    assert words in stderr
