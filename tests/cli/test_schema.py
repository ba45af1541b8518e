"""``perdure schema``: what types look like, .proto files, records that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import perdure
from perdure import Index, Indexed, Key
from tests.cli.conftest import Ask, Run


class Home(msgspec.Struct, frozen=True):
    city: str
    zip: int = 0


def _person(*more: Any, **options: Any) -> Any:
    """The type of the people, as one version of a program declares it."""
    fields = [("id", Annotated[str, Key()]), ("name", Annotated[str, Indexed()]), ("home", Home)]
    cls = msgspec.defstruct("Person", [*fields, *more], frozen=True)
    return perdure.record("people", **options)(cls)


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bank whose people were declared twice, and written as protobuf since."""
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)
    first = _person()
    with perdure.open_sync(url) as opened:
        opened.collection(first).put(first("ada", "Ada", Home("London")))
    second = _person(
        ("age", int, 0),
        serializer="protobuf",
        migrations=[dict],
        indexes=[Index(("name", "created"))],
    )
    with perdure.open_sync(url) as opened:
        opened.collection(second).put(second("bob", "Bob", Home("Rome"), 7))
    return url


@pytest.mark.usefixtures("bank")
def test_what_is_known(ask: Ask, run: Run) -> None:
    code, found = ask("schema", "list")
    (people,) = found["collections"]
    assert (code, people["collection"], people["type"]) == (0, "people", "Person")
    assert (people["schema"], people["serializer"], people["records"]) == (2, "protobuf", 2)
    shown = run("schema", "list").stdout
    assert "people" in shown
    assert "protobuf" in shown


@pytest.mark.usefixtures("bank")
def test_one_in_full(ask: Ask, run: Run) -> None:
    code, found = ask("schema", "show", "people")
    assert (code, [version["schema"] for version in found["versions"]]) == (0, [1, 2])
    fields = found["versions"][1]["fields"]
    assert fields["home"] == {"type": "Home", "required": True}
    assert fields["Home.zip"] == {"type": "int", "required": False}
    assert fields["age"] == {"type": "int", "required": False}
    assert "age" not in found["versions"][0]["fields"]
    shown = run("schema", "show", "people").stdout
    assert "people: Person, schema version 2, protobuf." in shown
    assert "index over name, created" in shown
    assert "age: is new, int, with a default" in shown


@pytest.mark.usefixtures("bank")
def test_the_proto_file(ask: Ask, run: Run, tmp_path: Path) -> None:
    shown = run("schema", "proto", "people").stdout
    assert "message Person {" in shown
    assert "  optional Home home = 3;" in shown
    file = tmp_path / "people.proto"
    assert run("schema", "proto", "people", "--out", str(file)).stdout == f"Wrote {file}.\n"
    assert file.read_text() == shown
    code, found = ask("schema", "proto", "people")
    assert (code, found["proto"], found["file"]) == (0, shown, None)
    result = run("schema", "proto", "people", "-o", str(tmp_path / "no" / "where"))
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr


def test_records_that_fit_and_that_do_not(bank: str, ask: Ask, run: Run) -> None:
    code, found = ask("schema", "check")
    assert (code, found["ok"]) == (0, True)
    (people,) = found["collections"]
    assert (people["records"], people["versions"]) == (2, {"1": 1, "2": 1})
    shown = run("schema", "check").stdout
    assert "2 records checked: all fit; 1 of older versions, to be migrated when read." in shown
    # A field was added without a default and without a migration.
    third = _person(("age", int), ("email", str), serializer="protobuf", migrations=[dict])
    with perdure.open_sync(bank) as opened:
        opened.collection(third).put(third("eve", "Eve", Home("Oslo"), 1, "e@x"))
    result = run("schema", "check", "people")
    assert result.exit_code == 1
    assert "people/bob: email: is missing" in result.stdout
    assert "3 records checked: 1 do not fit" in result.stdout
    assert json.loads(run("schema", "check", "--json").stdout)["ok"] is False
    assert "this needed a migration, and has none" in run("schema", "show", "people").stdout


@pytest.mark.usefixtures("bank")
def test_what_is_not_there(run: Run, ask: Ask) -> None:
    for command in ("show", "proto", "check"):
        result = run("schema", command, "nothing")
        assert result.exit_code == 1
        assert "No schema is known of a collection 'nothing'" in result.stderr
    assert ask("schema", "show", "nothing")[1]["error"]["type"] == "InvalidInput"


def test_an_empty_bank(run: Run, ask: Ask, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    assert run("bank", "init", "--bank", url).exit_code == 0
    assert "No record type was written" in run("schema", "list", "--bank", url).stdout
    assert ask("schema", "check", "--bank", url) == (0, {"ok": True, "collections": []})
    assert run("schema", "list", "--bank", f"sqlite:///{tmp_path / 'none.db'}").exit_code == 1
