"""The body of a request whose history does not fit its budget.

The session's strategy decides what is shown; `window_layout` writes it around the client's own
items. All other fields of the body stay as the client wrote them.

Never raises for what a client sent, nor for a budget that is too small: then the window gets larger
than the budget, step by step, because the newest prompt is always sent whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from perdure import wire as wires
from perdure.context.composer import Composer
from perdure.context.system_prompt import explanation_of_records
from perdure.core.errors import BudgetTooSmall, InvalidInput, PromptTooLong
from perdure.core.messages import Message, Unknown
from perdure.gateway.provider_errors import from_response
from perdure.gateway.providers import CallWire
from perdure.history.log_records import Head, SessionRecord
from perdure.history.manifest import RoundId, ShownHistory
from perdure.history.message_identity import is_injected, own_words
from perdure.history.strategies.gradient_strategy import binds_prefix
from perdure.history.strategies.raw_rounds import sent_tokens
from perdure.server.proxy.client_request import ClientRequest, decode_json
from perdure.server.proxy.window_layout import (
    MOST_MARKERS,
    Extras,
    KeptRound,
    Restored,
    SentItems,
    WindowLayout,
    lay_out,
    side,
)
from perdure.services import Services

Raw: TypeAlias = msgspec.Raw
#: The o200k tokens of one item.
CountItem: TypeAlias = Callable[[Raw], int]

_LEAST_BUDGET = 500
_TRIES = 12
_STEP = 1.5  # How much larger the window gets where the budget is too small.
_MARKER = b'"cache_control"'
#: What is taken of a window that was refused, if its provider did not say how much is too much, and
#: of what it said; and what is left of a budget at least.
_SMALLER, _MARGIN, _LEAST_SHARE = 0.7, 0.92, 0.05
_with_answer = re.compile(r"(\d+) \+ (\d+) > (\d+)").search
_numbers = re.compile(r"\d[\d,_]{3,}")
_ELSEWHERE = ("previous_response_id", "conversation")


class BuiltWindow(msgspec.Struct, frozen=True):
    """What is sent in place of the client's items."""

    items: list[Raw]
    #: In o200k tokens: what is sent, and what the client sent.
    tokens: int
    whole: int
    shown: ShownHistory


