"""What pipelines are tested with: searches and texts that stand in memory, models on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from perdure.config import GatewayConfig, ModelsConfig, RecallConfig
from perdure.gateway.gateway import Gateway
from perdure.history.log_records import Head, SessionRecord
from perdure.recall.places import Spot
from perdure.recall.steps.pipeline import Pipeline
from perdure.recall.values import Candidate, Kind, Note, Question, Shown
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from perdure.testing import ReceivedRequest, Script, ScriptedModel
from tests.patience import patient

SESSION = "planner/auth"
RECORD = SessionRecord(id=SESSION, type="session", agent="planner")
HEAD = Head(SESSION)
#: 2025, in seconds.
THEN = 1_750_000_000


def question(text: str = "How do tokens rotate?", **changes: Any) -> Question:
    settings = {"text": text, "record": RECORD, "head": HEAD, "moment": (THEN + 864_000) * 10**6}
    return Question(**{**settings, **changes})


def candidate(turn: int, score: float = 0.5, *, kind: Kind = "turn", **changes: Any) -> Candidate:
    """A candidate of this session; of a memory or layer, `turn` is its number."""
    keys = {"turn": f"{SESSION}#T-{turn}.1", "memory": f"M-{turn}", "reference": f"layer-{turn}"}
    groups = {"turn": 1, "memory": 2, "reference": 3}
    made = Candidate(
        kind=kind,
        place=Spot(groups[kind], turn).place,
        key=keys[kind],
        session=SESSION if kind == "turn" else "",
        turn=turn if kind == "turn" else 0,
        round=1 if kind == "turn" else 0,
        score=score,
        note=Note(time=THEN, lengths=(10, 10, 0)),
    )
    return msgspec.structs.replace(made, **changes)


class Results(msgspec.Struct, frozen=True):
    """What a search found."""

    candidates: tuple[Candidate, ...]
    terms: tuple[str, ...] = ("token", "rotat")
    unknown: frozenset[str] = frozenset()


class Library:
    """A search that answers as it was told to: by words, by meaning, by further words."""

    def __init__(
        self,
        by_words: Sequence[Candidate],
        by_meaning: Sequence[Candidate] | None = None,
        *,
        hopped: Sequence[Candidate] = (),
        terms: tuple[str, ...] = ("token", "rotat"),
        delays: Mapping[str, float] | None = None,
    ) -> None:
        self.first = Results(tuple(by_words), terms)
        self.second = None if by_meaning is None else Results(tuple(by_meaning), terms)
        self.hopped = Results(tuple(hopped), terms)
        self.delays = delays or {}
        self.also: list[tuple[str, ...]] = []

    async def keyword(
        self, question: Question, scope: Any, also: Sequence[str] = (), *, patience: float = 0.0
    ) -> Results:
        await asyncio.sleep(self.delays.get("keyword", 0))
        if also:
            self.also.append(tuple(also))
            return self.hopped
        return self.first

    async def vector(self, found: Any, /) -> Results:
        await asyncio.sleep(self.delays.get("vector", 0))
        return found if self.second is None else self.second


class Words:
    """Texts by candidate; whoever has none is gone."""

    def __init__(
        self, texts: Mapping[int, str], *, delays: Mapping[str, float] | None = None
    ) -> None:
        self.texts = dict(texts)
        self.delays = delays or {}

    async def full(self, question: Question, candidates: Sequence[Candidate]) -> dict[int, Shown]:
        await asyncio.sleep(self.delays.get("full", 0))
        return {
            each.place: Shown("R", text, len(text) // 4)
            for each in candidates
            if (text := self.texts.get(each.place)) is not None
        }

    async def tiny(self, question: Question, candidates: Sequence[Candidate]) -> dict[int, Shown]:
        await asyncio.sleep(self.delays.get("tiny", 0))
        return {
            each.place: Shown("T", f"gist of {each.key}", 5)
            for each in candidates
            if each.place in self.texts
        }

    async def lately(self, question: Question, turns: int) -> list[str]:
        await asyncio.sleep(self.delays.get("lately", 0))
        return ["T-99: The user wanted tokens to rotate."]


class Everywhere:
    """A scope without bounds."""

    @staticmethod
    def allows(place: int, /) -> bool:
        return place >= 0


async def everywhere(question: Question) -> Everywhere:
    return Everywhere()


def words_of(candidates: Sequence[Candidate]) -> Words:
    """A text for each candidate that names it."""
    return Words({each.place: f"what {each.key} says" for each in candidates})


def pipeline(
    search: Any,
    texts: Any,
    gateway: Gateway | None = None,
    *,
    config: RecallConfig | None = None,
    **further: Any,
) -> Pipeline:
    return Pipeline(
        search,
        everywhere,
        texts,
        config or patient(),
        gateway=None if gateway is None else lambda: gateway,
        **further,
    )


@asynccontextmanager
async def models(
    script: Script, *, purposes: Sequence[str] = ("filter", "judge"), **changes: Any
) -> AsyncIterator[tuple[Gateway, ScriptedModel]]:
    """A gateway whose models follow a script: ``tiny`` filters, ``fast`` judges."""
    names = {"filter": "ours/tiny", "judge": "ours/fast"}
    async with ScriptedModel(script) as model, Store(adapter_for("memory://")) as store:
        settings = {
            "providers": {"ours": model.provider_config()},
            "models": ModelsConfig(**{purpose: names[purpose] for purpose in purposes}),
            "retries": 0,
        }
        gateway = Gateway(store, GatewayConfig(**{**settings, **changes}), environ={})
        try:
            yield gateway, model
        finally:
            await gateway.close()


def says(
    *,
    useless: Callable[[str], bool] = lambda _: False,
    judged: Mapping[str, Sequence[int]] | str = "",
) -> Callable[[ReceivedRequest], str]:
    """A script: no to whatever is useless, by its text; and what the judge says."""
    answer = judged if isinstance(judged, str) else json.dumps({**_NOTHING, **judged})

    def line(request: ReceivedRequest) -> str:
        if request.model == "fast":
            return answer
        return "no" if useless(request.prompt) else "yes"

    return line


_NOTHING: dict[str, Sequence[int]] = {"full": [], "ticklers": [], "layers": []}
