"""Fills the templates of project.toml with words, by dice."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

#: Lists that a turn brings along: an earlier decision that it goes back to, what its task is about.
PAST = ("dticket", "dturn", "dwho", "dremedy", "dreason", "dday")
OWN = ("home", "path", "func", "cls", "ticket", "who", "title", "branch", "version", "day")
NO_PAST: tuple[tuple[str, ...], ...] = ((),) * len(PAST)
NOTHING: tuple[tuple[str, ...], ...] = ((),) * len(PAST + OWN)
#: Phrases of each kind, and pairs of words, that are made in advance.
_PHRASES = 2_000
_PAIRS = 3_000
_JOINED = {
    "does": ("verb", "_", "noun"),
    "field": ("noun", "_", "noun"),
    "thing": ("adj", " ", "noun"),
    "module": ("package", ".", "noun"),
    "place": ("package", "/", "noun"),
}

_T = TypeVar("_T")
_gaps = re.compile(r"\$(?:\{([a-z]+)\}|([a-z]+))")


class Template(NamedTuple):
    """A text with gaps, and the numbers of the lists that fill them."""

    form: str
    gaps: tuple[int, ...]
    size: int


class Tool(NamedTuple):
    """A tool, what it is asked, and what it prints."""

    name: str
    argument: str
    asked: Template
    first: Template
    last: Template
    body: str
    fails: bool


class Words(NamedTuple):
    """Everything in project.toml, ready for use."""

    names: dict[str, int]
    lists: tuple[tuple[str, ...], ...]
    templates: dict[str, tuple[Template, ...]]
    tools: dict[str, tuple[Tool, ...]]


class Teller:
    """Tells by the dice of one key. `own` are the lists of `PAST` and `OWN`, in that order."""

    def __init__(self, key: str, own: Sequence[Sequence[str]], known: Words | None = None) -> None:
        # Of its methods, only `random` promises the same numbers in every version of Python.
        self.random = Random(key).random
        self.words = known or words()
        self._lists = (*own, *self.words.lists)

    def remember(self, past: Sequence[str]) -> None:
        self._lists = (*((each,) for each in past), *self._lists[len(past) :])

    def pick(self, choices: Sequence[_T]) -> _T:
        return choices[int(self.random() * len(choices))]

    def word(self, name: str) -> str:
        return self.pick(self._lists[self.words.names[name]])

    def say(self, kind: str) -> str:
        template = self.pick(self.words.templates[kind])
        return self.fill(template.form, template.gaps)

    def fill(self, form: str, gaps: Iterable[int]) -> str:
        random, lists = self.random, self._lists
        return form % tuple([(here := lists[gap])[int(random() * len(here))] for gap in gaps])

    def output(self, tool: Tool, size: float, fact: str | None = None) -> str:
        """About `size` characters of the tool's output, and the fact."""
        # All gaps are filled at once: that takes a sixth less time than fragment by fragment.
        forms, gaps = [tool.first.form] if tool.first.form else [], [*tool.first.gaps]
        templates, random = self.words.templates[tool.body], self.random
        count = len(templates)
        while size > 0:
            form, inner, length = templates[int(random() * count)]
            forms.append(form)
            gaps += inner
            size -= length
        if fact:
            forms.append("- " + fact.replace("%", "%%"))
        if tool.last.form:
            forms.append(tool.last.form)
            gaps += tool.last.gaps
        return self.fill("\n".join(forms), gaps)


@cache
def words() -> Words:
    """Read at the first call, which takes about 50 ms."""
    text = Path(__file__).with_name("project.toml").read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    lists = {name: tuple(text.split()) for name, text in raw["words"].items()}
    # Pairs that are often needed, so that one pick does.
    for name, (first, between, second) in _JOINED.items():
        lists[name] = _pairs(lists[first], between, lists[second])
    lists |= {name: tuple(numbers) for name, numbers in _numbers()}
    names = {name: at for at, name in enumerate((*PAST, *OWN, *lists, *raw["phrases"]))}
    sizes = {names[name]: _mean(known) for name, known in lists.items()}

    def compiled(text: str) -> Template:
        form = _gaps.sub("%s", text.replace("%", "%%"))
        gaps = tuple(names[one or other] for one, other in _gaps.findall(text))
        return Template(form, gaps, len(form) + sum(sizes.get(gap, 10) for gap in gaps))

    def templates(table: str, between: str) -> dict[str, tuple[Template, ...]]:
        return {
            kind: tuple(compiled(part) for part in text.strip("\n").split(between))
            for kind, text in raw[table].items()
        }

    def tool(given: dict[str, str]) -> Tool:
        asked, first, last = (compiled(given.get(key, "")) for key in ("asked", "first", "last"))
        fails = bool(given.get("fails"))
        return Tool(given["name"], given["argument"], asked, first, last, given["body"], fails)

    plain = Words(names, tuple(lists.values()), templates("phrases", "\n"), {})
    teller = Teller("phrases", NOTHING, plain)
    phrases = [tuple(teller.say(name) for _ in range(_PHRASES)) for name in raw["phrases"]]
    sizes |= {names[name]: _mean(made) for name, made in zip(raw["phrases"], phrases, strict=True)}
    tools = {kind: tuple(map(tool, known)) for kind, known in raw["tools"].items()}
    sayings = templates("sayings", "\n") | templates("fragments", "\n\n")
    return Words(names, (*plain.lists, *phrases), sayings, tools)


def _mean(texts: Sequence[str]) -> int:
    return sum(map(len, texts)) // len(texts)


def _pairs(first: Sequence[str], between: str, second: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        f"{first[n % len(first)]}{between}{second[n * 37 // 5 % len(second)]}"
        for n in range(_PAIRS)
    )


def _numbers() -> Iterator[tuple[str, Iterable[str]]]:
    yield "digit", map(str, range(1, 10))
    yield "small", map(str, range(2, 31))
    yield "tens", map(str, range(10, 60))
    yield "num", map(str, range(11, 1000))
    yield "line", map(str, range(1, 900))
    yield "big", map(str, range(1_003, 90_000, 61))
    yield "port", map(str, range(3_001, 9_999, 7))
    yield "sec", (f"{n / 100:.2f}" for n in range(3, 9_000, 7))
    yield "pct", (f"{n / 10:.1f}%" for n in range(1, 1_000, 3))
    yield "hex", (f"{n * 40_503 % 65_536:04x}" for n in range(2_048))
    yield "sha", (f"{n * 2_654_435_761 % 2**32:08x}" for n in range(1, 5_000))
    yield "time", (f"{n // 3600:02d}:{n // 60 % 60:02d}:{n % 60:02d}" for n in range(7, 86_400, 97))
