"""What is promised. RESULTS.md, the lines on the screen and `--check` all read it from here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Target(NamedTuple):
    """A figure that must not be passed; None as a figure means that it was not measured."""

    #: Its name; ``a.b`` is b among the figures of a.
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

    def of(self, figures: Mapping[str, Any]) -> float | None:
        """The figure among those of its benchmark; None in figures of before it was promised."""
        found: Any = figures
        for name in self.metric.split("."):
            found = (found or {}).get(name)
        figure: float | None = found
        return figure

    @property
    def text(self) -> str:
        sign = "≥" if self.at_least else "<" if self.strict else "≤"
        return f"{sign} {self.limit:g}"


def _cache(budget: int, *, hits: float, to_summary: float) -> tuple[Target, ...]:
    at = f"{budget // 1000}k tokens"
    return (
        Target(f"{budget}.hit_ratio", hits, f"{at}: input read from the cache", at_least=True),
        Target(f"{budget}.cost_vs_drop_oldest", 0.3, f"{at}: to a window that slides"),
        Target(f"{budget}.cost_vs_rolling_summary", to_summary, f"{at}: to a summary that rolls"),
        Target(f"{budget}.prefix_violations", 0, f"{at}: requests changed outside an epoch"),
        *_fill(budget),
    )


def _fill(budget: int) -> tuple[Target, ...]:
    at = f"{budget // 1000}k tokens"
    return (
        Target(f"{budget}.fill_after_epoch", 0.65, f"{at}: full after an epoch", at_least=True),
        Target(f"{budget}.fill_mean", 0.75, f"{at}: full on average", at_least=True),
        *_bands(str(budget), at),
    )


def _bands(figures: str, at: str) -> tuple[Target, ...]:
    return (
        Target(
            f"{figures}.bands_in_range",
            1.0,
            f"{at}: epochs after which every level has its share",
            at_least=True,
        ),
        Target(
            f"{figures}.bands_kept",
            1.0,
            f"{at}: of the epochs at which that is possible",
            at_least=True,
        ),
    )


def _kind(name: str, meaning: str) -> tuple[Target, ...]:
    return (
        Target(
            f"{name}.gain",
            0.05,
            f"{meaning}: evidence among 10 hits, over BM25; weights of other kinds",
            at_least=True,
        ),
        Target(
            f"{name}.worst_chat", -0.01, f"{meaning}: in any one, over BM25 of turns", at_least=True
        ),
    )


#: How long a coding client waits for its hooks.
_HOOKS = (
    Target("hook_shim_ms", 20, "of a client's time, for an event that is noted"),
    Target("preamble_p95_ms", 150, "to a preamble that was made before, by the hook"),
    Target("preamble_command_p95_ms", 350, "to one that is made, by the command"),
    Target("prompt_ms", 1_000, "to what a prompt brings to mind"),
)
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
    "disk_records": (Target("ratio", 0.8, "bytes on disk per byte of text, compressed"),),
    "dictionary": (
        Target("1024.ratio", 0.92, "messages of 1 KB, stored bytes with a dictionary to without"),
    ),
    "middleware": (
        Target("write_tracing_idle", 1.15, "a record with metrics and idle tracing, to none"),
        Target("write_cache", 8, "a record with the full chain, audited and encrypted, to none"),
        Target("read_encryption", 3, "a record by key with all but the cache, to none"),
        Target("read_cache", 2, "the same with the cache, which knows it"),
    ),
    "migrate": (
        Target("seconds_plain", 60, "100k records over two schema versions, with an index added"),
        Target("seconds_compressed", 60, "the same, and compressed on the way"),
    ),
    "append_turn": (
        Target("ratio_to_best_peer", 0.75, "a turn of four messages, both as they come"),
        Target("ratio_to_best_peer_strong", 1.5, "both with an fsync for each turn"),
        Target("growth", 1.2, "p95 with 10k turns there, to p95 with 1k"),
    ),
    "load": (Target("ratio_to_best_peer", 1, "the newest 20 turns of a session of 10k"),),
    "frameworks": (
        Target(
            "worst_ratio", 1, "of append and load-20 to each framework's own store, 10k messages"
        ),
    ),
    "import": (
        Target("mb_per_s", 5, "of transcripts, their tokens counted as well", at_least=True),
    ),
    "disk_turns": (
        Target("ratio", 0.5, "bytes on disk per byte of message and tool text imported"),
    ),
    "assemble": (
        Target("p95_ms_warm", 10, "a window of 100k tokens at 100k turns, between two epochs"),
        Target(
            "p95_ms_cold", 50, "the same in a new process, from opening the bank, after imports"
        ),
        Target("cold_wall_ms", 300, "such a process from its start to its end"),
        Target("growth", 2, "p95 with 100k turns there, to p95 with 1k"),
    ),
    "cache": (
        *_cache(60_000, hits=0.94, to_summary=1.1),
        *_cache(120_000, hits=0.96, to_summary=1.0),
    ),
    "fill": (
        *_fill(4_000),
        *_fill(20_000),
        *_fill(60_000),
        *_fill(120_000),
        *_fill(200_000),
        *_fill(500_000),
        *_bands("transcripts_30000", "transcripts, 30k tokens"),
        *_bands("transcripts_60000", "transcripts, 60k tokens"),
    ),
    "known": (
        Target(
            "15000.gap_closed", 0.3, "15k tokens: of what the best of four loses", at_least=True
        ),
        Target("30000.gap_closed", 0.3, "30k tokens: the same", at_least=True),
    ),
    "span": (
        Target("span", 500, "50M raw tokens, to those that a window shows for them", at_least=True),
        Target("reachable", 1, "of 200 turns, those fetched by id as they were", at_least=True),
    ),
    "renditions": (
        Target("mb_per_s", 1, "of transcripts to S, C and T, a second and core", at_least=True),
        Target("append_ratio", 1.5, "p95 of appends while many wait to be made, to none waiting"),
    ),
    "disk_levels": (
        Target("ratio", 0.7, "bytes on disk, all levels made, per byte of message and tool text"),
    ),
    "levels": (
        Target("c_in_range", 0.8, "C in 30–40 % of a round's words, worst kind", at_least=True),
        Target("t_in_range", 0.8, "T in 1–5 % of a turn's words, worst kind", at_least=True),
        *(
            Target(f"{kind}.{level}_in_range", 0.8, f"the same of {kind}", at_least=True)
            for kind in ("project", "transcripts", "locomo", "beam", "realtalk")
            for level in "ct"
        ),
    ),
    "keeps": (
        Target(
            "c", 0.75, "of names, numbers and paths in a round's words, those in C", at_least=True
        ),
        Target("t", 0.25, "of those in a turn above 200 tokens of words, in T", at_least=True),
    ),
    "gateway": (
        Target("overhead_ms", 1, "a model call, p50 over that of a bare httpx2 call"),
        Target("chunk_ms", 0.1, "a chunk of a stream, over bare httpx2, of 1,000"),
        Target("cache_hit_ms", 50, "p95 of a call that the cache answers", strict=True),
        Target("memory_growth", 1.1, "after 100k calls, to after 5k, 32 at a time"),
    ),
    "agent": (
        Target("overhead_ms", 8, "p50 of a message to an agent, over the bare gateway call"),
        Target("agents", 5_000, "idle ones in one process of 1 GB", at_least=True),
    ),
    "proxy": (
        Target("added_ms", 3, "p50 to the first byte, 100 messages that pass through the proxy"),
        Target("added_ms_long", 15, "the same with 300k tokens behind a budget of 60k"),
        Target("chunk_ms", 0.1, "a chunk of a stream, of 1,000"),
        Target(
            "requests_per_s", 0.5, "20 turns read, to bare Starlette and msgspec", at_least=True
        ),
        Target("memory_growth", 1.1, "after 10,000 requests, to after 2,000"),
    ),
    "locomo": (
        Target("r5", 0.74, "of the evidence, among 5 hits; weights of other chats", at_least=True),
        Target("r10", 0.82, "the same among 10", at_least=True),
        Target("r20", 0.88, "the same among 20", at_least=True),
        Target("at_1000", 0.88, "the same among hits that fit 1,000 tokens", at_least=True),
        Target("at_2000", 0.92, "the same in 2,000", at_least=True),
        Target("at_4000", 0.95, "the same in 4,000", at_least=True),
    ),
    "evidence_in_context": (
        Target("locomo.1000", 0.80, "of the evidence, in a prompt of 1,000 tokens", at_least=True),
        Target("locomo.2000", 0.86, "the same in 2,000", at_least=True),
        Target("locomo.4000", 0.90, "the same in 4,000", at_least=True),
        Target("locomo.8000", 0.93, "the same in 8,000", at_least=True),
    ),
    "client_hooks": _HOOKS,
    "recall_kinds": (
        *_kind("locomo", "made-up chats of two"),
        Target("locomo.r10", 0.82, "of the evidence of them, among 10 hits", at_least=True),
        *_kind("realtalk", "real chats of two"),
        *_kind("beam", "chats with an assistant"),
    ),
    "reflection": (
        Target("learnt", 0.8, "planted facts whose memory is among 5 hits", at_least=True),
        Target(
            "superseded",
            0.8,
            "facts that changed: the new one recalled, the old one gone",
            at_least=True,
        ),
        Target("duplicates", 0.01, "of the memories, after ten runs that reword"),
        Target("evidence_valid", 1, "of the quotes stand in their turns", at_least=True),
        Target("undone_exact", 1, "memories are as before, all runs undone", at_least=True),
        Target("fix_precision", 0.8, "of fixes found without a model are right", at_least=True),
        *(
            Target(f"{kind}.lost", 0.5, f"points of {kind}'s evidence, with memories to without")
            for kind in ("locomo", "realtalk", "beam")
        ),
    ),
    "project": (
        *_HOOKS,
        Target("found_at", 0.9, "facts of a commit found when asked at it", at_least=True),
        Target("index_after_commit_s", 1, "a commit's files indexed, of 60,000"),
        Target("store_ratio", 0.5, "the bank on disk, to the text of the files"),
        Target("anchors", 0.97, "of commits that survive rewrites are found", at_least=True),
        Target("anchors_wrong", 0, "said to be where they are not"),
        Target("open_after_rebase_s", 1, "opening after 60 commits were rebased"),
        Target("commit_added_ms", 5, "what the hooks add to git commit"),
    ),
    "recall_latency": (
        Target("p50_ms", 10, "keyword, vector and ranking at 100k turns, in a warm process"),
        Target("p95_ms", 40, "the same"),
    ),
    "index": (
        Target("p95_added_ms", 0.6, "what the index adds to the append of a turn with a tool"),
        Target("seconds_100k", 120, "100k turns indexed and embedded", strict=True),
    ),
    "deadline": (Target("p99_ms", 1050, "a recall whose models sleep; its deadline is 1,000"),),
    "disk": (
        Target("ratio", 1, "all levels, words, vectors on disk, per byte of message and tool text"),
    ),
    "cluster": (
        Target("scaling", 1.6, "appends of two servers to one, all on this machine", at_least=True),
        Target("scaling_quota", 1.6, "the same, an eighth of a core each", at_least=True),
        Target("takeover_s", 10, "until a killed worker's job begins elsewhere"),
    ),
    "copy": (
        Target("to_postgresql_rows_per_s", 10_000, "100k records to PostgreSQL", at_least=True),
        Target("to_sqlite_rows_per_s", 10_000, "the same back into a file", at_least=True),
        Target("backup_rows_per_s", 10_000, "into a backup, read again", at_least=True),
        Target("restore_rows_per_s", 10_000, "out of it, checked first", at_least=True),
    ),
    "tasks": (
        Target("ready_ms", 20, "what can be begun, of 10,000 tasks, after an edit", strict=True),
    ),
    "page": (
        Target("switch_ms", 50, "p95 until stored turns stand there, the server 2 s late"),
        Target("first_view_ms", 500, "until turns stand there, in a browser that knows nothing"),
        Target("gzip_kb", 60, "the whole page, packed"),
        Target("heap_mb", 150, "of the browser, after scrolling in 100,000 turns"),
        Target(
            "frames_per_s",
            30,
            "scrolling in 100,000 turns, processor throttled to a quarter",
            at_least=True,
        ),
    ),
    "startup": (
        Target("mcp_s", 0.5, "`perdure mcp`: handshake, list of tools, end", strict=True),
        Target("import_s", 0.15, "python -c 'import perdure'", strict=True),
        Target("help_s", 0.3, "perdure --help", strict=True),
    ),
    "selection": (
        Target("share_of_oracle", 0.95, "utility, to knowing everything", at_least=True),
        Target("gap_closed", 0.75, "from chance to knowing everything", at_least=True),
        Target("wrong_prior", 0.92, "the share, every model taken for another tier", at_least=True),
        Target("ahead_of_best_other", 0, "of the share, over the best other policy", at_least=True),
    ),
    "ab": (
        Target("false_positives", 0.05, "of tests between equals, looked at after each session"),
        Target("power", 0.8, "of gains of 0.05 found in 400 sessions a side", at_least=True),
        Target("trend.false_alarms", 2, "per 10,000 labels without a change"),
        Target("trend.found", 0.99, "of falls by 0.20, in 200 labels", at_least=True),
    ),
}


def missed(name: str, figures: Mapping[str, Any]) -> list[Target]:
    """The targets of a benchmark that its figures do not meet."""
    return [target for target in TARGETS[name] if target.met(target.of(figures)) is False]
