"""The version is one, and what is shipped may be used together."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

import perdure
from perdure.integrations.claude_code import MARKETPLACE
from tools import check_deps

ROOT = Path(__file__).parents[2]


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plugin = json.loads((MARKETPLACE / "plugin/.claude-plugin/plugin.json").read_text())
    assert project["version"] == perdure.__version__ == plugin["version"]
    released = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == perdure.__version__


def test_licences_fit() -> None:
    check_deps.check_extras_are_ours()
    assert check_deps.needed() >= {"apsw", "msgspec", "psycopg", "valkey"}
    assert check_deps.check_licences() == []


def test_a_licence_that_does_not_fit_is_seen() -> None:
    assert check_deps.fits("MIT OR GPL-3.0-only")
    assert check_deps.fits("BSD-3-Clause AND 0BSD AND MIT AND Zlib AND CC0-1.0")
    assert check_deps.fits("(MIT OR GPL-3.0-only) AND (Apache-2.0 OR BSD-3-Clause)")
    assert check_deps.fits("GNU Library or Lesser General Public License (LGPL)")
    for licence in (
        *("GPL-3.0-only", "MIT AND AGPL-3.0-only", "(MIT OR ISC) AND AGPL-3.0-only", ""),
        *("Proprietary", "Proprietary, limited use", "Business Source License (permitted uses)"),
        *("Elastic; misc", "Elastic, not MIT", "GNU General Public License v3 (GPLv3)"),
    ):
        assert not check_deps.fits(licence), licence


def test_several_classifiers_are_no_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    about = tmp_path / "both-1.0.dist-info" / "METADATA"
    about.parent.mkdir()
    kinds = ("MIT License", "GNU Affero General Public License v3")
    told = "".join(f"Classifier: License :: OSI Approved :: {kind}\n" for kind in kinds)
    about.write_text(f"Metadata-Version: 2.1\nName: both\nVersion: 1.0\n{told}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not check_deps.fits(check_deps.licence_of("both"))
    monkeypatch.setitem(check_deps.KNOWN, "both", "MIT OR AGPL-3.0-only")
    assert check_deps.fits(check_deps.licence_of("both"))
