from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.core.clock import Clock
from perdure.core.errors import InvalidInput, InvalidURL, UnknownBackend
from perdure.storage import registry
from perdure.storage.adapter import Adapter
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.testing import ManualClock


@pytest.fixture(autouse=True)
def no_trace() -> Iterator[None]:
    yield
    for scheme in ("mine", "sqlite", "memory"):
        registry.unregister(scheme)


def test_own_backends(tmp_path: Path) -> None:
    assert isinstance(registry.adapter_for("memory://"), MemoryAdapter)
    assert isinstance(registry.adapter_for(f"sqlite:///{tmp_path}/a.db"), SQLiteAdapter)
    kinds = {type(registry.adapter_for(f"{name}://h/d")) for name in ("postgres", "postgresql")}
    assert {kind.__name__ for kind in kinds} == {"PostgresAdapter"}


def test_scheme_is_not_case_sensitive() -> None:
    assert isinstance(registry.adapter_for("Memory://"), MemoryAdapter)


@pytest.mark.parametrize(
    "url",
    ["", "memory", "/tmp/bank.db", "C:\\bank.db", "://x", "1st://x", "a b://x", "x://[", "\0"],
)
def test_malformed_address(url: str) -> None:
    with pytest.raises(InvalidURL) as caught:
        registry.adapter_for(url)
    assert "sqlite:///memory.db" in caught.value.hint


def test_unknown_backend_names_the_known_ones_and_how_to_add_one() -> None:
    registry.register("mine", MemoryAdapter)
    with pytest.raises(UnknownBackend, match="etcd://") as caught:
        registry.adapter_for("etcd://user:secret@host")
    for word in ("memory", "sqlite", "postgresql", "mine", "register", "perdure.storage"):
        assert word in caught.value.hint
    assert "secret" not in str(caught.value)


def test_register_takes_a_class_or_a_function() -> None:
    clock = ManualClock()
    given: list[tuple[str, Clock]] = []

    def make(url: str, clock: Clock) -> Adapter:
        given.append((url, clock))
        return MemoryAdapter(url, clock)

    registry.register("mine", make)
    assert isinstance(registry.adapter_for("mine://here?x=1", clock), MemoryAdapter)
    assert given == [("mine://here?x=1", clock)]
    registry.register("mine", MemoryAdapter)
    assert "mine" in registry.schemes()
    registry.unregister("mine")
    registry.unregister("mine")
    with pytest.raises(UnknownBackend):
        registry.adapter_for("mine://")


def test_register_has_the_first_word() -> None:
    registry.register("sqlite", MemoryAdapter)
    assert isinstance(registry.adapter_for("sqlite:///x.db"), MemoryAdapter)


@pytest.mark.parametrize("scheme", ["", "Mine", "my_scheme", "1st", "a:", "a/b", "é"])
def test_register_refuses_what_no_address_begins_with(scheme: str) -> None:
    with pytest.raises(InvalidInput):
        registry.register(scheme, MemoryAdapter)


def _raises(url: str, clock: Clock) -> Adapter:
    raise KeyError("missing")


def _makes_nothing(url: str, clock: Clock) -> Adapter:
    return None  # type: ignore[return-value]


def _takes_nothing() -> Adapter:
    return MemoryAdapter()


@pytest.mark.parametrize("factory", [_raises, _makes_nothing, _takes_nothing])
def test_broken_factory(factory: registry.Factory) -> None:
    registry.register("mine", factory)
    with pytest.raises(UnknownBackend, match="mine://") as caught:
        registry.adapter_for("mine://")
    assert factory.__name__ in str(caught.value)
    assert "address and a clock" in caught.value.hint


# Entry points, as installed packages have them --------------------------------------------------


def _install(site: Path, name: str, target: str, code: str = "") -> None:
    """What `pip install` leaves of a package with one entry point."""
    info = site / f"{name}_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[perdure.storage]\n{name} = {target}\n")
    if code:
        (site / f"{target.partition(':')[0]}.py").write_text(code)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_entry_point(site: Path) -> None:
    code = "from perdure.testing import MemoryAdapter\nclass Mine(MemoryAdapter): ..."
    _install(site, "entry-a", "entry_a:Mine", code)
    assert type(registry.adapter_for("entry-a://")).__name__ == "Mine"
    assert "entry-a" in registry.schemes()


def test_entry_point_cannot_replace_our_own(site: Path) -> None:
    _install(site, "memory", "entry_b:nothing", "nothing = None")
    assert isinstance(registry.adapter_for("memory://"), MemoryAdapter)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("gone", "", "ModuleNotFoundError"),
        ("bad", "raise RuntimeError('half installed')", "RuntimeError: half installed"),
        ("typo", "class Other: ...", "AttributeError"),
        ("value", "Mine = 3", "not callable"),
    ],
)
def test_broken_entry_point(site: Path, name: str, code: str, words: str) -> None:
    _install(site, name, f"broken_{name}:Mine", code)
    with pytest.raises(UnknownBackend, match=words) as caught:
        registry.adapter_for(f"{name}://x")
    assert f"{name}-package" in caught.value.hint


def test_importing_the_registry_loads_no_driver() -> None:
    code = (
        "import sys, perdure.storage.registry;"
        "print(sorted({'apsw', 'psycopg', 'zstandard', 'backports.zstd'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
