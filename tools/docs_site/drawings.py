"""Draws the pictures of docs/concepts.md from the code: the gradient's marks, the rooms' layers.

    python -m tools.docs_site.drawings

Each is an SVG that carries its own colours, for light and for dark. By itself it follows the
system; the documentation site puts it into the page and sets the colours by its switch
(static/site.css). tests/test_docs_reference.py compares the files with what this draws.
"""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path

from perdure.core.band_marks import FULL

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
_WIDTH = 720
_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
aria-label="{label}" font-family="system-ui, sans-serif" font-size="13">
<style>
  svg {{ --drawn-ink: #1f2328; --drawn-dim: #656d76; --drawn-line: #c9d1d9; --drawn-fill: #fff; }}
  @media (prefers-color-scheme: dark) {{
    svg {{ --drawn-ink: #e6edf3; --drawn-dim: #9198a1; --drawn-line: #3d444d; \
--drawn-fill: #14181d; }}
  }}
  .ink {{ fill: var(--drawn-ink); }} .dim {{ fill: var(--drawn-dim); }}
  .line {{ stroke: var(--drawn-line); fill: none; }}
  .box {{ stroke: var(--drawn-line); fill: var(--drawn-fill); }}
  .mono {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12px; }}
</style>
"""
#: A colour for each level, readable on light and on dark.
_COLOURS = {"T": "#8aa4c8", "C": "#4f8fd0", "S": "#2f9e8f", "R": "#e08a2e"}
#: Turns of the drawing, and where the levels begin.
_TURNS = 400
_FIRST = {"T": 1, "C": 331, "S": 365, "R": 393}
_ELEMENTS = {
    "T": ("tiny: 1–5 %", "<T-1-through-330-T>"),
    "C": ("compressed: 30–40 %", "<T-331-C> …"),
    "S": ("smoothed: the words", "<T-365-S> …"),
    "R": ("raw: as it was said", "messages"),
}
#: The floors of the house, from the roof down: what each is for, and its rooms.
_FLOORS = (
    ("ways in", ("cli", "server", "integrations")),
    ("beside it", ("testing", "simulation", "importers", "remote", "sync")),
    ("what you open", ("bank",)),
    ("what lasts", ("project", "agents", "learning", "reflection")),
    ("one conversation", ("sessions", "context", "services")),
    ("the past", ("recall", "history")),
    ("models, work, content", ("gateway", "jobs", "artifacts")),
    ("what it stands on", ("search", "storage", "wire", "config", "core")),
)


def rect(x: float, y: float, wide: float, tall: float, more: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:g}" width="{wide:.1f}" height="{tall:g}" {more}/>'


def text(
    x: float, y: float, words: str, *, kind: str = "ink", anchor: str = "middle", more: str = ""
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}"{more}>'
        f"{escape(words)}</text>"
    )


def gradient() -> str:
    """All turns above, the window below: how much of it each level has after an epoch."""
    left, width, top, bottom = 10, _WIDTH - 20, 44, 176
    shares = {"T": FULL.tiny, "C": FULL.compact, "S": FULL.smooth, "R": FULL.raw}
    label = "Four hundred turns above; below, the window that shows them at four levels"
    parts = [_HEAD.format(width=_WIDTH, height=282, label=label)]
    parts.append(text(left, 20, "The log: every turn, for good", anchor="start"))
    parts.append(text(left + width, 20, "newest", kind="dim", anchor="end"))
    at = float(left)
    firsts = [*_FIRST.values(), _TURNS + 1]
    for number, (level, share) in enumerate(shares.items()):
        begin = left + (firsts[number] - 1) / _TURNS * width
        end = left + (firsts[number + 1] - 1) / _TURNS * width
        wide = share * FULL.fill * width
        colour = _COLOURS[level]
        path = f"M{begin:.1f} {top + 14}H{end - 1:.1f}L{at + wide - 1:.1f} {bottom - 2}H{at:.1f}Z"
        parts += [
            rect(begin, top - 14, end - begin - 1, 26, f'fill="{colour}"'),
            f'<path d="{path}" fill="{colour}" opacity="0.18"/>',
            rect(at, bottom, wide - 1, 34, f'fill="{colour}"'),
            text(at + wide / 2, bottom + 23, level, more=' font-weight="700" style="fill:#fff"'),
        ]
        at += wide
    # Turns are told apart above, where one level shows hundreds of them.
    ticks = "".join(f"M{left + each * width / 40:.1f} {top - 14}v26" for each in range(1, 40))
    parts.append(f'<path d="{ticks}" stroke="var(--drawn-fill)" stroke-width="1" opacity="0.7"/>')
    room = left + width - at
    parts += [
        rect(at, bottom, room, 34, 'class="line" stroke-dasharray="4 3"'),
        text(at + room / 2, bottom + 14, "grows at its end", kind="dim", more=' font-size="11"'),
        text(
            at + room / 2, bottom + 28, "until the next epoch", kind="dim", more=' font-size="11"'
        ),
        text(left, bottom - 6, "The window: one budget", anchor="start"),
    ]
    column = width / len(_ELEMENTS)
    for number, (level, (words, element)) in enumerate(_ELEMENTS.items()):
        x = left + number * column
        parts += [
            rect(x, bottom + 56, 12, 12, f'fill="{_COLOURS[level]}"'),
            text(x + 18, bottom + 67, f"{level}  {words}", anchor="start"),
            text(x + 18, bottom + 87, element, kind="dim mono", anchor="start"),
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def house() -> str:
    """The rooms of src/perdure in their order: imports point down only."""
    left, right, top, tall, gap = 168, _WIDTH - 52, 66, 34, 10
    height = top + len(_FLOORS) * (tall + gap) + 12
    parts = [_HEAD.format(width=_WIDTH, height=height, label="The rooms of Perdure, by floors")]
    middle = (left + right) / 2
    parts.append(
        f'<path d="M{left - 14} {top - 8}L{middle:g} 12L{right + 14} {top - 8}Z" class="box" '
        'stroke-width="2"/>'
    )
    parts.append(text(middle, top - 20, "perdure", more=' font-weight="700"'))
    for number, (what, rooms) in enumerate(_FLOORS):
        y = top + number * (tall + gap)
        wide = (right - left - gap * (len(rooms) - 1)) / len(rooms)
        parts.append(text(left - 26, y + 22, what, kind="dim", anchor="end"))
        for place, room in enumerate(rooms):
            x = left + place * (wide + gap)
            parts += [
                rect(x, y, wide, tall, 'rx="4" class="box" stroke-width="1.5"'),
                text(x + wide / 2, y + 22, room, kind="ink mono"),
            ]
    end = height - 24
    parts += [
        f'<path d="M{right + 18} {top}V{end}m-5 -8l5 8l5 -8" class="line" stroke-width="1.5"/>',
        text(
            0,
            0,
            "imports point down",
            kind="dim",
            more=f' transform="translate({right + 32} {(top + end) / 2:g}) rotate(90)" '
            'font-size="11"',
        ),
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def rooms() -> list[str]:
    """Those of the drawing, from the roof down."""
    return [room for _, floor in _FLOORS for room in floor]


def layers() -> list[str]:
    """Those that import-linter enforces."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    return list(tool["contracts"][0]["layers"])


DRAWINGS = {"concept-gradient.svg": gradient, "concept-house.svg": house}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (FOLDER / name).write_text(draw(), "utf-8")
