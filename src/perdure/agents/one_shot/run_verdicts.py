"""Decides what comes after an iteration, from records alone.

Done holds only if the agent says so, no task is open, and the checks pass. A run is stuck after 3
iterations without a change, 5 with the same error while no task was closed, or 2 refusals. Counted
is what came after the last investigation; what was interrupted counts for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal, TypeAlias

import msgspec

from perdure.agents.one_shot.run_records import RunIteration

UNCHANGED, SAME_ERROR, REFUSALS, SILENT_ABOUT_IT = 3, 5, 2, 2
#: What an agent that ends without saying how has left out.
MUST_SAY = (
    "The last line of what the agent prints must be JSON:"
    ' {"status": "continue", "summary": "…"}, or with "done", or "needs_feedback" and a "question".'
)

Verdict: TypeAlias = Literal["continue", "done", "needs_feedback", "stuck", "unsure", "doubtful"]


class RunVerdict(msgspec.Struct, frozen=True):
    """What comes next. Of `stuck`, `unsure` and `doubtful`, an investigator is asked first; without
    one, the first two mean to stop, and the third to ask a person.
    """

    verdict: Verdict
    reason: str = ""
    question: str = ""


def verdict_on(iterations: Sequence[RunIteration], investigated: int = 0) -> RunVerdict:
    """`iterations` are all of them, oldest first; the last was checked."""
    last = iterations[-1]
    if last.ending == "interrupted":
        return RunVerdict("continue", "It was interrupted.")
    said = last.exit
    if said is not None and said.status == "needs_feedback":
        return RunVerdict("needs_feedback", "The agent asks.", said.question)
    if said is not None and said.status == "done":
        missing = unfinished(last)
        if not missing:
            before = iterations[0].before.tasks.all
            if last.after.tasks.all < before:
                gone = (
                    f"It says done, but {before - last.after.tasks.all} of {before} tasks are gone"
                )
                return RunVerdict("doubtful", f"{gone} from the list.")
            return RunVerdict("done", said.summary or "All tasks are done and the checks pass.")
    counted = [
        each for each in iterations if each.number > investigated and each.ending != "interrupted"
    ]
    if reason := _stuck(counted):
        return RunVerdict("stuck", reason)
    if said is not None and said.status == "done":
        return RunVerdict("continue", f"It says done, but {unfinished(last)}.")
    newest = counted[-SILENT_ABOUT_IT:]
    if len(newest) == SILENT_ABOUT_IT and all(
        each.exit is None and each.ending == "finished" for each in newest
    ):
        return RunVerdict("unsure", f"{SILENT_ABOUT_IT} runs ended without saying how. {MUST_SAY}")
    return RunVerdict(
        "continue", said.summary if said is not None else "It did not say how it ended."
    )


def unfinished(iteration: RunIteration) -> str:
    """Why it cannot be done; empty if it can."""
    found = list[str]()
    if opened := iteration.after.tasks.open:
        found.append(f"{opened} task{'s are' if opened > 1 else ' is'} open")
    found += [f"`{each.command}` fails" for each in iteration.checks if not each.passed]
    return " and ".join(found)


def _stuck(counted: Sequence[RunIteration]) -> str:
    newest = counted[-UNCHANGED:]
    if len(newest) == UNCHANGED and not any(each.changed for each in newest):
        return f"{UNCHANGED} runs changed nothing."
    refused = [each for each in counted if each.refused]
    if len(refused) >= REFUSALS:
        return f"{len(refused)} runs were refused something: {refused[-1].refused}."
    last = counted[-1] if counted else None
    if last is not None and last.error:
        same = normalised(last.error)
        run = takewhile(
            lambda each: (
                normalised(each.error) == same and each.after.tasks.done <= each.before.tasks.done
            ),
            reversed(counted),
        )
        if (times := sum(1 for _ in run)) >= SAME_ERROR:
            return f"The same error came {times} times: {last.error}"
    return ""


_varying = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+(?:\.\d+)?", re.IGNORECASE)
_blanks = re.compile(r"\s+")


def normalised(error: str) -> str:
    """Without what differs from time to time: numbers, hashes, addresses."""
    return _blanks.sub(" ", _varying.sub("#", error.lower())).strip()[:300]
