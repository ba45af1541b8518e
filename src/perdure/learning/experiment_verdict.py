"""When a test ends, and how."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from perdure.learning.confidence import MeanDifference, SessionSample, difference

#: ``better``: the variant is. ``harm``: it is worse, and is stopped. ``equal``: enough was seen,
#: and neither is. ``open``: the test goes on.
State: TypeAlias = Literal["open", "better", "harm", "equal"]

#: A test of so many sessions on a side ends without a winner.
MOST_SESSIONS = 2_000


class ExperimentVerdict(msgspec.Struct, frozen=True):
    """What is known of a test, and the evidence."""

    state: State
    control: SessionSample
    variant: SessionSample
    difference: MeanDifference


def judge_samples(
    control: SessionSample, variant: SessionSample, *, least: int
) -> ExperimentVerdict:
    """`least` is the number of sessions of each side before it can end well; harm ends it at half
    of that. May be asked after every session: of tests between equals, at most 5 % end with a
    winner or by harm.
    """
    found = difference(control, variant)
    sessions = min(control.sessions, variant.sessions)
    state: State = "open"
    if sessions >= least and found.low > 0:
        state = "better"
    elif sessions >= max(2, least // 2) and found.high < 0:
        state = "harm"
    elif sessions >= MOST_SESSIONS:
        state = "equal"
    return ExperimentVerdict(state, control, variant, found)
