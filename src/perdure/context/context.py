"""What `session.context` returns: one prompt, ready to be sent in any of three wire formats.

    context = await session.context("What did we decide about OAuth?", system="Be brief.")
    client.messages.create(model=…, max_tokens=…, **context.to_messages())

A value: it does not change when the session goes on. What it is encoded to is the same bytes
whenever and wherever it is done, and the caller's to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Literal

import msgspec

from perdure.context import cache_breakpoints
from perdure.context.prompt_assembly import PromptPiece
from perdure.context.prompt_encoder import PromptEncoder, Wire, copied, handed_out
from perdure.core.errors import InvalidInput
from perdure.core.levels import Level
from perdure.core.messages import Message, user
from perdure.core.tokens import TokenScale
from perdure.core.turns import Position
from perdure.gateway.calls import Request, Tool
from perdure.gateway.providers import Provider
from perdure.history.manifest import Band, Injected, Native, ShownHistory, bands
from perdure.history.strategies.epoch_planner import LEAD
from perdure.history.strategies.history_strategy import HistorySegment
from perdure.history.turn_tags import name_of
from perdure.wire.plain import Item


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt. Made by `compose`."""

    session: str
    #: The turn that the prompt opens, or that goes on.
    turn: int
    system: str
    tools: tuple[Tool, ...]
    #: The new prompt; empty if the open turn goes on.
    prompt: tuple[Message, ...]
    injection: Injected | None
    shown: ShownHistory
    pieces: tuple[PromptPiece, ...]
    #: o200k tokens of the history and what is injected.
    taken: int
    #: In the tokens of `model`'s provider, as far as it is known how that counts; see `scale`.
    budget: int
    #: How many of its tokens an o200k token is: learned from the usage that it returned.
    scale: TokenScale
    model: str
    encoder: PromptEncoder

    def __repr__(self) -> str:
        return f"<Context {self.session}#T-{self.turn}: {self.tokens:,} of {self.budget:,} tokens>"

    @property
    def prompt_tokens(self) -> int:
        """In o200k tokens, with its tags."""
        return self.encoder.tokens(self.prompt)

    @property
    def tokens(self) -> int:
        """History, injection and prompt, with their tags; without system text and tools. Counted as
        `budget` is, and never more. Everything else here is in o200k tokens.
        """
        return self.scale.theirs(self.taken + self.prompt_tokens)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The canonical messages, not yet repaired for a provider."""
        return tuple(message for piece in self.pieces for message in piece.messages)

    @property
    def bands(self) -> list[Band]:
        parts = [
            (b.element.level, b.element.first, b.element.last, b.element.tokens, b.element.raw)
            for b in self.shown.blocks
        ]
        parts += [("R", r.place, r.place, r.tokens, r.raw) for r in self.shown.rounds]
        return bands(sorted(parts, key=lambda part: part[1]))

    @property
    def segments(self) -> list[HistorySegment]:
        """The history that it shows, whatever the strategy: turns (or rounds of one), level, and
        the words of what is not shown as it was said.
        """
        placed = [
            (b.element.first, HistorySegment((b.element.name,), b.element.level, b.text))
            for b in self.shown.blocks
        ]
        for turn, of in groupby(self.shown.rounds, lambda each: each.place.turn):
            placed.append((next(of).place, HistorySegment((f"T-{turn}",), "R")))
        return [segment for _, segment in sorted(placed, key=lambda each: each[0])]

    @property
    def cache_key(self) -> str:
        """Tells OpenAI which requests begin alike (``prompt_cache_key``)."""
        return f"perdure:{self.session}"

    def explain(self) -> list[Explained]:
        """Its blocks, in order, and why each is there."""
        return explain(self)

    def to_chat(self) -> dict[str, Any]:
        """``{"messages", "tools"}`` for Chat Completions; without tools if there are none."""
        encoded = self.encoder.encode(self.pieces, "chat")
        items, old = handed_out(encoded, "chat"), cache_breakpoints.old_end(encoded)
        # One message: many templates of local models take no second one.
        if text := "\n\n".join(self._system()):
            items.insert(0, {"content": text, "role": "system"})
            old = None if old is None else (old[0] + 1, old[1])
        if cache_breakpoints.takes_breakpoints(self.model):
            cache_breakpoints.mark_openai(items, old)
        return {"messages": items, **self._tools("chat")}

    def to_responses(self) -> dict[str, Any]:
        """``{"instructions", "input", "tools"}`` for Responses; without what there is none of."""
        encoded = self.encoder.encode(self.pieces, "responses")
        items = handed_out(encoded, "responses")
        if cache_breakpoints.takes_breakpoints(self.model):
            cache_breakpoints.mark_openai(items, cache_breakpoints.old_end(encoded))
        text = "\n\n".join(self._system())
        said = {"instructions": text} if text else {}
        return {"input": items, **said, **self._tools("responses")}

    def to_messages(self) -> dict[str, Any]:
        """``{"system", "messages", "tools"}`` for Anthropic; without what there is none of."""
        encoded = self.encoder.encode(self.pieces, "messages")
        items = handed_out(encoded, "messages")
        system: list[Item] = [{"text": text, "type": "text"} for text in self._system()]
        cache_breakpoints.mark_messages(system, items, cache_breakpoints.old_end(encoded))
        said = {"system": system} if system else {}
        return {"messages": items, **said, **self._tools("messages")}

    def _system(self) -> list[str]:
        own = [self.system] if self.system.strip() else []
        logged = [m.text for p in self.pieces if p.is_system for m in p.messages]
        return own + [text for text in logged if text.strip()]

    def _tools(self, wire: Wire) -> dict[str, Any]:
        return tools_for(self.tools, wire)


def compose(
    shown: ShownHistory,
    *,
    turn: int,
    budget: int,
    prompt: tuple[Message, ...] = (),
    injection: Injected | None = None,
    system: str = "",
    tools: Iterable[Tool | Mapping[str, Any]] = (),
    model: str = "",
    session: str = "",
    encoder: PromptEncoder | None = None,
    scale: TokenScale = TokenScale(),  # noqa: B008 (frozen)
) -> Context:
    """`encoder` is the session's; without it all is encoded anew. Tools are taken in the form of
    any API. Raises `InvalidInput` for a tool that is none.
    """
    encoder = encoder or PromptEncoder()
    injected = {each.turn: each.tokens for each in shown.injected}
    if injection is not None:
        injected[injection.turn] = injection.tokens
    taken = (
        sum(block.element.tokens for block in shown.blocks)
        + sum(native.tokens for native in shown.rounds)
        + sum(injected.values())
        + encoder.tokens(shown.prompt)
        + (LEAD if shown.blocks or shown.begins_inside else 0)
    )
    return Context(
        session=session,
        turn=turn,
        system=system,
        tools=checked_tools(tools),
        prompt=prompt,
        injection=injection,
        shown=shown,
        pieces=encoder.pieces(shown, injection, prompt, turn, model=model),
        taken=taken,
        budget=budget,
        scale=scale,
        model=model,
        encoder=encoder,
    )


_ANY_PROMPT = (user("…"),)


def checked_tools(tools: Iterable[Tool | Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Tools in the form of any API. Raises `InvalidInput` for what is none."""
    if not isinstance(tools, Iterable):
        raise InvalidInput(
            f"tools are a list, not {type(tools).__name__}.",
            hint="Give tools=[…], or leave it out.",
        )
    given = tuple(tools)
    if all(isinstance(each, Tool) for each in given):
        return given  # type: ignore[return-value]  # the line above says so
    return Request(messages=_ANY_PROMPT, tools=given).tools


