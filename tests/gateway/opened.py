"""A gateway on a store of its own, in front of servers on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from perdure.config import GatewayConfig, ModelsConfig, ProviderConfig
from perdure.core import clock as clocks
from perdure.core.clock import Clock
from perdure.gateway.breaker import BreakerPolicy
from perdure.gateway.fallback import Backoff
from perdure.gateway.gateway import Gateway
from perdure.gateway.outcomes import Outcome
from perdure.storage.middleware import Middleware
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from perdure.testing import ScriptedModel
from tests.gateway.faulty import FaultyServer

#: Three tries within a few hundredths of a second.
QUICK = Backoff(attempts=3, base=0.01, cap=0.02, patience=5.0)
#: One try.
ONCE = Backoff(attempts=1)
#: A circuit that opens late, for tests that are about something else.
TOUGH = BreakerPolicy(failures=10_000, calls=100_000)
PRICES = {"input": 2.0, "output": 10.0}

Server = ScriptedModel | FaultyServer


def provider(server: Server, wire: Any = "chat", **changes: Any) -> ProviderConfig:
    if isinstance(server, ScriptedModel):
        return server.provider_config(wire, **changes)
    return ProviderConfig(wire=wire, base_url=f"{server.url}/v1", **changes)


def config_for(providers: dict[str, ProviderConfig], **changes: Any) -> GatewayConfig:
    """Each provider has one model, ``m``, for chats, in order; the first embeds, if it can."""
    names = tuple(f"{name}/m" for name in providers)
    embeds = any(
        each.wire != "messages" or each.embeddings for each in list(providers.values())[:1]
    )
    settings: dict[str, Any] = {
        "providers": providers,
        "models": ModelsConfig(chat=names, compress=names, embed=names[:1] if embeds else ()),
        # More than a busy machine takes; who tests that something takes too long says how long.
        "timeout": 60.0,
        "connect_timeout": 60.0,
        "deadline": 120.0,
        **changes,
    }
    return GatewayConfig(**settings)


@asynccontextmanager
async def opened(
    *servers: Server | ProviderConfig,
    url: str = "memory://",
    clock: Clock = clocks.now,
    environ: dict[str, str] | None = None,
    backoff: Backoff = QUICK,
    tripping: BreakerPolicy | None = None,
    mask: Any = None,
    health: Any = None,
    selector: Any = None,
    middleware: Sequence[Middleware] = (),
    **changes: Any,
) -> AsyncIterator[Gateway]:
    """A gateway whose candidates are these servers, as ``p0``, ``p1`` and so on."""
    providers = {
        f"p{at}": each if isinstance(each, ProviderConfig) else provider(each)
        for at, each in enumerate(servers)
    }
    async with Store(adapter_for(url, clock), middleware=middleware, clock=clock) as store:
        gateway = Gateway(
            store,
            config_for(providers, **changes),
            environ=environ or {},
            mask=mask,
            clock=clock,
            tripping=tripping,
            backoff=backoff,
            health=health,
            selector=selector,
        )
        try:
            yield gateway
        finally:
            await gateway.close()


async def outcomes_of(gateway: Gateway) -> list[Outcome]:
    """What was noted, in the order in which it began."""
    await gateway.settle()
    found = await gateway.store.collection(Outcome).query().values()
    return sorted(found, key=lambda each: (each.started, each.id))


def is_idle(gateway: Gateway) -> bool:
    """Whether nobody has a slot, and nobody waits for one."""
    views = [target.gate.view() for target in gateway.targets.values()]
    return not any(view.active or view.waiting for view in views)


def assert_nothing_left(gateway: Gateway) -> None:
    """No slot, no probe, nobody waiting."""
    for target in gateway.targets.values():
        view = target.gate.view()
        assert (view.active, view.waiting) == (0, 0), target.name
        target.breaker.attempt().end()  # raises if a probe was left behind
