"""Questions about long chats: is the line that answers one among the first that recall gives?

Each line of a chat is a turn of a session, in a bank of its own. No model is asked. `r5`, `r10` and
`r20` are the share of a question's evidence among as many hits, on average over the questions;
`at_1000` and so on, of that among the hits that fit into so many o200k tokens, in order, each as
``T-12.1 Speaker: text``. Both are of weights that were fitted to the other chats only
(`benchmarks.fit_recall`). Beside them: the same by `session.recall` with the frozen weights,
without vectors, by what kind of question it is; BM25 over each line with the line before it; and
SQLite's own full-text search.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import apsw
import numpy as np

from benchmarks import bm25, chats
from benchmarks.chats import CATEGORIES, Asked, Chat
from benchmarks.fit_recall import HITS, Asking, Example, example, fitted
from benchmarks.harness import Report
from perdure.bank import Bank
from perdure.core.tokens import o200k
from perdure.core.turns import Position
from perdure.recall.searching.features import NAMES
from perdure.recall.searching.weights import WEIGHTS
from perdure.sessions.session import Session

_FIRST = (5, 10, 20)
_TOKENS = (1_000, 2_000, 4_000)
METRICS = (*(f"r{most}" for most in _FIRST), *(f"at_{tokens}" for tokens in _TOKENS))
#: Seconds: what is measured here is how good it is, not how fast.
_PATIENCE = 60.0
_QUICK = 12


class Answered(NamedTuple):
    """A question, and the turns that were given for it, best first."""

    asked: Asked
    turns: Sequence[int]


async def run(report: Report, *, quick: bool) -> None:
    for metric in METRICS:
        report.figures[metric] = None
    given = chats.found()
    if not given:
        report.say(f"no chats to ask about: name the folder of {chats.FILE} with --data")
        return
    if quick:
        given = [chat._replace(questions=chat.questions[:_QUICK]) for chat in given[:2]]
    sizes = [_sizes(chat) for chat in given]
    asked = [await _asked(chat) for chat in given]
    rankings: dict[str, list[list[Answered]]] = {
        "": _left_out([each.examples for each in asked]),
        "frozen": [_by(each.examples, _frozen()) for each in asked],
        "recall": [each.recalled for each in asked],
        "without_vectors": [_by(each.by_words, _frozen()) for each in asked],
        "bm25_pairs": [_each(chat, bm25.over_pairs(chat).turns) for chat in given],
        "fts5": [_each(chat, _FullText(chat).turns) for chat in given],
    }
    for name, ranking in rankings.items():
        measured = _measured(ranking, sizes)
        _note(report, name, measured)
    for category in CATEGORIES.values():
        of_it = [
            [each for each in chat if each.asked.category == category] for chat in rankings[""]
        ]
        if any(of_it):
            _note(report, category, _measured(of_it, sizes))


def _note(report: Report, name: str, measured: Mapping[str, float]) -> None:
    shown = " ".join(f"{100 * measured[metric]:5.1f}" for metric in METRICS)
    report.say(f"  {name or 'left out':16} {shown}")
    for metric, figure in measured.items():
        report.figures[f"{name}_{metric}" if name else metric] = round(figure, 4)


# Ours


class _Asked(NamedTuple):
    examples: list[Example]
    by_words: list[Example]
    recalled: list[Answered]


async def _asked(chat: Chat) -> _Asked:
    async with chats.banked(chat) as (bank, session):
        return await _all_questions(chat, bank, session)


async def _all_questions(chat: Chat, bank: Bank, session: Session) -> _Asked:
    asking = await Asking.of(bank, session)
    made = _Asked([], [], [])
    for asked in chat.questions:
        by_words, found = await asking.found(asked.text, chat.moment)
        made.examples.append(example(asked, found))
        made.by_words.append(example(asked, by_words))
        recalled = await session.recall(asked.text, limit=HITS, deadline=_PATIENCE)
        turns = [Position.parse(hit.turn).turn for hit in recalled.hits if not hit.neighbour]
        made.recalled.append(Answered(asked, list(dict.fromkeys(turns))))
    return made


def _left_out(given: Sequence[list[Example]]) -> list[list[Answered]]:
    """Each chat by weights from the others.

    What the candidates are does not depend on weights: see `searching.ranking.rough_order`.
    """
    near = fitted([chain.from_iterable(given)])  # where it starts changes only how long
    return [
        _by(each, fitted([chain.from_iterable(o for o in given if o is not each)], near))
        for each in given
    ]


def _by(given: Iterable[Example], weights: np.ndarray) -> list[Answered]:
    return [
        Answered(
            each.asked, each.turns[np.argsort(-(each.values @ weights), kind="stable")].tolist()
        )
        for each in given
    ]


def _frozen() -> np.ndarray:
    return np.array([WEIGHTS[name] for name in NAMES])


# Others


def _each(chat: Chat, turns: Callable[[str], list[int]]) -> list[Answered]:
    return [Answered(asked, turns(asked.text)) for asked in chat.questions]


class _FullText:
    """SQLite's FTS5 as it comes: any of the words, ranked by its bm25."""

    def __init__(self, chat: Chat) -> None:
        self._connection = apsw.Connection(":memory:")
        self._connection.execute("create virtual table lines using fts5(text)")
        self._connection.executemany(
            "insert into lines(rowid, text) values (?, ?)",
            [(number, line.text) for number, line in enumerate(chat.lines, 1)],
        )

    def turns(self, question: str) -> list[int]:
        words = " OR ".join(f'"{word}"' for word in dict.fromkeys(re.findall(r"\w+", question)))
        rows = self._connection.execute(
            "select rowid from lines where lines match ? order by rank", (words,)
        )
        return [int(str(row[0])) for row in rows]


# Figures


def _sizes(chat: Chat) -> list[int]:
    """Tokens of each line as it is shown."""
    counter = o200k()
    return [
        counter.count(f"T-{number}.1 {line.speaker}: {line.text}\n")
        for number, line in enumerate(chat.lines, 1)
    ]


def _measured(ranking: Sequence[list[Answered]], sizes: Sequence[list[int]]) -> dict[str, float]:
    rows = [
        _shares(answered, size)
        for chat, size in zip(ranking, sizes, strict=True)
        for answered in chat
    ]
    means = np.array(rows).mean(axis=0)
    return dict(zip(METRICS, means.tolist(), strict=True))


def _shares(answered: Answered, sizes: Sequence[int]) -> list[float]:
    ranks = {turn: rank for rank, turn in enumerate(answered.turns)}
    ends = np.cumsum([sizes[turn - 1] for turn in answered.turns])
    evidence = answered.asked.evidence
    places = [ranks[turn] for turn in evidence if turn in ranks]
    first = [sum(place < most for place in places) for most in _FIRST]
    fits = [sum(ends[place] <= tokens for place in places) for tokens in _TOKENS]
    return [float(count) / len(evidence) for count in (*first, *fits)]
