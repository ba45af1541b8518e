"""Recall on kinds of chats that it was not fitted to, beside plain BM25.

For each kind of `benchmarks.chats`, with weights that were fitted to the other kinds alone
(`benchmarks.fit_recall`): `r5`, `r10` and `r20` are the share of a question's evidence among as
many hits, on average over the questions. `bm25_r10` is the better of stemmed BM25 over turns and
over pairs (each turn with the one before it), in the same units; `gain` is what recall has more.
`worst_chat` is the smallest gain over BM25 over turns in any one chat. Beside them, `recall_r10` is
what `session.recall` itself gives, with the frozen weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks import bm25, chats
from benchmarks.chats import KINDS, Asked, Chat
from benchmarks.fit_recall import FEW, Asking, Example, example, fitted
from benchmarks.harness import Report
from perdure.core.turns import Position

_FIRST = (5, 10, 20)
_NAMES = tuple(f"r{most}" for most in _FIRST)
_METRICS = (*_NAMES, "bm25_r10", "gain", "worst_chat")
#: Seconds: what is measured here is how good it is, not how fast.
_PATIENCE = 60.0
#: Chats of each kind, and questions of each chat.
_QUICK = 2, 6


class _Measured(NamedTuple):
    """The questions of one chat: rows of shares, a column for each of `_FIRST`."""

    examples: list[Example]
    recalled: np.ndarray
    turns: np.ndarray
    pairs: np.ndarray


async def run(report: Report, *, quick: bool) -> None:
    report.figures |= {kind: dict.fromkeys(_METRICS) for kind in KINDS}
    given = chats.by_kind()
    if missing := [kind for kind in KINDS if not given[kind]]:
        report.say(f"no chats of {', '.join(missing)}: name their folder with --data")
        return
    if quick:
        some, few = _QUICK
        given = {
            kind: [chat._replace(questions=chat.questions[:few]) for chat in each[:some]]
            for kind, each in given.items()
        }
    measured = {kind: [await _measured(chat) for chat in each] for kind, each in given.items()}
    report.say(f"  {'':24} {'    '.join(_NAMES)}")
    for kind in KINDS:
        others = [
            [one for chat in measured[k] for one in chat.examples] for k in KINDS if k != kind
        ]
        report.figures[kind] = _compared(report, kind, measured[kind], fitted(others))


async def _measured(chat: Chat) -> _Measured:
    turns, pairs = bm25.over_turns(chat), bm25.over_pairs(chat)
    made, recalled = list[Example](), list[list[float]]()
    async with chats.banked(chat) as (bank, session):
        asking = await Asking.of(bank, session)
        for asked in chat.questions:
            _, found = await asking.found(asked.text, chat.moment, FEW)
            made.append(example(asked, found))
            hits = (await session.recall(asked.text, limit=FEW, deadline=_PATIENCE)).hits
            numbers = (Position.parse(hit.turn).turn for hit in hits if not hit.neighbour)
            recalled.append(shares(asked, numbers))
    return _Measured(
        made,
        np.array(recalled),
        np.array([shares(asked, turns.turns(asked.text)) for asked in chat.questions]),
        np.array([shares(asked, pairs.turns(asked.text)) for asked in chat.questions]),
    )


def shares(asked: Asked, turns: Iterable[int]) -> list[float]:
    """The share of a question's evidence among the first of `turns`, for each of `_FIRST`."""
    order = list(dict.fromkeys(turns))
    evidence = set(asked.evidence)
    return [len(evidence.intersection(order[:most])) / len(evidence) for most in _FIRST]


def _compared(
    report: Report, kind: str, measured: Sequence[_Measured], weights: np.ndarray
) -> dict[str, float]:
    ours = [np.array([_share(one, weights) for one in chat.examples]) for chat in measured]
    ranked = {
        "left out": np.concatenate(ours),
        "recall": np.concatenate([chat.recalled for chat in measured]),
        "BM25 over turns": np.concatenate([chat.turns for chat in measured]),
        "BM25 over pairs": np.concatenate([chat.pairs for chat in measured]),
    }
    means = {name: rows.mean(axis=0).tolist() for name, rows in ranked.items()}
    for name, mean in means.items():
        _say(report, f"{kind} {name}", mean)
    by_category = defaultdict[str, list[np.ndarray]](list)
    for one, row in zip((o for c in measured for o in c.examples), ranked["left out"], strict=True):
        by_category[one.asked.category].append(row)
    for category, rows in by_category.items():
        _say(report, f"  {category[:20]}", np.mean(rows, axis=0).tolist())
    best = max(means["BM25 over turns"][1], means["BM25 over pairs"][1])
    gaps = [
        rows.mean(axis=0)[1] - chat.turns.mean(axis=0)[1]
        for rows, chat in zip(ours, measured, strict=True)
    ]
    found = dict(zip(_NAMES, means["left out"], strict=True))
    found |= {"bm25_r10": best, "gain": found["r10"] - best, "worst_chat": float(min(gaps))}
    found["recall_r10"] = means["recall"][1]
    return {name: round(figure, 4) for name, figure in found.items()}


def _say(report: Report, name: str, mean: Sequence[float]) -> None:
    report.say(f"  {name:24} {'  '.join(f'{100 * share:4.1f}' for share in mean)}")


def _share(one: Example, weights: np.ndarray) -> list[float]:
    order = np.argsort(-(one.values @ weights), kind="stable")
    return shares(one.asked, one.turns[order].tolist())
