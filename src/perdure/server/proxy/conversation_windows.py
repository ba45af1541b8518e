"""What is sent upstream for a request that is recorded: its own body, or one with a window, with
what was recalled, with tools of ours.

Also keeps what clients do not see: calls of history tools and what they found (`tool_loop`). It is
in memory, and in the log as an event in front of the reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from perdure.bank.bank import Bank
from perdure.config import ProxyConfig
from perdure.gateway.providers import CallWire
from perdure.history.log_records import Head, TurnSpan
from perdure.history.manifest import RoundId
from perdure.server.proxy.answer_recorder import AnswerRecorder
from perdure.server.proxy.client_items import ClientItems, decoded
from perdure.server.proxy.client_request import ClientRequest, ConversationId
from perdure.server.proxy.request_window import (
    BuiltWindow,
    CountItem,
    RequestWindow,
    is_elsewhere,
)
from perdure.server.proxy.tool_loop import (
    HiddenItems,
    ToolLoop,
    hidden_event,
    hidden_in,
    offered_names,
    seen_digest,
    with_tools,
)
from perdure.server.proxy.window_layout import side
from perdure.sessions.session import Session

Raw: TypeAlias = msgspec.Raw

_OPEN = 64  # Conversations whose windows are kept in memory: some megabytes each.
_THEIRS = 0.7  # Ours that are certainly not more than one of a provider's.
_RECENT = 50  # Turns of which it is read again what a client did not see.


class SentRequest(msgspec.Struct, frozen=True):
    """What goes upstream in place of a request."""

    body: bytes
    #: As the client would have sent it, and as it is sent.
    request: ClientRequest
    items: Sequence[Raw]
    #: Tools of ours that go with it.
    tools: frozenset[str] = frozenset()
    #: o200k tokens of the client's history that are not sent.
    unsent: int = 0
    window: BuiltWindow | None = None

    @property
    def tokens(self) -> int:
        """Of the items, in o200k tokens."""
        return 0 if self.window is None else self.window.tokens

    def with_more(self, items: Sequence[Raw]) -> bytes:
        """The body with items behind the others."""
        return _body(self.request, [*self.items, *items], self.tools)


class _Kept:
    """What is kept of one conversation."""

    def __init__(self, window: RequestWindow) -> None:
        self.window = window
        self.hidden: dict[RoundId, HiddenItems] | None = None  # None: not read yet
        self.undone: tuple[TurnSpan, ...] = ()  # What was taken back when it was read.


class ConversationWindows:
    """The windows of all conversations of a proxy."""

    def __init__(self, bank: Bank, settings: ProxyConfig, items: ClientItems) -> None:
        self._bank = bank
        self._settings = settings
        self._items = items
        self._open: dict[str, _Kept] = {}
        self._windowed: dict[ConversationId, bool] = {}

    @property
    def budget(self) -> int:
        return self._settings.budget or self._bank.services.config.history.budget

    def tokens(self, request: ClientRequest) -> int:
        return sum(self._items.tokens.of(request.wire, request.items))

    async def count(self, request: ClientRequest) -> int:
        """The tokens of a request, whose items may be new here."""
        return sum(await self._items.tokens.read(request.wire, request.items))

    async def may_be_due(self, request: ClientRequest) -> bool:
        """Whether `is_due` has to be asked: False only if it is known without looking."""
        settings = self._settings
        if is_elsewhere(request):
            return False
        if settings.recall or (settings.tools and offered_names(request)):
            return True
        if request.id.conversation and self._windowed.get(request.id, True):
            return True
        share = min((kept.window.share for kept in self._open.values()), default=1.0)
        # No token is shorter than a byte. A provider's tokens may be shorter than ours.
        room = int(self.budget * share * _THEIRS)
        return len(request.plain) > room and await self.count(request) > room

    async def is_due(self, request: ClientRequest, session: str) -> bool:
        """Whether anything but the client's own body is sent for a request that is recorded."""
        if is_elsewhere(request):
            return False
        if self._settings.recall or (self._settings.tools and offered_names(request)):
            return True
        window, tokens = self._kept(session).window, self.tokens(request)
        due = await window.is_due(request, session, tokens, self.budget)
        if request.id.conversation:
            self._windowed[request.id] = due
            while len(self._windowed) > _OPEN * 16:
                self._windowed.pop(next(iter(self._windowed)))
        return due

    def has_window(self, session: str) -> bool:
        """Whether a window was sent for it, as far as this process knows."""
        kept = self._open.get(session)
        return kept is not None and kept.window.has_epoch

    async def rewrite(
        self,
        request: ClientRequest,
        session: Session,
        places: Sequence[RoundId | None],
        *,
        keep: bool = True,
    ) -> SentRequest:
        """What is sent for a request; all of it is recorded. Without `keep`, it is as if nobody had
        asked. Raises what the store raises, `BudgetTooSmall` if no window could be made.
        """
        kept, settings = self._kept(session.name), self._settings
        tools = offered_names(request) if settings.tools else frozenset[str]()
        head = await session.head()
        # A summary stands where the client put it, not in place of what it is about.
        facts = self._items.facts.of(request.wire, request.items)
        placed = [None if f.summary else p for p, f in zip(places, facts, strict=True)]
        built = await kept.window.build(
            request,
            session.record,
            head,
            placed,
            self._counting(request),
            budget=self.budget,
            recall=settings.recall,
            tools=tools,
            restored=await self._restored(kept, session, head, request, placed),
            keep=keep,
        )
        is_same = not tools and _are_same(built.items, request.items)
        body = request.body if is_same else _body(request, built.items, tools)
        unsent = max(built.whole - built.tokens, 0)
        return SentRequest(body, request, built.items, tools, unsent, built)

    def drop(self, session: str) -> None:
        """The session was forgotten."""
        self._open.pop(session, None)

    def shrink(self, session: str, request: ClientRequest, tokens: int, refusal: bytes) -> None:
        """A provider refused so many tokens as too long: send less, also later."""
        self._windowed[request.id] = True
        self._kept(session).window.shrink(tokens, self.budget, refusal)

    def hide(
        self, session: str, request: ClientRequest, loop: ToolLoop, answer: AnswerRecorder
    ) -> None:
        """Keep what the client did not see of an answer: it is written in front of the reply."""
        if not loop.hidden:
            return
        hidden = HiddenItems(tuple(loop.hidden), seen_digest(loop.seen))

        def placed(place: RoundId) -> None:
            kept = self._kept(session)
            kept.hidden = {**(kept.hidden or {}), place: hidden}

        answer.before, answer.placed = hidden_event(hidden, request.wire, loop.calls), placed

    def _counting(self, request: ClientRequest) -> CountItem:
        """Counts the client's items, which were counted before, and others."""
        counts = self._items.tokens.of(request.wire, request.items)
        known = dict(zip(map(id, request.items), counts, strict=True))

        def count(raw: Raw) -> int:
            found = known.get(id(raw))
            return self._items.tokens.of(request.wire, [raw])[0] if found is None else found

        return count

    async def _restored(
        self,
        kept: _Kept,
        session: Session,
        head: Head,
        request: ClientRequest,
        places: Sequence[RoundId | None],
    ) -> dict[RoundId, tuple[Raw, ...]]:
        """The items in place of replies of which the client saw a part, where it still has them."""
        if not self._settings.tools:
            return {}
        if kept.hidden is None or kept.undone != head.undone:
            # What was taken back may have been said again, in other rounds.
            kept.hidden = await _read_hidden(session, request.wire)
            kept.undone = head.undone
        if not kept.hidden:
            return {}
        replies = dict[RoundId, list[Raw]]()
        for raw, place in zip(request.items, places, strict=True):
            if place in kept.hidden and side(raw, request.wire) == "assistant":
                replies.setdefault(place, []).append(raw)
        return {
            place: kept.hidden[place].items
            for place, own in replies.items()
            if seen_digest(decoded(request.wire, own)) == kept.hidden[place].seen
        }

    def _kept(self, session: str) -> _Kept:
        kept = self._open.pop(session, None) or _Kept(RequestWindow(self._bank.services))
        self._open[session] = kept  # the newest last
        if len(self._open) > _OPEN:
            self._open.pop(next(iter(self._open)))
        return kept


def _are_same(one: Sequence[Raw], other: Sequence[Raw]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _body(request: ClientRequest, items: Sequence[Raw], tools: frozenset[str]) -> bytes:
    if not tools:
        return request.with_items(items)
    return request.with_items(items, tools=with_tools(request, tools))


async def _read_hidden(session: Session, wire: CallWire) -> dict[RoundId, HiddenItems]:
    """What the log has of it, after a restart."""
    found = dict[RoundId, HiddenItems]()
    for turn in await session.turns(_RECENT):
        for round in turn.rounds:
            waiting: HiddenItems | None = None
            for message in round.messages:
                held = hidden_in(message, wire)
                if held is not None:
                    waiting = held
                elif message.role == "assistant" and waiting is not None:
                    found[RoundId(turn.number, round.number)] = waiting
                    waiting = None
            if waiting is not None:  # its reply opened the next round
                found[RoundId(turn.number, round.number + 1)] = waiting
    return found
