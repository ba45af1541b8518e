"""Memories as the command prints them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.cli import readable, terminal
from perdure.core.clock import to_datetime
from perdure.core.display import one_line
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.bank import Bank
    from perdure.cli.command_options import CommandSettings
    from perdure.recall.memory_records import Author, FormerMemory, Memory


def person_here(bank: Bank) -> Author:
    from perdure.core.actors import current_actor, system_user
    from perdure.recall.memory_records import person

    actor = current_actor()
    return person(actor.name if actor is not None else bank.config.audit.actor or system_user())


def memory_json(memory: Memory) -> dict[str, Any]:
    """Keys as people write them, times as ISO 8601."""
    import msgspec

    from perdure.recall.memory_records import shown

    found: dict[str, Any] = {
        field: msgspec.to_builtins(getattr(memory, field))
        for field in memory.__struct_fields__
        if field not in {"id", "is_shared"}
    }
    times = {name: to_datetime(found[name]).isoformat() for name in ("first", "last", "since")}
    links = {"contradicts": [shown(id) for id in memory.contradicts]}
    into = None if memory.into is None else shown(memory.into)
    author = {"name": memory.author.name, "person": memory.author.person}
    return {"key": memory.name, **found, **times, **links, "into": into, "author": author}


async def existing_memory(bank: Bank, key: str) -> Memory:
    """Raises `InvalidInput` if there is none."""
    memory = await bank.memories.get(key)
    if memory is None:
        raise InvalidInput(f"There is no memory {key}.", hint="`perdure memory list` has all.")
    return memory


def tell_change(
    settings: CommandSettings, memory: Memory, words: str, doubles: Sequence[Memory] = ()
) -> None:
    """Report a changed memory, and which others say the same."""
    from perdure.recall.memory_records import shown

    if settings.json:
        terminal.emit(memory_json(memory))
        return
    terminal.say(words)
    if memory.contradicts:
        others = ", ".join(map(shown, memory.contradicts))
        terminal.note(
            f"It contradicts {others}. All are kept; a pinned one leads, else the newest."
        )
    if doubles:
        others = ", ".join(each.name for each in doubles)
        terminal.note(f"{others} says the same: `perdure memory merge` makes them one.")


def memory_table(memories: Sequence[Memory]) -> None:
    rows = [
        (
            memory.name,
            memory.kind,
            "pinned" if memory.pinned and memory.is_active else memory.status,
            f"{memory.weight:.2f}",
            f"{memory.seen:,}",
            one_line(memory.text, 100),
        )
        for memory in memories
    ]
    if rows:
        terminal.table(("Memory", "Kind", "Status", "Weight", "Seen", "Text"), rows)


class MemoryVersion(NamedTuple):
    """A version of a memory: when it was made, and what was new in it."""

    memory: Memory
    at: datetime
    new: list[str]


def memory_versions(memory: Memory, former: Sequence[FormerMemory]) -> list[MemoryVersion]:
    every = [*(each.memory for each in former), memory]
    times = [every[0].first, *(each.until for each in former)]
    new = [["all"], *(_differences(old, new) for old, new in pairwise(every))]
    return [
        MemoryVersion(each, to_datetime(time), what)
        for each, time, what in zip(every, times, new, strict=True)
    ]


def _differences(old: Memory, new: Memory) -> list[str]:
    names = ("text", "kind", "status", "weight", "pinned", "tags", "provenance", "shared", "anchor")
    return [name for name in names if getattr(old, name) != getattr(new, name)]


def memory_facts(memory: Memory) -> list[tuple[str, str]]:
    from perdure.recall.memory_records import shown

    into = "" if memory.into is None else f" ({shown(memory.into)})"
    anchor = memory.anchor
    places = (anchor.repo, anchor.branch, anchor.commit, anchor.path) if anchor is not None else ()
    known = [
        ("Memory", f"{memory.name}, version {memory.version}"),
        ("Kind", memory.kind),
        ("Status", f"{memory.status}{into}{', pinned' if memory.pinned else ''}"),
        ("Weight", f"{memory.weight:.2f}"),
        ("Tags", ", ".join(memory.tags)),
        ("Seen", f"{memory.seen:,}, last {readable.absolute_time(memory.last)}"),
        ("First", readable.absolute_time(memory.first)),
        ("From", ", ".join(memory.provenance)),
        ("Contradicts", ", ".join(map(shown, memory.contradicts))),
        ("Anchor", " ".join(filter(None, places))),
        ("Shared with", ", ".join(memory.shared)),
        ("Changed by", author_in_words(memory.author)),
        ("Machines", "may not change it" if memory.by_person else ""),
    ]
    return [(name, value) for name, value in known if value]


def author_in_words(author: Author) -> str:
    kind = "a person" if author.person else "a machine"
    return f"{author.name} ({kind})" if author.name else kind
