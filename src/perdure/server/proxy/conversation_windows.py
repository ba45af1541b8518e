"""What is sent upstream for a request that is recorded: its own body, or one with a window, with
what was recalled, with tools of ours.

Also keeps what clients do not see: calls of history tools and what they found (`tool_loop`). It is
in memory, and in the log as an event in front of the reply.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from perdure.bank.bank import Bank
from perdure.bank.session import Session
from perdure.config import ProxyConfig
from perdure.core.errors import PerdureError
from perdure.core.messages import Message
from perdure.core.turns import TurnSplitter
from perdure.gateway.providers import CallWire
from perdure.history.manifest import RoundId
from perdure.server.proxy.client_items import ClientItems, decoded
from perdure.server.proxy.client_request import ClientRequest
from perdure.server.proxy.request_window import BuiltWindow, RequestWindow
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

Raw: TypeAlias = msgspec.Raw

_log = logging.getLogger(__name__)

_OPEN = 256  # Conversations that are kept in memory.
_RECENT = 50  # Turns of which it is read again what a client did not see.
_REPLY = Message("assistant")


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

    def with_more(self, items: Sequence[Raw]) -> bytes:
        """The body with items behind the others."""
        return _body(self.request, [*self.items, *items], self.tools)


class _Kept:
    """What is kept of one conversation."""

    def __init__(self, window: RequestWindow) -> None:
        self.window = window
        self.hidden: dict[RoundId, HiddenItems] | None = None  # None: not read yet


class ConversationWindows:
    """The windows of all conversations of a proxy."""

    def __init__(self, bank: Bank, settings: ProxyConfig, items: ClientItems) -> None:
        self._bank = bank
        self._settings = settings
        self._items = items
        self._open: dict[str, _Kept] = {}

    @property
    def budget(self) -> int:
        return self._settings.budget or self._bank.services.config.history.budget

    def tokens(self, request: ClientRequest) -> int:
        return sum(self._items.tokens(request.wire, request.items))

    async def is_due(self, request: ClientRequest, session: str) -> bool:
        """Whether anything but the client's own body is sent."""
        if self._settings.recall or (self._settings.tools and offered_names(request)):
            return True
        window, tokens = self._kept(session).window, self.tokens(request)
        return await window.is_due(request, session, tokens, self.budget)

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
        facts = self._items.facts(request.wire, request.items)
        placed = [None if f.summary else p for p, f in zip(places, facts, strict=True)]
        built = await kept.window.build(
            request,
            session.record,
            head,
            placed,
            lambda raw: self._items.tokens(request.wire, [raw])[0],
            budget=self.budget,
            recall=settings.recall,
            tools=tools,
            restored=await self._restored(kept, session, request, placed),
            keep=keep,
        )
        body = _body(request, built.items, tools)
        unsent = max(built.whole - built.tokens, 0)
        return SentRequest(body, request, built.items, tools, unsent, built)

    def refused(
        self, session: str, status: int, headers: Mapping[str, str], body: bytes
    ) -> bool:
        """Whether an answer says that the prompt is too long. Then another `rewrite` gives less,
        for this request and all later ones.
        """
        return self._kept(session).window.refused(status, headers, body)

    async def hide(
        self, session: Session, request: ClientRequest, loop: ToolLoop, seen: Sequence[Message]
    ) -> None:
        """Keep what the client did not see of an answer, before its reply is written. `seen` is
        what it saw.
        """
        if not loop.hidden:
            return
        hidden = HiddenItems(tuple(loop.hidden), seen_digest(seen))
        state = (await session.head()).mark
        place = RoundId(*TurnSplitter(state).feed(_REPLY))
        kept = self._kept(session.name)
        if kept.hidden is None:
            kept.hidden = {}
        kept.hidden[place] = hidden
        await session.append([hidden_event(hidden, request.wire, loop.calls)])

    async def _restored(
        self,
        kept: _Kept,
        session: Session,
        request: ClientRequest,
        places: Sequence[RoundId | None],
    ) -> dict[RoundId, tuple[Raw, ...]]:
        """The items in place of replies of which the client saw a part, where it still has them."""
        if not self._settings.tools:
            return {}
        if kept.hidden is None:
            kept.hidden = await _read_hidden(session, request.wire)
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
