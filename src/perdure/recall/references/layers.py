"""What a reference layer is: specialised knowledge, 500 to 5,000 tokens, loaded when relevant.

    ---
    name: oauth
    title: How we do OAuth
    tags: [security, login]
    weight: 0.7
    triggers: [token refresh, tool:Bash, "path:src/auth/**"]
    ---
    # How we do OAuth
    …

A trigger is a word or a phrase, ``tool:`` and the name of a tool, or ``path:`` and a pattern of
paths (see `patterns`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from perdure.core.errors import InvalidInput, TooLarge
from perdure.core.tokens import Counter
from perdure.recall.memory_records import checked_tags
from perdure.recall.references import front_matter
from perdure.recall.references.front_matter import FrontMatter
from perdure.recall.sharing import EVERYBODY
from perdure.storage.records import Compressed, Indexed, Key, system_record

#: Tokens that a layer should have, and has at most.
FEW, MANY, MOST = 500, 5_000, 20_000
WEIGHT = 0.5
#: Characters of a title and of a trigger, and triggers.
_TITLE, _TRIGGER, _TRIGGERS = 200, 200, 50
KNOWN = ("name", "title", "tags", "weight", "triggers")

_name = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}").fullmatch
_heading = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", re.MULTILINE).search
#: What stands between blanks, quotes and brackets.
_chunks = re.compile(r"[^\s\"'`()<>\[\],;]+").findall
#: Characters of a text in which paths are looked for, and how many: a listing of a whole project
#: names no file of it in particular.
_LOOKED_AT, _PATHS = 20_000, 100
#: Patterns that every path and tool fits.
_anything = re.compile(r"(?:path:(?:\*\*?/?)*\**|tool:\**)").fullmatch


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file that a layer was read from, as it was then."""

    #: The folder, and the file's path in it.
    folder: str
    path: str
    size: int = 0
    #: Nanoseconds; 0 if it was written so lately that another change may not show.
    modified: int = 0
    hash: str = ""

    @property
    def file(self) -> Path:
        return Path(self.folder, self.path)


@system_record("layers")
class LayerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known about a reference layer. Its text lies beside: it is seldom needed."""

    name: Annotated[str, Key()]
    #: Its number in the index.
    ordinal: Annotated[int, Indexed()]
    title: str = ""
    tags: tuple[str, ...] = ()
    weight: float = WEIGHT
    triggers: tuple[str, ...] = ()
    #: In o200k tokens.
    tokens: int = 0
    #: The file of the folder that it is made from, and goes with.
    origin: Origin | None = None
    #: The file that it was once copied from, by hand.
    copied: Origin | None = None
    #: Who may see it, if it is an entry of the canon; None: it is none, and everybody's.
    canon: tuple[str, ...] | None = None
    #: When it was last changed. Microseconds.
    updated: int = 0

    def is_visible_to(self, agent: str) -> bool:
        return self.canon is None or EVERYBODY in self.canon or agent in self.canon


@system_record("layer_texts")
class LayerText(msgspec.Struct, frozen=True):
    """The text of a reference layer."""

    name: Annotated[str, Key()]
    text: Annotated[str, Compressed()]


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A reference layer."""

    name: str
    title: str = ""
    tags: tuple[str, ...] = ()
    weight: float = WEIGHT
    triggers: tuple[str, ...] = ()
    tokens: int = 0
    text: str

    @property
    def key(self) -> str:
        return self.name


def read(text: str, file: str, counter: Counter, *, name: str = "") -> Layer:
    """The layer that a Markdown text makes. `name` is used if the text has none.

    Raises `InvalidInput` that names the file and the line of what cannot be used, and `TooLarge`
    for more than 20,000 tokens.
    """
    front = front_matter.parse(text, file)
    unknown = next((each for each in front.values if each not in KNOWN), None)
    if unknown is not None:
        raise _fault(front, file, unknown, "is not known here", f"Use {', '.join(KNOWN)}.")
    if not front.body.strip():
        raise front_matter.fault(file, 1, "There is no text", "Write what is to be known.")
    tokens = counter.count(front.body)
    if tokens > MOST:
        raise TooLarge(
            f"{file} has {tokens:,} tokens; a reference layer has at most {MOST:,}.",
            hint="Split it: each part is loaded when it matters.",
        )
    heading = _heading(front.body)
    title = _text(front, file, "title") or (heading[1] if heading is not None else "")
    return Layer(
        name=checked_name(_text(front, file, "name") or name, file),
        title=" ".join(title.split())[:_TITLE],
        tags=_tags(front, file),
        weight=_weight(front, file),
        triggers=_triggers(front, file),
        tokens=tokens,
        text=front.body,
    )


