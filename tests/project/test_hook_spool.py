"""The spool's reader: writers at any moment, torn lines, several readers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from perdure.project import hook_spool
from perdure.project.hook_spool import HookSpool


@pytest.fixture
def spool(tmp_path: Path) -> HookSpool:
    made = HookSpool(tmp_path, "git")
    made.make()
    return made


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def line(number: int) -> str:
    return f"\n1\t{1_800_000_000 + number}\tpost-commit\t{number}\n"


def test_lines_are_read_once_from_a_position(spool: HookSpool) -> None:
    assert spool.read({}).lines == ()
    append(spool.file, line(1) + line(2))
    first = spool.read({})
    assert [each.fields for each in first.lines] == [("1",), ("2",)]
    assert len({each.key for each in first.lines}) == 2
    append(spool.file, line(3))
    second = spool.read(first.position)
    assert [each.fields for each in second.lines] == [("3",)]
    assert spool.read(second.position).lines == ()
    # A reader that was killed before it kept its position reads the same again, by the same keys.
    assert [each.key for each in spool.read({}).lines][:2] == [each.key for each in first.lines]


def test_a_writer_that_had_the_file_open_is_heard(spool: HookSpool) -> None:
    with spool.file.open("a") as slow:
        append(spool.file, line(1))
        read = spool.read({})
        spool.discard(read.position)
        slow.write(line(2))
    assert [each.fields for each in spool.read(read.position).lines] == [("2",)]


def test_torn_lines_are_counted_and_take_no_other_along(
    spool: HookSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(spool.file, line(1) + "\n1\t18000")  # the disk was full
    append(spool.file, line(2) + "\n1\t1800000003\tpost-co")
    read = spool.read({})
    assert [each.fields for each in read.lines] == [("1",), ("2",)]
    assert read.damaged == 1
    again = spool.read(read.position)
    assert (again.lines, again.damaged) == ((), 0)  # it may still become whole
    monkeypatch.setattr(hook_spool, "_GRACE", -1.0)
    late = spool.read(again.position)
    assert (late.lines, late.damaged) == ((), 1) or late.lines[0].name == "post-co"
    spool.discard(late.position)
    assert list(spool.folder.iterdir()) == []


def test_files_are_deleted_when_they_were_read_and_are_old(
    spool: HookSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(spool.file, line(1))
    read = spool.read({})
    spool.discard(read.position)
    assert len(list(spool.folder.iterdir())) == 1
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)
    spool.discard({})  # nobody has kept how far it was read
    assert len(list(spool.folder.iterdir())) == 1
    spool.discard(read.position)
    assert list(spool.folder.iterdir()) == []


def test_bytes_of_any_kind_are_no_error(spool: HookSpool) -> None:
    spool.file.write_bytes(b"\n1\t5\tpost-commit\tcaf\xe9\n\x00\xff\n1\tx\ty\n1\t5\t\n")
    read = spool.read({})
    assert [each.fields for each in read.lines] == [("caf\udce9",)]
    assert read.damaged == 3
