"""How full the windows of a policy were, what they were made of, and what stood in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from perdure.core.levels import LEVELS, Level
from perdure.history.sized_rounds import TURN_TAGS, Sized
from perdure.simulation.replay_input import ReplaySetting, SimulatedRequest
from perdure.simulation.used_identifiers import names

#: The shares of the history shown, from the newest on, that end R, S and C right after an epoch;
#: and where R may end inside a turn, whose newest rounds its model has just read.
EDGES: Mapping[Level, tuple[float, float]] = {"R": (0.1, 0.2), "S": (0.5, 0.6), "C": (0.7, 0.8)}
IN_TURN = 0.3
_ROUNDED = 0.005
#: How full a window is right after an epoch, at least; and what a turn has at T at most.
_FULL, _MOST_AT_T = 0.65, 0.05


class BandShare(msgspec.Struct, frozen=True):
    """A level's share of the history shown, right after epochs."""

    mean: float
    least: float
    most: float


class WindowFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the windows of a policy held; docs/simulate.md defines each figure. None: never so."""

    fill_mean: float | None = None
    fill_after_epoch: float | None = None
    fill_after_epoch_least: float | None = None
    bands: dict[Level, BandShare] = {}
    bands_in_range: float | None = None
    bands_possible: float | None = None
    bands_kept: float | None = None
    known: float | None = None


class WindowTally:
    """Adds up requests."""

    def __init__(self, setting: ReplaySetting) -> None:
        self._setting = setting
        self._fills, self._fresh_fills = list[float](), list[float]()
        self._shares = list[dict[Level, float]]()
        self._in_range = self._possible = self._kept = 0
        self._used = self._known = 0

    def add(self, number: int, request: SimulatedRequest) -> None:
        setting, call = self._setting, self._setting.calls[number]
        if request.shortened:
            prompt = call.prompt_tokens if call.position.round == 1 else 0
            room = setting.budget - prompt - max(request.injected, setting.injection)
            fill = request.history / max(room, 1)
            self._fills.append(fill)
            if request.rewritten:
                self._fresh_fills.append(fill)
                self._add_bands(request, in_turn=call.position.round != 1)
        used = setting.old_uses[number] if setting.old_uses else ()
        self._used += len(used)
        self._known += sum(any(names(text, each) for text in request.texts) for each in used)

    def _add_bands(self, request: SimulatedRequest, *, in_turn: bool) -> None:
        whole = sum(request.bands.values())
        if not whole:
            return
        shares = {level: request.bands.get(level, 0) / whole for level in LEVELS}
        self._shares.append(shares)
        end, fits = 0.0, True
        for level, (least, most) in EDGES.items():
            end += shares[level]
            limit = IN_TURN if in_turn and level == "R" else most
            fits = fits and least - _ROUNDED <= end <= limit + _ROUNDED
        self._in_range += fits
        self._possible += request.bands_possible
        self._kept += fits and request.bands_possible

    def figures(self) -> WindowFigures:
        fresh, shares = self._fresh_fills, self._shares
        bands = {level: _share([each[level] for each in shares]) for level in LEVELS if shares}
        return WindowFigures(
            fill_mean=_mean(self._fills),
            fill_after_epoch=_mean(fresh),
            fill_after_epoch_least=round(min(fresh), 4) if fresh else None,
            bands=bands,
            bands_in_range=round(self._in_range / len(shares), 4) if shares else None,
            bands_possible=round(self._possible / len(shares), 4) if shares else None,
            bands_kept=round(self._kept / self._possible, 4) if self._possible else None,
            known=round(self._known / self._used, 4) if self._used else None,
        )


def are_bands_possible(
    rounds: Sequence[Sized], tiny: Mapping[int, int], room: int, *, in_turn: bool = False
) -> bool:
    """Whether a history can be shown with every level in its range, in a window as full as it has
    to be: with R, S and C as large as they may be, T has its share if all older turns have the most
    that they may have there. No, too, where one round is larger than a range is wide. `rounds` are
    all of the history, oldest first, `tiny` what turns take at T. The turn of the newest round
    cannot be there.
    """
    shown, at, above = room * _FULL, len(rounds), 0
    for level, (least, most) in EDGES.items():
        limit = IN_TURN if in_turn and level == "R" else most
        while at and above + (takes := _takes(rounds[at - 1], level)) <= shown * limit:
            at, above = at - 1, above + takes
        if above < shown * least:
            return False
    older = dict[int, int]()
    for each in rounds[:at]:
        older[each.place.turn] = older.get(each.place.turn, 0) + each.raw
    older.pop(rounds[-1].place.turn if rounds else 0, None)
    most_tiny = sum(
        max(tiny.get(turn, 0) + TURN_TAGS, raw * _MOST_AT_T) for turn, raw in older.items()
    )
    return most_tiny >= shown * (1 - EDGES["C"][1])


def _takes(each: Sized, level: Level) -> int:
    return {"R": each.raw, "S": each.smooth}.get(level, each.compact)


def _mean(figures: list[float]) -> float | None:
    return round(sum(figures) / len(figures), 4) if figures else None


def _share(shares: list[float]) -> BandShare:
    mean = sum(shares) / len(shares)
    return BandShare(round(mean, 4), round(min(shares), 4), round(max(shares), 4))
