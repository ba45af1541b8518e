"""What a memory is, and how it is stored.

A memory is a distilled item: a sentence or a few, of a kind, with a weight, tags, and the turns
that it came from. Memories belong to an agent and are numbered from 1; a number is not given
twice. `M-7` names one of the agent's own, `planner/M-7` one of any agent.

Keys: ``planner/00000007`` for a memory, ``planner/00000007/00000002`` for a former version of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TypeAlias, get_args

import msgspec

from perdure.core import actors
from perdure.core.errors import InvalidInput, TooLarge
from perdure.core.messages import sound
from perdure.core.turns import Position
from perdure.history.log_records import agent_of, checked_agent
from perdure.recall.sharing import EVERYBODY
from perdure.storage.record_keys import numbered
from perdure.storage.records import Compressed, Indexed, Key, system_record
from perdure.storage.rows import Index

MemoryKind: TypeAlias = Literal["lesson", "preference", "pattern", "decision", "fact", "topic"]
#: ``merged`` and ``superseded`` name the memory that stands for it, in `Memory.into`.
Status: TypeAlias = Literal["active", "retired", "merged", "superseded"]
KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)
STATUSES: tuple[Status, ...] = get_args(Status)
#: What a memory of each kind weighs, unless somebody says otherwise.
WEIGHTS: dict[MemoryKind, float] = {
    "preference": 0.8,
    "decision": 0.8,
    "lesson": 0.7,
    "fact": 0.6,
    "pattern": 0.5,
    "topic": 0.3,
}

#: Characters of a text and of a tag; tags, and agents that one is shared with.
MAX_TEXT, MAX_TAG, MAX_TAGS = 4_000, 60, 20
#: Turns that are kept of those that a memory came from: the first ones and the newest ones.
MAX_SOURCES, _FIRST_SOURCES = 100, 20
#: Quotes that are kept of a memory, and characters of one.
MAX_QUOTES, MAX_QUOTE = 12, 400

_key = re.compile(r"(?:([^#]+)/)?[Mm]-([1-9]\d{0,7})", re.ASCII).fullmatch
_control = re.compile(r"[\x00-\x1f\x7f]").search


class Anchor(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where in a git repository a memory holds."""

    repo: str = ""
    commit: str = ""
    branch: str = ""
    path: str = ""


class MemoryQuote(msgspec.Struct, frozen=True, array_like=True):
    """Words of a turn that a memory rests on: code found them there."""

    #: ``planner/auth#T-12``.
    turn: str
    text: str


