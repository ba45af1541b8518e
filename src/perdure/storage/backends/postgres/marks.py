"""How far the primary had come, and when: what a replica's age is measured by. See `replica`."""

from __future__ import annotations


class Marks:
    """Moments, and positions that the primary had reached by then or later."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []

    def add(self, moment: float, position: int) -> None:
        """Note one. Those who note them at the same time may come in any order."""
        marks = [*self._marks, (moment, position)]
        marks.sort()
        # The older, the farther apart: a few dozen reach back for hours.
        kept = marks[:1]
        for index in range(1, len(marks) - 1):
            if marks[index + 1][0] - kept[-1][0] >= (moment - marks[index][0]) / 4:
                kept.append(marks[index])
        self._marks = [*kept, *marks[1:][-1:]][-100:]

    def newest(self) -> float:
        """The moment of the last one."""
        return self._marks[-1][0] if self._marks else float("-inf")

    def since(self, moment: float) -> int | None:
        """A position that suffices to show everything from before this moment: the lowest known."""
        return next((position for at, position in self._marks if at >= moment), None)

    def clear(self) -> None:
        self._marks = []
