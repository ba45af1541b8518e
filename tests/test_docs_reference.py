"""The reference that the documentation site makes from code leaves nothing out."""

from __future__ import annotations

import re

import msgspec
import pytest

import perdure
from perdure import config
from perdure.config.section import Section
from perdure.server.operations import Operation
from perdure.server.server_app import all_routes
from tools.docs_site import (
    command_reference,
    config_reference,
    drawings,
    http_reference,
    python_reference,
)
from tools.docs_site.stage import ROOT, navigation, reference, relink, sources


@pytest.fixture(scope="module")
def python() -> str:
    return "\n".join(python_reference.pages().values())


def test_every_public_name_is_documented_once(python: str) -> None:
    for name in python_reference.PUBLIC:
        assert len(re.findall(rf"^::::::{{py:\w+}} {name}\b", python, re.MULTILINE)) == 1, name


def test_every_public_method_of_what_callers_hold_is_documented(python: str) -> None:
    for cls in (perdure.Bank, perdure.Session, perdure.Context, perdure.Gateway, perdure.Agents):
        text = python.partition(f"{{py:class}} {cls.__name__}")[2].partition("\n::::::\n")[0]
        for name, _ in python_reference.members(cls):
            assert re.search(rf"{{py:\w+}} {name}\b", text), f"{cls.__name__}.{name}"


def test_the_python_reference_says_what_the_code_says(python: str) -> None:
    conflict = python.partition("{py:exception} Conflict\n")[2]
    assert "Somebody else wrote this record first." in conflict[:200]
    assert "{py:method} append(messages: Any, *, context: Context | None = None," in python
    assert " object at 0x" not in python


def test_every_command_and_option_is_in_the_reference() -> None:
    page = command_reference.page()
    for name, command in command_reference.all_commands().items():
        text = re.split(r"^##", page.partition(f" perdure {name}\n")[2], flags=re.MULTILINE)[0]
        assert text, name
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert parameter.hidden or f"`{option}" in text, f"{name} {option}"


def test_every_operation_and_type_is_in_the_reference() -> None:
    page = http_reference.page()
    for route in all_routes():
        if isinstance(route, Operation) and not route.path.endswith("*}"):
            assert f"\n### {route.method} {route.path}\n" in page, route.name
    for name in http_reference.document()["components"]["schemas"]:
        assert f"\n### {name}\n" in page, name


def test_every_setting_is_in_the_reference() -> None:
    page = config_reference.page()
    for field in msgspec.structs.fields(config.Config):
        inner = msgspec.structs.fields(field.default) if isinstance(field.default, Section) else ()
        for key in inner:
            row = next(
                line
                for line in page.splitlines()
                if line.startswith(f"| `{field.name}.{key.name}` |")
            )
            assert row.split("|")[-2].strip(), row  # what it means
    for name in config.__all__:
        cls = getattr(config, name)
        if isinstance(cls, type) and issubclass(cls, Section) and not name.endswith("Config"):
            assert f"\n## {name}\n" in page, name


def test_every_page_is_in_the_navigation_once() -> None:
    """A new page: name it in docs/navigation.toml."""
    named = [name for _, pages in navigation() for name, _ in pages]
    made = [name for name in reference() if not name.startswith("reference/python-")]
    assert sorted(named) == sorted({*sources(), *made} - {"index"})


def test_links_lead_to_pages_of_the_site() -> None:
    readme, why = ROOT / "README.md", ROOT / "docs" / "why.md"
    text = "[a](docs/why.md#b) ![c](docs/pictures/turns.webp) [`d[0]`](src/x.py) `[e](docs/f.md)`"
    told = "[a](why.md#b) ![c](pictures/turns.webp) `d[0]` `[e](docs/f.md)`"
    assert relink(text, readme, "index") == told
    assert (
        relink("[a](../README.md) [b](https://c.d)", why, "why") == "[a](index.md) [b](https://c.d)"
    )


def test_drawings_show_the_code_as_it_is() -> None:
    """They are made anew by `python -m tools.docs_site.drawings`."""
    assert drawings.rooms() == drawings.layers()
    for name, draw in drawings.DRAWINGS.items():
        assert (drawings.FOLDER / name).read_text("utf-8") == draw(), name
