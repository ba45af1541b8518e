"""Questions about this repository's own history, with the commits that they are asked at and what
an answer has to show. Written from the diffs, before any of them was asked.
"""

from __future__ import annotations

from typing import NamedTuple


class HistoryFact(NamedTuple):
    """An answer shows one of the texts."""

    commit: str
    question: str
    answers: tuple[str, ...]


_LATE, _MIDDLE = "43b27e6f", "75dc55c0"

FACTS = (
    HistoryFact(
        _LATE,
        "How long does somebody keep a task that they took, if nothing else is said?",
        ("It lasts 30 minutes", 'LEASE = "30m"'),
    ),
    HistoryFact(_LATE, "How many random bits does the id of a task have?", ("48 random bits",)),
    HistoryFact(
        _LATE,
        "How much time has each role of the team got?",
        ("60 seconds", "deadline: float = 60"),
    ),
    HistoryFact(_LATE, "How many operations may a role propose at once?", ("at most 20 each",)),
    HistoryFact(
        _LATE, "How fast does the MCP server list its tools?", ("within 0.2 s", "takes 0.16 s")
    ),
    HistoryFact(_LATE, "Which handshakes of the MCP protocol are understood?", ("2024-11-05",)),
    HistoryFact(_LATE, "Why is the official MCP SDK not used?", ("0.37 to 0.40 s",)),
    HistoryFact(
        _LATE,
        "After how many seconds is an agent taken over from a silent process?",
        ("PERDURE_AGENTS_LEASE", "lease: Seconds = 30"),
    ),
    HistoryFact(_MIDDLE, "For how many days are episodes kept?", ("90 days", "episode_days")),
    HistoryFact(_MIDDLE, "What may one message to an agent cost, in dollars?", ("5 dollars",)),
    HistoryFact(
        _MIDDLE, "How many calls of the model does a message have at most?", ("25 model calls",)
    ),
    HistoryFact(
        _MIDDLE,
        "What is the half life of the weight of topics?",
        ("REFLECTION_HALF_LIFE", "half_life: "),
    ),
    HistoryFact(
        _MIDDLE,
        "What is the daily budget of tokens for judging?",
        ("judge_tokens", "JUDGE_TOKENS"),
    ),
    HistoryFact(_MIDDLE, "How large may a part of a batch be?", ("64 MB",)),
    HistoryFact(_MIDDLE, "When are answers of batches removed that nobody used?", ("60 days",)),
    HistoryFact(_MIDDLE, "With what algorithm does an identity sign?", ("Ed25519",)),
    HistoryFact(
        _MIDDLE,
        "How long has a session to be silent before reflection reads it?",
        ("REFLECTION_IDLE", "idle: "),
    ),
    HistoryFact(
        _MIDDLE,
        "How often may the same error occur before a one-shot run is called stuck?",
        ("same error 5 times",),
    ),
    HistoryFact(
        _MIDDLE, "What is the exit code of a run that has spent its limit?", ("exit code 5",)
    ),
    HistoryFact(
        _MIDDLE,
        "How many calls of a batch run at once if the provider has no batches?",
        ("BATCH_CONCURRENCY", "batch_concurrency: "),
    ),
    HistoryFact(
        _MIDDLE, "Whose rating counts more, that of a person or of a judge?", ("overrules a judge",)
    ),
    HistoryFact(
        _MIDDLE, "When is an A/B test of two variants called a draw?", ("2,000 sessions a side",)
    ),
    HistoryFact(
        "678f7035~1",
        "How many candidates do the filter models look at?",
        ("`PERDURE_RECALL_SWARM` | `24`", "swarm: Count = 24"),
    ),
    HistoryFact(
        "678f7035~1",
        "How many pointers may stand beside a prompt by default?",
        ("`PERDURE_RECALL_POINTERS` | `12`", "] = 12"),
    ),
    HistoryFact(
        "8869d719~1",
        "How many tokens may turns in full take beside a prompt?",
        ("full_tokens: Count = 3_000", "`PERDURE_RECALL_FULL_TOKENS` | `3000`"),
    ),
    HistoryFact(
        "09857ca4~1",
        "How many tokens may turns in full take beside a prompt?",
        ("full_tokens: Count = 1_200", "`PERDURE_RECALL_FULL_TOKENS` | `1200`"),
    ),
    HistoryFact(
        "85c3266f~1",
        "How often is a rendition tried before the algorithm's stays?",
        ("`PERDURE_RENDITIONS_ATTEMPTS` | `3`", "attempts: "),
    ),
    HistoryFact(
        "be3ec502~1",
        "How many seconds does the search by meaning get?",
        ("`PERDURE_RECALL_VECTORS` | `0.2`", "vectors: Annotated"),
    ),
    HistoryFact(
        "f4b5b7f7~1",
        "How long is one logged in by the link on the terminal?",
        ("`PERDURE_SERVER_LOGIN_FOR` | `43200`", "login_for: "),
    ),
    HistoryFact(
        "91ebeaa8~1",
        "How long do requests have to end when the server stops?",
        ("`PERDURE_SERVER_GRACE` | `10`", "grace: "),
    ),
    HistoryFact(
        "bffc3b26~1",
        "How many kills does make crash do?",
        ("1,000 in `make crash`",),
    ),
    HistoryFact(
        "a355b713~1",
        "What budget does the first example of the readme ask for?",
        ("budget=800",),
    ),
)
