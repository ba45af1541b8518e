"""How the models of a configuration stand, for showing it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from perdure.core.errors import GatewayError, InvalidConfig
from perdure.gateway.breaker import BreakerView
from perdure.gateway.calls import PURPOSES, Ask, Complexity, Purpose
from perdure.gateway.catalog import Candidate
from perdure.gateway.gateway import Gateway
from perdure.gateway.health import HealthView
from perdure.gateway.limits import GateView
from perdure.gateway.prices import Price

_LEVELS: tuple[Complexity, ...] = ("simple", "moderate", "complex")
#: Seconds for a server to show that it is there.
_PATIENCE = 5.0


class Use(msgspec.Struct, frozen=True):
    """What a model is a candidate for, and at which place."""

    purpose: Purpose
    complexity: Complexity
    place: int  # from 1


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is configured."""

    name: str
    provider: str
    model: str
    wire: str
    base_url: str
    uses: tuple[Use, ...]
    #: Where its key comes from, and whether there is one. Never the key.
    key_variable: str
    key: bool
    price: Price | None
    #: None: was not tried. Empty: it answered.
    problem: str | None = None
    #: Of this process; None if it was not called.
    breaker: BreakerView | None = None
    gate: GateView | None = None
    health: dict[str, HealthView] = {}


async def models(gateway: Gateway, *, reach: bool = False) -> list[ModelView]:
    """Every model that is configured for something; with `reach`, their servers are asked.

    Asking costs no tokens: it is the list of models, or for a server without one any answer.
    Raises `InvalidConfig` for a model whose provider cannot be made of the configuration, and
    `NoModel` for one that is to do what its provider does not.
    """
    uses = dict[str, list[Use]]()
    candidates = dict[str, Candidate]()
    for purpose in PURPOSES:
        if not gateway.has(purpose):
            continue
        for level in _LEVELS:
            found = gateway.catalog.candidates(Ask(purpose=purpose, complexity=level))
            for place, candidate in enumerate(found, 1):
                candidates[candidate.name] = candidate
                uses.setdefault(candidate.name, []).append(Use(purpose, level, place))
    problems = await _problems(gateway, candidates.values()) if reach else {}
    return [
        await _view(gateway, candidate, uses[name], problems.get(name))
        for name, candidate in candidates.items()
    ]


async def _view(
    gateway: Gateway, candidate: Candidate, uses: list[Use], problem: str | None
) -> ModelView:
    provider = candidate.provider
    target = gateway.targets.get(candidate.name)
    return ModelView(
        name=candidate.name,
        provider=provider.name,
        model=candidate.model,
        wire=provider.wire,
        base_url=provider.base_url,
        uses=tuple(uses),
        key_variable=provider.key_variable,
        key=await gateway.has_key(provider),
        price=gateway.prices.find(provider.name, candidate.model),
        problem=problem,
        breaker=None if target is None else target.breaker.view(),
        gate=None if target is None else target.gate.view(),
        health={
            task: view
            for (task, name), view in gateway.health.views().items()
            if name == candidate.name
        },
    )


async def _problems(gateway: Gateway, candidates: Iterable[Candidate]) -> dict[str, str]:
    """What keeps each model from being called; empty if nothing does."""

    async def problem(candidate: Candidate) -> str:
        try:
            await gateway.reach(candidate, seconds=_PATIENCE)
        except (GatewayError, InvalidConfig) as exc:
            return str(exc)
        return ""

    given = list(candidates)
    found = await asyncio.gather(*(problem(candidate) for candidate in given))
    return {candidate.name: said for candidate, said in zip(given, found, strict=True)}
