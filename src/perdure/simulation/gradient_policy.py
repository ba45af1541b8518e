"""The gradient as a policy: a real session in a temporary bank. Each request is what
`Session.context` composes, recall and all; each reply is appended to it. Renditions are made
without a model. Messages are compared with the request before, part by part.

The same history gives the same requests on any machine: what is still to be indexed is done before
anything is recalled, no deadline is ever missed, and the time is that of the newest message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from hashlib import blake2b

import msgspec

from perdure.bank import Bank
from perdure.config import Config, RecallConfig
from perdure.context.context import Context
from perdure.core.levels import LEVELS, Level
from perdure.core.messages import Message, encode
from perdure.core.tokens import MESSAGE_OVERHEAD, Counter, count_message, o200k
from perdure.history.log_records import ENDLESS, Head, SessionRecord
from perdure.history.manifest import RoundId
from perdure.history.sized_rounds import Sized
from perdure.sessions.session import Session
from perdure.simulation.prompt_cache import CacheBlock
from perdure.simulation.replay_input import Call, ReplaySetting, SimulatedRequest, scratch_bank
from perdure.simulation.used_identifiers import text_of, without_lists
from perdure.simulation.window_figures import are_bands_possible

_SESSION = "simulated/session"
_BEGINNING = 1_577_836_800_000_000  # The time before the first message: 2020, in microseconds.
_EVER = 86_400.0  # Seconds that no recall takes.
_PATIENT = RecallConfig(deadline=_EVER, keyword=_EVER, vectors=_EVER)


class GradientPolicy:
    """Older calls with fewer words, the oldest merged into ranges, and what each prompt brings to
    mind. Close it.
    """

    def __init__(self, setting: ReplaySetting, profile: str | None = None) -> None:
        """Without a profile, that of the setting holds."""
        self._setting, self._profile = setting, profile
        self._counter = o200k()
        self._parts = _Parts(self._counter)
        self._texts = _Texts()
        self._open_things = AsyncExitStack()
        self._opened: tuple[Bank, Session] | None = None
        self._now = _BEGINNING
        #: What was sent last, and for which call.
        self._context: Context | None = None
        self._number = -1
        self._epoch = 0
        self._appended = 0  # Calls that the session has; their raw tokens.
        self._said = 0

    async def request(self, number: int) -> SimulatedRequest:
        """As a `Policy`; but calls may be left out: they are appended, and nothing is sent."""
        bank, session = await self._open()
        calls = self._setting.calls
        while self._appended < number:
            await self._append(session, self._appended)
        call = calls[number]
        begins = call.position.round == 1
        if begins and not call.opening:  # the transcript begins with a reply: nothing was sent
            return SimulatedRequest([])
        budget = self._setting.budget - self._setting.injection
        if begins:
            await session.close_turn()
            await bank.services.recall.settle()
        prompt = _prompt(call) if begins else None
        context = self._context = await session.context(prompt, budget=budget)
        self._number = number
        request = self._request(context, number)
        if request.rewritten and await self._are_bands_possible(session, context):
            request = msgspec.structs.replace(request, bands_possible=True)
        return request

    async def close(self) -> None:
        await self._open_things.aclose()

    async def _are_bands_possible(self, session: Session, context: Context) -> bool:
        services = (await self._open())[0].services
        record = await services.store.collection(SessionRecord).get(session.name)
        head = await services.store.collection(Head).get(session.name)
        if record is None or head is None:
            return False
        last = RoundId(head.turn, ENDLESS)
        made = await services.renditions.sizes(record, head, RoundId(1), last)
        tiny = await services.renditions.tinies(record, head, range(1, head.turn + 1))
        room = self._setting.budget - self._setting.injection - context.prompt_tokens
        if context.injection is not None:
            room -= context.injection.tokens
        rounds = [Sized(each.place, each.raw, each.smooth, each.compact) for each in made]
        sizes = {turn: each.tokens for turn, each in tiny.items()}
        return are_bands_possible(rounds, sizes, room, in_turn=not context.prompt)

    def _request(self, context: Context, number: int) -> SimulatedRequest:
        shown = context.shown
        blocks = list(self._parts.of(context.messages))
        rewritten, self._epoch = shown.epoch != self._epoch, shown.epoch
        injected = {each.turn: each.tokens for each in shown.injected}
        if context.injection is not None:
            injected[context.turn] = context.injection.tokens
        history = sum(block.tokens for block in blocks) - sum(injected.values())
        history -= context.prompt_tokens if context.prompt else 0
        bands: dict[Level, int] = dict.fromkeys(LEVELS, 0)
        for block in shown.blocks:
            bands[block.element.level] += block.element.tokens
        bands["R"] += max(history - sum(bands.values()), 0)
        return SimulatedRequest(
            blocks,
            rewritten=rewritten,
            covered=self._covered(shown.hidden, number),
            history=max(history, 0),
            shortened=bool(shown.blocks or shown.hidden.turn)
            or any(each.reduced for each in shown.rounds),
            injected=injected.get(context.turn, 0),
            bands=bands,
            texts=self._texts.of(context),
        )

    async def _open(self) -> tuple[Bank, Session]:
        if self._opened is None:
            enter = self._open_things.enter_async_context
            config = Config(recall=_PATIENT, history=self._setting.shown)
            bank = await enter(scratch_bank(config, lambda: self._now))
            await bank.services.recall.start()
            session = await bank.session(_SESSION, strategy="gradient", profile=self._profile)
            self._opened = bank, session
        return self._opened

    async def _append(self, session: Session, number: int) -> None:
        call = self._setting.calls[number]
        self._now = max([self._now, *(message.time or 0 for message in call.messages)])
        begins, said, context = call.position.round == 1, call.messages, None
        if begins and call.opening and number == self._number:
            said, context = said[call.opening :], self._context
        await session.append(said, context=context, count=True, fresh=begins and context is None)
        self._appended, self._said = number + 1, self._said + call.tokens

    def _covered(self, hidden: RoundId, number: int) -> int:
        """Raw tokens of the calls so far that are shown in some form."""
        if not hidden.turn:
            return self._said
        return sum(each.tokens for each in self._setting.calls[:number] if _place(each) > hidden)


def _prompt(call: Call) -> tuple[Message, ...]:
    """What a harness puts beside a prompt is part of it here."""
    return tuple(
        msgspec.structs.replace(message, injected=False) if message.injected else message
        for message in call.messages[: call.opening]
    )


class _Texts:
    """What stands in a window. Made text is the same in many requests, and so are rounds."""

    def __init__(self) -> None:
        self._made = dict[str, str]()
        self._rounds = dict[int, tuple[Sequence[Message], str]]()

    def of(self, context: Context) -> list[str]:
        shown = context.shown
        made = [block.text for block in shown.blocks] + [each.text for each in shown.injected]
        if context.injection is not None:
            made.append(context.injection.text)
        self._made = {text: self._made.get(text) or without_lists(text) for text in made}
        rounds = dict[int, tuple[Sequence[Message], str]]()
        for messages in (*(each.messages for each in shown.rounds), shown.prompt, context.prompt):
            known = self._rounds.get(id(messages))
            rounds[id(messages)] = known or (messages, text_of(messages))
        self._rounds = rounds
        return [*self._made.values(), *(text for _, text in rounds.values())]


class _Parts:
    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._tokens: dict[bytes, int] = {}
        # Most messages are the same objects in every request. They are kept, or their ids would be
        # given to others.
        self._known: dict[int, tuple[Message, tuple[CacheBlock, ...]]] = {}

    def of(self, messages: Sequence[Message]) -> Iterator[CacheBlock]:
        known = dict[int, tuple[Message, tuple[CacheBlock, ...]]]()
        for message in messages:
            found = self._known.get(id(message))
            if found is None:
                found = message, tuple(self._blocks(message))
            known[id(message)] = found
            yield from found[1]
        self._known = known

    def _blocks(self, message: Message) -> Iterator[CacheBlock]:
        for at, part in enumerate(message.parts):
            alone = Message(message.role, (part,), name="" if at else message.name)
            key = blake2b(b"%d" % bool(at) + encode((alone,)), digest_size=16).digest()
            tokens = self._tokens.get(key)
            if tokens is None:
                tokens = count_message(self._counter, alone) - (MESSAGE_OVERHEAD if at else 0)
                self._tokens[key] = tokens
            yield CacheBlock(key, tokens)


def _place(call: Call) -> RoundId:
    return RoundId(call.position.turn, call.position.round or 1)
