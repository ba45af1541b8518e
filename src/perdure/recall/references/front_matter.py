"""What stands between two lines of dashes at the beginning of a Markdown file.

    ---
    name: oauth
    tags: [security, "log in"]
    triggers:
      - token refresh
      - tool:Bash
    ---

A small part of YAML: a value is a line of text, quoted or not, or a list of them; ``#`` begins a
comment. Nothing is nested, and nothing is guessed: a number is text until somebody reads it as a
number. What is not understood is refused, with the name of the file and the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from perdure.core.errors import InvalidInput

Value: TypeAlias = str | tuple[str, ...]
_FENCE = "---"
#: Lines of front matter, at most.
_MOST_LINES = 200

_entry = re.compile(r"([A-Za-z_][\w-]*)[ \t]*:(?:[ \t]+(.*))?").fullmatch
_item = re.compile(r"[ \t]*-(?:[ \t]+(.*))?").fullmatch
_comment = re.compile(r"(?:^|\s)#.*").sub
#: Text in quotes, up to the quote that ends it; a quote is doubled, or has a backslash before it.
_quoted = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'((?:[^']|'')*)'").match
_ESCAPES = {"n": "\n", "t": "\t"}


class FrontMatter(msgspec.Struct, frozen=True):
    """A file, taken apart."""

    values: Mapping[str, Value]
    #: What stands behind it.
    body: str
    #: In which line each value stands, from 1.
    lines: Mapping[str, int]
    #: Whether there was any.
    given: bool = True


def parse(text: str, file: str) -> FrontMatter:
    """Take a file's text apart. Raises `InvalidInput`, naming file and line."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != _FENCE:
        return FrontMatter({}, "\n".join(lines), {}, given=False)
    end = next((at for at, line in enumerate(lines) if at and line.rstrip() in {_FENCE, "..."}), 0)
    if not 0 < end <= _MOST_LINES:
        raise fault(file, 1, "The front matter does not end", f"Close it with {_FENCE}.")
    values, places = dict[str, Value](), dict[str, int]()
    for at, name, value in _entries(lines[1:end], file):
        if name in values:
            raise fault(file, at, f"{name} stands there twice", "Leave one of them out.")
        values[name], places[name] = value, at
    return FrontMatter(values, "\n".join(lines[end + 1 :]).lstrip("\n"), places)


def fault(file: str, line: int, what: str, hint: str) -> InvalidInput:
    """What is wrong in a line of a file."""
    return InvalidInput(f"{file}, line {line}: {what}.", hint=hint)


def _entries(lines: list[str], file: str) -> Iterator[tuple[int, str, Value]]:
    at = 0
    while at < len(lines):
        number, line = at + 2, lines[at]
        at += 1
        if not _comment("", line).strip():
            continue
        entry = _entry(line.rstrip())
        if entry is None:
            raise fault(
                file, number, f"{line.strip()[:60]!r} is no entry", "Write it like tags: [a, b]."
            )
        name, rest = entry[1], (entry[2] or "").strip()
        if rest and not rest.startswith("#"):
            yield number, name, _value(rest, file, number)
            continue
        items, at = _items(lines, at, file)
        yield number, name, items


def _items(lines: list[str], at: int, file: str) -> tuple[Value, int]:
    """The lines of a list, and where it ends; empty text if there are none."""
    items = list[str]()
    while at < len(lines):
        found = _item(lines[at].rstrip())
        if found is None and _comment("", lines[at]).strip():
            break
        if found is not None:
            value = _value((found[1] or "").strip(), file, at + 2)
            if not isinstance(value, str) or not value:
                raise fault(file, at + 2, "This is no text", "Write one text behind each dash.")
            items.append(value)
        at += 1
    return (tuple(items) or ""), at


def _value(text: str, file: str, line: int) -> Value:
    if text.startswith("["):
        return tuple(_list(text, file, line))
    if text[:1] in {"'", '"'}:
        value, rest = _unquoted(text, file, line)
        if _comment("", f" {rest}").strip():
            raise fault(file, line, f"{rest.strip()[:60]!r} stands behind the quotes", "Remove it.")
        return value
    if text[:1] in {"{", "|", ">", "&", "*", "!", "%", "@", "`"}:
        raise fault(
            file, line, f"{text[:60]!r} is not understood", "Put the text in double quotes."
        )
    return _comment("", text).strip()


def _list(text: str, file: str, line: int) -> Iterator[str]:
    rest = text[1:].lstrip()
    while not rest.startswith("]"):
        if rest[:1] in {"'", '"'}:
            item, rest = _unquoted(rest, file, line)
            rest = rest.lstrip()
        else:
            found = re.match(r"[^,\[\]\"']*", rest)
            item = found[0].strip() if found is not None else ""
            rest = rest[len(found[0]) if found is not None else 0 :]
        if not item or rest[:1] not in {",", "]"}:
            raise fault(file, line, "The list is broken here", 'Write it like [a, "b, c"].')
        yield item
        if rest[0] == ",":
            rest = rest[1:].lstrip()
    if _comment("", f" {rest[1:]}").strip():
        raise fault(file, line, "Something stands behind the list", "Remove it.")


def _unquoted(text: str, file: str, line: int) -> tuple[str, str]:
    found = _quoted(text)
    if found is None:
        raise fault(file, line, "A quote is not closed", "Close it on the same line.")
    if found[1] is not None:
        value = re.sub(r"\\(.)", lambda each: _ESCAPES.get(each[1], each[1]), found[1])
    else:
        value = found[2].replace("''", "'")
    return value, text[found.end() :]
