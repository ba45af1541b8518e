"""Plans an epoch: collects the planner's input, and renders what it decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from perdure.core.errors import BudgetTooSmall
from perdure.core.messages import Message
from perdure.core.tokens import count_messages
from perdure.history.epochs import FidelityWish, Reason
from perdure.history.gradient_planner import (
    RANGE_TAGS,
    TURN_TAGS,
    PlannerInput,
    Sized,
    plan,
    total,
)
from perdure.history.log_records import ENDLESS, Head, newest
from perdure.history.manifest import Element, EpochManifest, Injected, Reduced, RoundId
from perdure.history.reduce_messages import reduced
from perdure.history.renditions.rendition_records import BY_MODEL
from perdure.history.renditions.rendition_service import RenditionService
from perdure.history.renditions.rendition_store import RoundSizes
from perdure.history.strategies.element_renderer import ElementRenderer
from perdure.history.strategies.raw_rounds import RawRound, RawRounds
from perdure.history.strategies.strategy import ContextRequest
from perdure.history.turn_tags import escaped

_IN_PLACE = frozenset[Reason]({"model", "asked", "changed"})  # They demote nothing.
#: Rounds of a turn of so many and so many tokens are told together at C, in so much more room than
#: each by itself. Shorter turns merge with their neighbours instead.
_TOGETHER, _MANY, _LONG = 1.5, 4, 2_000
LEAD = 14  # Tokens of the leading message besides its text: itself, and an opening tag.


class WindowContent(msgspec.Struct):
    """What the window shows since the last epoch, and what came since."""

    manifest: EpochManifest
    rounds: Sequence[RawRound]
    injected: Sequence[Injected]
    #: A prompt that stands apart from its round: the epoch was made inside its turn, and took the
    #: round down.
    prompt: tuple[Message, ...] = ()
    prompt_tokens: int = 0

    @property
    def native(self) -> Sequence[RawRound]:
        first, pinned = self.manifest.native, {pin.first.turn for pin in self.manifest.pins}
        if not pinned and self.rounds and self.rounds[0].place >= first:
            return self.rounds
        return [e for e in self.rounds if e.place >= first and e.place.turn not in pinned]

    def tokens(self) -> int:
        injected = sum(each.tokens for each in self.injected)
        return LEAD + self.history() + self.prompt_tokens + injected

    def history(self) -> int:
        """Its tokens, without what was injected and the prompt."""
        caps = {each.place: each.tokens for each in self.manifest.reduced}
        native = sum(min(e.tokens, caps.get(e.place, e.tokens)) for e in self.native)
        return native + sum(element.tokens for element in self.manifest.shown())


class EpochDraft(msgspec.Struct, frozen=True):
    """What an epoch would show."""

    manifest: EpochManifest
    texts: dict[bytes, str]  # By digest.
    tokens: int  # What the window then takes.


class EpochPlanner:
    """Plans epochs of one session."""

    def __init__(
        self,
        renditions: RenditionService,
        renderer: ElementRenderer,
        rounds: RawRounds,
    ) -> None:
        self._renditions = renditions
        self._renderer = renderer
        self._rounds = rounds

    async def drafted(
        self,
        request: ContextRequest,
        before: EpochManifest,
        standing: WindowContent | None,
        *,
        wishes: Sequence[FidelityWish],
        texts: Mapping[bytes, str],
        reason: Reason,
    ) -> EpochDraft:
        """A new manifest after `before`, with its texts. Raises `BudgetTooSmall` if
        nothing fits.
        """
        window, made = await self.window(request, before, standing)
        if await self._refreshed(request, plan(before, window), made):
            window, made = await self.window(request, before, standing)
        variants = {place: each.variant for place, each in made.items()}
        pins = await self._pins(request, wishes, variants)
        base = msgspec.structs.replace(before, pins=pins)
        at = about_to_be(request, window.rounds[-1].place if window.rounds else None)
        room = window.budget
        while True:
            fits = total(base, window.rounds) + window.fixed <= room
            told = msgspec.structs.replace(window, budget=room)
            planned = base if fits and reason in _IN_PLACE else self._plan(base, told, standing)
            rendered = await self._renderer.render(
                request.record,
                request.head,
                msgspec.structs.replace(planned, at=at),
                before=before,
                texts=texts,
                variants=variants,
                together={each.place: each.raw for each in window.rounds if each.together},
            )
            tokens = total(rendered.manifest, window.rounds) + window.fixed
            # What is planned is an upper bound, but for texts that take more tokens together.
            over = tokens - window.budget
            if over <= 0:
                manifest = await self._with_prompt(request, rendered.manifest)
                return EpochDraft(manifest, rendered.texts, tokens)
            room -= over + RANGE_TAGS
            if room <= 0:
                raise BudgetTooSmall(request.budget, request.budget + over)

    def _plan(
        self, base: EpochManifest, window: PlannerInput, standing: WindowContent | None
    ) -> EpochManifest:
        planned = plan(base, window)
        newest = standing.rounds[-1] if standing is not None and standing.rounds else None
        cap = planned.cap(newest.place) if newest is not None else None
        if newest is None or cap is None:
            return planned
        # Many calls take their room even without what they answered, and so does a prompt. That of
        # the turn under way is counted with what is fixed, and not with its round.
        counter, tags = self._rounds.counter, TURN_TAGS if newest.place.round == 1 else 0
        apart = tags - (newest.tokens - window.rounds[-1].raw)
        left = reduced(map(escaped, newest.messages), str(newest.place), cap - apart, counter)
        least = count_messages(counter, left) + apart
        return plan(base, msgspec.structs.replace(window, least=least)) if least > cap else planned

    async def window(
        self, request: ContextRequest, manifest: EpochManifest, standing: WindowContent | None
    ) -> tuple[PlannerInput, dict[RoundId, RoundSizes]]:
        first = _first_live(manifest)
        # A turn that was overtaken goes on without what came behind it.
        last = RoundId(request.head.turn if request.prompted else request.turn, ENDLESS)
        made = await self._renditions.sizes(request.record, request.head, first, last)
        made = [each for each in made if not request.head.is_undone(each.place.turn)]
        prompt = 0 if request.prompted else await self._prompt_tokens(request)
        said = {each.place: each.tokens for each in standing.rounds} if standing else {}
        rounds, long = list[Sized](), _long_turns(made)
        for each in made:
            raw = said.get(each.place, each.raw + (TURN_TAGS if each.place.round == 1 else 0))
            if each.place == RoundId(request.turn) and not request.prompted:
                raw = max(raw - prompt, 1)
            smooth = min(each.smooth, raw)
            together = each.place.turn in long and not each.recipe.startswith(BY_MODEL)
            compact = int(each.compact * _TOGETHER) if together else each.compact
            rounds.append(Sized(each.place, raw, smooth, min(compact, smooth), together))
        turns = dict.fromkeys(each.place.turn for each in made if each.place.turn < request.turn)
        tiny = await self._renditions.tinies(request.record, request.head, list(turns))
        own = [each for each in standing.injected if each.turn == request.turn] if standing else []
        window = PlannerInput(
            budget=request.budget,
            fixed=request.fixed + LEAD + sum(each.tokens for each in own) + prompt,
            turn=request.turn,
            rounds=rounds,
            tiny={turn: each.tokens for turn, each in tiny.items()},
            marks=request.marks,
        )
        return window, {each.place: each for each in made}

    async def _refreshed(
        self, request: ContextRequest, planned: EpochManifest, made: Mapping[RoundId, RoundSizes]
    ) -> bool:
        """Make renditions again where that would be better, but only those about to be shown: so a
        new recipe, or a model that is configured later, costs nothing for the rest.
        """
        renditions = self._renditions
        single = [e for e in planned.elements if not e.generation and e.level != "T"]
        first = single[0].first if single else planned.native
        places = [
            place
            for place, each in made.items()
            if first <= place < planned.native and renditions.could_be_better(each)
        ]
        return bool(places) and await renditions.refresh(request.record, request.head, places) > 0

    async def _pins(
        self, request: ContextRequest, wishes: Sequence[FidelityWish], variants: dict[RoundId, int]
    ) -> tuple[Element, ...]:
        pins = list[Element]()
        for wish in wishes:
            if wish.turn >= request.turn or request.head.is_undone(wish.turn):
                continue
            pin = await self.pin(request, wish, variants)
            if pin is not None:
                pins.append(pin)
        return tuple(pins)

    async def pin(
        self, request: ContextRequest, wish: FidelityWish, variants: dict[RoundId, int]
    ) -> Element | None:
        renditions, whole = self._renditions, RoundId(wish.turn)
        made = await renditions.sizes(
            request.record, request.head, whole, RoundId(wish.turn, ENDLESS)
        )
        if not made:
            return None
        variants |= {each.place: each.variant for each in made}
        raw = sum(each.raw for each in made)
        tokens = raw
        if wish.level == "T":
            tiny = await renditions.tinies(request.record, request.head, [wish.turn])
            tokens = tiny[wish.turn].tokens if wish.turn in tiny else raw
        elif wish.level != "R":
            is_smooth = wish.level == "S"
            tokens = sum(each.smooth if is_smooth else each.compact for each in made)
        return Element(
            wish.level, whole, made[-1].place, whole=True, tokens=tokens + TURN_TAGS, raw=raw
        )

    async def _with_prompt(self, request: ContextRequest, manifest: EpochManifest) -> EpochManifest:
        if not any(each.place == RoundId(request.turn) for each in manifest.reduced):
            return manifest
        prompt = await self._prompt_tokens(request)
        whole = tuple(Reduced(each.place, each.tokens + prompt) for each in manifest.reduced)
        return msgspec.structs.replace(manifest, reduced=whole)

    async def _prompt_tokens(self, request: ContextRequest) -> int:
        return (await self._rounds.prompt(request.record, request.head, request.turn)).tokens


def _long_turns(made: Sequence[RoundSizes]) -> set[int]:
    many, tokens = Counter[int](), Counter[int]()
    for each in made:
        many[each.place.turn] += 1
        tokens[each.place.turn] += each.raw
    return {turn for turn in many if many[turn] >= _MANY and tokens[turn] >= _LONG}


def apart_in(manifest: EpochManifest) -> int | None:
    """The turn whose prompt is shown apart, because its first round is not shown raw any more."""
    at = manifest.at
    return at.turn if at.round > 1 and manifest.native > RoundId(at.turn) else None


def about_to_be(request: ContextRequest, newest: RoundId | None) -> RoundId:
    if request.prompted or newest is None or newest.turn != request.turn:
        return RoundId(request.turn)
    # A prompt without a reply has a round, which the reply will be part of.
    waits = request.turn == request.head.turn and not request.head.mark.replied
    return RoundId(request.turn, newest.round if waits else newest.round + 1)


def without_undone(manifest: EpochManifest, head: Head) -> EpochManifest:
    """The manifest to plan on when turns were undone. Only merged turns stay: the rest may come up
    again, now that there is room. A range that held such a turn is made again; one that ended with
    it is no range any more.
    """
    kept = list[Element]()
    for element in manifest.elements:
        if element.level != "T" or not element.generation or head.is_undone(element.last.turn):
            break
        turns = range(element.first.turn, element.last.turn + 1)
        dirty = any(map(head.is_undone, turns))
        kept.append(msgspec.structs.replace(element, digest=b"") if dirty else element)
    if kept and kept[-1].last.turn >= newest(head):
        kept = []  # nothing else is left: all of it may come up
    after = RoundId(kept[-1].last.turn + 1) if kept else RoundId(max(manifest.hidden.turn, 0) + 1)
    pins = tuple(pin for pin in manifest.pins if not head.is_undone(pin.first.turn))
    return msgspec.structs.replace(
        manifest, elements=tuple(kept), pins=pins, native=after, reduced=()
    )


def _first_live(manifest: EpochManifest) -> RoundId:
    """The first round that is not at T yet, nor hidden."""
    tiny = [element.last.turn for element in manifest.elements if element.level == "T"]
    if tiny:
        return RoundId(tiny[-1] + 1)
    last = manifest.hidden
    return RoundId(last.turn, last.round + 1) if last.turn else RoundId(1)
