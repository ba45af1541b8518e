"""The board: notes near the prompt that expire after some turns.

An entry is a posted note, or a turn that was pulled into view. It is sent in full once; while that
is still in the window, the board only names it; when an epoch has removed it, it is sent again. The
size is bounded: the newest wins, and what was left out is named. Pure functions; `Board` is what is
stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated

import msgspec
from msgspec.structs import replace

from perdure.core.display import plural
from perdure.core.errors import InvalidInput
from perdure.core.levels import Level
from perdure.core.tokens import Counter
from perdure.storage.records import Key, system_record

TURNS_TO_LIVE = 5
_LONGEST_LIFE = 1_000
#: Tokens of the board, at most: so many, or a share of the budget.
MOST_TOKENS, MOST_SHARE = 4_000, 0.1
_MOST_ENTRIES = 50  # Entries, at most. More would crowd out each other.
_NAMED = 3  # So many of those that there is no room for are named.
_LINE = 24  # A name takes so many tokens, about; what stands beside the entries, too.


class BoardEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A note, or a turn that was pulled."""

    id: str  # B-3
    text: str
    #: The turn that it was put there in, and the last one that it stands in.
    since: int
    until: int
    tokens: int
    #: ``T-12`` and its level, if it was pulled.
    source: str = ""
    level: Level | None = None

    @property
    def title(self) -> str:
        """``B-3``, ``B-4: T-12 at C``."""
        return f"{self.id}: {self.source} at {self.level}" if self.source else self.id


@system_record("boards")
class Board(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session's board."""

    id: Annotated[str, Key()]  # session
    entries: tuple[BoardEntry, ...] = ()
    posted: int = 0  # How many entries there ever were: numbers are not used again.


class RenderedBoard(msgspec.Struct, frozen=True):
    """The board as it is sent."""

    text: str = ""
    full: tuple[str, ...] = ()  # The entries that stand in it in full.


def cap_for(budget: int) -> int:
    return min(MOST_TOKENS, int(budget * MOST_SHARE))


def alive(entries: Iterable[BoardEntry], turn: int) -> tuple[BoardEntry, ...]:
    return tuple(entry for entry in entries if turn <= entry.until)


def post(
    board: Board, text: str, *, turn: int, counter: Counter, turns_to_live: int = TURNS_TO_LIVE
) -> tuple[Board, BoardEntry]:
    """The board with a note for the `turns_to_live` turns after this one. Raises `InvalidInput` for
    a note without words and for a life that is no whole number from 1 on.
    """
    entry = BoardEntry(_next_id(board), text, turn, turn + turns_to_live, counter.count(text))
    return _added(board, entry), entry


def pull(
    board: Board,
    source: str,
    level: Level,
    text: str,
    *,
    turn: int,
    counter: Counter,
    turns_to_live: int = TURNS_TO_LIVE,
) -> tuple[Board, BoardEntry]:
    """Replaces the same turn at whatever level. Raises as `post`."""
    rest = tuple(entry for entry in board.entries if entry.source != source)
    entry = BoardEntry(
        _next_id(board),
        text,
        turn,
        turn + turns_to_live,
        counter.count(text),
        source=source,
        level=level,
    )
    return _added(replace(board, entries=rest), entry), entry


def clear(board: Board, id: str | None = None) -> tuple[Board, tuple[str, ...]]:
    """Without this entry, or without any; and the ids of those removed."""
    gone = tuple(entry.id for entry in board.entries if id is None or entry.id == id)
    rest = tuple(entry for entry in board.entries if entry.id not in gone)
    return replace(board, entries=rest), gone


def render(
    entries: Iterable[BoardEntry],
    turn: int,
    standing: Collection[str],
    *,
    cap: int,
    counter: Counter,
) -> RenderedBoard:
    """The text of the entries that are alive; empty if none is. `standing` has the ids of those in
    full in the window already. At most `cap` tokens, but for the line that names what was left out.
    """
    living = alive(entries, turn)
    room, lines, full = cap, dict[str, str](), list[str]()
    left_out = list[BoardEntry]()
    for entry in reversed(living):
        named = f"{entry.title} stands above; {_left(entry, turn)}."
        if entry.id in standing:
            if room >= _LINE:
                lines[entry.id] = named
                room -= _LINE
            continue
        body = entry.text
        if entry.tokens + _LINE > cap and not full:  # it will never fit: as much as there is room
            body = _cut(entry, room - 2 * _LINE, counter)
        if not body or counter.count(body) + _LINE > room:
            left_out.append(entry)
            continue
        lines[entry.id] = f"{entry.title} ({_left(entry, turn)}):\n{body}"
        room -= counter.count(body) + _LINE
        full.append(entry.id)
    said = [lines[entry.id] for entry in living if entry.id in lines]
    if left_out:
        newest = [entry.id for entry in left_out[:_NAMED]]
        more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
        said.append(f"No room for {', '.join(newest)}{more}: clear the board, or fetch them.")
    return RenderedBoard("\n".join(said), tuple(reversed(full)))


def _next_id(board: Board) -> str:
    return f"B-{board.posted + 1}"


def _added(board: Board, entry: BoardEntry) -> Board:
    life = entry.until - entry.since
    if not entry.text.strip():
        raise InvalidInput("A note on the board needs words.", hint="Give the text to keep.")
    if not 1 <= life <= _LONGEST_LIFE:
        raise InvalidInput(
            f"Nothing stands on the board for {life} turns.",
            hint=f"Give 1 to {_LONGEST_LIFE:,} turns to live.",
        )
    kept = alive(board.entries, entry.since)[-(_MOST_ENTRIES - 1) :]
    return Board(board.id, (*kept, entry), board.posted + 1)


def _left(entry: BoardEntry, turn: int) -> str:
    more = entry.until - turn
    return f"{plural(more, 'more turn')}" if more else "last turn"


def _cut(entry: BoardEntry, room: int, counter: Counter) -> str:
    text = entry.text
    while text and counter.count(text) > room:
        text = text[: len(text) * max(room, 0) * 9 // (counter.count(text) * 10)]
    return f"{text.rstrip()} […]" if text.strip() else ""
