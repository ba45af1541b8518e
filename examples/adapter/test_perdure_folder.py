"""How a backend's own tests look: every check of the conformance kit that it has to pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from perdure_folder import FolderAdapter  # type: ignore[import-not-found]  # installed, later

from perdure.storage.registry import register
from perdure.testing import perform, trials_for
from perdure.testing.conformance import Trial

register("folder", FolderAdapter)  # not needed where the package is installed


@pytest.mark.parametrize("trial", trials_for(FolderAdapter.capabilities), ids=lambda t: t.id)
async def test_conformance(trial: Trial, tmp_path: Path) -> None:
    await perform(trial, f"folder:///{tmp_path / 'bank'}")
