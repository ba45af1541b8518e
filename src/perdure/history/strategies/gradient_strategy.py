"""The gradient as a strategy: the whole history is in the window, the older the shorter.

Between two epochs a request only grows at its end. An epoch is made before a request, never after
one, when the provider's cache is hot. It is made when the window overflows; between two turns also
at the high mark, after ten turns if it pays, and when the cache is surely cold.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

import msgspec

from perdure.artifacts import ArtifactStore
from perdure.core.clock import SECOND
from perdure.core.errors import BudgetTooSmall, Conflict, InvalidInput
from perdure.core.messages import Message, Reasoning, bare_model, is_same_model
from perdure.core.tokens import count_messages
from perdure.history.epochs import (
    Delta,
    Epoch,
    Epochs,
    FidelityWish,
    Prefix,
    PrefixText,
    Reason,
    epoch_key,
)
from perdure.history.gradient_planner import TURN_TAGS, plan, total
from perdure.history.manifest import (
    Element,
    EpochManifest,
    Native,
    RoundId,
    ShownBlock,
    ShownHistory,
)
from perdure.history.reduce_messages import reduced
from perdure.history.renditions.rendition_service import RenditionService
from perdure.history.strategies.element_renderer import (
    ElementRenderer,
    RenderedManifest,
    range_text,
)
from perdure.history.strategies.epoch_planner import (
    LEAD,
    EpochPlanner,
    WindowContent,
    about_to_be,
    apart_in,
    without_undone,
)
from perdure.history.strategies.raw_rounds import RawRound, RawRounds
from perdure.history.strategies.strategy import ContextRequest, VisibleRounds, WindowPreview
from perdure.history.token_counts import TokenCounts
from perdure.history.turn_reader import TurnReader
from perdure.history.turn_tags import escaped
from perdure.storage.concurrency import retry_conflicts

R = TypeVar("R")

#: The version of a Claude model: ``claude-fable-5-1``.
_claude = re.compile(r"claude-[a-z]+-(\d{1,2})(?:-(\d{1,2}))?(?!\d)")

_TURNS = 10  # Turns after which an epoch is considered, mark or no mark.
#: Microseconds without a word after which no provider has the prefix any more. The longest that
#: one promises is an hour.
_COLD = 3_600 * SECOND
_READ, _WRITE = 0.1, 1.25  # The price of a cached token, and of a written one, in uncached ones.
#: A turn that somebody wants at a level takes at most this share of the window; so many at once.
_PIN_SHARE, _MOST_WISHES = 0.25, 32
#: Of the room, what injections of earlier prompts take at most while there is no history in it.
_STALE = 0.27
_MANY = 400  # More turns than this behind the prefix are counted before they are read.


class _State(msgspec.Struct):
    prefix: Prefix
    version: int
    manifest: EpochManifest
    texts: dict[bytes, str]  # By digest.
    next: int  # The number that the next epoch gets.
    lost: bool = False  # It was deleted, because something that it showed was forgotten.
    blocks: tuple[ShownBlock, ...] | None = None  # Made when first needed.

    def shown(self) -> tuple[ShownBlock, ...]:
        if self.blocks is None:
            self.blocks = tuple(
                ShownBlock(element, self.texts[element.digest], _why(element, self.manifest))
                for element in self.manifest.shown()
            )
        return self.blocks


class GradientStrategy:
    """Shows one session by the gradient. Keeps what it read between requests."""

    name = "gradient"
    tagged = True

    def __init__(
        self,
        reader: TurnReader,
        artifacts: ArtifactStore,
        token_counts: TokenCounts,
        renditions: RenditionService,
        epochs: Epochs,
    ) -> None:
        self._reader = reader
        self._epochs = epochs
        self._rounds = RawRounds(reader, artifacts, token_counts)
        self._renderer = ElementRenderer(renditions, epochs, token_counts)
        self._planning = EpochPlanner(renditions, self._renderer, self._rounds)
        self._state: _State | None = None
        #: The request that `_state` was looked up for, and what its window holds.
        self._number = 0
        self._window: tuple[_State, WindowContent] | None = None
        self._sent: Sequence[RawRound] = ()  # The rounds that were sent last.
        #: The round that was reduced last, to what, and what came of it.
        self._reduced: tuple[RawRound, int, tuple[Message, ...], int] | None = None

    async def show(self, request: ContextRequest) -> ShownHistory:
        state, standing = await self._planned(request)
        if request.keep:
            self._sent = standing.rounds
        return self._shown(request, state, standing)

    async def preview(self, request: ContextRequest) -> WindowPreview:
        # An epoch that is due is only drafted: `show` plans it around the injection itself.
        state, standing = await self._planned(msgspec.structs.replace(request, keep=False))
        room = request.budget - request.fixed - standing.tokens()
        if state is not self._state:
            room = max(room, (request.budget - request.fixed) // 2)
        since, epoch = standing.manifest.at.turn, state.prefix.epoch
        return WindowPreview(since, epoch, _visible(standing), room)

    async def _planned(self, request: ContextRequest) -> tuple[_State, WindowContent]:
        if self._window is not None and request.number and request.number == self._number:
            state, standing = self._window
            fits = standing.tokens() + request.fixed <= request.budget
            if state is self._state and fits and not _is_stale(request, standing):
                return self._window  # worked out for this request before its injection was known
        self._window = await self._retried(lambda: self._plan_current(request))
        return self._window

    async def _plan_current(self, request: ContextRequest) -> tuple[_State, WindowContent]:
        return await self._plan(request, await self._current(request))

    async def _retried(self, work: Callable[[], Awaitable[R]]) -> R:
        """Again from what is stored if another process made an epoch, or a wish: that one holds."""

        async def attempt(_: int) -> R:
            try:
                return await work()
            except Conflict:
                self._forget()
                raise

        return await retry_conflicts(attempt)

    def _forget(self) -> None:
        self._state, self._window, self._number = None, None, 0

    async def standing_since(self, request: ContextRequest) -> int:
        return (await self._current(request)).manifest.at.turn

    async def wish(self, request: ContextRequest, wish: FidelityWish, *, now: bool) -> int:
        """Show a turn at a level from the next epoch on, or from the next request on. Returns how
        many tokens are written anew for that, beyond what an epoch would write anyway. Raises
        `InvalidInput` if it would take too much of the window.
        """
        return await self._retried(lambda: self._wish(request, wish, now=now))

    async def _wish(self, request: ContextRequest, wish: FidelityWish, *, now: bool) -> int:
        state = await self._current(request)
        pin = await self._planning.pin(request, wish, {})
        if pin is None:
            raise InvalidInput(f"T-{wish.turn} was forgotten.", hint="There is nothing to show.")
        most = int(request.budget * _PIN_SHARE)
        if pin.tokens > most:
            raise InvalidInput(
                f"T-{wish.turn} takes {pin.tokens:,} tokens at {wish.level}; {most:,} are allowed.",
                hint="Choose a lower level, or fetch it with history_get_turn.",
            )
        wishes = (*(each for each in state.prefix.wishes if each.turn != wish.turn), wish)
        prefix = msgspec.structs.replace(
            state.prefix,
            wishes=wishes[-_MOST_WISHES:],
            asked=state.prefix.asked or now,
            budget=state.prefix.budget or request.budget,
        )
        version = await self._epochs.keep(prefix, state.version)
        self._state = msgspec.structs.replace(state, prefix=prefix, version=version)
        standing = await self._standing(request, state.manifest)
        if standing is None or not now:
            return 0
        behind = [e.tokens for e in state.manifest.shown() if e.last.turn >= wish.turn]
        native = [s.tokens for s in standing.native if s.place.turn >= wish.turn]
        return sum(behind) + sum(native)

    async def past(self, request: ContextRequest, place: RoundId) -> ShownHistory:
        found = await self._epochs.in_force(request.record.id, place)
        manifest, texts, number = EpochManifest(), dict[bytes, str](), 0
        undone = request.head.undone
        if found is not None:
            epoch, manifest = found
            kept = await self._renderer.found(
                request.record, request.head, manifest, request.record.id
            )
            manifest, texts, number = kept.manifest, kept.texts, epoch.number
            undone = epoch.undone
        head = msgspec.structs.replace(request.head, undone=undone)
        rounds = self._rounds.with_tombstones()
        said = await rounds.since(request.record, head, manifest.native)
        then = [each for each in said if each.place < place]
        since = max(manifest.native.turn, manifest.at.turn)
        injected = await request.injected(
            since, request.turn if not request.prompted else request.turn - 1
        )
        standing = WindowContent(manifest, then, injected)
        if (apart := apart_in(manifest)) is not None:
            opening = await rounds.prompt(request.record, request.head, apart)
            standing.prompt = opening.messages
        prefix = Prefix(id=request.record.id, epoch=number)
        return self._shown(request, _State(prefix, 0, manifest, texts, number + 1), standing)

    async def _plan(self, request: ContextRequest, state: _State) -> tuple[_State, WindowContent]:
        before, standing = state, await self._standing(request, state.manifest)
        if standing is None:
            state = await self._epoch(request, state, "budget", None)
            standing = await self._standing(request, state.manifest, whatever=True)
        reason = await self._reason(request, state, standing) if standing is not None else None
        if reason is not None:
            state = await self._epoch(request, state, reason, standing)
            standing = await self._standing(request, state.manifest, whatever=True)
        assert standing is not None  # noqa: S101 (it was read)
        if request.keep and state is not before:
            self._sent = standing.rounds  # what changed behind the last request is dealt with
        return state, standing

    async def _current(self, request: ContextRequest) -> _State:
        record, known = request.record, self._state
        if known is not None and request.number and request.number == self._number:
            return known  # looked up for this request a moment ago
        prefix, version = await self._epochs.newest(record.id)
        self._number, self._window = request.number, None
        if prefix is not None and known is not None and known.version == version:
            return known
        if prefix is None:
            number = await self._epochs.count(record.id)
            if not number and (adopted := await self._adopted(request)) is not None:
                return adopted
            # If there were epochs, what was sent is not known any more.
            at = about_to_be(request, None) if number else RoundId(1)
            nothing = Prefix(id=record.id)
            state = _State(nothing, 0, EpochManifest(at=at), {}, number + 1, lost=number > 0)
        elif not prefix.epoch:
            number = await self._epochs.count(record.id)
            state = _State(prefix, version, EpochManifest(), {}, number + 1)
        elif (text := await self._epochs.text(record.id, prefix.epoch)) is not None:
            state = _State(prefix, version, text.manifest, text.by_digest(), prefix.epoch + 1)
        else:
            # Its text is gone, and is made anew; unless somebody has just made another epoch: then
            # recording this one is a conflict, and that one holds.
            at = about_to_be(request, None)
            state = _State(prefix, version, EpochManifest(at=at), {}, prefix.epoch + 1, lost=True)
        self._state = state
        return state

    async def _adopted(self, request: ContextRequest) -> _State | None:
        record = request.record
        for stretch in reversed(record.line):
            # Not one that was made inside the shared turn, behind what is shared of it.
            shared = await self._reader.turns(record, request.head, stretch.turn, stretch.turn)
            edge = RoundId(stretch.turn, sum(len(turn.rounds) for turn in shared) + 1)
            found = await self._epochs.in_force(stretch.session, edge)
            if found is None:
                continue
            epoch, manifest = found
            kept = await self._renderer.found(record, request.head, manifest, stretch.session)
            prefix = Prefix(
                id=record.id,
                model=epoch.model,
                undone=request.head.undone,
                turns=epoch.at.turn - 1,
                budget=epoch.budget,
            )
            own = msgspec.structs.replace(epoch, id=epoch_key(record.id, 1), reason="fork")
            nothing = _State(Prefix(id=record.id), 0, EpochManifest(), {}, 1)
            return await self._kept(request, nothing, prefix, kept, own)
        return None

    async def _standing(
        self, request: ContextRequest, manifest: EpochManifest, *, whatever: bool = False
    ) -> WindowContent | None:
        """What stands in the window; None if that is so much that it was not even read."""
        record, head, first = request.record, request.head, manifest.native
        many = head.turn - first.turn > _MANY and not self._rounds.has(record, first)
        if many and not whatever:
            counted = await self._reader.tokens(record, first.turn, head.turn)
            if counted > request.budget:
                return None
        rounds = await self._rounds.since(record, head, first)
        if not request.prompted and request.turn < head.turn:  # it was overtaken, and goes on alone
            rounds = [each for each in rounds if each.place.turn <= request.turn]
        since = max(first.turn, manifest.at.turn)
        injected = await request.injected(
            since, request.turn if not request.prompted else request.turn - 1
        )
        standing = WindowContent(manifest, rounds, injected)
        if (apart := apart_in(manifest)) is not None:
            opening = await self._rounds.prompt(record, head, apart)
            standing.prompt, standing.prompt_tokens = opening.messages, opening.tokens
        return standing

    def _shown(
        self, request: ContextRequest, state: _State, standing: WindowContent
    ) -> ShownHistory:
        manifest = standing.manifest
        sent = _sent_by_us(standing)
        rounds = list[Native]()
        for each in standing.native:
            cap = manifest.cap(each.place)
            valid = each.place >= manifest.at and _thinks_on(each, sent)
            rounds.append(self._native(each, cap, request.budget, thinking=valid))
        under_way = None if request.prompted else request.turn
        raw = sum(element.raw for element in manifest.elements)
        return ShownHistory(
            blocks=state.shown(),
            rounds=tuple(rounds),
            injected=tuple(standing.injected),
            open_turn=apart_in(manifest) or under_way,
            prompt=standing.prompt,
            epoch=state.prefix.epoch,
            hidden=manifest.hidden,
            at=manifest.at,
            raw=raw + sum(each.tokens for each in standing.rounds),
        )

    def _native(self, each: RawRound, cap: int | None, budget: int, *, thinking: bool) -> Native:
        if cap is None or cap >= each.tokens:
            return Native(each.place, each.messages, each.tokens, each.tokens, thinking=thinking)
        if self._reduced is None or self._reduced[:2] != (each, cap):
            counter = self._rounds.counter
            tags = TURN_TAGS if each.place.round == 1 else 0
            sent = map(escaped, each.messages)
            messages = reduced(sent, str(each.place), cap - tags, counter)
            self._reduced = (each, cap, messages, count_messages(counter, messages) + tags)
        *_, messages, tokens = self._reduced
        if tokens > cap:
            raise BudgetTooSmall(budget, budget + tokens - cap)
        return Native(each.place, messages, tokens, each.tokens, thinking=thinking, reduced=True)

    async def _reason(
        self, request: ContextRequest, state: _State, standing: WindowContent
    ) -> Reason | None:
        """Why an epoch has to be made now; None if none has to."""
        prefix, taken = state.prefix, standing.tokens() + request.fixed
        if standing.manifest.elements:  # else all of it stands there: it need not be recalled
            taken += request.least
        if taken > request.budget:
            return "budget"
        undone = prefix.epoch and prefix.undone != request.head.undone
        if state.lost or undone or self._has_changed(standing):
            return "changed"
        if prefix.asked:
            return "asked"
        if request.model and _has_thoughts_of_others(standing, request.model):
            return "model"
        if prefix.epoch and request.budget >= 2 * prefix.budget:
            return "budget"
        if not request.prompted or not standing.manifest.elements:
            return None
        share = standing.history() / max(request.budget - request.fixed - LEAD, 1)
        if share > request.marks.high or _is_stale(request, standing):
            return "mark"
        if share <= request.marks.keep:
            return None  # it would stay as it is
        if request.now - request.head.time > _COLD:
            return "cold"
        # Looked at after ten turns, twenty, forty: a look takes longer than a request.
        tens, odd = divmod(request.head.turn - prefix.turns, _TURNS)
        is_due = tens > 0 and not odd and tens & (tens - 1) == 0
        if is_due and await self._pays(request, state, standing):
            return "turns"
        return None

    def _has_changed(self, standing: WindowContent) -> bool:
        """Whether what was sent last is not a prefix of what is shown now: a turn was undone, or
        completed late; or results came for calls that had been sent without.
        """
        first = standing.manifest.native
        sent = [each for each in self._sent if each.place >= first]
        now = standing.rounds[: len(sent)]
        cut = {each.place for each in standing.manifest.reduced}
        if len(now) < len(sent):
            return True
        return any(
            old.place != new.place
            or (
                len(old.messages) != len(new.messages)
                and (new is not now[-1] or _waits(old) or new.place in cut)
            )
            for old, new in zip(sent, now, strict=True)
        )

    async def _pays(self, request: ContextRequest, state: _State, standing: WindowContent) -> bool:
        """Whether an epoch saves more until the next one than it writes anew. As many requests are
        expected as there were since the last one.
        """
        before = standing.manifest
        requests = sum(1 for each in standing.rounds if each.place >= before.at)
        window, _ = await self._planning.window(request, before, standing)
        after = plan(before, window)
        same = 0
        for old, new in zip(before.elements, after.elements, strict=False):
            if old is not new:
                break
            same += new.tokens
        size = total(after, window.rounds) + window.fixed
        saved = standing.tokens() + request.fixed - size
        return saved * _READ * requests >= (size - same) * (_WRITE - _READ)

    async def _epoch(
        self, request: ContextRequest, state: _State, reason: Reason, standing: WindowContent | None
    ) -> _State:
        before = state.manifest
        request = msgspec.structs.replace(request, fixed=request.fixed + request.reserve)
        if state.prefix.epoch and request.budget >= 2 * state.prefix.budget:
            before = EpochManifest(
                pins=before.pins
            )  # what went down for want of room comes up again
        elif state.prefix.undone != request.head.undone:
            before = without_undone(before, request.head)
        drafted = await self._planning.drafted(
            request, before, standing, wishes=state.prefix.wishes, texts=state.texts, reason=reason
        )
        prefix = Prefix(
            id=request.record.id,
            model=request.model or state.prefix.model,
            undone=request.head.undone,
            wishes=state.prefix.wishes,
            turns=request.head.turn,
            budget=request.budget,
        )
        epoch = Epoch(
            id=epoch_key(request.record.id, state.next),
            reason=reason,
            forced=not request.prompted,
            budget=request.budget,
            before=standing.tokens() + request.fixed if standing is not None else 0,
            after=drafted.tokens,
            time=request.now,
            model=prefix.model,
            manifest=drafted.manifest,
            delta=Delta((), ()),
            undone=request.head.undone,
        )
        rendered = RenderedManifest(drafted.manifest, drafted.texts)
        return await self._kept(request, state, prefix, rendered, epoch)

    async def _kept(
        self,
        request: ContextRequest,
        state: _State,
        prefix: Prefix,
        rendered: RenderedManifest,
        epoch: Epoch,
    ) -> _State:
        """Record an epoch, unless it is only looked at."""
        manifest, number = rendered.manifest, state.next
        prefix = msgspec.structs.replace(prefix, epoch=number)
        needed = {e.digest for e in (*manifest.elements, *manifest.pins)}
        texts = {digest: rendered.texts[digest] for digest in needed}
        if not request.keep:
            return _State(prefix, state.version, manifest, texts, number + 1)
        known = {element.digest for element in state.manifest.elements}
        ranges = [
            range_text(prefix.id, element, texts[element.digest])
            for element in manifest.elements
            if element.generation and element.digest not in known
        ]
        shown = [texts[element.digest] for element in manifest.shown()]
        text = PrefixText(
            id=prefix.id, epoch=number, manifest=manifest, texts=msgspec.msgpack.encode(shown)
        )
        version = await self._epochs.record(
            epoch,
            prefix,
            text,
            before=state.manifest if state.prefix.epoch else None,
            ranges=ranges,
            version=state.version,
            forgets=request.head.forgets,
        )
        self._state = _State(prefix, version, manifest, texts, number + 1)
        return self._state


def _is_stale(request: ContextRequest, standing: WindowContent) -> bool:
    """Whether what was injected with earlier prompts takes the room of the history: beside what is
    injected now, there is much less of it than an epoch would leave.
    """
    if not request.prompted or not standing.manifest.elements:
        return False
    room = request.budget - request.fixed - request.reserve - LEAD
    stale = sum(each.tokens for each in standing.injected)
    return min(stale, room - standing.history()) > room * _STALE


def _visible(standing: WindowContent) -> list[VisibleRounds]:
    manifest = standing.manifest
    caps = {each.place: each.tokens for each in manifest.reduced}
    whole = [e.place for e in standing.native if caps.get(e.place, e.tokens) >= e.tokens]
    found = [VisibleRounds("R", place, place) for place in whole]
    for element in manifest.shown():
        if element.level in {"S", "C"} and not element.generation:
            found.append(VisibleRounds(element.level, element.first, element.last))
        elif element.level == "R":  # somebody asked for the turn
            numbers = range(element.first.round, element.last.round + 1)
            places = [RoundId(element.first.turn, number) for number in numbers]
            found += [VisibleRounds("R", place, place) for place in places]
    return found


def _sent_by_us(standing: WindowContent) -> set[int]:
    """The turns whose prompts were sent in this window: what was thought then is bound to it."""
    return {each.turn for each in standing.injected if each.strategy in {"", "gradient"}}


def _thinks_on(said: RawRound, sent: Collection[int]) -> bool:
    """Whether what was thought in a round is valid in this window: it was thought there, or is not
    bound to what stood before it. What was appended without `context` was thought elsewhere: its
    text and what is encrypted may be sent again all the same, and older signatures prove the text
    alone; those of Claude from 5.1 on also prove all that stood before it, and would be refused.
    """
    if said.place.turn in sent:
        return True
    return not any(
        isinstance(part, Reasoning) and part.signature and binds_prefix(message.model)
        for message in said.messages
        for part in message.parts
    )


def binds_prefix(model: str) -> bool:
    """Whether a model's signatures prove what stood before a thought, too."""
    found = _claude.search(bare_model(model).replace(".", "-"))
    return found is not None and (int(found[1]), int(found[2] or 0)) >= (5, 1)


def _waits(said: RawRound) -> bool:
    calls = {call.id for message in said.messages for call in message.calls}
    return bool(calls - {result.call for m in said.messages for result in m.results})


def _has_thoughts_of_others(standing: WindowContent, model: str) -> bool:
    sent = _sent_by_us(standing)
    return any(
        message.model and not is_same_model(message.model, model)
        for each in standing.native
        if each.place >= standing.manifest.at and _thinks_on(each, sent)
        for message in each.messages
        if any(isinstance(part, Reasoning) for part in message.parts)
    )


def _why(element: Element, manifest: EpochManifest) -> str:
    if element in manifest.pins:
        return "asked for"
    if element.generation:
        return f"merged {element.generation}×" if element.generation > 1 else "merged"
    return {"S": "recent", "C": "older", "T": "old"}.get(element.level, "raw")
