"""The gradient as a policy: a real session in a temporary bank, shown by the product's own
strategy. Renditions are made without a model. Messages are compared with the request before, part
by part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from hashlib import blake2b

from perdure.bank.session import Session
from perdure.context.injection_records import build
from perdure.context.prompt_assembly import assemble
from perdure.context.system_prompt import reminder
from perdure.core.messages import Message, encode
from perdure.core.tokens import MESSAGE_OVERHEAD, Counter, count_message, o200k
from perdure.history.gradient_planner import TURN_TAGS
from perdure.history.manifest import Injected, RoundId
from perdure.history.strategies import gradient_strategy as product
from perdure.history.strategies.strategy import ContextRequest
from perdure.simulation.prompt_cache import CacheBlock
from perdure.simulation.replay_input import Call, ReplaySetting, SimulatedRequest, scratch_bank

_SESSION = "simulated/session"


class GradientPolicy:
    """Older calls with fewer words, the oldest merged into ranges. Close it."""

    def __init__(self, setting: ReplaySetting) -> None:
        self._setting = setting
        self._counter = o200k()
        self._parts = _Parts(self._counter)
        self._open_things = AsyncExitStack()
        self._session: Session | None = None
        self._strategy: product.GradientStrategy | None = None
        self._epoch = 0
        # What a session without a board and recall injects: the reminder.
        self._note = build(board="", note=reminder())
        self._note_tokens = self._counter.count(self._note) + 1
        self._said = 0  # raw tokens of the calls so far

    async def request(self, number: int) -> SimulatedRequest:
        session, strategy = await self._open()
        calls = self._setting.calls
        if number:
            await self._append(session, calls[number - 1])
        call, head = calls[number], await session.head()
        begins = call.position.round == 1
        prompt = call.messages[: call.opening] if begins else ()
        turn = head.turn + begins
        note = self._injected(turn) if begins else None
        fixed = self._setting.injection
        if note is not None:
            fixed += call.prompt_tokens + TURN_TAGS + note.tokens
        shown = await strategy.show(
            ContextRequest(
                record=session.record,
                head=head,
                budget=self._setting.budget,
                fixed=fixed,
                turn=turn,
                prompted=begins,
                now=head.time,  # the cache is never cold
                injected=self._standing,
            )
        )
        blocks = list(self._parts.of(assemble(shown, note, prompt, turn)))
        rewritten, self._epoch = shown.epoch != self._epoch, shown.epoch
        return SimulatedRequest(
            blocks,
            rewritten=rewritten,
            covered=self._covered(shown.hidden, number),
            history=sum(block.tokens for block in blocks) - call.prompt_tokens,
        )

    async def close(self) -> None:
        await self._open_things.aclose()

    async def _open(self) -> tuple[Session, product.GradientStrategy]:
        if self._session is None or self._strategy is None:
            bank = await self._open_things.enter_async_context(scratch_bank())
            parts = bank.services
            self._session = await bank.session(_SESSION)
            self._strategy = product.GradientStrategy(
                parts.reader, parts.artifacts, parts.token_counts, parts.renditions, parts.epochs
            )
        return self._session, self._strategy

    async def _append(self, session: Session, call: Call) -> None:
        await session.append(call.messages, fresh=call.position.round == 1, count=True)
        self._said += call.tokens

    def _injected(self, turn: int) -> Injected:
        return Injected(turn, self._note, self._note_tokens)

    async def _standing(self, first: int, last: int) -> Sequence[Injected]:
        return [self._injected(turn) for turn in range(max(first, 1), last + 1)]

    def _covered(self, hidden: RoundId, number: int) -> int:
        """Raw tokens of the calls so far that are shown in some form."""
        if not hidden.turn:
            return self._said
        return sum(each.tokens for each in self._setting.calls[:number] if _place(each) > hidden)


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
