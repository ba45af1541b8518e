"""What is promised. RESULTS.md, the lines on the screen and `--check` all read it from here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Target(NamedTuple):
    """A figure that must not be passed; None as a figure means that it was not measured."""

    metric: str
    limit: float
    meaning: str
    #: The limit itself is a miss, too.
    strict: bool = False
    #: More is better: the figure must reach the limit.
    at_least: bool = False

    def met(self, figure: float | None) -> bool | None:
        if figure is None:
            return None
        if self.at_least:
            return figure >= self.limit
        return figure < self.limit if self.strict else figure <= self.limit

    @property
    def text(self) -> str:
        sign = "≥" if self.at_least else "<" if self.strict else "≤"
        return f"{sign} {self.limit:g}"


TARGETS: Mapping[str, tuple[Target, ...]] = {
    "append": (
        Target("ratio_to_raw", 5, "one record after another, to a bare insert, same durability"),
        Target("ratio_to_raw_concurrent", 1, "20 tasks at once, to bare inserts one by one"),
        Target("ratio_to_best_peer", 0.3, "both as they come"),
        Target("ratio_to_best_peer_strong", 0.85, "both with an fsync for each record"),
        Target("growth", 1.2, "p95 with 100k records there, to p95 with 1k"),
    ),
    "batch": (Target("ratio_to_raw", 2, "20 records in one call, to a bare executemany"),),
    "read": (
        Target("point_ratio_to_best_peer", 1, "one record by key, at 100k records"),
        Target("page_ratio_to_best_peer", 1, "the newest 20 of a session, at 100k records"),
        Target("growth", 1.2, "at 100k records to at 1k; the worse of point and page"),
    ),
    "query": (
        Target("select_ratio_to_raw", 1.5, "where, order and limit, to the same SQL by hand"),
        Target("group_ratio_to_raw", 1.5, "group-by over 100k records, to the same SQL by hand"),
    ),
    "disk_records": (Target("ratio", 0.6, "bytes on disk per byte of text, compressed"),),
    "append_turn": (
        Target("ratio_to_best_peer", 0.3, "a turn of four messages, both as they come"),
        Target("ratio_to_best_peer_strong", 0.85, "both with an fsync for each turn"),
        Target("growth", 1.2, "p95 with 100k turns there, to p95 with 1k"),
    ),
    "load": (Target("ratio_to_best_peer", 1, "the newest 20 turns of a session of 100k"),),
    "import": (
        Target("mb_per_s", 5, "of transcripts, their tokens counted as well", at_least=True),
    ),
    "disk_turns": (
        Target("ratio", 0.5, "bytes on disk per byte of message and tool text imported"),
    ),
    "gateway": (
        Target("overhead_ms", 1, "a model call, p50 over that of a bare httpx2 call"),
        Target("chunk_ms", 0.1, "a chunk of a stream, over bare httpx2, of 1,000"),
        Target("cache_hit_ms", 50, "p95 of a call that the cache answers", strict=True),
        Target("memory_growth", 1.1, "after 100k calls, to after 5k, 32 at a time"),
    ),
    "startup": (
        Target("import_s", 0.15, "python -c 'import perdure'", strict=True),
        Target("help_s", 0.3, "perdure --help", strict=True),
    ),
}


def missed(name: str, figures: Mapping[str, Any]) -> list[Target]:
    """The targets of a benchmark that its figures do not meet."""
    return [target for target in TARGETS[name] if target.met(figures[target.metric]) is False]