class Author(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who changed a memory: a person, or a machine."""

    name: str = ""
    person: bool = False


def person(name: str) -> Author:
    """A person acts."""
    return Author(name, person=True)


def machine(name: str = "") -> Author:
    """A model, or a program of its own accord, acts."""
    return Author(name)


def acting() -> Author:
    """Whoever `perdure.acting_as` named is a person; if nobody said who acts, a machine does."""
    actor = actors.current_actor()
    return machine() if actor is None else person(actor.name)


@system_record("memories", indexes=[Index(("agent", "updated"))])
class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A memory. Times are microseconds since 1970."""

    id: Annotated[str, Key()]  # agent/number
    agent: Annotated[str, Indexed()]
    kind: Annotated[MemoryKind, Indexed()]
    text: Annotated[str, Compressed()]
    #: From 0 to 1.
    weight: Annotated[float, Indexed()]
    status: Annotated[Status, Indexed()] = "active"
    #: The id of the memory that it was merged into or superseded by.
    into: Annotated[str | None, Indexed()] = None
    pinned: bool = False
    tags: tuple[str, ...] = ()
    #: Turns that it came from, oldest first: ``planner/auth#T-12.3``.
    provenance: tuple[str, ...] = ()
    #: What was said there, of what reflection found.
    quotes: Annotated[tuple[MemoryQuote, ...], Compressed()] = ()
    #: Its text was put together or changed later, not only repeated: each of those turns may have
    #: words in it.
    mixed: bool = False
    #: How often it was said.
    seen: int = 1
    first: int
    last: int
    #: From when on it holds, where another one contradicts it: the later one leads.
    since: int
    #: Ids of memories that say otherwise, if it is active. They are active, and name this one, too.
    contradicts: tuple[str, ...] = ()
    anchor: Anchor | None = None
    #: Agents that may see it, or ``*``.
    shared: tuple[str, ...] = ()
    is_shared: Annotated[bool, Indexed()] = False
    #: Who changed it last, and whether a person ever wrote or edited it.
    author: Author = Author()
    by_person: bool = False
    #: Counts what was changed about it, not how often it was seen.
    version: int = 1

    @property
    def number(self) -> int:
        return int(self.id[-8:])

    @property
    def key(self) -> str:
        """``M-7``."""
        return f"M-{self.number}"

    @property
    def name(self) -> str:
        """``planner/M-7``."""
        return f"{self.agent}/{self.key}"

    @property
    def is_active(self) -> bool:
        return self.status == "active"

    def is_visible_to(self, agent: str) -> bool:
        """Whether this agent may see it."""
        return self.agent == agent or agent in self.shared or EVERYBODY in self.shared


@system_record("memory_versions")
class FormerMemory(msgspec.Struct, frozen=True):
    """A memory as it was before a change."""

    id: Annotated[str, Key()]  # agent/number/version
    memory: Annotated[Memory, Compressed()]
    #: When it was changed. Microseconds.
    until: int


@system_record("memory_numbers")
class LastNumber(msgspec.Struct, frozen=True):
    """The last number that was given to a memory of an agent, or to a reference layer."""

    id: Annotated[str, Key()]  # memories/agent, or references
    last: int = 0


def memory_id(agent: str, number: int) -> str:
    return f"{agent}/{numbered(number)}"


def version_id(memory: Memory) -> str:
    return f"{memory.id}/{numbered(memory.version)}"


def numbers_of(agent: str) -> str:
    """The key of the `LastNumber` of an agent's memories."""
    return f"memories/{agent}"


def shown(id: str, agent: str = "") -> str:
    """The key that a memory's id is shown by: ``M-7``, of another agent ``planner/M-7``."""
    owner, _, number = id.rpartition("/")
    return f"M-{int(number)}" if owner == agent else f"{owner}/M-{int(number)}"


def parse_key(text: str, agent: str = "") -> str:
    """The id of the memory that ``planner/M-7`` names, or ``M-7`` for that agent.

    Raises `InvalidInput` for anything else.
    """
    found = _key(str(text).strip())
    if found is None or not (found[1] or agent):
        raise InvalidInput(
            f"{_brief(text)} does not name a memory.",
            hint="Write M-7." if agent else "Write it with its agent: planner/M-7.",
        )
    return memory_id(checked_agent(found[1] or agent), int(found[2]))


def checked_text(text: object) -> str:
    """A text that can be kept. Raises `InvalidInput`, `TooLarge` if it is too long."""
    if not isinstance(text, str) or not any(char.isalnum() for char in text):
        raise InvalidInput("A memory needs words.", hint="Give what is to be remembered as text.")
    kept: str = sound(text).strip()
    if len(kept) > MAX_TEXT:
        raise TooLarge(
            f"The text has {len(kept):,} characters; a memory has at most {MAX_TEXT:,}.",
            hint="Say it shorter, split it, or keep it as a reference layer.",
        )
    return kept


def checked_kind(kind: object) -> MemoryKind:
    for known in KINDS:
        if isinstance(kind, str) and kind.strip().casefold() == known:
            return known
    raise InvalidInput(f"There are no memories of the kind {kind!r}.", hint=_one_of(KINDS))


def checked_status(status: object) -> Status:
    for known in STATUSES:
        if status == known:
            return known
    raise InvalidInput(f"No memory has the status {status!r}.", hint=_one_of(STATUSES))


def checked_weight(weight: object) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
        raise InvalidInput(f"{weight!r} is no weight.", hint="Give a number from 0 to 1.")
    return float(weight)


def checked_time(time: object) -> int:
    if isinstance(time, bool) or not isinstance(time, int) or not 0 <= time < 2**63:
        raise InvalidInput(f"{time!r} is no time.", hint="Give microseconds since 1970.")
    return time


def checked_anchor(anchor: object) -> Anchor | None:
    """Where it holds; a mapping will do. Raises `InvalidInput`."""
    try:
        return msgspec.convert(msgspec.to_builtins(anchor), Anchor | None)
    except (msgspec.ValidationError, TypeError):
        raise InvalidInput(
            f"{_brief(anchor)} is no anchor.",
            hint="Give a mapping of texts: repo, commit, branch, path.",
        ) from None


def checked_tags(tags: Iterable[object]) -> tuple[str, ...]:
    """Tags in small letters, sorted, each once. Raises `InvalidInput`."""
    found = {_checked_tag(tag) for tag in _listed(tags, "tags", "auth")}
    if len(found) > MAX_TAGS:
        raise InvalidInput(f"{len(found)} are too many tags.", hint=f"Use at most {MAX_TAGS}.")
    return tuple(sorted(found))


def checked_shared(agents: Iterable[object]) -> tuple[str, ...]:
    """Agents that a memory is shared with, or ``*``. Raises `InvalidInput`."""
    given = _listed(agents, "shared", "coder")
    names = {EVERYBODY if agent == EVERYBODY else checked_agent(agent) for agent in given}
    if len(names) > MAX_TAGS:
        raise InvalidInput(
            f"A memory cannot be shared with {len(names)} agents one by one.",
            hint="Share it with '*', which is everyone.",
        )
    return tuple(sorted(names))


def checked_sources(turns: Iterable[object]) -> tuple[str, ...]:
    """Turns that a memory came from, each once. Raises `InvalidInput` if one names no turn."""
    found = dict[str, None]()
    for turn in _listed(turns, "provenance", "planner/auth#T-12.3"):
        session, at = source_of(str(turn))
        found[f"{session}#{at}"] = None
    return bounded(tuple(found))


def source_of(text: str) -> tuple[str, Position]:
    """The session and the place that ``planner/auth#T-12.3`` names. Raises `InvalidInput`."""
    session, mark, place = text.partition("#")
    if not mark:
        raise InvalidInput(
            f"{_brief(text)} does not name a turn of a session.", hint="Write planner/auth#T-12.3."
        )
    agent_of(session)
    return session, Position.parse(place)


def joined(first: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """What either came from, each turn once."""
    return bounded(tuple(dict.fromkeys((*first, *more))))


def joined_quotes(
    first: Sequence[MemoryQuote], more: Sequence[MemoryQuote]
) -> tuple[MemoryQuote, ...]:
    """What either rests on, each quote once; the first ones stay."""
    return tuple(dict.fromkeys((*first, *more)))[:MAX_QUOTES]


def bounded(sources: tuple[str, ...]) -> tuple[str, ...]:
    if len(sources) <= MAX_SOURCES:
        return sources
    return sources[:_FIRST_SOURCES] + sources[_FIRST_SOURCES - MAX_SOURCES :]


def _checked_tag(tag: object) -> str:
    text = " ".join(tag.split()).casefold() if isinstance(tag, str) else ""
    if not text or len(text) > MAX_TAG or _control(text) or sound(text) != text:
        raise InvalidInput(
            f"{str(tag)[:MAX_TAG]!r} cannot be a tag.",
            hint=f"A tag is a word or a few, in at most {MAX_TAG} characters.",
        )
    return text


def _listed(values: Iterable[object], name: str, example: str) -> list[object]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidInput(
            f"{name} is {_brief(values)}, which is no list.", hint=f"Write [{example!r}]."
        )
    return list(values)


def _brief(value: object) -> str:
    text = repr(value)
    return f"{text[: MAX_TAG - 1]}…" if len(text) > MAX_TAG else text


def _one_of(words: Sequence[str]) -> str:
    return f"Use one of {', '.join(words)}."
