"""How many functions and modules a call goes through: `tools/walk.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WALK = Path(__file__).parents[1] / "tools" / "walk.py"


@pytest.mark.slow  # opens banks in several processes
def test_the_walk_of_an_append_stays_short() -> None:
    command = [sys.executable, str(WALK), "append", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    append = json.loads(done.stdout.splitlines()[-1])["append"]
    assert append["storage_calls"] == 1
    assert append["functions"] <= 140
    assert append["modules"] <= 40
