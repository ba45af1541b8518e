"""How the past is brought back."""

from __future__ import annotations

from typing import Annotated

import msgspec

from perdure.config.sections import Count, Seconds, Section


class RecallConfig(Section, frozen=True):
    """How the past is brought back."""

    #: Index turns as they are written, and put beside each prompt what it brings to mind.
    on: bool = True
    #: Seconds for all steps together …
    deadline: Seconds = 1.0
    #: … of which so many at most go to each, and so many are kept for the judge.
    keyword: Seconds = 0.1
    #: With 0, nothing is looked for by its meaning, and no embedder is loaded for a question.
    vectors: Annotated[float, msgspec.Meta(ge=0)] = 0.2
    filters: Seconds = 0.5
    judge: Seconds = 0.2
    #: The model that embeds texts: ``provider/model`` of the gateway,
    #: ``sentence-transformers/NAME``, or empty for the one that is configured for `embed`, which
    #: is the one on this machine by default.
    embedder: str = ""
    #: Candidates that models of `filter` look at, and calls at the same time.
    swarm: Count = 24
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    #: Pointers beside a prompt, at most.
    pointers: Annotated[int, msgspec.Meta(ge=0, le=20)] = 12
    #: Tokens beside a prompt, at most: for turns in full, for reminders, memories, references.
    full_tokens: Count = 1_200
    tickler_tokens: Count = 600
    memory_tokens: Count = 600
    reference_tokens: Count = 5_000
    #: A folder of reference layers: Markdown files.
    references: str = ""
