"""Fails if a page of the built site would load anything from another host.

    python -m tools.docs_site.outside build/docs/html

Links that a reader may follow are no such thing; scripts, styles, fonts, pictures and frames are.
`tests/page/test_docs_site.py` looks in a browser.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

#: Attributes whose address is loaded with the page; ``href`` only of these elements.
_LOADED = ("src", "srcset", "poster", "data", "action")
_LOADED_BY_HREF = ("link", "use", "image")
_address = re.compile(r"(?:https?:)?//", re.IGNORECASE).match
_in_style = re.compile(
    r"""(?:url\(\s*["']?|@import\s+["'])((?:https?:)?//[^"')\s]+)""", re.IGNORECASE
)


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            loaded = name in _LOADED or (name.endswith("href") and tag in _LOADED_BY_HREF)
            if loaded and value and _address(value):
                self.found.append(value)


def loads(folder: Path) -> Iterator[tuple[Path, str]]:
    """Each file of the site, and an address of another host that it would load."""
    for file in sorted(folder.rglob("*")):
        if file.suffix == ".html":
            parser = _Loads()
            text = file.read_text("utf-8")
            parser.feed(text)
            yield from ((file, address) for address in parser.found)
            yield from ((file, found[1]) for found in _in_style.finditer(text))
        elif file.suffix == ".css":
            text = file.read_text("utf-8")
            yield from ((file, found[1]) for found in _in_style.finditer(text))


if __name__ == "__main__":
    outside = list(loads(Path(sys.argv[1])))
    for file, address in outside:
        print(f"{file} loads {address}", file=sys.stderr)
    sys.exit(bool(outside))
