"""Agent files, as Claude Code has them: a Markdown file whose text is the prompt.

    ---
    name: email-router
    description: Sends each email to the team that answers it.
    tools: lookup_customer, route
    model: anthropic/claude-sonnet-4-5
    maxTurns: 12
    ---
    You route emails. …

What we understand: name, description, tools, disallowedTools, model, maxTurns, skills; and of our
own tasks, strategy, budget, recall, limits, tiers. permissionMode, mcpServers, hooks, memory,
background, isolation and color are another program's business: they are kept with the version, as
are fields that nobody knows, and come back when the file is written again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from perdure.agents.agent_records import AgentLimits, AgentVersion
from perdure.core.display import one_line
from perdure.core.errors import InvalidInput
from perdure.history.log_records import checked_agent
from perdure.recall.references import front_matter

_LARGEST = 1_000_000
_MARKS = (".git", ".hg", ".claude", "pyproject.toml", "package.json")


class AgentFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says about an agent."""

    name: str
    #: What of it is part of a version; number and time are yet to come.
    version: AgentVersion
    #: The project that it lies in.
    project: str


def read_agent_file(path: Path, *, name: str = "") -> AgentFile:
    """Raises `InvalidInput`, naming the file and the line."""
    try:
        content = path.read_bytes()
        text = content.decode()
    except FileNotFoundError as exc:
        raise InvalidInput(f"There is no agent file {path}.", hint="Check its path.") from exc
    except OSError as exc:
        why = "it is a folder" if path.is_dir() else (exc.strerror or "no reason was given").lower()
        raise InvalidInput(
            f"The agent file {path} cannot be read: {why}.", hint="Give a Markdown file."
        ) from exc
    except UnicodeDecodeError as exc:
        raise InvalidInput(
            f"The agent file {path} is no UTF-8 text.", hint="Give a Markdown file."
        ) from exc
    if len(content) > _LARGEST:
        raise InvalidInput(
            f"The agent file {path} is larger than {_LARGEST:,} bytes.", hint="Shorten its prompt."
        )
    where = path.resolve()
    found = parse_agent_file(text, str(path), name=name or where.stem)
    version = msgspec.structs.replace(
        found.version, file=str(where), sha256=hashlib.sha256(content).hexdigest()
    )
    return msgspec.structs.replace(found, version=version, project=project_root(where))


def parse_agent_file(text: str, file: str, *, name: str = "") -> AgentFile:
    """`name` counts if the file gives none. Raises `InvalidInput`."""
    matter = front_matter.parse(text, file)
    fields = _Fields(matter, file)
    prompt = matter.body.strip()
    if not prompt:
        raise InvalidInput(
            f"{file} has no text behind its front matter.", hint="The text is the agent's prompt."
        )
    limits = fields.mapping("limits")
    if "maxTurns" in matter.values:
        limits = {"steps": fields.number("maxTurns"), **limits}
    version = AgentVersion(
        id="",
        number=0,
        prompt=prompt,
        description=fields.text("description"),
        model=fields.text("model"),
        allowed_tools=fields.names("tools") if "tools" in matter.values else None,
        disallowed_tools=fields.names("disallowedTools"),
        skills=fields.names("skills"),
        tasks=fields.names("tasks"),
        limits=limits_in(limits, f"{file}, line {fields.line('limits', 'maxTurns')}: "),
        strategy=fields.text("strategy"),
        budget=fields.number("budget") if "budget" in matter.values else 0,
        recall=fields.text("recall").lower() not in {"false", "no", "off"},
        tiers=fields.mapping("tiers"),
        front_matter=plain(matter.values),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )
    return AgentFile(name=checked_agent(fields.text("name") or name), version=version, project="")


def write_agent_file(name: str, version: AgentVersion) -> str:
    """The file of a version, with all fields that it came with."""
    import yaml  # late: it takes 20 ms

    fields: dict[str, Any] = {"name": name, **version.front_matter}
    if version.description:
        fields.setdefault("description", version.description)
    if version.model:
        fields.setdefault("model", version.model)
    head = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, default_flow_style=None)
    return f"---\n{head}---\n\n{version.prompt}\n"


def project_root(path: Path) -> str:
    """The project that a file lies in: the nearest folder above with a mark of one; else its own
    folder. A ``.claude`` folder belongs to the one that it is in.
    """
    folder = path.parent
    for each in (folder, *folder.parents):
        if each.name != ".claude" and any((each / mark).exists() for mark in _MARKS):
            return str(each)
    return str(folder)


def limits_in(given: Mapping[str, Any], where: str = "") -> AgentLimits:
    """Raises `InvalidInput`. None of them can be switched off."""
    known = AgentLimits.__struct_fields__
    if unknown := [str(name) for name in given if name not in known]:
        raise InvalidInput(
            f"{where}There is no limit {', '.join(unknown)}.", hint=f"Use {', '.join(known)}."
        )
    try:
        return msgspec.convert(dict(given), AgentLimits, strict=False)
    except msgspec.ValidationError as exc:
        raise InvalidInput(
            f"{where}limits: {wrong_field(given, AgentLimits, strict=False)}.",
            hint="Give steps and tokens as whole numbers, dollars and seconds as numbers, all"
            " above 0.",
        ) from exc


def wrong_field(
    given: Mapping[str, Any], cls: type[msgspec.Struct], *, strict: bool = True, **needed: Any
) -> str:
    """Which of the values does not fit its field, in words; `needed` are fields without default."""
    for name, value in given.items():
        try:
            msgspec.convert({**needed, name: value}, cls, strict=strict)
        except msgspec.ValidationError:
            return f"{name} cannot be {one_line(repr(value), 60)}"
    return "These values do not fit each other"


def plain(value: Any) -> Any:
    """Front matter as plain data."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


class _Fields:
    def __init__(self, matter: front_matter.FrontMatter, file: str) -> None:
        self._matter = matter
        self._file = file

    def line(self, *names: str) -> int:
        lines = self._matter.lines
        return next((lines[name] for name in names if name in lines), 1)

    def text(self, name: str) -> str:
        found = self._matter.values.get(name, "")
        if not isinstance(found, str):
            raise self._fault(name, "is a text", f"Write {name}: …")
        return found.strip()

    def names(self, name: str) -> tuple[str, ...]:
        """A list, or names with commas between them."""
        found = self._matter.values.get(name, ())
        parts = found.split(",") if isinstance(found, str) else found
        if isinstance(parts, Mapping) or not all(isinstance(each, str) for each in parts):
            raise self._fault(name, "is a list of names", f"Write {name}: one, another")
        return tuple(each.strip() for each in parts if isinstance(each, str) and each.strip())

    def number(self, name: str) -> int:
        found = self.text(name)
        if not found.isdecimal() or not int(found):
            raise self._fault(name, "is a whole number above 0", f"Write {name}: 20")
        return int(found)

    def mapping(self, name: str) -> dict[str, Any]:
        found = self._matter.values.get(name, {})
        if not isinstance(found, Mapping):
            raise self._fault(name, "has entries of its own", f"Write {name}: {{…}}")
        made: dict[str, Any] = plain(found)
        return made

    def _fault(self, name: str, what: str, hint: str) -> InvalidInput:
        return front_matter.fault(self._file, self.line(name), f"{name} {what}", hint)
