"""How turns are kept, shortened and shown."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from perdure.config.sections import Count, Section


class PruneRule(Section, frozen=True):
    """What becomes of the results of some tools.

    An error is never reduced to a count or to nothing: its ends and its error lines stay.
    """

    #: Names of tools, or of programs that a shell runs; ``*`` and ``?`` stand for anything. Case
    #: does not matter, nor does what a server puts in front (``mcp__files__read_file``).
    tool: str | tuple[str, ...]
    #: Characters up to which a result stays as it is.
    over: Count = 2_000
    #: A number of files; the first and last lines; everything; nothing.
    keep: Literal["count", "ends", "all", "none"] = "ends"
    #: Of the ends, so many lines at most …
    head: Count = 20
    tail: Count = 20
    #: … and so many characters, together with what is said about what was left out.
    cap: Count = 2_000
    #: Whether the text may tell of errors and exit codes. Not so for a file: it may speak of errors
    #: without being one.
    errors: bool = True


class SecretsConfig(Section, frozen=True):
    """What is masked before it is written."""

    #: Mask secrets at all.
    mask: bool = True
    #: What is no secret: the value itself, or an expression between slashes: ``/^test-/``.
    allow: tuple[str, ...] = ()
    #: Rules that are not applied.
    off: tuple[str, ...] = ()
    #: Further rules: a name, and a regular expression whose first group, or all of it, is masked.
    rules: dict[str, str] = {}


class HistoryConfig(Section, frozen=True):
    """How turns are kept."""

    #: Text of more characters moves to the artifact store.
    offload_over: Annotated[int, msgspec.Meta(ge=256)] = 16_384
    #: Tools whose results are artifacts, whatever their size.
    artifact_tools: tuple[str, ...] = ("create_*artifact*", "artifacts")
    #: Seconds between two saves of an answer that arrives.
    heartbeat: Annotated[float, msgspec.Meta(gt=0, le=5)] = 2.0
    #: How tool results are shortened for readers; before the rules that come with Perdure.
    prune: tuple[PruneRule, ...] = ()
    #: How a session's history is shown to a model, and in how many tokens, unless it says itself.
    strategy: Literal["gradient", "regular"] = "gradient"
    budget: Annotated[int, msgspec.Meta(ge=500)] = 100_000


class RenditionsConfig(Section, frozen=True):
    """How turns are shortened."""

    #: Let a model shorten them too, where one is configured for `compress`.
    model: bool = True
    #: Calls at the same time.
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    #: How often a model is tried before what the algorithm made stays for good.
    attempts: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3
