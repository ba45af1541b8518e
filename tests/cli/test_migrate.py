from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import perdure
from perdure.storage import record_migrations, records
from perdure.storage.record_migrations import Migrated
from tests.cli.conftest import Ask, Run

_OLD = """
from typing import Annotated
import msgspec, perdure

@perdure.record("recipes")
class Recipe(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    text: str
"""
_NEW = """
from typing import Annotated
import msgspec, perdure

BROKEN = set()

def count_words(old):
    if old["id"] in BROKEN:
        raise ValueError("a page is missing")
    return old | {"words": len(old["text"].split())}

@perdure.record("recipes", migrations=[count_words])
class Recipe(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    text: str
    words: Annotated[int, perdure.Indexed()]
"""


def program(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)


@pytest.fixture
def kitchen(home: Path) -> Iterator[str]:
    """A bank with recipes of an old program; the new one is the module `kitchen_new`."""
    program(home, "kitchen_old", _OLD)
    program(home, "kitchen_new", _NEW)
    path = list(sys.path)
    url = f"sqlite:///{home / 'kitchen.db'}"
    with perdure.open_sync(url) as bank:
        recipe = load("kitchen_old", home).Recipe
        bank.collection(recipe).put_many(
            recipe(f"{n:03}", "salt " * (n % 5 + 1)) for n in range(300)
        )
    yield url
    sys.path[:] = path
    for name in ("kitchen_old", "kitchen_new"):
        sys.modules.pop(name, None)


def load(name: str, folder: Path) -> ModuleType:
    import importlib

    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module(name)


def test_a_dry_run_then_the_real_one(run: Run, ask: Ask, kitchen: str) -> None:
    command = ("bank", "migrate", "--bank", kitchen, "--import", "kitchen_new")
    result = run(*command, "--dry-run")
    assert result.exit_code == 0
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("recipes")]
    assert line.split() == ["recipes", "2", "300", "of", "1", "300", "0", "0", "0"]
    assert "To do" in result.stdout
    code, told = ask(*command)
    assert code == 0
    assert told["ok"]
    recipes = {each["collection"]: each for each in told["collections"]}["recipes"]
    assert (recipes["found"], recipes["migrated"]) == ({"1": 300}, 300)
    result = run(*command)
    assert result.exit_code == 0
    assert result.stdout == "Every record is as its type declares it.\n"


def test_failures_are_named(run: Run, ask: Ask, kitchen: str, home: Path) -> None:
    command = ("bank", "migrate", "--bank", kitchen, "--import", "kitchen_new")
    load("kitchen_new", home).BROKEN.update({"007", "123"})
    result = run(*command)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines if "missing" in line] == [
        "recipes/007",
        "recipes/123",
    ]
    assert "ValueError: a page is missing" in lines[-1]
    code, told = ask(*command)
    assert code == 1
    assert not told["ok"]
    recipes = {each["collection"]: each for each in told["collections"]}["recipes"]
    assert (recipes["migrated"], recipes["failed"]) == (0, 2)
    assert [each["key"] for each in recipes["failures"]] == ["007", "123"]
    load("kitchen_new", home).BROKEN.clear()
    code, told = ask(*command, "--collection", "recipes")
    assert code == 0
    assert [each["migrated"] for each in told["collections"]] == [2]


def test_what_is_not_declared(run: Run, kitchen: str, notes: str) -> None:
    result = run("bank", "migrate", "--bank", notes, "--collection", "puddings")
    assert result.exit_code == 1
    assert "No record type is declared for the collection 'puddings'" in result.stderr
    assert "--import" in result.stderr
    result = run("bank", "migrate", "--bank", kitchen, "--import", "no_such_module")
    assert result.exit_code == 1
    assert "'no_such_module' cannot be imported" in result.stderr


def test_a_module_that_raises(run: Run, kitchen: str, home: Path) -> None:
    program(home, "kitchen_burnt", "raise RuntimeError('the oven is on fire')")
    result = run("bank", "migrate", "--bank", kitchen, "--import", "kitchen_burnt")
    assert result.exit_code == 1
    assert "'kitchen_burnt' cannot be imported, it raises RuntimeError: the oven is on fire" in (
        " ".join(result.stderr.split())
    )
    assert "Traceback" not in result.stderr


def test_a_collection_that_is_not_there(run: Run, kitchen: str, notes: str) -> None:
    command = ("bank", "migrate", "--import", "kitchen_new", "--collection", "recipes")
    result = run(*command, "--bank", notes)
    assert result.exit_code == 1
    assert "There is no collection 'recipes' in this bank" in result.stderr
    assert "as its type declares it" not in result.stdout


def test_what_is_left_is_no_success(
    run: Run, ask: Ask, kitchen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def one_left(*_: object, **__: object) -> list[Migrated]:
        return [Migrated("recipes", 2, "application/msgpack", {1: 300}, 299, left=1)]

    monkeypatch.setattr(record_migrations, "migrate", one_left)
    chosen = ("--import", "kitchen_new", "--collection", "recipes")
    command = ("bank", "migrate", "--bank", kitchen, *chosen)
    result = run(*command)
    assert result.exit_code == 1
    assert "1 record of recipes" in result.stderr
    code, told = ask(*command)
    assert (code, told["ok"]) == (1, False)


def test_collections_that_nobody_declares_are_left_out(
    run: Run, ask: Ask, kitchen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cls in [cls for cls, known in records._types.items() if known.name == "recipes"]:
        monkeypatch.delitem(records._types, cls)
    result = run("bank", "migrate", "--bank", kitchen)
    assert result.exit_code == 0
    assert "no record type is declared for them: recipes." in result.stderr
    code, told = ask("bank", "migrate", "--bank", kitchen)
    assert (code, told["undeclared"]) == (0, ["recipes"])


def test_a_bank_that_is_not_there(run: Run, home: Path) -> None:
    result = run("bank", "migrate", "--bank", f"sqlite:///{home / 'nowhere.db'}")
    assert result.exit_code != 0
    assert "There is no bank" in result.stderr
    assert not (home / "nowhere.db").exists()
