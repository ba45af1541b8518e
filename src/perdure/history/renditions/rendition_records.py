"""The records of renditions: a row for each round with its S and C, for each turn with its T.

A row holds *variants*, the newest last: the algorithm's, later a model's, those made before more
was said in the round. A variant is never changed or removed, so an epoch can name the one that it
showed by its place in the row, and show the same words years later.

The rows of a turn belong to the session that owns the turn. A fork that shares only a part of a
turn has variants of its own in them: each says how many messages it is made from.

Keys: ``planner/auth/00000183.00000004`` for a round, ``planner/auth/00000183`` for a turn.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal, TypeVar

import msgspec

from perdure.config import COMPRESSION_TASKS
from perdure.core.levels import LEVELS, Level
from perdure.history.log_records import turn_prefix
from perdure.jobs import Job, JobState
from perdure.storage.record_keys import numbered
from perdure.storage.records import Compressed, Key, system_record

TASK = "renditions"  # The kind of the jobs that let models make them.
#: ``pending`` waits for a model; ``failed`` does so again, after it failed; ``given up`` failed for
#: the last time, or was refused, and keeps what the algorithm made; ``stale`` was made by an older
#: recipe, and is used until it is shown the next time.
Status = Literal["pending", "stale", "failed", "given up", "done"]

BY_MODEL = "m"  # Recipes of models begin like this; those of the algorithm do not.
#: What recipes of models begin with today: the version of `model_prompts`. What was made by
#: another is stale.
PROMPT = f"{BY_MODEL}2"
#: The levels that models can make, and what their calls are named in outcomes and configuration.
TASK_OF: dict[Level, str] = dict(zip(LEVELS[1:], COMPRESSION_TASKS, strict=True))
EVERY_LEVEL = frozenset(TASK_OF)
_ORDER: tuple[Level, Level] = ("S", "C")
_BOTH, _TINY = frozenset[Level](_ORDER), frozenset[Level](("T",))
MOST_VARIANTS = 255  # A manifest names a variant in one byte.
#: Tokens of S: what is shorter or longer is left to the algorithm.
_SHORTEST, _LONGEST = 24, 16_000

V = TypeVar("V", "Variant", "TinyVariant")


class Variant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """S and C of a round."""

    packed: bytes  # See `rendition_packing`. Empty if its words are forgotten.
    #: In o200k tokens, escaped as a prompt would carry them.
    smooth: int
    compact: int
    messages: int  # Made from so many messages of the round: its first ones.
    #: Version and maker: ``a3``; ``m2 openai/gpt-5``; ``m2 ours/small a3`` if S and C have two.
    #: Empty if it is forgotten.
    recipe: str


class TinyVariant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """T of a turn."""

    text: str
    tokens: int
    #: Made from so many messages of the turn: its first ones.
    messages: int
    recipe: str


class Refusal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What models made of a level, twice, and was refused: they are not asked for it again."""

    level: Level
    messages: int  # Made from so many messages; of more, they are asked anew.
    prompt: str  # By another prompt, too.
    why: str


@system_record("renditions")
class Rendition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A round at S and C."""

    id: Annotated[str, Key()]  # session/turn.round
    variants: tuple[Variant, ...] = ()
    refused: tuple[Refusal, ...] = ()

    @property
    def turn(self) -> int:
        return int(self.id[-17:-9])

    @property
    def round(self) -> int:
        return int(self.id[-8:])

    def best(self, messages: int) -> int | None:
        return _best(self.variants, messages)

    @property
    def newest(self) -> Variant | None:
        return _newest(self.variants)


@system_record("tinies")
class Tiny(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A turn at T."""

    id: Annotated[str, Key()]  # session/turn
    variants: Annotated[tuple[TinyVariant, ...], Compressed()] = ()
    refused: tuple[Refusal, ...] = ()

    @property
    def turn(self) -> int:
        return int(self.id[-8:])

    def best(self, messages: int) -> int | None:
        return _best(self.variants, messages)

    @property
    def newest(self) -> TinyVariant | None:
        return _newest(self.variants)