class RequestWindow:
    """The windows of one conversation."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._composer = Composer(services)
        #: What is taken of the budget: less, once a provider refused a window as too long.
        self.share = 1.0
        self._has_epoch: bool | None = None  # None: not known yet
        self._checked: tuple[int, RoundId | None] | None = None
        self._preamble: list[Raw] = []
        self._rounds: Mapping[RoundId, KeptRound] = {}
        self._wire: CallWire | None = None  # The format that these are of.

    @property
    def has_epoch(self) -> bool:
        return bool(self._has_epoch)

    async def is_due(self, request: ClientRequest, session: str, tokens: int, budget: int) -> bool:
        """Whether a window takes the place of the client's items: they do not fit, or did not
        before; what is shown then only grows.
        """
        scale = await self._services.token_counts.calibrations.scale(request.model)
        if tokens > scale.ours(int(budget * self.share)):
            return True
        if self._has_epoch is None:
            newest, _ = await self._services.epochs.newest(session)
            self._has_epoch = newest is not None and newest.epoch > 0
        return self._has_epoch

    async def build(
        self,
        request: ClientRequest,
        record: SessionRecord,
        head: Head,
        places: Sequence[RoundId | None],
        count: CountItem,
        *,
        budget: int,
        recall: bool = False,
        tools: Collection[str] = (),
        restored: Restored | None = None,
        keep: bool = True,
    ) -> BuiltWindow:
        """The items to send. All of the client's are recorded; `places` are their rounds. `budget`
        is in the provider's tokens. Without `keep` it is as if nobody had asked. Raises
        `BudgetTooSmall` if no window could be made at all.
        """
        scale = await self._services.token_counts.calibrations.scale(request.model)
        room = max(scale.ours(int(budget * self.share)), _LEAST_BUDGET)
        if request.wire != self._wire:
            self._wire, self._rounds, self._preamble, self._checked = request.wire, {}, [], None
        sent = sent_items(request, places, self._rounds)
        explanation = explanation_of_records(tools)
        fixed = sum(map(count, sent.items[: sent.standing]))
        fixed += self._services.counter.count(explanation)
        extras = Extras(
            explanation=explanation,
            restored=restored or {},
            binds=request.wire == "messages" and binds_prefix(request.model),
            marker=_marker(request),
        )
        whole = sum(map(count, request.items))
        for _ in range(_TRIES):
            try:
                shown = await self._composer.show(
                    record,
                    head,
                    budget=room,
                    fixed=fixed,
                    recall=recall,
                    board=bool(tools),
                    keep=keep,
                )
            except BudgetTooSmall as exc:
                room = _larger(int(room * _STEP), max(exc.needed, fixed))
                continue
            laid = self._laid(request, sent, shown, extras)
            items, tokens = laid.items, sum(map(count, laid.items))
            if tokens <= room:
                if keep:
                    self._rounds = laid.rounds
                self._has_epoch = self._has_epoch or shown.epoch > 0
                return BuiltWindow(items, tokens, whole, shown)
            # The client's items take more than what the log has of them: its notes, look-ups.
            fixed = max(fixed + tokens - room, tokens - self._counted(shown))
        raise BudgetTooSmall(budget, scale.theirs(fixed))

    def _counted(self, shown: ShownHistory) -> int:
        """What a window takes by the strategy's own count."""
        return (
            sum(block.element.tokens for block in shown.blocks)
            + sum(native.tokens for native in shown.rounds)
            + sum(each.tokens for each in shown.injected)
            + sent_tokens(self._services.counter, shown.prompt)
        )

    def shrink(self, tokens: int, budget: int, refusal: bytes) -> None:
        """So many tokens were refused as too long: later windows are smaller."""
        share = tokens * smaller(refusal) / max(budget, 1)
        self.share = max(min(share, self.share * _MARGIN), _LEAST_SHARE)

    def _laid(
        self, request: ClientRequest, sent: SentItems, shown: ShownHistory, extras: Extras
    ) -> WindowLayout:
        standing = self._standing_words(sent, shown)
        extras = msgspec.structs.replace(
            extras,
            preamble=[raw for raw in standing if not _is_behind(raw, sent.wire)],
            behind=[raw for raw in standing if _is_behind(raw, sent.wire)],
        )
        laid = lay_out(sent, shown, extras)
        if extras.marker is not None and _markers(request, laid.items) > MOST_MARKERS:
            extras = msgspec.structs.replace(extras, marker=None)
            laid = lay_out(sent, shown, extras)
        # What the client adds to a window keeps the rules as its own list does: a look is due when
        # the window is another.
        edge = shown.epoch, shown.rounds[0].place if shown.rounds else None
        if edge != self._checked:
            if violates(request.wire, laid.items) and not violates(request.wire, request.items):
                # Nothing of the client's beyond what stands before the conversation.
                only = SentItems(sent.wire, sent.items[: sent.standing], (None,) * sent.standing)
                return lay_out(msgspec.structs.replace(only, standing=sent.standing), shown, extras)
            self._checked = edge
        return laid

    def _standing_words(self, sent: SentItems, shown: ShownHistory) -> list[Raw]:
        """What a client put beside prompts that are not shown as they were sent: its instructions
        and system text with the first; elsewhere, what is a developer's (tools, settings).
        """
        native = {each.place for each in shown.rounds}
        if shown.prompt and shown.open_turn:
            native.add(RoundId(shown.open_turn))
        found, is_first = list[Raw](), True
        places = list(sent.places[sent.standing :])
        for at in range(len(places) - 2, -1, -1):
            if places[at] is None:
                places[at] = places[at + 1]  # as in the layout
        for raw, place in zip(sent.items[sent.standing :], places, strict=True):
            is_first = is_first and side(raw, sent.wire) == "other"
            if not is_first and sent.wire == "messages":
                break
            if place is None or place in native:
                continue
            put_in = raw if is_system(raw) else injected_blocks(raw) if is_first else None
            if put_in is not None:
                found.append(put_in)
        # A client that compacted says these words in what it sends now; where they were sent
        # before, they stay.
        self._preamble = found or self._preamble
        is_whole = bool(places) and places[0] == RoundId(1) and places[0] in native
        return [] if is_whole else self._preamble


def sent_items(
    request: ClientRequest,
    places: Sequence[RoundId | None],
    before: Mapping[RoundId, KeptRound],
) -> SentItems:
    standing = 0
    for raw in request.items:
        if not stands_outside(raw, request.wire):
            break
        standing += 1
    if standing == len(request.items):
        standing = 0
    return SentItems(request.wire, request.items, places, standing, before)


