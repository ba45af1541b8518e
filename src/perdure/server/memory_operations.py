"""Memories of agents, and reference layers, which are everybody's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from perdure.core.errors import InvalidInput, NotFound
from perdure.recall.memories.memory_writer import missing
from perdure.recall.memory_records import (
    Anchor,
    Author,
    FormerMemory,
    MemoryKind,
    machine,
    parse_key,
    person,
    source_of,
)
from perdure.recall.references import front_matter
from perdure.recall.references.layers import Layer, LayerRecord
from perdure.remote.api_results import (
    ErasedContent,
    KeyedMemory,
    LayerCheck,
    LayerInfo,
    MemoryList,
)
from perdure.server.operations import Operation, RequestBody, RequestQuery, ServerCall, TokenScope

MEMORIES = "/api/v1/memories"
OF_AGENT = f"{MEMORIES}/{{agent}}"
MEMORY = f"{OF_AGENT}/{{key}}"
LAYERS = "/api/v1/references"
LAYER = f"{LAYERS}/{{layer}}"
Weight = Annotated[float, msgspec.Meta(ge=0, le=1)]
#: Seconds for which a look at the folder of reference layers is used again.
_SYNCED = 2.0


class MemoriesQuery(RequestQuery, frozen=True):
    """Which memories."""

    agent: str | None = None
    kind: MemoryKind | None = None
    tag: str | None = None
    #: ``any`` for all of them.
    status: str = "active"
    #: The least.
    weight: Weight = 0.0
    #: All of them must be in the text or a tag.
    words: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 50
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0


class Authored(RequestBody, frozen=True, kw_only=True):
    """Who says so."""

    #: A person says so: no machine changes the memory from then on.
    person: bool = False


class NewMemory(Authored, frozen=True, kw_only=True):
    """Something to remember; see `Memories.add`."""

    text: str
    kind: MemoryKind = "fact"
    weight: Weight | None = None
    tags: tuple[str, ...] = ()
    #: Turns that it came from: ``planner/auth#T-12.3``.
    provenance: tuple[str, ...] = ()
    anchor: Anchor | None = None
    #: Agents that see it, too; ``*`` is everybody.
    shared: tuple[str, ...] = ()
    pinned: bool = False
    #: When it was said, in microseconds; None: now.
    time: int | None = None


class MemoryChange(Authored, frozen=True):
    """What is given is changed; `provenance` is added."""

    text: str | None = None
    kind: MemoryKind | None = None
    weight: Weight | None = None
    tags: list[str] | None = None
    shared: list[str] | None = None
    anchor: Anchor | None = None
    provenance: tuple[str, ...] = ()
    pinned: bool | None = None
    #: Only if it still has this version.
    expected: int | None = None


class RetireRequest(Authored, frozen=True):
    """Why it is retired: another one is better."""

    superseded_by: str | None = None


class MergeRequest(Authored, frozen=True, kw_only=True):
    """Keys of memories of one agent: ``M-7``."""

    #: The first stays.
    keys: list[str]
    text: str | None = None


class AuthorQuery(RequestQuery, frozen=True):
    """Who says so."""

    person: bool = False


class NewLayer(RequestBody, frozen=True):
    """Markdown, which may have front matter."""

    text: str
    #: Used if the text has none.
    name: str = ""
    #: Also in place of a layer that was copied from a file.
    replace: bool = False


class LayerTextBody(RequestBody, frozen=True):
    """Markdown, which may have front matter, but no other name."""

    text: str


def _author(call: ServerCall, *, is_person: bool) -> Author:
    name = call.caller.name
    return person(name) if is_person else machine(name)


def _of_agent(call: ServerCall) -> str:
    agent = call.path["agent"]
    call.require_agent(agent)
    return agent


def _key(call: ServerCall) -> str:
    """The name of the memory that the path means. Raises `Denied`."""
    return f"{_of_agent(call)}/{call.path['key']}"


def _check_sources(call: ServerCall, sources: Iterable[str]) -> None:
    for source in sources:
        call.require_agent(source_of(source)[0].partition("/")[0])


async def get_memories(call: ServerCall) -> MemoryList:
    """Memories that fit; pinned ones first, then by weight and age."""
    query = call.query
    found = await call.bank.memories.list(
        call.agent_within(query.agent),
        kind=query.kind,
        tag=query.tag,
        status=None if query.status == "any" else query.status,
        weight=query.weight,
        words=query.words,
    )
    page = found[query.offset : query.offset + query.limit]
    return MemoryList(len(found), [KeyedMemory.of(each) for each in page])


async def add_memory(call: ServerCall) -> KeyedMemory:
    """Remember something. What an older memory says already is not kept twice."""
    agent, body = _of_agent(call), call.body
    _check_sources(call, body.provenance)
    given = {name: getattr(body, name) for name in body.__struct_fields__}
    by = _author(call, is_person=given.pop("person"))
    return KeyedMemory.of(await call.bank.memories.add(agent, given.pop("text"), by=by, **given))


async def get_memory(call: ServerCall) -> KeyedMemory:
    """One memory."""
    key = _key(call)
    found = await call.bank.memories.get(key)
    if found is None:
        raise missing(parse_key(key))
    return KeyedMemory.of(found)


async def change_memory(call: ServerCall) -> KeyedMemory:
    """Change a memory, pin or unpin it. Its former version is kept."""
    key, body, memories = _key(call), call.body, call.bank.memories
    _check_sources(call, body.provenance)
    given = {name: getattr(body, name) for name in body.__struct_fields__}
    by, pinned = _author(call, is_person=given.pop("person")), given.pop("pinned")
    if pinned is None or any(value not in (None, ()) for value in given.values()):
        found = await memories.edit(key, by=by, **given)
        if pinned is None:
            return KeyedMemory.of(found)
    return KeyedMemory.of(await (memories.pin if pinned else memories.unpin)(key, by=by))


async def retire_memory(call: ServerCall) -> KeyedMemory:
    """Keep a memory, but recall it no more."""
    key, by, later = _key(call), _author(call, is_person=call.body.person), call.body.superseded_by
    return KeyedMemory.of(
        await call.bank.memories.retire(key, superseded_by=later, agent=call.path["agent"], by=by)
    )


async def restore_memory(call: ServerCall) -> KeyedMemory:
    """Bring back a memory that was retired, merged or superseded."""
    key, by = _key(call), _author(call, is_person=call.body.person)
    return KeyedMemory.of(await call.bank.memories.restore(key, by=by))


async def merge_memories(call: ServerCall) -> KeyedMemory:
    """Make several memories one. The others are kept, and can be restored."""
    agent, body = _of_agent(call), call.body
    for key in body.keys:
        if parse_key(key, agent).rpartition("/")[0] != agent:
            raise InvalidInput(
                f"{key} is no memory of {agent}.", hint="Merge memories of one agent."
            )
    by = _author(call, is_person=body.person)
    return KeyedMemory.of(
        await call.bank.memories.merge(body.keys, text=body.text, agent=agent, by=by)
    )


async def delete_memory(call: ServerCall) -> ErasedContent:
    """Delete a memory for good, with its former versions and what was merged into it."""
    key, by = _key(call), _author(call, is_person=call.query.person)
    return ErasedContent(await call.bank.memories.delete(key, by=by))


async def get_memory_history(call: ServerCall) -> list[FormerMemory]:
    """The former versions of a memory, oldest first."""
    return await call.bank.memories.history(_key(call))


# Reference layers -----------------------------------------------------------------------------


async def get_layers(call: ServerCall) -> list[LayerInfo]:
    """The reference layers, without their texts."""
    await call.bank.references.sync(max_age=_SYNCED)
    agent, every = call.caller.agent, await call.bank.references.list()
    return [_layer_info(each) for each in every if agent is None or each.is_visible_to(agent)]


async def get_layer(call: ServerCall) -> Layer:
    """A reference layer with its text."""
    name = call.path["layer"]
    found = await call.bank.references.get_for(call.caller.agent, name)
    if found is None:
        raise NotFound(
            f"There is no reference layer {name!r}.", hint="List them: GET /api/v1/references."
        )
    return found


async def add_layer(call: ServerCall) -> LayerInfo:
    """Keep a Markdown text as a reference layer."""
    call.require_all_agents()
    body = call.body
    return _layer_info(
        await call.bank.references.add(body.text, name=body.name, replace=body.replace)
    )


async def change_layer(call: ServerCall) -> LayerInfo:
    """Replace the text of a reference layer that was added."""
    call.require_all_agents()
    name, text = (await get_layer(call)).name, call.body.text
    if front_matter.parse(text, name).values.get("name", name) != name:
        raise InvalidInput(
            f"The front matter gives another name than {name}.", hint="Leave the name out of it."
        )
    return _layer_info(await call.bank.references.add(text, name=name, replace=True))


async def delete_layer(call: ServerCall) -> ErasedContent:
    """Remove a reference layer that was added, or whose file is gone."""
    call.require_all_agents()
    name = (await get_layer(call)).name
    return ErasedContent(await call.bank.references.remove(name))


async def check_layers(call: ServerCall) -> LayerCheck:
    """What is wrong with reference layers and their files, or unwise. Changes nothing."""
    call.require_all_agents()
    found = await call.bank.references.check()
    return LayerCheck(all(problem.warning for problem in found), found)


def _layer_info(record: LayerRecord) -> LayerInfo:
    return LayerInfo(
        name=record.name,
        title=record.title,
        tags=record.tags,
        weight=record.weight,
        triggers=record.triggers,
        tokens=record.tokens,
        file=None if record.origin is None else record.origin.path,
        updated=record.updated,
    )


OPERATIONS = (
    Operation.of("GET", MEMORIES, get_memories, TokenScope.READ, query=MemoriesQuery),
    Operation.of("POST", OF_AGENT, add_memory, TokenScope.WRITE, body=NewMemory, status=201),
    Operation.of("POST", f"{OF_AGENT}/merge", merge_memories, TokenScope.WRITE, body=MergeRequest),
    Operation.of("GET", MEMORY, get_memory, TokenScope.READ),
    Operation.of("PATCH", MEMORY, change_memory, TokenScope.WRITE, body=MemoryChange),
    Operation.of("DELETE", MEMORY, delete_memory, TokenScope.WRITE, query=AuthorQuery),
    Operation.of("GET", f"{MEMORY}/history", get_memory_history, TokenScope.READ),
    Operation.of("POST", f"{MEMORY}/retire", retire_memory, TokenScope.WRITE, body=RetireRequest),
    Operation.of("POST", f"{MEMORY}/restore", restore_memory, TokenScope.WRITE, body=Authored),
    Operation.of("GET", LAYERS, get_layers, TokenScope.READ),
    Operation.of("POST", LAYERS, add_layer, TokenScope.WRITE, body=NewLayer, status=201),
    Operation.of("GET", "/api/v1/checks/references", check_layers, TokenScope.READ),
    Operation.of("GET", LAYER, get_layer, TokenScope.READ),
    Operation.of("PUT", LAYER, change_layer, TokenScope.WRITE, body=LayerTextBody),
    Operation.of("DELETE", LAYER, delete_layer, TokenScope.WRITE),
)
