"""Which importer answers to which format."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from perdure.core.errors import InvalidInput
from perdure.importers import (
    Importer,
    Transcript,
    TranscriptReader,
    formats,
    importer_for,
    importer_registry,
    register,
    unregister,
)


class Mine(Importer):
    def reader(self, transcript: Transcript) -> TranscriptReader:
        return TranscriptReader()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that names importers in its entry points."""
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[perdure.importers]\ntheirs = theirs:Theirs\nready = theirs:ready\nodd = theirs:odd\n"
        "gone = theirs:gone\ncodex = theirs:Theirs\n"
    )
    (tmp_path / "theirs.py").write_text(
        "from perdure.importers import Importer\n"
        "class Theirs(Importer):\n    pass\n"
        "ready = Theirs()\nodd = 7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("theirs", None)


def test_own_formats() -> None:
    for name in ("anthropic", "claude-code", "codex", "openai-chat"):
        assert name in formats()
        assert isinstance(importer_for(name), Importer)
    with pytest.raises(InvalidInput, match="claude-code"):
        importer_for("word")


def test_registered_formats() -> None:
    mine = Mine()
    register("mine", mine)
    try:
        assert importer_for("mine") is mine
        assert "mine" in formats()
    finally:
        unregister("mine")
    assert "mine" not in formats()
    for name in ("", "Mine", "my format", "a/b", "x" * 40):
        with pytest.raises(InvalidInput, match="format"):
            register(name, mine)


def test_installed_formats(installed: Path) -> None:
    assert {"theirs", "ready"} <= set(formats())
    assert metadata.entry_points(group=importer_registry.GROUP, name="theirs")
    assert type(importer_for("theirs")).__name__ == "Theirs"
    assert type(importer_for("ready")).__name__ == "Theirs"
    assert type(importer_for("codex")).__name__ == "CodexImporter"
    with pytest.raises(InvalidInput, match="no Importer"):
        importer_for("odd")
    with pytest.raises(InvalidInput, match="cannot be loaded"):
        importer_for("gone")
