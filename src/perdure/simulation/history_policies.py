"""Common ways to keep a history within a budget, to compare ours with.

A policy is asked for one request after the other: the calls before it, and the prompt. The budget
covers all messages, not system text and tools. No policy drops the newest call: no model has seen
its tools' answers. If it alone does not fit, it is cut at its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from perdure.core.tokens import o200k
from perdure.history.renditions.algorithm import compact
from perdure.history.renditions.unit_choice import Room, chosen
from perdure.history.renditions.unit_weights import SpeakerText
from perdure.simulation.gradient_policy import GradientPolicy
from perdure.simulation.prompt_cache import CacheBlock
from perdure.simulation.replay_input import Call, ReplaySetting, SimulatedRequest, cut, digest
from perdure.simulation.used_identifiers import without_lists

__all__ = ["POLICIES", "Policy", "ReplaySetting", "SimulatedRequest"]

SUMMARY = 2_500  # Tokens of a rolling summary, unless that is more than a quarter of the budget.
KEPT = 0.35  # The share of the budget that a rolling summary leaves as it was said.
UNMASKED = 10  # Calls whose tools' outputs are not masked.


class Policy(Protocol):
    """One way to keep a history. Made anew for each replay."""

    async def request(self, number: int) -> SimulatedRequest:
        """What is sent for this call. Asked for each call once, from 0 on. Raises `BudgetTooSmall`
        if the prompt alone does not fit.
        """

    async def close(self) -> None:
        """Safe to call twice."""


class _Windowed:
    """Keeps a window of the newest calls."""

    def __init__(self, setting: ReplaySetting) -> None:
        self._setting = setting
        self._window = _Window()

    async def close(self) -> None:
        pass

    def _add_last(self, number: int) -> None:
        if number:
            self._window.add(self._setting.calls[number - 1])


class Unlimited(_Windowed):
    """Everything, always."""

    async def request(self, number: int) -> SimulatedRequest:
        self._add_last(number)
        return self._window.request(self._setting.calls[number], rewritten=False)


class DropOldest(_Windowed):
    """The newest calls that fit; what was dropped does not come back."""

    async def request(self, number: int) -> SimulatedRequest:
        self._add_last(number)
        room = self._setting.room(number)
        rewritten = self._window.shrink(room, room)
        return self._window.request(self._setting.calls[number], rewritten=rewritten)


class DropHalf(_Windowed):
    """The newest calls; when they no longer fit, the oldest go until half of the budget is free."""

    async def request(self, number: int) -> SimulatedRequest:
        self._add_last(number)
        room, rewritten = self._setting.room(number), False
        if self._window.tokens > room:
            rewritten = self._window.shrink(min(self._setting.budget // 2, room), room)
        return self._window.request(self._setting.calls[number], rewritten=rewritten)


class RollingSummary(_Windowed):
    """A summary of everything, then the newest calls. When they no longer fit, the summary is
    written anew and covers all but the newest 35 % of the budget. The cost of writing it is not
    counted.

    It has no words of a model: what it says is chosen by Perdure's own algorithm from the summary
    before and from the calls that it now covers, at C: of all ways tried, the one that keeps most
    of what is used later. It takes all of its tokens, whatever it says.
    """

    def __init__(self, setting: ReplaySetting) -> None:
        super().__init__(setting)
        self._most = min(SUMMARY, setting.budget // 4)
        self._summary = 0  # tokens
        self._version = 0
        self._tokens = 0  # of the whole history
        self._first = 0  # The first call that the summary does not cover.
        self._words = self._text = ""  # What it says; what of it counts.

    async def request(self, number: int) -> SimulatedRequest:
        setting, window = self._setting, self._window
        self._add_last(number)
        if number:
            self._tokens += setting.calls[number - 1].tokens
        room, rewritten = setting.room(number), False
        if window.tokens + self._summary > room:
            self._summary = min(self._most, room)
            left = room - self._summary
            window.shrink(min(int(setting.budget * KEPT), left), left)
            self._version += 1
            self._summarise(number - len(window))
            rewritten = True
        shown = window.request(setting.calls[number], rewritten=rewritten)
        if not self._version:
            return shown
        return SimulatedRequest(
            [_made("summary", self._version, self._summary), *shown.blocks],
            rewritten=rewritten,
            covered=self._tokens,
            history=shown.history + self._summary,
            shortened=True,
            texts=[self._text, *shown.texts],
        )

    def _summarise(self, end: int) -> None:
        """Write the summary of all calls before `end`."""
        dropped = self._setting.calls[self._first : end]
        self._first = end
        said = [self._words, *(compact(call.messages, str(call.position)) for call in dropped)]
        heard = [SpeakerText("", each) for each in said if each.strip()]
        room = Room(self._summary, self._summary, self._summary)
        self._words = "\n".join(filter(None, chosen(heard, room, o200k())))
        self._text = without_lists(self._words)


class Masking(_Windowed):
    """Everything, but only the newest ten calls' tool outputs. Each request masks the outputs of
    one more call, so all that follows it is new to the cache. When that is not enough, the oldest
    calls go until half of the budget is free.
    """

    def __init__(self, setting: ReplaySetting) -> None:
        super().__init__(setting)
        self._masked = _Window()
        self._shortened = False

    async def request(self, number: int) -> SimulatedRequest:
        setting, masked, newest = self._setting, self._masked, self._window
        rewritten = False
        self._add_last(number)
        if len(newest) > UNMASKED:
            call = setting.calls[number - 1 - UNMASKED]
            shown = newest.take_oldest()
            masked.append(_Shown(call.masked, call.tokens, call.masked_text))
            rewritten = shown.blocks != call.masked
        room = setting.room(number)
        if masked.tokens + newest.tokens > room:
            rewritten = True
            half = min(setting.budget // 2, room)
            masked.shrink(max(half - newest.tokens, 0))
            if not masked.tokens:
                newest.shrink(half, room)
        recent = newest.request(setting.calls[number], rewritten=rewritten)
        self._shortened = self._shortened or rewritten
        return SimulatedRequest(
            [*masked.blocks, *recent.blocks],
            rewritten=rewritten,
            covered=masked.covered + recent.covered,
            history=masked.tokens + recent.history,
            shortened=self._shortened,
            texts=[*masked.texts, *recent.texts],
        )


#: Made with a setting, each is a policy.
POLICIES: dict[str, Callable[[ReplaySetting], Policy]] = {
    "unlimited": Unlimited,
    "drop_oldest": DropOldest,
    "drop_half": DropHalf,
    "rolling_summary": RollingSummary,
    "masking": Masking,
    "gradient": GradientPolicy,
    "gradient_thrifty": partial(GradientPolicy, profile="thrifty"),
}


class _Shown(NamedTuple):
    blocks: tuple[CacheBlock, ...]
    raw: int  # What it stands for.
    text: str = ""

    @property
    def tokens(self) -> int:
        return sum(block.tokens for block in self.blocks)


class _Window:
    """Calls in a row, of which the oldest can go. Totals are kept, not counted again."""

    def __init__(self) -> None:
        self._calls: deque[_Shown] = deque()
        self.tokens = self.covered = 0
        self.blocks: list[CacheBlock] = []  # Of all calls; replaced, never changed.
        self._shortened = False

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def texts(self) -> list[str]:
        return [shown.text for shown in self._calls]

    def add(self, call: Call) -> None:
        self.append(_Shown(call.blocks, call.tokens, call.text))

    def append(self, shown: _Shown) -> None:
        self._calls.append(shown)
        self.tokens += shown.tokens
        self.covered += shown.raw
        self.blocks += shown.blocks

    def take_oldest(self) -> _Shown:
        shown = self._calls.popleft()
        self.tokens -= shown.tokens
        self.covered -= shown.raw
        self.blocks = self.blocks[len(shown.blocks) :]
        return shown

    def shrink(self, wanted: int, most: int | None = None) -> bool:
        """Drop the oldest until at most `wanted` tokens are left. With `most`, the newest call
        stays, cut to so many tokens. Returns whether anything changed.
        """
        before = self.tokens
        while self.tokens > wanted and len(self._calls) > (most is not None):
            self.take_oldest()
        if most is not None and self.tokens > most:
            shown = self.take_oldest()
            blocks = cut(shown.blocks, most)
            kept = sum(block.tokens for block in blocks)
            text = shown.text[: len(shown.text) * kept // max(shown.tokens, 1)]
            self.append(_Shown(blocks, kept, text))
        if self.tokens == before:
            return False
        self._shortened = True
        return True

    def request(self, call: Call, *, rewritten: bool) -> SimulatedRequest:
        return SimulatedRequest(
            [*self.blocks, *call.prompt],
            rewritten=rewritten,
            covered=self.covered,
            history=self.tokens,
            shortened=self._shortened,
            texts=self.texts,
        )


def _made(what: str, version: int, tokens: int) -> CacheBlock:
    return CacheBlock(digest(what.encode(), version), tokens)
