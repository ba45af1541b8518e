"""Features to an order, a score from 0 to 1, and reasons in words.

The order is that of a weighted sum; the weights are frozen in `weights`. The score says how likely
a candidate is what was asked for: a logistic function of the same sum and of how much of the
question was found at all, so that scores of different questions can be compared, roughly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from perdure.recall.cues import Cues
from perdure.recall.evidence import Evidence
from perdure.recall.features import NAMES, Features
from perdure.recall.values import Note, Reason
from perdure.recall.weights import LIKELY, WEIGHTS

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray

#: Reasons that are told, and words that are named in one.
_REASONS, _WORDS = 4, 3
#: A reason that has less than this share of what speaks for a candidate is not worth a word.
_WORTH = 0.03


class Ranked(NamedTuple):
    """Rows of the features, best first, with their scores."""

    order: Array
    #: By row, not by rank.
    scores: Array


def ranked(found: Features, weights: Mapping[str, float] = WEIGHTS) -> Ranked:
    """Best first; of equals, the one that stands first."""
    import numpy as np  # noqa: PLC0415 - not with the command

    total = found.values @ np.array([weights[name] for name in NAMES])
    by_score, by_coverage, by_likeness, constant = LIKELY
    asked = by_coverage * found.coverage + by_likeness * found.likeness + constant
    scores = 1 / (1 + np.exp(-(by_score * total + asked)))
    return Ranked(np.argsort(-total, kind="stable"), scores)


class Telling:
    """Says why: what contributed most to a candidate's score, in words."""

    def __init__(self, found: Features, evidence: Evidence, cues: Cues) -> None:
        import numpy as np  # noqa: PLC0415

        self._shares = found.values * np.array([WEIGHTS[name] for name in NAMES])
        self._found, self._evidence, self._cues = found, evidence, cues

    def reasons(self, row: int, note: Note) -> tuple[Reason, ...]:
        """The most important first. Shares are of all that speaks for it."""
        shares = dict(zip(NAMES, self._shares[row].tolist(), strict=True))
        total = sum(share for share in shares.values() if share > 0) or 1.0
        told = [
            Reason(name, round(share / total, 3))
            for name, share in self._told(row, note, shares)
            if share / total >= _WORTH
        ]
        return tuple(sorted(told, key=lambda reason: -reason.share)[:_REASONS])

    def _told(self, row: int, note: Note, shares: Mapping[str, float]) -> list[tuple[str, float]]:
        def of(*names: str) -> float:
            return sum(shares[name] for name in names)

        own = self._evidence.own[:, row].sum(axis=0)
        around = self._evidence.windows["stretch"][row] * (own == 0)
        told = list[tuple[str, float]]()
        if words := self._words(own):
            told.append((f"{words} in its own words", of("own", "cover", "rarest")))
        if shares["phrase"] > 0:
            told.append(("side by side as asked", of("phrase")))
        if words := self._words(around):
            told.append((f"{words} around it", of(*_AROUND)))
        elif self._evidence.windows["around"][row].any():
            told.append(("what was said around it", of(*_AROUND)))
        if shares["alike"] > 0:
            told.append(("similar in meaning", of("alike", "alike_near", "alike_stretch")))
        if self._found.speaker and note.speaker == self._found.speaker:
            told.append((f"said by {note.speaker.title()}", of("speaker")))
        for time in self._cues.times:
            if time.holds(note.time):
                told.append((f"said {time.name}", of("on_day", "in_month")))
                break
        if shares["tells_when"] > 0:
            told.append(("tells when", of("tells_when")))
        if shares["answers"] > 0:
            told.append(("answers a question", of("answers", "answers_own")))
        return told

    def _words(self, counts: Array) -> str:
        """The terms that stand there, the rarest first, as they are looked for."""
        weights = (counts > 0) * self._found.rarity
        best = [int(at) for at in weights.argsort()[::-1][:_WORDS] if weights[at] > 0]
        return ", ".join(f"‘{self._cues.terms[at]}’" for at in best)  # noqa: RUF001


_AROUND: Sequence[str] = (
    "pair",
    "next",
    "around",
    "wider",
    "stretch",
    "cover_pair",
    "cover_around",
    "cover_stretch",
)