def rendition_key(session: str, turn: int, round: int) -> str:
    return f"{turn_prefix(session, turn)}{numbered(round)}"


def makers(recipe: str) -> tuple[str, str]:
    """Who made S, and who made C: a model, or the algorithm."""
    names = recipe.split(" ")
    return (names[1], names[-1]) if len(names) > 1 else (recipe, recipe)


def recipe_of(smooth: str, compact: str) -> str:
    """The recipe of what these made, one of them a model."""
    return f"{PROMPT} {smooth}" if smooth == compact else f"{PROMPT} {smooth} {compact}"


def refusals(row: Rendition | Tiny) -> tuple[Refusal, ...]:
    """Those of what is used now."""
    messages = 0 if row.newest is None else row.newest.messages
    return tuple(e for e in row.refused if e.messages == messages and e.prompt == PROMPT)


def lacking(row: Rendition | Tiny, levels: Collection[Level] = EVERY_LEVEL) -> frozenset[Level]:
    """Those of the levels that a model could make, and none has made, or tried in vain, by the
    current prompt.
    """
    newest = row.newest
    if newest is None:
        return frozenset()
    if isinstance(newest, TinyVariant):
        found = frozenset[Level]() if newest.recipe.startswith(f"{PROMPT} ") else _TINY
    elif _SHORTEST <= newest.smooth <= _LONGEST:
        found = unmade(newest.recipe)
    else:
        found = frozenset()
    return found.intersection(levels).difference(each.level for each in refusals(row))


def unmade(recipe: str) -> frozenset[Level]:
    """Which of S and C no model has made by the current prompt."""
    if not recipe.startswith(f"{PROMPT} "):
        return _BOTH
    # A model's name is ``provider/model``.
    pairs: zip[tuple[Level, str]] = zip(_ORDER, makers(recipe), strict=True)
    return frozenset(level for level, maker in pairs if "/" not in maker)


def status_of(
    row: Rendition | Tiny,
    job: Job | None,
    *,
    recipe: str,
    prompt: str | None,
    levels: Collection[Level] = EVERY_LEVEL,
) -> Status:
    """`job` is the one of the row's turn; `recipe` the algorithm's current one; `prompt` the
    current beginning of models' recipes, None if no model is asked: then any model's variant counts
    as current. `levels` are those that models are asked for.
    """
    job = job if lacking(row, levels) else None
    if job is not None and job.state is not JobState.FAILED:
        return "failed" if job.attempts > (job.state is JobState.RUNNING) else "pending"
    newest = row.newest
    if newest is None or is_stale(newest.recipe, recipe=recipe, prompt=prompt):
        return "stale"
    return "given up" if job is not None or refusals(row) else "done"


def is_stale(made_by: str, *, recipe: str, prompt: str | None) -> bool:
    if made_by.startswith(BY_MODEL):
        return prompt is not None and made_by.partition(" ")[0] != prompt
    return made_by != recipe


def without_later(row: Rendition, messages: int, id: str) -> Rendition:
    """The row under another key, without the words of what is made from more messages."""
    kept = tuple(
        each if each.messages <= messages else Variant(b"", 0, 0, each.messages, "")
        for each in row.variants
    )
    return Rendition(id, kept)


def tiny_without_later(row: Tiny, messages: int, id: str) -> Tiny:
    kept = tuple(
        each if each.messages <= messages else TinyVariant("", 0, each.messages, "")
        for each in row.variants
    )
    return Tiny(id, kept)


def _best(variants: tuple[Variant, ...] | tuple[TinyVariant, ...], messages: int) -> int | None:
    for place in range(len(variants) - 1, -1, -1):
        variant = variants[place]
        if variant.messages == messages and variant.recipe:
            return place
    return None


def _newest(variants: tuple[V, ...]) -> V | None:
    if not variants:
        return None
    most = max(each.messages for each in variants)
    return next(each for each in reversed(variants) if each.messages == most)
