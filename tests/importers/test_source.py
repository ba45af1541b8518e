"""Files of every kind, read line by line."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from perdure.importers.transcript_source import (
    Broken,
    JsonDocument,
    SourceLine,
    TranscriptSource,
    decode,
    moment,
)


def read(path: Path, limit: int = 100) -> list[SourceLine]:
    with TranscriptSource(path, limit) as source:
        return list(source.lines())


def test_lines_know_where_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"one\n\ntwo\r\nthree")
    found = read(path)
    assert [line.data for line in found] == [b"one\n", b"\n", b"two\r\n", b"three"]
    assert [(line.start, line.end) for line in found] == [(0, 4), (4, 5), (5, 10), (10, 15)]
    assert [line.whole for line in found] == [True, True, True, False]


@pytest.mark.parametrize("frames", [1, 3])
def test_compressed_files_read_the_same(tmp_path: Path, frames: int) -> None:
    content = b"".join(b'{"n": %d}\n' % number for number in range(1000))
    plain, packed = tmp_path / "x.jsonl", tmp_path / "x.jsonl.zst"
    plain.write_bytes(content)
    size = len(content) // frames + 1
    parts = [content[at : at + size] for at in range(0, len(content), size)]
    packed.write_bytes(b"".join(zstandard.compress(part) for part in parts))
    assert read(packed) == read(plain)


def test_lines_that_are_too_long_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    long = b"x" * 1_000_000
    path.write_bytes(b"one\n" + long + b"\ntwo\n" + b"y" * 100 + b"\n" + long)
    found = read(path)
    assert [(line.data, line.oversized) for line in found] == [
        (b"one\n", False),
        (b"", True),
        (b"two\n", False),
        (b"y" * 100 + b"\n", False),
        (b"", True),
    ]
    assert [line.whole for line in found] == [True, True, True, True, False]
    assert found[-1].end == path.stat().st_size


def test_a_file_can_be_followed(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"one\ntw")
    with TranscriptSource(path) as source:
        _, cut = list(source.lines())
        source.step_back(cut)
        assert [line.data for line in source.lines()] == [b"tw"]
        source.step_back(cut)
        with path.open("ab") as file:
            file.write(b"o\nthree\n")
        found = list(source.lines())
    assert [(line.data, line.start) for line in found] == [(b"two\n", 4), (b"three\n", 8)]


def test_binary_files_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for content, binary in [
        (b"\x00\x01", True),
        (b"text", False),
        (b"", False),
        (b"\xff\xfe", False),
    ]:
        path.write_bytes(content)
        with TranscriptSource(path) as source:
            assert source.binary() is binary
    path.write_bytes(b"\x28\xb5\x2f\xfdnot really compressed")
    with TranscriptSource(path) as source:
        assert source.binary()


@pytest.mark.parametrize(
    ("content", "is_document"),
    [
        (b'[\n  {"role": "user"}\n]', True),
        (b'{"messages": []}', True),
        (b'{"messages": []}\n', True),
        (b'{"role": "user"}\n{"role": "assistant"}\n', False),
        (b'{"role": "user"}\n{"role": "assis', False),
        (b"not\njson", False),
        (b"", False),
        (b'["' + b"x" * 200 + b'"]', False),
    ],
)
def test_documents_are_told_from_lines(tmp_path: Path, content: bytes, is_document: bool) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with JsonDocument(path, limit=100) as source:
        found = list(source.lines())
    assert any(line.document for line in found) is is_document
    if is_document:
        assert [line.data for line in found] == [content]
    elif len(content) < 100:
        assert b"".join(line.data for line in found) == content


def test_json_that_programs_write() -> None:
    assert decode(b'{"a": "cut \\ud83d"}') == {"a": "cut \ufffd"}
    assert decode(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
    assert decode(b'{"a": NaN, "b": Infinity, "c": 1e999}') == {"a": None, "b": None, "c": None}
    assert decode(b"\xef\xbb\xbf[1]") == [1]
    assert decode(b'{"a": 123456789012345678901234567890}')["a"] > 2**64
    for broken in (b"{", b"", b"{'a': 1}", b'{"a": 1}{', b'"\xff"', b"[" * 100_000):
        with pytest.raises(Broken):
            decode(broken)


def test_times() -> None:
    assert moment("1970-01-01T00:00:01.5Z") == 1_500_000
    assert moment("1970-01-01T01:00:00+01:00") == 0
    for strange in (None, 7, "", "yesterday", "2026-02-12T16:02:25", "0001-01-01T00:00:00+23:59"):
        assert moment(strange) is None or isinstance(moment(strange), int)
    assert moment("2026-02-12T16:02:25") is None  # nobody knows in which zone
