"""Archives of chat services: lists read one by one, and zips that are not what they say."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from perdure.importers import export_archive
from perdure.importers.export_archive import ExportArchive, elements

TRICKY: list[dict[str, Any]] = [
    {"a": 'a "quoted" } ] word', "b": ["\\", "\\\\", '\\"'], "c": {"d": [{}, [[]], "]"]}},
    {"é": "\u2028 \U0001f600", "empty": "", "n": [1, 2.5, None, True]},
    {},
]


def read(data: bytes, chunk: int, limit: int = 1000) -> list[bytes | None]:
    file = io.BytesIO(data)
    return list(elements(file.read(chunk), lambda _: file.read(chunk), limit))


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 10_000])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_is_read_in_pieces(chunk: int, indent: int | None) -> None:
    data = json.dumps(TRICKY, indent=indent, ensure_ascii=False).encode()
    assert [json.loads(each or b"") for each in read(data, chunk)] == TRICKY
    assert read(b"[]", chunk) == []
    assert read(b'\xef\xbb\xbf [{"a": 1}] ', chunk) == [b'{"a": 1}']


@pytest.mark.parametrize("chunk", [1, 2, 5, 10_000])
def test_what_is_no_object_is_not_passed_over(chunk: int) -> None:
    data = b'[{"a": 1}, 17, "words, }{", [2], {"b": [3, "x"]} , null]'
    assert read(data, chunk) == [b'{"a": 1}', b"null", b"[2]", b'{"b": [3, "x"]}', b"null"]


@pytest.mark.parametrize("chunk", [5, 10_000])
def test_an_object_that_is_too_long_is_passed_over(chunk: int) -> None:
    data = json.dumps([{"a": 1}, {"b": ["x" * 60] * 60}, {"c": 3}]).encode()
    assert read(data, chunk, 200) == [b'{"a": 1}', None, b'{"c": 3}']


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'[{"a": 1}, {"b": ', "cut off behind object 1"),
        (b'[{"a": "', "cut off behind object 0"),
        (b"", "no list"),
        (b"words", "no list"),
        (b'[{"a": "' + b"x" * 3_000, "has no end"),
        (b"\x1f\x8b} [{}]", "no list"),
        (b'"}" [{}]', "no list"),
        (b'[{"a": 1}]\n [{"b": 2}]', "more behind object 1"),
        (b'[{"a": 1}] and words', "more behind object 1"),
    ],
)
def test_what_is_cut_off_or_no_list_is_told(data: bytes, told: str) -> None:
    with pytest.raises(OSError, match=told):
        read(data, 64)


def test_an_object_around_the_list(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps({"conversations": TRICKY}))
    archive = ExportArchive(path)
    found = list(archive.documents("conversations.json", "conversations"))
    assert [json.loads(each or b"") for each in found] == TRICKY
    path.write_text('{"alone": 1}')
    assert list(archive.documents("conversations.json", "conversations")) == [b'{"alone": 1}']
    path.write_text('{"alone": 1')
    with pytest.raises(OSError, match="not JSON"):
        list(archive.documents("conversations.json", "conversations"))


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("conversations.json", b"[" + b" " * 1_000_000 + b"]")
    archive = ExportArchive(path)
    assert list(archive.documents("conversations.json", "x")) == []  # small: it may be
    monkeypatch.setattr(export_archive, "_CHUNK", 1)
    with pytest.raises(OSError, match="too many for what it is"):
        list(archive.documents("conversations.json", "x"))
    archive.close()


def test_a_damaged_zip_is_told(tmp_path: Path) -> None:
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("conversations.json", json.dumps(TRICKY))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"quoted", b"QUOTED"))
    archive = ExportArchive(path)
    with pytest.raises(OSError, match="CRC"):
        list(archive.documents("conversations.json", "x"))
    archive.close()


def test_a_zip_that_was_cut_off_is_told(tmp_path: Path) -> None:
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("conversations.json", json.dumps(TRICKY))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(OSError, match="a zip that is cut off or damaged: download it again"):
        ExportArchive(path)


def test_an_encrypted_zip_is_told(tmp_path: Path) -> None:
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("conversations.json", json.dumps(TRICKY))
    content = bytearray(path.read_bytes())
    for header, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.find(header) + flags] |= 1
    path.write_bytes(content)
    archive = ExportArchive(path)
    with pytest.raises(OSError, match=r"^it is encrypted: unpack it, and name the folder$"):
        list(archive.documents("conversations.json", "x"))
    archive.close()
