"""Every example in the README and the docs runs, and prints what it says it prints."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Their examples need another environment: `make frameworks` runs them (tests/frameworks).
ELSEWHERE = ("frameworks.md",)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: Path, language: str) -> list[tuple[str, str | None]]:
    """The blocks of a language, each with the output block that follows it directly."""
    text = document.read_text("utf-8")
    found = list(BLOCK.finditer(text))
    pairs = []
    for block, following in itertools.zip_longest(found, found[1:]):
        if block[1] != language:
            continue
        follows = following is not None and not text[block.end() : following.start()].strip()
        output = following[2] if follows and following and following[1] == "text" else None
        pairs.append((block[2], output))
    return pairs


def run(code: str, namespace: dict[str, object], runner: asyncio.Runner) -> str:
    """Execute a block as the asyncio shell would; returns what it printed."""
    compiled = compile(code, "<example>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        function = types.FunctionType(compiled, namespace)
        if compiled.co_flags & 0x80:  # it awaits something
            runner.run(function())
        else:
            function()
    return printed.getvalue()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_nothing_is_left_to_be_filled_in(document: Path) -> None:
    assert not re.findall(r"@@|TODO|TBD|FIXME", document.read_text("utf-8"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_examples_print_what_they_say(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = blocks(document, "python")
    if not examples or document.name in ELSEWHERE:
        return  # a document without examples has nothing to show
    monkeypatch.chdir(tmp_path)
    # Structs look their annotations up in their module, so the examples need a real one.
    module = types.ModuleType(f"example_{document.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with asyncio.Runner() as runner:
        for code, output in examples:
            printed = run(code, module.__dict__, runner)
            assert output is None or printed == output, code


def test_the_guide_to_models_can_be_pasted(tmp_path: Path) -> None:
    """Line by line into the asyncio shell, as it says; what comes after `aclose` is a script."""
    examples = blocks(ROOT / "docs" / "gateway.md", "python")
    end = next(at for at, (code, _) in enumerate(examples) if "page.aclose()" in code) + 1
    (script, printed) = examples[end]
    assert len(examples) == end + 1
    pasted = "".join(f"{code}\n" for code, _ in examples[:end])
    expected = "".join(output or "" for _, output in examples[:end])
    silence = 'import sys; sys.ps1 = sys.ps2 = ""\n'
    for args, stdin, stdout in (
        (["-m", "asyncio"], silence + pasted, expected),
        (["-c", script], "", printed),
    ):
        done = subprocess.run(
            [sys.executable, *args],
            input=stdin,
            cwd=tmp_path,
            env={**os.environ, "PYTHON_BASIC_REPL": "1", "PYTHONIOENCODING": "utf-8"},
            check=False,
            capture_output=True,
            encoding="utf-8",
        )
        assert done.stdout.removeprefix(">>> ") == stdout, done.stderr
        assert "Error" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_tutorial_can_be_pasted(tmp_path: Path) -> None:
    """Block by block into the asyncio shell, which ends a loop at an empty line only; its commands
    work on the bank that this leaves.
    """
    page = ROOT / "docs" / "tutorial.md"
    examples = blocks(page, "python")
    pasted = 'import sys; sys.ps1 = sys.ps2 = ""\n' + "".join(f"{code}\n" for code, _ in examples)
    variables = {**os.environ, "PYTHON_BASIC_REPL": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-m", "asyncio"],
        input=pasted,
        cwd=tmp_path,
        env=variables,
        check=False,
        capture_output=True,
        encoding="utf-8",
    )
    assert "Error" not in done.stderr
    assert done.stdout.removeprefix(">>> ") == "".join(output or "" for _, output in examples)
    *_, (commands, _) = blocks(page, "sh")
    bank, *lines = commands.splitlines()
    variables["PERDURE_BANK"] = bank.partition("=")[2]
    ended = [
        line for line in lines if "perdure serve" not in line
    ]  # it runs until somebody ends it
    assert len(ended) == len(lines) - 1
    for line in ended:
        words = shlex.split(line, comments=True)[1:]
        told = subprocess.run(
            [sys.executable, "-m", "perdure", *words],
            cwd=tmp_path,
            env=variables,
            check=False,
            capture_output=True,
            encoding="utf-8",
        )
        assert told.returncode == 0, told.stderr
        assert told.stdout


def test_readme_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [
        shlex.split(line.removeprefix("$ perdure "), comments=True)
        for code, _ in blocks(ROOT / "README.md", "console")
        for line in code.splitlines()
        if line.startswith("$ perdure ")
    ]
    assert commands
    perdure = [sys.executable, "-m", "perdure"]
    for code, _ in blocks(ROOT / "README.md", "python"):  # the commands look at what it made
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    for command in commands:
        done = subprocess.run([*perdure, *command], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert "$ make run" in text
    assert "$ make test" in text


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """A new page of docs/ is named in docs/navigation.toml."""
    parts = tomllib.loads((ROOT / "docs" / "navigation.toml").read_text("utf-8"))["part"]
    named = [name for part in parts for name, _ in part["pages"]]
    assert len(named) == len(set(named))
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index", *named} == set()


LINKED = [*DOCUMENTS, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))]
CODE = re.compile(r"^(```+).*?^\1$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """Those of its headings, as GitHub makes them; `make docs` makes the same."""
    text = re.sub(
        r"^(```+).*?^\1$", "", document.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    found = list[str]()
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        again = sum(re.fullmatch(rf"{re.escape(name)}(-\d+)?", each) is not None for each in found)
        found.append(f"{name}-{again}" if again else name)
    return {*found, *re.findall(r'<a (?:id|name)="([^"]+)"', text)}


@pytest.mark.parametrize(
    "document", [path for path in LINKED if path.exists()], ids=lambda path: path.name
)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    text = CODE.sub("", document.read_text("utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue  # another site: nothing is asked while tests run
        path, _, anchor = target.partition("#")
        file = document.parent / path if path else document
        assert file.exists(), f"{document.name} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{document.name} links to {target}"