def tools_for(tools: tuple[Tool, ...], wire: Wire) -> dict[str, Any]:
    if not tools:
        return {}
    from perdure.gateway.requests import build

    request = Request(messages=_ANY_PROMPT, tools=tools)
    provider = Provider(name=wire, wire=wire, base_url="")
    offered = build(request, provider, "", stream=False).body.get("tools")
    return {"tools": copied(offered)} if offered else {}


class Explained(msgspec.Struct, frozen=True):
    """One block of a prompt."""

    kind: Literal["message", "block", "native", "injection", "prompt"]
    name: str  # ``T-50-through-100``, ``T-183``; the turn that it is for, if it was injected.
    #: None for what is not history.
    level: Level | None
    tokens: int
    #: What it stands for takes, in o200k tokens.
    raw: int
    why: str


def explain(context: Context) -> list[Explained]:
    shown = context.shown
    blocks = [
        (
            (each.element.first.turn, each.element.first.round),
            Explained(
                "block",
                each.element.name,
                each.element.level,
                each.element.tokens,
                each.element.raw,
                each.why,
            ),
        )
        for each in shown.blocks
    ]
    injected = [
        ((each.turn, 0), Explained("injection", f"T-{each.turn}", None, each.tokens, 0, _SENT))
        for each in shown.injected
        if context.injection is None or each.turn != context.injection.turn
    ]
    natives = [
        ((each[0].place.turn, each[0].place.round), _native(each, context))
        for each in _turns(shown.rounds)
    ]
    apart = [((turn, 1), each) for turn, each in _apart(context)]
    found = sorted([*blocks, *injected, *apart, *natives], key=lambda each: each[0])
    lead = list[Explained]()
    if shown.blocks or shown.begins_inside:
        why = "the message that begins the window"
        lead = [Explained("message", "", None, LEAD, 0, why)]
    return [*lead, *(each for _, each in found), *_new(context)]


_SENT = "sent with this turn's prompt; stays until the next epoch"


def _turns(rounds: tuple[Native, ...]) -> Iterator[list[Native]]:
    for _, of in groupby(rounds, lambda each: (each.place.turn, each.reduced and each.place)):
        yield list(of)


def _native(of: list[Native], context: Context) -> Explained:
    turn, first, last = of[0].place.turn, of[0].place, of[-1].place
    turn_of = [each for each in context.shown.rounds if each.place.turn == turn]
    if first.round == 1 and len(of) == len(turn_of):
        name = f"T-{turn}"
    else:
        name = name_of(Position(turn, first.round), Position(turn, last.round))
    if of[0].reduced:
        why = "too large for the budget: shown in part"
    elif turn == context.shown.open_turn:
        why = "under way"
    else:
        why = "recent: as it was said"
    tokens, raw = sum(each.tokens for each in of), sum(each.raw for each in of)
    return Explained("native", name, "R", tokens, raw, why)


def _apart(context: Context) -> Iterator[tuple[int, Explained]]:
    shown = context.shown
    if shown.prompt and shown.open_turn is not None:
        tokens = context.encoder.tokens(shown.prompt)
        why = "its turn was under way at the last epoch: as it was said"
        prompt = Explained("prompt", f"T-{shown.open_turn}", "R", tokens, tokens, why)
        yield shown.open_turn, prompt


def _new(context: Context) -> Iterator[Explained]:
    name, injection = f"T-{context.turn}", context.injection
    if injection is not None and injection.text:
        why = "board, memory and reminder for this prompt"
        yield Explained("injection", name, None, injection.tokens, 0, why)
    if context.prompt:
        tokens = context.prompt_tokens
        yield Explained("prompt", name, "R", tokens, tokens, "the new prompt: never shortened")