def checked_name(name: str, file: str = "") -> str:
    """The name itself, if a layer can be called that. Raises `InvalidInput`."""
    if not _name(name):
        where = f" of {file}" if file else ""
        raise InvalidInput(
            f"{name!r} cannot be the name{where} of a reference layer.",
            hint="Use up to 80 small letters, digits, dots, dashes and underscores.",
        )
    return name


def name_of_file(stem: str) -> str:
    """The name that a file gives to its layer, if that says nothing else."""
    return re.sub(r"[^a-z0-9._-]+", "-", stem.casefold()).strip("-._")[:80]


def warnings(layer: Layer) -> Iterator[str]:
    """What one would do well to change."""
    if layer.tokens < FEW:
        yield f"It has {layer.tokens:,} tokens: below {FEW:,}, a memory may serve better."
    if layer.tokens > MANY:
        yield f"It has {layer.tokens:,} tokens: above {MANY:,}, it crowds out all else."
    if not layer.triggers and not layer.tags:
        yield "It has neither triggers nor tags: only search finds it."
    for trigger in layer.triggers:
        if _anything(trigger):
            yield f"The trigger {trigger!r} fits everything."
        elif ":" not in trigger and not _terms(trigger):
            yield f"The trigger {trigger!r} has no word that counts, and is never pulled."


# Triggers -------------------------------------------------------------------------------------


def fitting(
    every: Sequence[LayerRecord], text: str, tools: Iterable[str] = (), paths: Sequence[str] = ()
) -> list[tuple[LayerRecord, str]]:
    """The layers whose triggers or tags fit, and why; the weightiest first.

    Paths that the text names count as well.
    """
    if not every:
        return []
    words, used = terms_of(text), frozenset(tool.casefold() for tool in tools)
    named = (*paths, *paths_in(text))
    reasoned = [(each, list(reasons(each, words, used, named))) for each in every]
    found = [(each, why) for each, why in reasoned if why]
    found.sort(key=lambda pair: (-pair[0].weight, -len(pair[1]), pair[0].name))
    return [(each, ", ".join(why)) for each, why in found]


def wait_for_tools(every: Iterable[LayerRecord]) -> bool:
    """Whether the use of some tool calls for a layer."""
    return any(trigger.startswith("tool:") for each in every for trigger in each.triggers)


def reasons(
    layer: LayerRecord, words: str, tools: frozenset[str], paths: Sequence[str]
) -> Iterator[str]:
    """Why a layer is to be loaded: each of its triggers and tags that fits.

    `words` are the terms of the text, with a space around each; tools are in small letters.
    """
    for trigger in layer.triggers:
        kind, _, rest = trigger.partition(":")
        if kind == "tool":
            if rest == "*" or rest.casefold() in tools:
                yield f"tool {rest}"
        elif kind == "path":
            if any(fits(rest, path) for path in paths):
                yield f"path {rest}"
        elif _stands_in(trigger, words):
            yield f"says {trigger!r}"
    for tag in layer.tags:
        if tag not in layer.triggers and _stands_in(tag, words):
            yield f"tag {tag}"


def terms_of(text: str) -> str:
    """The terms of a text with a space around each, for `reasons`."""
    from perdure.recall.words import terms_alone  # it loads the stemmer

    return f" {' '.join(terms_alone(text))} "


def paths_in(text: str) -> list[str]:
    """What looks like a path in a text: it has a slash or a dot inside. The first hundred."""
    found = (chunk.rstrip(".:!?") for chunk in _chunks(text[:_LOOKED_AT]))
    paths = dict.fromkeys(each for each in found if "/" in each or "." in each[1:])
    return list(islice(paths, _PATHS))


