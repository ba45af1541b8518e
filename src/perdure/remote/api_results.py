"""What the server answers, where no struct of the bank says it. Read by `perdure.remote`, too."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from perdure.context.context import Context, Explained, compose
from perdure.context.prompt_encoder import PromptEncoder, Wire
from perdure.context.session_tools import Rendering
from perdure.core.messages import Message
from perdure.core.tokens import TokenScale
from perdure.core.turns import Turn
from perdure.gateway.budgets import BudgetStatus
from perdure.gateway.calls import Tool
from perdure.gateway.model_status import ModelView
from perdure.gateway.outcomes import CostRow, Outcome
from perdure.history.epochs import Epoch, Reason
from perdure.history.manifest import Band, Injected, ShownHistory
from perdure.recall.memory_records import Memory
from perdure.recall.references.files import LayerProblem
from perdure.storage.verify import Problem


class TurnPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of turns, oldest first: whole, or as texts at a level."""

    turns: list[Turn] = []
    texts: list[Rendering] = []
    #: The number of the newest turn of the session.
    newest: int
    #: Give it as `before` for the page of older turns; None if there are none. Turns that are
    #: appended meanwhile do not move it.
    before: str | None = None
    #: Give it as `after` for newer ones.
    after: str | None = None


class AppendedTurns(msgspec.Struct, frozen=True):
    """What an append wrote: each turn with the rounds written now."""

    turns: list[Turn]


class UndoneNumbers(msgspec.Struct, frozen=True):
    """The numbers of turns that were undone now."""

    turns: list[int]
    #: The newest turn is undone: what is said next opens another.
    newest: bool = False


class ContextParts(msgspec.Struct, frozen=True, kw_only=True):
    """All that a context is made of. `context` puts it together, the same byte for byte."""

    session: str
    turn: int
    budget: int
    shown: ShownHistory
    system: str = ""
    tools: tuple[Tool, ...] = ()
    prompt: tuple[Message, ...] = ()
    injection: Injected | None = None
    model: str = ""
    scale: TokenScale = TokenScale()

    @classmethod
    def of(cls, context: Context) -> ContextParts:
        return cls(**{name: getattr(context, name) for name in cls.__struct_fields__})

    def context(self, encoder: PromptEncoder | None = None) -> Context:
        given = {name: getattr(self, name) for name in self.__struct_fields__ if name != "shown"}
        return compose(self.shown, encoder=encoder, **given)


class ExplainedContext(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt, and why it is so."""

    session: str
    #: The turn that the prompt opens, or that goes on.
    turn: str
    model: str
    budget: int
    tokens: int
    #: The share of the budget that is used.
    fill: float
    #: o200k tokens of what is shown, raw.
    raw: int
    #: How often the window was planned anew.
    epoch: int
    bands: list[Band]
    blocks: list[Explained]
    #: What stands beside the prompt: board, memories, reminder.
    injection: str = ""
    #: The body of a request to this API, if one was asked for.
    wire: Wire | None = None
    body: dict[str, Any] | None = None
    parts: ContextParts | None = None

    @classmethod
    def of(
        cls, context: Context, wire: Wire | None = None, *, parts: bool = False
    ) -> ExplainedContext:
        bands = context.bands
        return cls(
            session=context.session,
            turn=f"T-{context.turn}",
            model=context.model,
            budget=context.budget,
            tokens=context.tokens,
            fill=context.tokens / context.budget,
            raw=sum(band.raw for band in bands),
            epoch=context.shown.epoch,
            bands=bands,
            blocks=context.explain(),
            injection="" if context.injection is None else context.injection.text,
            wire=wire,
            body=None if wire is None else request_body(context, wire),
            parts=ContextParts.of(context) if parts else None,
        )


def request_body(context: Context, wire: Wire) -> dict[str, Any]:
    if wire == "chat":
        return context.to_chat()
    return context.to_responses() if wire == "responses" else context.to_messages()


class EpochSummary(msgspec.Struct, frozen=True, kw_only=True):
    """When and why the gradient was recalculated."""

    number: int
    #: The round that was about to be made.
    at: str
    reason: Reason
    forced: bool
    #: Microseconds.
    time: int
    model: str
    budget: int
    #: Tokens of the window before and after. None: it was more than was worth counting.
    before: int | None
    after: int

    @classmethod
    def of(cls, epoch: Epoch) -> EpochSummary:
        return cls(
            number=epoch.number,
            at=str(epoch.at),
            reason=epoch.reason,
            forced=epoch.forced,
            time=epoch.time,
            model=epoch.model,
            budget=epoch.budget,
            before=epoch.before or None,
            after=epoch.after,
        )


class ToolAnswer(msgspec.Struct, frozen=True):
    """What a tool answers a model, or what became of a wish."""

    text: str


class SharedSession(msgspec.Struct, frozen=True):
    """Who may recall a session; ``*`` is everybody."""

    session: str
    shared_with: list[str]


class KeyedMemory(msgspec.Struct, frozen=True):
    """A memory and what it is called: ``planner/M-7``."""

    key: str
    memory: Memory

    @classmethod
    def of(cls, memory: Memory) -> KeyedMemory:
        return cls(memory.name, memory)


class MemoryList(msgspec.Struct, frozen=True):
    """Memories that fit, and how many do in all."""

    count: int
    memories: list[KeyedMemory]


class ErasedContent(msgspec.Struct, frozen=True):
    """Something was deleted for good."""

    #: Nothing of it can be read in the bank's files any more; others who have the bank open may
    #: keep deleted bytes from being wiped.
    erased: bool


class LayerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A reference layer without its text."""

    name: str
    title: str
    tags: tuple[str, ...]
    weight: float
    triggers: tuple[str, ...]
    tokens: int
    #: The file of the folder that it comes from; None if it was added.
    file: str | None
    #: Microseconds.
    updated: int


class LayerCheck(msgspec.Struct, frozen=True):
    """What is wrong with reference layers, or unwise."""

    ok: bool
    problems: list[LayerProblem]


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """What model calls took and cost. Amounts are picodollars; None is unknown, not zero."""

    by: str
    since: datetime | None
    rows: list[CostRow]
    cost: int | None
    budgets: list[BudgetStatus]


class OutcomePage(msgspec.Struct, frozen=True):
    """Attempts at models, the newest first."""

    outcomes: list[Outcome]
    #: Give it as `after` for the following page; None on the last.
    next: str | None = None


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """The configured models; keys are never shown."""

    models: list[ModelView]
    #: Purposes that have none.
    missing: list[str]
    #: The date of the prices that are built in.
    prices_as_of: str


class ArtifactEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact, and how many refer to it."""

    artifact: str
    place: str
    #: Microseconds.
    put: int
    bytes: int
    references: int


class ArtifactList(msgspec.Struct, frozen=True, kw_only=True):
    """Artifacts, and what all of them take."""

    place: str
    count: int
    bytes: int
    artifacts: list[ArtifactEntry]


class BankCheck(msgspec.Struct, frozen=True):
    """What `verify` found."""

    ok: bool
    records: int
    problems: list[Problem]


class SchemaSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The record type of a collection."""

    collection: str
    type: str
    schema: int
    serializer: str
    since: datetime
    records: int


ExportFormat = Literal["jsonl", "markdown"]
