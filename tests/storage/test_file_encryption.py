"""SQLite banks whose whole file is encrypted.

apsw-sqlite3mc takes the place of apsw, so it cannot be loaded beside it: each case runs in a
process of its own, which finds it first.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from pathlib import Path

import pytest

from perdure.core.errors import InvalidInput, KeyRefused, Unsupported
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.backends.sqlite.encryption import encrypt_file
from tests.storage import file_encryption_cases as cases

OTHER_SQLITE = Path(sys.prefix) / "sqlite3mc"
LONG = {"kit", "killed_converting"}
CASES = [
    pytest.param(name, marks=pytest.mark.repeated if name in LONG else ())
    for name, case in vars(cases).items()
    if inspect.iscoroutinefunction(case)
    and list(inspect.signature(case).parameters) == ["folder"]
    and not name.startswith("_")
]


async def run_case(name: str, folder: Path) -> None:
    """Raises with what the case had to say, if it fails."""
    kills = "60" if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else "8"
    path = os.pathsep.join([str(OTHER_SQLITE), *(part or str(Path.cwd()) for part in sys.path)])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", cases.__name__, name, str(folder)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": path, "PERDURE_KILLS": kills},
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode(errors="replace")


@pytest.mark.parametrize("name", CASES)
async def test_with_the_other_sqlite(name: str, tmp_path: Path) -> None:
    await run_case(name, tmp_path)


async def test_without_the_other_sqlite(tmp_path: Path) -> None:
    """With the usual apsw, keys are refused with the way to get the other one."""
    adapter = SQLiteAdapter(f"sqlite:///{tmp_path / 'bank.db'}")
    adapter.file_key = cases.KEY
    with pytest.raises(Unsupported, match="pip uninstall apsw; pip install apsw-sqlite3mc"):
        await adapter.initialize()
    await cases.written(tmp_path / "plain.db", 3, None)
    with pytest.raises(Unsupported, match="pip uninstall apsw"):
        encrypt_file(tmp_path / "plain.db", cases.KEY)
    await cases.intact(tmp_path / "plain.db", 3, None)


async def test_an_encrypted_bank_without_the_other_sqlite(tmp_path: Path) -> None:
    """The usual apsw tells that a bank is encrypted, and does not harm its log."""
    await run_case("wrong_keys", tmp_path)
    before = cases.fingerprint(tmp_path)
    with pytest.raises(KeyRefused, match="no key was given"):
        await SQLiteAdapter(f"sqlite:///{tmp_path / 'bank.db'}").initialize()
    assert cases.fingerprint(tmp_path) == before


def test_keys_are_checked_and_never_shown() -> None:
    adapter = SQLiteAdapter("sqlite:///bank.db")
    with pytest.raises(InvalidInput, match="32 bytes") as caught:
        adapter.file_key = b"a short secret"
    assert "secret" not in str(caught.value)
    assert adapter.file_key is None
    adapter.file_key = cases.KEY
    assert repr(cases.KEY) not in repr(adapter)
