"""Opens agents: finds or makes them from a file or from keywords, and begins to work for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from perdure.agents.agent import Agent
from perdure.agents.agent_file import limits_in, read_agent_file, wrong_field
from perdure.agents.agent_records import AgentLimits, AgentVersion, no_agent
from perdure.agents.agent_registry import from_file
from perdure.agents.agent_tools import tools_in
from perdure.agents.agents import Agents
from perdure.core.errors import InvalidInput, NotFound
from perdure.core.input_types import require_mapping, require_path, require_text, require_texts
from perdure.history.strategies.strategy_registry import parse_strategy


async def open_agent(
    agents: Agents,
    name: str = "",
    *,
    file: Path | str | None = None,
    tools: Iterable[Callable[..., Any]] | None = None,
    limits: AgentLimits | Mapping[str, Any] | None = None,
    state: type[Any] = dict,
    serve: bool = True,
    reason: str = "",
    **said: Any,
) -> Agent:
    """See `Bank.agent`."""
    found = None if file is None else read_agent_file(require_path(file, "file"), name=name)
    name = from_file(found, name) if found is not None else require_text(name, "name")
    fields = _fields(said)
    if limits is not None:
        given = limits if isinstance(limits, AgentLimits) else require_mapping(limits, "limits")
        plain = msgspec.to_builtins(given)
        fields["limits"] = limits_in(plain)
    functions = {} if tools is None else tools_in(tools)
    if tools is not None:
        fields["tools"] = tuple(each.declaration for each in functions.values())
    try:
        record = await agents.registry.get(name)
        version = await agents.registry.version(name)
    except NotFound:
        if found is None and "prompt" not in fields:
            raise no_agent(name) from None
        record, version = None, AgentVersion(id="", number=0)
    if found is not None:
        base = msgspec.structs.replace(found.version, tools=version.tools)
    else:
        base = version
    if record is None or found is not None or fields:
        wanted = msgspec.structs.replace(base, **fields)
        project = "" if found is None else found.project
        record, version = await agents.registry.define(name, wanted, project=project, reason=reason)
    agent = Agent(agents, record, version, tools=functions, state=state)
    if serve:
        agents.serve(name, functions)
    return agent


def _fields(said: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, checked. None is: as it is."""
    fields = {name: value for name, value in said.items() if value is not None}
    for name in ("prompt", "description", "model", "strategy"):
        if name in fields:
            require_text(fields[name], name)
    if fields.get("strategy"):
        parse_strategy(fields["strategy"])
    for name in ("skills", "tasks", "allowed_tools", "disallowed_tools"):
        if name in fields:
            fields[name] = tuple(require_texts(fields[name], name))
    if "tiers" in fields:
        fields["tiers"] = dict(require_mapping(fields["tiers"], "tiers"))
    try:
        checked = msgspec.convert({"id": "", "number": 0, **fields}, AgentVersion)
    except msgspec.ValidationError as exc:
        raise InvalidInput(
            f"{wrong_field(fields, AgentVersion, id='', number=0)}.",
            hint="Give budget as a whole number of tokens, recall and history_tools as True or"
            " False.",
        ) from exc
    return {name: getattr(checked, name) for name in fields}
