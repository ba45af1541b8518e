"""Lays out what the documentation site is built from: pages, pictures, and the reference.

    python -m tools.docs_site.stage build/docs/source

Pages are those of docs/ as they are on GitHub. Links to files that are no pages lose their link;
drawings (SVG) are put into the page, so that its switch between light and dark reaches them.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

from tools.docs_site import command_reference, config_reference, http_reference, python_reference

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NAVIGATION = DOCS / "navigation.toml"
#: Pages that lie elsewhere in the repository.
ELSEWHERE = {
    "README.md": "index",
    "benchmarks/RESULTS.md": "results",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
}
FRONT = "index"
_link = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_drawing = re.compile(r"^!\[([^\]]*)\]\((pictures/[\w-]+\.svg)\)$", re.MULTILINE)
#: Links are not looked for in code.
_code = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def navigation() -> list[tuple[str, list[tuple[str, str]]]]:
    """Titles of parts, each with its pages: name and title."""
    parts = tomllib.loads(NAVIGATION.read_text("utf-8"))["part"]
    return [(part["title"], [(name, title) for name, title in part["pages"]]) for part in parts]


def sources() -> dict[str, Path]:
    """The pages that people wrote, by their names on the site."""
    found = {path.stem: path for path in sorted(DOCS.glob("*.md"))}
    for path, name in ELSEWHERE.items():
        found.setdefault(name, ROOT / path)
    return found


def reference() -> dict[str, str]:
    """The pages that are made from code, by their names on the site."""
    made = {
        "reference/commands": command_reference.page(),
        "reference/http": http_reference.page(),
        "reference/configuration": config_reference.page(),
    }
    lines = [
        "# Python API",
        "",
        "Made from the code. Names without a module are public: `perdure.NAME`. The others are",
        "handed out by public methods, and their module is named.",
        "",
        "| page | what is there |",
        "|---|---|",
    ]
    lines += [
        f"| [{title}](python-{name}.md) | {sentence} |"
        for name, title, sentence, _ in python_reference.PAGES
    ]
    entries = [f"python-{name}" for name, *_ in python_reference.PAGES]
    made["reference/python"] = "\n".join([*lines, "", toctree(entries)])
    for name, text in python_reference.pages().items():
        made[f"reference/python-{name}"] = text
    return made


def toctree(entries: list[str], caption: str = "") -> str:
    head = ["```{toctree}", ":hidden:", ":titlesonly:"]
    return "\n".join([*head, *([f":caption: {caption}"] if caption else []), "", *entries, "```\n"])


def relink(text: str, source: Path, name: str) -> str:
    """The text with links as they are on the site."""
    pages = {path: page for page, path in sources().items()}
    pages[ROOT / "README.md"] = FRONT

    def replaced(found: re.Match[str]) -> str:
        picture, words, target = found[1], relinked(found[2]), found[3]
        if re.match(r"[a-z]+:|#", target):
            return f"{picture}[{words}]({target})"
        path, _, anchor = target.partition("#")
        file = Path(os.path.normpath(source.parent / path))
        if picture:
            return f"![{words}]({os.path.relpath(file, DOCS)})"
        if file not in pages:
            return words
        page = os.path.relpath(f"{pages[file]}.md", Path(name).parent)
        return f"[{words}]({page}{'#' if anchor else ''}{anchor})"

    def relinked(piece: str) -> str:
        return _link.sub(replaced, piece)

    # A code span may be the words of a link: hidden while links are looked for.
    spans: list[str] = []

    def hide(found: re.Match[str]) -> str:
        spans.append(found[0])
        return f"\0{len(spans) - 1}\0"

    hidden = relinked(_code.sub(hide, text))
    return re.sub(r"\0(\d+)\0", lambda found: spans[int(found[1])], hidden)


def drawn(text: str) -> str:
    """With drawings in the page itself."""

    def inline(found: re.Match[str]) -> str:
        svg = (DOCS / found[2]).read_text("utf-8").strip()
        svg = re.sub(r"\n\s*\n", "\n", svg)  # an empty line would end the HTML
        return f'<figure class="drawing">\n{svg}\n</figure>'

    return _drawing.sub(inline, text)


def stage(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS / "pictures", target / "pictures")
    (target / "reference").mkdir()
    for name, path in sources().items():
        text = drawn(relink(path.read_text("utf-8"), path, name))
        if name == FRONT:
            parts = [
                toctree([f"{title} <{page}>" for page, title in pages], caption)
                for caption, pages in navigation()
            ]
            text = "\n".join([text, *parts])
        (target / f"{name}.md").write_text(text, "utf-8")
    for name, text in reference().items():
        (target / f"{name}.md").write_text(text, "utf-8")


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
