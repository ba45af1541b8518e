"""Which version a record is probably at: what this process saw of it last."""

from __future__ import annotations

#: Records that are remembered, at least.
_MANY = 5_000


class Versions:
    """A small memory. It may be wrong: whoever relies on it has it checked when he writes."""

    def __init__(self) -> None:
        self._recent: dict[tuple[str, str], int] = {}
        self._older: dict[tuple[str, str], int] = {}

    def guess(self, place: tuple[str, str]) -> int:
        """The version of the record of this collection and key; 0, as if absent, if unknown."""
        found = self._recent.get(place)
        return self._older.get(place, 0) if found is None else found

    def learn(self, place: tuple[str, str], version: int) -> None:
        """Remember it, and forget what was seen long ago."""
        if len(self._recent) >= _MANY:
            self._older, self._recent = self._recent, {}
        self._recent[place] = version