def _stands_in(phrase: str, words: str) -> bool:
    wanted = _terms(phrase)
    return bool(wanted) and f" {wanted} " in words


@lru_cache(maxsize=4_096)
def _terms(phrase: str) -> str:
    return terms_of(phrase).strip()


# Front matter ---------------------------------------------------------------------------------


def _text(front: FrontMatter, file: str, name: str) -> str:
    value = front.values.get(name, "")
    if not isinstance(value, str):
        raise _fault(front, file, name, "is no text", "Write one text.")
    return value


def _listed(front: FrontMatter, file: str, name: str) -> list[str]:
    value = front.values.get(name, ())
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, Mapping):
        raise _fault(front, file, name, "is no list", "Write it like [a, b].")
    items = list[str]()
    for at, item in enumerate(value):
        if not isinstance(item, str) or not item:
            raise _fault(front, file, f"{name}[{at}]", "is no text", "Write one text for each.")
        items.append(item)
    return items


def _tags(front: FrontMatter, file: str) -> tuple[str, ...]:
    try:
        return checked_tags(_listed(front, file, "tags"))
    except InvalidInput as exc:
        raise _fault(front, file, "tags", f"cannot be used: {exc.message}", exc.hint) from None


def _weight(front: FrontMatter, file: str) -> float:
    text = _text(front, file, "weight")
    try:
        weight = float(text) if text else WEIGHT
    except ValueError:
        weight = -1.0
    if not 0 <= weight <= 1:
        raise _fault(front, file, "weight", f"is {text!r}", "Give a number from 0 to 1.")
    return weight


def _triggers(front: FrontMatter, file: str) -> tuple[str, ...]:
    found = tuple(
        dict.fromkeys(" ".join(each.split()) for each in _listed(front, file, "triggers"))
    )
    if len(found) > _TRIGGERS or any(len(each) > _TRIGGER for each in found):
        raise _fault(
            front,
            file,
            "triggers",
            "has too many or too long ones",
            f"At most {_TRIGGERS}, of at most {_TRIGGER} characters.",
        )
    return found


def _fault(front: FrontMatter, file: str, name: str, what: str, hint: str) -> InvalidInput:
    return front_matter.fault(file, front.lines.get(name, 1), f"{name} {what}".rstrip("."), hint)


#: Whether a name in a path fits; None stands for any number of names.
_Fits: TypeAlias = Callable[[str], object] | None


def fits(pattern: str, path: str) -> bool:
    """Whether a path fits a pattern."""
    names = path.removeprefix("./").split("/")
    return any(_fit(wanted, names) for wanted in _taken_apart(pattern.removeprefix("./")))


def _fit(wanted: Sequence[_Fits], names: Sequence[str]) -> bool:
    at = 0  # in what is wanted
    name = 0
    again: tuple[int, int] | None = None  # behind the last ``**``, and what it has not taken yet
    while name < len(names):
        if at < len(wanted) and (test := wanted[at]) is None:
            at += 1
            again = (at, name)
        elif at < len(wanted) and test is not None and test(names[name]):
            at += 1
            name += 1
        elif again is not None:
            at, name = again[0], again[1] + 1
            again = (at, name)
        else:
            return False
    return all(test is None for test in wanted[at:])


@lru_cache(maxsize=1_024)
def _taken_apart(pattern: str) -> tuple[tuple[_Fits, ...], ...]:
    """What is wanted, name by name; in two ways, if a ``**`` stands for a part of a name.

    ``src/test**.py`` is ``src/test*.py``, or what lies below: ``src/test*/**/*.py``.
    """
    spread = re.sub(r"(?<=[^/*])\*\*+", "*/**", pattern)
    spread = re.sub(r"\*\*+(?=[^/*])", "**/*", spread)
    return tuple(
        tuple(
            None if name == "**" else re.compile(translate(name.replace("[", "[[]"))).match
            for name in ("**", *way.split("/"))
        )
        for way in dict.fromkeys((pattern, spread))
    )
