"""How the weights of recall are made: `python -m benchmarks.fit_recall` prints their module.

What ranks is a sum of features, each times its weight. The weights make the turns that answer a
question likely among all candidates (a softmax over them), over the questions of several kinds of
chats; each kind counts the same, however many questions it has. Two things keep them from suiting
these chats alone. They are held near even ones (`EVEN`), because weights that were fitted freely to
two kinds are worse on the third than even ones are. And every question counts several times, each
time without another group of features: no vectors yet, nobody's name known, no dates. So no group
becomes indispensable. All weights but that of a question are kept from being negative: what is
found never speaks against a candidate.

How likely a candidate is follows from how far its sum is behind the best one, and how well the
question is met at all, by a logistic function. It is fitted to the first candidates of each
question, with questions about other chats mixed in, whose answer is nowhere.

Run it after a change to features; look at `recall_kinds`, which fits without the kind that it asks
about, and `locomo`, which fits without the chat; then write what it prints over
`perdure/recall/searching/weights.py`. The last line, `LIKELY`, sets the scale of all scores, to
which the thresholds of `perdure/recall/steps/swarm.py` belong: it is printed as it is, and what
would be fitted is told beside it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from benchmarks import chats
from benchmarks.chats import Asked, Chat
from perdure.bank import Bank
from perdure.history.log_records import Head, SessionRecord
from perdure.recall.places import spot
from perdure.recall.scoping.scope import Scopes
from perdure.recall.searching.features import GROUPS, NAMES
from perdure.recall.searching.searcher import Searcher, SearchResult
from perdure.recall.searching.weights import LIKELY
from perdure.recall.values import Question
from perdure.sessions.session import Session

Array: TypeAlias = np.ndarray

#: Every reason counts the same; half, if it is a habit of some chats or seldom there. Words of the
#: round itself count most, and a time that the question names.
EVEN: Mapping[str, float] = dict.fromkeys(NAMES, 1.0) | {
    "own": 1.25,
    "in_time": 1.5,
    "speaker": 0.75,
    "phrase": 0.5,
    "asks": -0.5,
    "answers": 0.5,
    "opens": 0.5,
    "binds": 0.5,
}
_EVEN = np.array([EVEN[name] for name in NAMES])
#: How much weights are held near them.
_HELD = 0.3
#: How often each question counts without these groups; all of them count once. Without vectors as
#: often as with them: names of programs mean nothing to an embedder, and are found by words alone.
_WITHOUT: tuple[tuple[float, tuple[str, ...]], ...] = (
    (1.0, ()),
    (1.0, ("meaning",)),
    (0.25, ("speaker",)),
    (0.25, ("time",)),
    (0.25, ("shape",)),
    (0.25, ("speaker", "time", "shape")),
)
_FREE = np.array([name == "asks" for name in NAMES])
_TOTAL = sum(share for share, _ in _WITHOUT)
#: The same as the share of each, and 1 for each feature that is known then.
_KNOWN = tuple(
    (
        share / _TOTAL,
        np.array([float(all(name not in GROUPS[g] for g in groups)) for name in NAMES]),
    )
    for share, groups in _WITHOUT
)
#: Steps of Newton's method at most, and how far one may go.
_STEPS, _STRIDE, _CLOSE = 20, 2.0, 1e-3
#: How much the numbers of `likely` are held small.
_SMALL = 0.003
#: Hits that are asked for as a rule, and at most: what 4,000 tokens have room for.
FEW, HITS = 20, 200
#: Every so many questions is asked about another chat as well.
_STRANGE = 2
#: Candidates of each question that tell how likely one is: those that anybody looks at.
_LOOKED_AT = 20


class Example(NamedTuple):
    """A question's candidates: their features, and which of them answer it."""

    asked: Asked
    values: Array
    turns: Array
    coverage: float
    likeness: float
    #: Asked about another chat: nothing answers it.
    strange: bool = False

    @property
    def right(self) -> Array:
        """A flag for each candidate."""
        if self.strange:
            return np.zeros(len(self.turns), bool)
        return np.isin(self.turns, self.asked.evidence)


class Asking:
    """Asks one chat's bank by the code of `session.recall`, for features instead of texts."""

    def __init__(self, bank: Bank, record: SessionRecord, head: Head) -> None:
        self._searcher = Searcher(bank.store, bank.index.embedder)
        self._scopes = Scopes(bank.store, bank.index)
        self._record, self._head = record, head

    @classmethod
    async def of(cls, bank: Bank, session: Session) -> Asking:
        record = await bank.store.collection(SessionRecord).get(session.name)
        head = await bank.store.collection(Head).get(session.name)
        assert record is not None
        assert head is not None
        return cls(bank, record, head)

    async def found(
        self, text: str, moment: int, limit: int = HITS
    ) -> tuple[SearchResult, SearchResult]:
        """By words, and by meaning as well."""
        question = Question(
            text=text, record=self._record, head=self._head, moment=moment, limit=limit
        )
        found = await self._searcher.keyword(question, await self._scopes.of(question))
        return found, await self._searcher.vector(found)


def example(asked: Asked, found: SearchResult, *, strange: bool = False) -> Example:
    """What was found, as an example."""
    if found.weighed is None:
        return Example(asked, np.zeros((0, len(NAMES))), np.zeros(0, np.int64), 0.0, 0.0, strange)
    weighed = found.weighed
    turns = np.array([spot(place).turn for place in weighed.noted.evidence.places.tolist()])
    features = weighed.features
    return Example(asked, features.values, turns, features.coverage, features.likeness, strange)