def stands_outside(raw: Raw, wire: CallWire) -> bool:
    """Whether an item before the conversation is no part of it: system text, tools, a client's own
    notes, or what nobody knows.
    """
    if is_system(raw):
        return True
    messages = _decoded(raw, wire)
    return bool(messages) and all(
        is_injected(message) or all(isinstance(part, Unknown) for part in message.parts)
        for message in messages
    )


def is_system(raw: Raw) -> bool:
    """System text, or another item in a developer's name."""
    text = bytes(raw)
    item = decode_json(raw) if b'"system"' in text or b'"developer"' in text else None
    return isinstance(item, dict) and item.get("role") in {"system", "developer"}


def _is_behind(raw: Raw, wire: CallWire) -> bool:
    return wire == "messages" and is_system(raw)


def injected_blocks(raw: Raw) -> Raw | None:
    """The user's message with those of its blocks that its client put in, if there are others."""
    item = decode_json(raw)
    content = item.get("content") if isinstance(item, dict) else None
    if not isinstance(content, list) or item.get("role") != "user":
        return None
    kept = [
        block
        for block in content
        if isinstance(block, dict)
        and isinstance(text := block.get("text"), str)
        and text.strip()
        and not own_words(text)
    ]
    if not kept:
        return None
    return Raw(msgspec.json.encode({**item, "content": kept}))


def violates(wire: CallWire, items: Sequence[Raw]) -> bool:
    return bool(wires.codec(wire).violations([decode_json(raw) for raw in items]))


def is_elsewhere(request: ClientRequest) -> bool:
    """Whether the provider keeps the history, so that nobody else can show it."""
    return any(not _is_null(request.fields.get(name)) for name in _ELSEWHERE)


def is_too_long(status: int, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a provider refused a request because its prompt is too long."""
    if status < 400 or status in {401, 403, 404, 429}:
        return False
    return isinstance(from_response(status, headers, body, where="upstream"), PromptTooLong)


def smaller(body: bytes) -> float:
    """The share of a refused window to try next: by the numbers that the refusal names, if it names
    how long the prompt was and how long it may be.
    """
    words = body.decode("utf-8", "replace")
    if added := _with_answer(words):
        prompt, answer, limit = (int(each) for each in added.groups())
        return min(max((limit - answer) / prompt, _LEAST_SHARE) * _MARGIN, _MARGIN)
    found = sorted({int(re.sub(r"\D", "", each)) for each in _numbers.findall(words)})
    if len(found) >= 2 and found[0] >= found[-1] * _LEAST_SHARE:
        return min(found[0] / found[-1] * _MARGIN, _MARGIN)
    return _SMALLER


def _larger(room: int, needed: int) -> int:
    while room < needed * 1.1:
        room = int(room * _STEP)
    return room


def _decoded(raw: Raw, wire: CallWire) -> tuple[Message, ...]:
    try:
        return wires.codec(wire).decode([decode_json(raw)])
    except (ValueError, InvalidInput):
        return ()


def _marker(request: ClientRequest) -> Any:
    """The client's own newest cache marker: ours is of its kind, as markers for an hour must not
    follow those for five minutes. None if it sets none.
    """
    if request.wire != "messages":
        return None
    for raw in (
        *reversed(request.items),
        request.fields.get("system"),
        request.fields.get("tools"),
    ):
        if raw is not None and _MARKER in bytes(raw):
            found = _find_marker(decode_json(raw))
            if found is not None:
                return found
    return None


def _find_marker(value: Any) -> Any:
    if isinstance(value, list):
        return next(filter(None, map(_find_marker, reversed(value))), None)
    if isinstance(value, dict):
        own = value.get("cache_control")
        return own if isinstance(own, dict) else _find_marker(value.get("content"))
    return None


def _markers(request: ClientRequest, items: Iterable[Raw]) -> int:
    """How many markers the body has, or seems to have."""
    outside = sum(
        bytes(raw).count(_MARKER) for name, raw in request.fields.items() if name != "messages"
    )
    outside += "cache_control" in request.fields
    return outside + sum(bytes(raw).count(_MARKER) for raw in items)


def _is_null(raw: Raw | None) -> bool:
    return raw is None or bytes(raw).strip() in {b"null", b'""'}
