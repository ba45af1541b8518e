"""What was observed of one agent's calls, as sums in which older observations count less.

Success, cost and latency come from every call, quality from labels: the words of a judge or of a
person. Sums are discounted when they are read, by how many calls or labels of the agent came since:
a model that is not called any more becomes uncertain again.
"""

from __future__ import annotations

import msgspec

from perdure.gateway.calls import Complexity
from perdure.learning.trends import TrendMarks, relative_cost

#: Discount for each later call of the agent, and for each later label.
PER_CALL = 0.98
PER_LABEL = 0.998
#: Of the book of all agents, to which each of them adds its labels.
PER_SHARED_LABEL = 0.9995
#: Tasks of a book; of more, those that were used longest ago are dropped. Names may be made up.
MOST_TASKS = 200
#: Calls after which costs are compared with what they were.
_KNOWN_COST = 10


class ModelMarks(msgspec.Struct, array_like=True):
    """One model at one task."""

    #: Labels and their sum, as of label number `label_tick` of the agent.
    labels: float = 0.0
    score: float = 0.0
    label_tick: int = 0
    #: Calls of known cost, and dollars; discounted by calls of this model at this task.
    costed: float = 0.0
    dollars: float = 0.0
    timed: float = 0.0
    seconds: float = 0.0
    #: Whether labels fall, and costs rise. Not in the book of all agents.
    quality_trend: TrendMarks = msgspec.field(default_factory=TrendMarks)
    cost_trend: TrendMarks = msgspec.field(default_factory=TrendMarks)


class SuccessMarks(msgspec.Struct, array_like=True):
    """One model at any task, as of call number `tick`: an outage does not ask for the task."""

    calls: float = 0.0
    successes: float = 0.0
    tick: int = 0


class TaskMarks(msgspec.Struct, array_like=True):
    """All models at one task."""

    complexity: Complexity
    models: dict[str, ModelMarks] = {}


class CallEvent(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A call that ended. `dollars` and `seconds` are None where they are unknown or say nothing."""

    task: str
    complexity: Complexity
    model: str
    ok: bool
    dollars: float | None = None
    seconds: float | None = None


class LabelEvent(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A label; `replaces` is the one it stands for now, such as a judge's that a person
    overrules.
    """

    task: str
    complexity: Complexity
    model: str
    score: float
    replaces: float | None = None


class ResetEvent(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The alarms about a model at a task were taken up."""

    task: str
    complexity: Complexity
    model: str


class LearnedBook(msgspec.Struct):
    """The marks of one agent, or of all of them."""

    calls: int = 0
    labels: int = 0
    tasks: dict[str, TaskMarks] = {}
    successes: dict[str, SuccessMarks] = {}

    def apply(
        self, event: CallEvent | LabelEvent | ResetEvent, per_label: float = PER_LABEL
    ) -> None:
        """The same events in the same order make the same book, in whichever process."""
        task = self.tasks.pop(event.task, None)
        if task is None or task.complexity != event.complexity:
            kept = {} if task is None else task.models
            task = TaskMarks(event.complexity, kept)
        self.tasks[event.task] = task  # The last used are the last.
        while len(self.tasks) > MOST_TASKS:
            del self.tasks[next(iter(self.tasks))]
        marks = task.models.get(event.model)
        if marks is None:
            marks = task.models[event.model] = ModelMarks(label_tick=self.labels)
        if isinstance(event, CallEvent):
            self._note_call(marks, event)
        elif isinstance(event, ResetEvent):
            marks.quality_trend.reset()
            marks.cost_trend.reset()
        elif event.replaces is not None and marks.labels > 0:
            marks.score += event.score - event.replaces
        else:
            self.labels += 1
            fading = per_label ** (self.labels - marks.label_tick)
            marks.labels = marks.labels * fading + 1.0
            marks.score = marks.score * fading + event.score
            marks.label_tick = self.labels
            marks.quality_trend.observe(event.score, "down")

    def _note_call(self, marks: ModelMarks, event: CallEvent) -> None:
        self.calls += 1
        success = self.successes.setdefault(event.model, SuccessMarks(tick=self.calls))
        fading = PER_CALL ** (self.calls - success.tick)
        success.calls = success.calls * fading + 1.0
        success.successes = success.successes * fading + event.ok
        success.tick = self.calls
        if event.dollars is not None:
            if marks.costed >= _KNOWN_COST:
                usual = marks.cost_trend.scale or marks.dollars / marks.costed
                marks.cost_trend.scale = usual
                marks.cost_trend.observe(relative_cost(event.dollars, usual), "up")
            marks.costed = marks.costed * PER_CALL + 1.0
            marks.dollars = marks.dollars * PER_CALL + event.dollars
        if event.seconds is not None:
            marks.timed = marks.timed * PER_CALL + 1.0
            marks.seconds = marks.seconds * PER_CALL + event.seconds