async def examples(chat: Chat, other: Chat) -> list[Example]:
    """An example for each question, and some for questions about the other chat."""
    async with chats.banked(chat) as (bank, session):
        asking = await Asking.of(bank, session)
        mine = [(asked, False) for asked in chat.questions]
        strange = [(asked, True) for asked in other.questions[::_STRANGE]]
        made = list[Example]()
        for asked, is_strange in mine + strange:
            _, found = await asking.found(asked.text, chat.moment, FEW)
            made.append(example(asked, found, strange=is_strange))
    return made


async def examples_of(given: Sequence[Chat]) -> list[Example]:
    """The same for chats of one kind, each with questions about the one before it."""
    made = [await examples(chat, given[number - 1]) for number, chat in enumerate(given)]
    return [example for each in made for example in each]


def fitted(kinds: Iterable[Iterable[Example]], start: Array = _EVEN) -> Array:
    """A weight for each feature, by Newton's method; what would become negative stays 0.

    There is one best answer, wherever it starts from; near it, it is found sooner.
    """
    tasks = [_Task.of(each) for each in kinds]
    weights = start.copy()
    for _ in range(_STEPS):
        slope, bend = _HELD * (weights - _EVEN), _HELD * np.eye(len(NAMES))
        for share, known in _KNOWN:
            for task in tasks:
                down, curved = task.derivatives(weights * known)
                slope = slope + share / len(tasks) * known * down
                bend = bend + share / len(tasks) * np.outer(known, known) * curved
        moving = _FREE | (weights > 0) | (slope < 0)
        step = np.zeros(len(NAMES))
        step[moving] = np.linalg.solve(bend[np.ix_(moving, moving)], slope[moving])
        step *= min(1.0, _STRIDE / max(np.abs(step).max(), 1e-9))
        before, weights = weights, weights - step
        weights = np.where(_FREE, weights, np.maximum(weights, 0.0))
        if np.abs(weights - before).max() < _CLOSE:
            break
    return weights


class _Task(NamedTuple):
    """Candidates of all questions that have an answer among them, one question after another."""

    values: Array
    #: What the softmax should be.
    right: Array
    #: The first row of each question, and the question of each row.
    first: Array
    question: Array

    @classmethod
    def of(cls, given: Iterable[Example]) -> _Task:
        learnt = [each for each in given if each.right.any()]
        sizes = [len(each.turns) for each in learnt]
        return cls(
            np.concatenate([each.values for each in learnt]).astype(np.float32),
            np.concatenate([each.right / each.right.sum() for each in learnt]),
            np.cumsum([0, *sizes[:-1]]),
            np.repeat(np.arange(len(sizes)), sizes),
        )

    def derivatives(self, weights: Array) -> tuple[Array, Array]:
        """The first and the second of what is to be made small, on average over the questions."""
        scores = self.values @ weights.astype(np.float32)
        scores -= np.maximum.reduceat(scores, self.first)[self.question]
        chances = np.exp(scores)
        chances /= np.add.reduceat(chances, self.first)[self.question]
        slope = (chances - self.right).astype(np.float32) @ self.values
        likely = self.values * chances[:, None]
        mean = np.add.reduceat(likely, self.first, axis=0)
        bend = likely.T @ self.values - mean.T @ mean
        return slope / len(self.first), bend / len(self.first)


def likely(given: Sequence[Example], weights: Array) -> Array:
    """What turns a score into how likely it is: see `perdure.recall.searching.weights.LIKELY`."""
    rows, right = list[Array](), list[Array]()
    for each in given:
        if not len(each.turns):
            continue
        total = each.values @ weights
        best = np.argsort(-total, kind="stable")[:_LOOKED_AT]
        asked = np.tile([each.coverage, each.likeness, 1.0], (len(best), 1))
        rows.append(np.column_stack([total[best] - total.max(), asked]))
        right.append(each.right[best])
    known, wanted = np.concatenate(rows), np.concatenate(right)
    found = np.zeros(known.shape[1])
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(-known @ found))
        slope = known.T @ (chance - wanted) + found * _SMALL
        bend = (known * (chance * (1 - chance))[:, None]).T @ known + _SMALL * np.eye(len(found))
        found = found - np.linalg.solve(bend, slope)
    return found


def module(weights: Mapping[str, float], likelihood: Sequence[float]) -> str:
    """The text of `perdure/recall/searching/weights.py`."""
    lines = [f'    "{name}": {weights[name]:.2f},' for name in NAMES]
    numbers = ", ".join(f"{number:.2f}" for number in likelihood)
    return f'''"""What each feature weighs. Made by `python -m benchmarks.fit_recall`."""

from __future__ import annotations

from collections.abc import Mapping

#: By the name of the feature: see `perdure.recall.searching.features`.
WEIGHTS: Mapping[str, float] = {{
{chr(10).join(lines)}
}}
#: How likely a candidate is: times how far its sum is behind the largest, the largest share of the
#: question that stands in one candidate and the turn before it, the largest cosine; a constant.
LIKELY: tuple[float, float, float, float] = ({numbers})
'''


def as_mapping(weights: Array) -> dict[str, float]:
    return dict(zip(NAMES, weights.tolist(), strict=True))


async def main() -> int:
    kinds = {name: given for name, given in chats.by_kind().items() if given}
    if not kinds:
        print("no chats to fit to: their files are not there", file=sys.stderr)
        return 1
    made = [await examples_of(given) for given in kinds.values()]
    weights = fitted(made)
    fit = likely([each for some in made for each in some], weights)
    print(module(as_mapping(weights), LIKELY), end="")
    print(f"fitted to these chats: {fit.round(2).tolist()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
