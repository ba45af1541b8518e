"""Status of the configured models."""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from perdure.core.errors import GatewayError, InvalidConfig
from perdure.gateway import local
from perdure.gateway.breaker import BreakerView
from perdure.gateway.calls import PURPOSES, Purpose
from perdure.gateway.catalog import ModelCandidate
from perdure.gateway.gateway import Gateway
from perdure.gateway.model_selection import HealthView
from perdure.gateway.prices import Price
from perdure.gateway.provider_errors import one_line
from perdure.gateway.provider_keys import require_key
from perdure.gateway.providers import LOCAL, Provider
from perdure.gateway.rate_limits import GateView

#: Seconds for a server to show that it is there.
_PATIENCE = 5.0
#: Providers that pass calls on to others.
_ROUTERS = ("openrouter", "huggingface")
#: Names that are shown of those that a server has, and characters of each.
_MOST_NAMES = 5
_LONGEST_NAME = 80


class ModelUse(msgspec.Struct, frozen=True):
    """What a model is a candidate for, and at which place."""

    purpose: Purpose
    complexity: str  # Or the task, if that has models of its own: ``tiny``.
    place: int  # from 1


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is configured."""

    name: str
    provider: str
    model: str
    wire: str
    base_url: str
    uses: tuple[ModelUse, ...]
    #: Where its key comes from, and whether there is one. Never the key.
    key_variable: str
    key: bool
    price: Price | None
    #: None: was not tried. Empty: it answered.
    problem: str | None = None
    #: Of this process, or as it was taken over from the last; None if nothing is known.
    breaker: BreakerView | None = None
    gate: GateView | None = None
    health: dict[str, HealthView] = {}


async def models(gateway: Gateway, *, reach: bool = False) -> list[ModelView]:
    """Every configured model; with `reach`, its server is asked, which costs no tokens.

    Raises `InvalidConfig` for a provider that cannot be used, `NoModel` for a model whose provider
    does not do what it is configured for.
    """
    await gateway.memory.load()
    uses = dict[str, list[ModelUse]]()
    candidates = dict[str, ModelCandidate]()
    for purpose in PURPOSES:
        for kind, options in gateway.catalog.uses(purpose):
            for place, candidate in enumerate(gateway.catalog.candidates(options), 1):
                candidates[candidate.name] = candidate
                uses.setdefault(candidate.name, []).append(ModelUse(purpose, kind, place))
    problems = await _problems(gateway, candidates.values(), uses) if reach else {}
    return [
        await _view(gateway, candidate, uses[name], problems.get(name))
        for name, candidate in candidates.items()
    ]


async def _view(
    gateway: Gateway, candidate: ModelCandidate, uses: list[ModelUse], problem: str | None
) -> ModelView:
    provider = candidate.provider
    target = gateway.known(candidate)
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


async def _problems(
    gateway: Gateway, candidates: Iterable[ModelCandidate], uses: Mapping[str, Sequence[ModelUse]]
) -> dict[str, str]:
    servers = dict[str, asyncio.Task[tuple[str, ...] | None]]()  # each is asked once

    async def listed(provider: Provider) -> tuple[str, ...] | None:
        key = await require_key(provider, gateway.catalog.environ)
        return await gateway.transport.reach(provider, key, timeout=_PATIENCE)

    async def problem(candidate: ModelCandidate) -> str:
        provider = candidate.provider
        purposes = [use.purpose for use in uses[candidate.name]]
        try:
            if provider.name == LOCAL:
                _check_local(candidate.model, purposes)
                return ""
            if provider.name not in servers:
                servers[provider.name] = asyncio.create_task(listed(provider))
            found = await servers[provider.name]
        except (GatewayError, InvalidConfig) as exc:
            return str(exc)
        # Routers do not list what embeds along with what answers.
        embeds = provider.name in _ROUTERS and set(purposes) == {"embed"}
        return "" if found is None or embeds else _missing(candidate, found)

    given = list(candidates)
    found = await asyncio.gather(*(problem(candidate) for candidate in given))
    return {candidate.name: said for candidate, said in zip(given, found, strict=True)}


def _check_local(model: str, purposes: Sequence[Purpose]) -> None:
    chatting = next((purpose for purpose in purposes if purpose != "embed"), None)
    if chatting is not None:
        raise local.cannot_chat(chatting)
    local.check(model)


def _missing(candidate: ModelCandidate, listed: Sequence[str]) -> str:
    provider, model = candidate.provider.name, candidate.model
    if not listed:
        # Some servers keep an empty list, whatever they have. Ollama's is true.
        nothing = f"The server has no model {model}; it has none at all."
        return f"{nothing} Get it: ollama pull {model}." if provider == "ollama" else ""
    wanted = _plain(model)
    if provider in _ROUTERS:
        wanted = wanted.partition(":")[0]  # what follows says where to, or how
    # An alias stands for the latest of those with a date: claude-x for claude-x-20260101.
    dated = re.compile(rf"{re.escape(wanted.removesuffix('-latest'))}-[\d-]+")
    if any(name == wanted or dated.fullmatch(name) for name in map(_plain, listed)):
        return ""
    shown = difflib.get_close_matches(model, listed, _MOST_NAMES) or listed[:_MOST_NAMES]
    names = ", ".join(one_line(name, _LONGEST_NAME) for name in shown)
    more = " …" if len(shown) < len(listed) else "."
    return f"The server has no model {model}; it has {names}{more}"


def _plain(name: str) -> str:
    return name.casefold().removeprefix("models/").removesuffix(":latest")
