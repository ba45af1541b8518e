"""What a call is going to take: the chance of success, dollars and seconds."""

from __future__ import annotations

from collections.abc import Callable

from perdure.learning.learned_book import PER_CALL, LearnedBook, ModelMarks

#: Success before there are calls, and how many calls that counts for.
_SUCCESS, _SUCCESS_CALLS = 0.97, 5.0
#: Calls that an expectation counts for, once there are calls.
_EXPECTED_CALLS = 2.0
#: Seconds, if nothing at all is known.
_SECONDS = 4.0


class CallEstimates:
    """For one agent. `price` is the price of a typical call at a model in dollars, by its name."""

    def __init__(self, book: LearnedBook, price: Callable[[str], float]) -> None:
        self._book = book
        self._price = price
        every = [m for task in book.tasks.values() for m in task.models.values()]
        self._usual_seconds = _mean(every, "seconds", "timed", _SECONDS)
        self._usual_size = self._size([task.models for task in book.tasks.values()], 1.0)

    def success(self, model: str) -> float:
        marks = self._book.successes.get(model)
        if marks is None:
            return _SUCCESS
        fading = PER_CALL ** (self._book.calls - marks.tick)
        good = marks.successes * fading + _SUCCESS * _SUCCESS_CALLS
        return good / (marks.calls * fading + _SUCCESS_CALLS)

    def dollars(self, model: str, task: str) -> float:
        """Towards the model's price, times how much more than usual this task takes."""
        models = self._models(task)
        expected = self._price(model) * self._size([models], self._usual_size)
        marks = models.get(model) or ModelMarks()
        return (marks.dollars + _EXPECTED_CALLS * expected) / (marks.costed + _EXPECTED_CALLS)

    def seconds(self, model: str, task: str) -> float:
        """Towards what the model takes at other tasks."""
        mine = [t.models[model] for t in self._book.tasks.values() if model in t.models]
        expected = _mean(mine, "seconds", "timed", self._usual_seconds)
        marks = self._models(task).get(model) or ModelMarks()
        return (marks.seconds + _EXPECTED_CALLS * expected) / (marks.timed + _EXPECTED_CALLS)

    def _models(self, task: str) -> dict[str, ModelMarks]:
        found = self._book.tasks.get(task)
        return {} if found is None else found.models

    def _size(self, tasks: list[dict[str, ModelMarks]], default: float) -> float:
        """Dollars spent to dollars that typical calls at the same models would have taken."""
        spent, typical = 0.0, 0.0
        for models in tasks:
            for name, marks in models.items():
                price = self._price(name)
                if price and marks.costed:
                    spent += marks.dollars
                    typical += marks.costed * price
        return spent / typical if typical else default


def _mean(marks: list[ModelMarks], total: str, count: str, default: float) -> float:
    known = sum(getattr(each, count) for each in marks)
    return sum(getattr(each, total) for each in marks) / known if known else default
