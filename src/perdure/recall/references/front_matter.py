"""The YAML between two lines of dashes at the beginning of a Markdown file.

    ---
    name: oauth
    tags: [security, "log in"]
    triggers:
      - token refresh
      - tool:Bash
    ---

Values are text, lists and mappings of them; nothing is guessed: a number is text until somebody
reads it as a number. Anchors, aliases and tags are refused. Errors name the file and the line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from perdure.core.errors import InvalidInput

FrontMatterValue: TypeAlias = (
    str | tuple["FrontMatterValue", ...] | Mapping[str, "FrontMatterValue"]
)
_FENCE = "---"
_MOST_LINES = 200
_HINT = "Write it like tags: [a, b]."
_MOST_DEPTH = 20


class FrontMatter(msgspec.Struct, frozen=True):
    """A file's front matter, and its text."""

    values: Mapping[str, FrontMatterValue]
    #: What follows the front matter.
    body: str
    #: The line of each value, from 1, by its path: ``tags``, ``tags[0]``, ``hooks.stop``.
    lines: Mapping[str, int]
    #: Whether there was any.
    given: bool = True


def parse(text: str, file: str) -> FrontMatter:
    """Raises `InvalidInput`, naming file and line."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != _FENCE:
        return FrontMatter({}, "\n".join(lines), {}, given=False)
    end = next((at for at, line in enumerate(lines) if at and line.rstrip() in {_FENCE, "..."}), 0)
    if not 0 < end <= _MOST_LINES:
        raise fault(file, 1, "The front matter does not end", f"Close it with {_FENCE}.")
    reader = _Reader(file)
    values = reader.read("\n".join(lines[1:end]))
    return FrontMatter(values, "\n".join(lines[end + 1 :]).lstrip("\n"), reader.lines)


def fault(file: str, line: int, what: str, hint: str) -> InvalidInput:
    return InvalidInput(f"{file}, line {line}: {what}.", hint=hint)


class _Reader:
    def __init__(self, file: str) -> None:
        self._file = file
        self.lines: dict[str, int] = {}

    def read(self, text: str) -> dict[str, FrontMatterValue]:
        import yaml  # late: it takes 20 ms

        try:
            depth = 0
            for event in yaml.parse(text, yaml.BaseLoader):
                depth += isinstance(event, yaml.CollectionStartEvent)
                depth -= isinstance(event, yaml.CollectionEndEvent)
                refused = getattr(event, "anchor", None) or getattr(event, "tag", None)
                if refused or depth > _MOST_DEPTH:
                    raise self._fault(
                        event.start_mark, "This is not understood", "Put the text in double quotes."
                    )
            root = yaml.compose(text, yaml.BaseLoader)
        except yaml.reader.ReaderError as exc:
            line = text.count("\n", 0, exc.position) + 2
            what = "A character cannot stand here"
            raise fault(self._file, line, what, "Remove it.") from exc
        except yaml.MarkedYAMLError as exc:
            # Where a block begins says little about where it breaks off.
            mark = None if "block" in (exc.context or "") else exc.context_mark
            what = (exc.problem or exc.context or "This is no YAML").replace("\n", " ")
            raise self._fault(mark or exc.problem_mark, what, _HINT) from exc
        if root is None:
            return {}
        if not isinstance(root, yaml.MappingNode):
            line = text.split("\n")[root.start_mark.line].strip()
            raise self._fault(root.start_mark, f"{line[:60]!r} is no entry", _HINT)
        return self._mapping(root, "")

    def _mapping(self, node: Any, path: str) -> dict[str, FrontMatterValue]:
        found: dict[str, FrontMatterValue] = {}
        for key, value in node.value:
            name = key.value
            if not isinstance(name, str):
                raise self._fault(key.start_mark, "This is no name", _HINT)
            if name in found:
                what = f"{name} stands there twice"
                raise self._fault(key.start_mark, what, "Leave one of them out.")
            inner = f"{path}.{name}" if path else name
            self.lines[inner] = key.start_mark.line + 2
            found[name] = self._value(value, inner)
        return found

    def _value(self, node: Any, path: str) -> FrontMatterValue:
        if isinstance(node.value, str):
            return node.value
        if node.id == "mapping":
            return self._mapping(node, path)
        items = list[FrontMatterValue]()
        for at, item in enumerate(node.value):
            self.lines[f"{path}[{at}]"] = item.start_mark.line + 2
            items.append(self._value(item, f"{path}[{at}]"))
        return tuple(items)

    def _fault(self, mark: Any, what: str, hint: str) -> InvalidInput:
        return fault(self._file, mark.line + 2, what, hint)
