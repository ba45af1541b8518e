"""What may be done with a memory, by whom; and what several of them come to."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perdure.core.errors import Conflict, InvalidInput, PerdureError
from perdure.recall.memories.records import MAX_TAGS, Author, Memory, joined, shown


def refusal(
    id: str, memory: Memory | None, author: Author, expected: int | None = None
) -> PerdureError | None:
    """Why a memory is not to be changed, if so."""
    if memory is None:
        return missing(id)
    if expected is not None and memory.version != expected:
        return Conflict("memories", memory.name, expected=expected, found=memory.version)
    if memory.by_person and not author.person:
        return Conflict(
            "memories",
            memory.name,
            message=f"{memory.name} was written or edited by a person, and no machine changes it.",
            hint="Add what you know as a memory of its own: if it contradicts, the newer leads.",
        )
    return None


def missing(id: str) -> InvalidInput:
    return InvalidInput(
        f"There is no memory {shown(id)}.", hint="It may have been deleted; look for it."
    )


def out_of_use(memory: Memory) -> InvalidInput | None:
    """Why nothing is to be done with a memory that is not recalled any more."""
    if memory.is_active:
        return None
    into = "" if memory.into is None else f" into {shown(memory.into)}"
    status = f"merged{into}" if memory.status == "merged" else memory.status
    return InvalidInput(
        f"{memory.name} is {status}, and not recalled any more.", hint="Restore it first."
    )


def set_aside(memory: Memory, into: str | None) -> Memory:
    """A memory that is not to be recalled any more. What does not come does not come first."""
    return replace(memory, status="superseded" if into else "retired", into=into, pinned=False)


def several(ids: Sequence[str]) -> list[str]:
    """Ids of memories that can be merged, each once. Raises `InvalidInput`."""
    found = list(dict.fromkeys(ids))
    if len(found) < 2:
        raise InvalidInput(
            "Merging takes two memories, or more.", hint="Name the one that stays, then the others."
        )
    if len({id.rpartition("/")[0] for id in found}) > 1:
        raise InvalidInput(
            "Memories of different agents are not merged.",
            hint="Share one of them, and retire the other.",
        )
    return found


def merged(target: Memory, others: Sequence[Memory], text: str | None, now: int) -> Memory:
    """The first of several memories, now that it stands for all."""
    every = (target, *others)
    sources = tuple(source for memory in every for source in memory.provenance)
    tags = sorted({tag for memory in every for tag in memory.tags})
    return replace(
        target,
        text=target.text if text is None else text,
        mixed=True,
        weight=max(memory.weight for memory in every),
        tags=tuple(tags[:MAX_TAGS]),
        provenance=joined(sources, ()),
        seen=sum(memory.seen for memory in every),
        first=min(memory.first for memory in every),
        last=max(memory.last for memory in every),
        since=target.since if text is None else now,
        pinned=any(memory.pinned for memory in every),
    )
