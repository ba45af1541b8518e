"""Puts the services of a bank together. Reads and writes nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from perdure.artifacts import ARTIFACT_ROWS, ArtifactStore
from perdure.bank.artifact_keys import SealedObjects, object_sealer
from perdure.bank.artifact_location import artifact_place, former_place
from perdure.config import BudgetConfig, Config, GatewayConfig
from perdure.context.context_forgetting import ContextForgetting
from perdure.core.clock import Clock, now
from perdure.core.display import install_hint
from perdure.core.errors import Closed, NotFound, Unsupported
from perdure.core.levels import parse_level
from perdure.history.artifact_uses import Uses
from perdure.history.epochs import Epochs
from perdure.history.forget_sessions import Forgetting
from perdure.history.log_records import SessionRecord
from perdure.history.renditions.rendition_service import RenditionService
from perdure.history.strategies.strategy_registry import parse_strategy, register_by_import
from perdure.history.token_counts import TokenCounts
from perdure.history.turn_log import TurnLog, Written
from perdure.history.turn_reader import TurnReader
from perdure.history.verify_chain import verify_chains
from perdure.jobs import Runner
from perdure.jobs.job_engine import JobEngine
from perdure.jobs.store_maintenance import StoreMaintenance
from perdure.services import Services
from perdure.storage import assembly, registry
from perdure.storage.adapter import Capability
from perdure.storage.middleware import Middleware
from perdure.storage.side_store import SideStore
from perdure.storage.store import Progress, Store
from perdure.storage.subscriptions import Subscriptions
from perdure.storage.verify import Problem, verify_store

if TYPE_CHECKING:
    from perdure.gateway.gateway import Gateway
    from perdure.gateway.outcomes import Outcome, RatingHook
    from perdure.history.secrets import Masker
    from perdure.learning.evolution import StepHook
    from perdure.learning.experiment_records import EvolutionStep
    from perdure.learning.learning import Learning
    from perdure.recall.recall import Recall
    from perdure.storage.encryption.master_keys import Source
    from perdure.storage.transaction import Transaction

_REFLECTION = "reflection"
#: Seconds between two looks for episodes that are too old, and before the first one.
_EXPIRE_EVERY, _EXPIRE_FIRST = 3_600.0, 60.0
#: Seconds between two looks at the tests of agents.
_EVOLVE_EVERY = 60.0
#: What a bank cannot do without.
_NEEDED = frozenset(
    {
        Capability.AGGREGATE,
        Capability.LISTING,
        Capability.OUTBOX,
        Capability.QUERY,
        Capability.TAGS,
        Capability.TRANSACTIONS,
        Capability.TTL,
        Capability.VERSIONS,
    }
)


def is_temporary(url: str, config: Config) -> bool:
    return url.startswith("memory:") and not (config.artifacts.folder or config.artifacts.url)


def make_services(
    url: str,
    config: Config,
    *,
    middleware: Sequence[Middleware] = (),
    master_key: Source | None = None,
    progress: Progress | None = None,
    clock: Clock = now,
    is_open: Callable[[], bool] = lambda: False,
) -> Services:
    """`is_open` says whether models may be called. Raises `Unsupported` if the backend cannot hold
    a bank, `InvalidInput` if a configured strategy is none.
    """
    register_by_import(config.history.strategies)
    parse_strategy(config.history.strategy)
    masters = assembly.master_keys(config, master_key)
    chain = assembly.Chain(config, middleware, masters=masters, clock=clock)
    store = assembly.store(
        url, config, chain, master_key=master_key, progress=progress, clock=clock
    )
    _check_backend(url, store)
    artifacts = ArtifactStore(
        store,
        artifact_place(url, config.artifacts, temporary=is_temporary(url, config)),
        former=former_place(config.artifacts),
        sealer=object_sealer(chain.encryption, config.encryption),
    )
    artifacts.join(Uses(store))
    if chain.encryption is not None:
        chain.encryption.join(SealedObjects(artifacts))
    reader = TurnReader(store)
    jobs = Runner(
        store,
        concurrency=config.jobs.concurrency,
        queues=config.jobs.queues,
        engine=_job_engine(store, config.jobs.engine),
    )
    token_counts = TokenCounts(store, reader, artifacts, jobs)
    log, epochs = TurnLog(store, artifacts, jobs), Epochs(store)
    subscriptions = Subscriptions(store)
    maintenance = StoreMaintenance(store, chain, subscriptions, jobs, config)

    def make_gateway() -> Gateway:
        if not is_open():
            raise Closed("This bank is not open.", hint="Use it inside `async with`.")
        from perdure.gateway.gateway import Gateway
        from perdure.learning.judging import with_judging_budget

        learning: Learning = services.learning
        gateway = Gateway(
            store,
            _with_reflection_budget(config, with_judging_budget(config)),
            jobs=jobs,
            mask=services.mask_messages,
            clock=clock,
            selector=learning.selector,
        )
        gateway.recorder.listen(learning)
        gateway.recorder.rated.append(_count_ratings(services))
        return gateway

    def make_recall() -> Recall:
        from perdure.recall.recall_services import make_recall

        return make_recall(
            store,
            reader,
            services.renditions,
            jobs,
            config,
            gateway=lambda: services.gateway,
            counter=lambda: token_counts.counter,
            plain=services.mask_data,
            scrub=store.scrub,
            withdraw=withdraw,
            encrypts=chain.encryption.encrypts if chain.encryption else None,
        )

    async def withdraw(names: Iterable[str]) -> None:
        from perdure.reflection.reflection_forgetting import ReflectionTraces

        gone = tuple(names)
        await ContextForgetting(store, epochs).forget_memories(gone)
        await ReflectionTraces(store).forget_memories(gone)

    def make_masker() -> Masker | None:
        if not config.secrets.mask:
            return None
        from perdure.history.secrets import Masker

        return Masker(config.secrets)

    def note(written: Written) -> None:
        if (pending := services.recall.index.pending) is not None:
            pending.note(written)

    def missed(record: SessionRecord, first: int, last: int) -> None:
        if (pending := services.recall.index.pending) is not None:
            pending.missed(record, first, last)

    services = Services(
        url=url,
        config=config,
        chain=chain,
        store=store,
        side_store=SideStore(store, config.agents.working_store, config, clock),
        jobs=jobs,
        subscriptions=subscriptions,
        maintenance=maintenance,
        artifacts=artifacts,
        log=log,
        reader=reader,
        token_counts=token_counts,
        renditions=RenditionService(
            store,
            reader,
            artifacts,
            token_counts,
            jobs,
            config=config.renditions,
            gateway=lambda: services.gateway,
            levels=frozenset(map(parse_level, config.gateway.models.compression_tasks())),
        ),
        epochs=epochs,
        make_gateway=make_gateway,
        make_learning=lambda: _make_learning(services, clock),
        make_recall=make_recall,
        make_masker=make_masker,
    )
    jobs.every("evolution", _EVOLVE_EVERY, _evolve(services), first=_EVOLVE_EVERY)
    jobs.every("episodes", _EXPIRE_EVERY, _tend_episodes(services), first=_EXPIRE_FIRST)
    log.listen(token_counts.note, token_counts.missed)
    log.listen(services.renditions.note, services.renditions.missed)
    log.listen(note, missed)
    return services


def _job_engine(store: Store, choice: str) -> JobEngine | None:
    """None for leases, which need nothing but the store."""
    on_postgres = store.adapter.system == "postgresql"
    is_installed = importlib.util.find_spec("procrastinate") is not None
    if choice == "leases" or (choice == "auto" and not (on_postgres and is_installed)):
        return None
    if not on_postgres:
        raise Unsupported(
            "procrastinate gives out the jobs of a bank on PostgreSQL, and this bank is not.",
            hint="Leave out jobs.engine.",
        )
    if not is_installed:
        raise Unsupported("procrastinate is not installed.", hint=install_hint("cluster"))
    from perdure.jobs.procrastinate_engine import ProcrastinateEngine

    return ProcrastinateEngine(store)


def _make_learning(services: Services, clock: Clock) -> Learning:
    from perdure.learning.learning import Learning

    return Learning(
        services.store,
        services.jobs,
        services.config,
        lambda: services.gateway,
        mask=services.mask_messages,
        on_step=_note_step(services),
        prompt_version=_prompt_version(services),
        clock=clock,
    )


def _prompt_version(services: Services) -> Callable[[str], Awaitable[int]]:
    async def current(agent: str) -> int:
        """0 for what was called, but never defined as an agent."""
        from perdure.agents.agent_registry import AgentRegistry

        try:
            return (await AgentRegistry(services.store).get(agent)).version
        except NotFound:
            return 0

    return current


def _count_ratings(services: Services) -> RatingHook:
    async def count(transaction: Transaction, before: Outcome, after: Outcome) -> None:
        from perdure.agents.interactions import Interactions

        await Interactions(services).rated(transaction, before, after)

    return count


def _note_step(services: Services) -> StepHook:
    async def note(transaction: Transaction, step: EvolutionStep) -> None:
        from perdure.agents.interaction_records import EvolutionEntry
        from perdure.agents.interactions import Interactions

        entry = EvolutionEntry(
            time=step.at,
            change=f"{step.kind}: {step.reason}",
            evidence=msgspec.to_builtins(step.evidence) or {},
            by=step.by,
        )
        await Interactions(services).evolved(transaction, step.agent, entry)

    return note


def _evolve(services: Services) -> Callable[[], Awaitable[None]]:
    async def evolve() -> None:
        if services.made("gateway"):  # else nobody was called
            await services.learning.evolve()

    return evolve


def _tend_episodes(services: Services) -> Callable[[], Awaitable[None]]:
    async def tend() -> None:
        from perdure.agents.episodes import Episodes

        await Episodes(services).tend()

    return tend


def make_forgetting(services: Services) -> Forgetting:
    from perdure.agents.agent_forgetting import AgentForgetting
    from perdure.agents.canon import Canon
    from perdure.agents.one_shot.run_forgetting import RunForgetting
    from perdure.agents.tier_forgetting import TierForgetting
    from perdure.gateway.gateway_records import GatewayRecords
    from perdure.learning.learning import LearningRecords
    from perdure.project.project_forgetting import ProjectForgetting
    from perdure.reflection.reflection_forgetting import ReflectionTraces
    from perdure.sessions.framework_records import FrameworkForgetting

    async def flush_outcomes() -> None:
        if services.made("gateway"):
            await services.gateway.settle()

    def drop_learned(agent: str) -> None:
        if services.made("learning"):
            services.learning.forget(agent)

    made = Forgetting(services.store, services.reader, services.artifacts, services.store.scrub)
    made.join(GatewayRecords(services.store, flush_outcomes))
    made.join(LearningRecords(services.store, drop_learned))
    made.join(services.epochs)
    made.join(AgentForgetting(services.store))
    made.join(RunForgetting(services.store))
    made.join(ProjectForgetting(services.store))
    made.join(FrameworkForgetting(services.store))
    services.recall.join(made)
    made.join(ContextForgetting(services.store, services.epochs))
    made.join(ReflectionTraces(services.store))
    made.join(TierForgetting(services))
    made.join(Canon(services))
    made.forgotten.append(services.log.notify)
    return made


async def verify_services(
    services: Services, progress: Progress | None = None
) -> AsyncIterator[Problem]:
    """Check every record and artifact; yields what is damaged."""
    async for problem in verify_store(services.store, progress, skip=ARTIFACT_ROWS):
        yield problem
    async for problem in verify_chains(services.store, progress):
        yield problem
    async for fault in services.artifacts.check(referred=True):
        yield Problem(fault.referrer or fault.artifact, fault.what)


def _with_reflection_budget(config: Config, gateway: GatewayConfig) -> GatewayConfig:
    """The gateway's settings, with what reflection may spend in a day as a budget of its name."""
    own = config.reflection
    is_limited = own.tokens is not None or own.dollars is not None
    if not (is_limited and gateway.models.reflect):
        return gateway
    if any(each.name == _REFLECTION for each in gateway.budgets):
        return gateway  # the user's own of this name
    budget = BudgetConfig(
        name=_REFLECTION, purpose="reflect", per="day", tokens=own.tokens, dollars=own.dollars
    )
    return replace(gateway, budgets=(*gateway.budgets, budget))


def _check_backend(url: str, store: Store) -> None:
    missing = sorted(_NEEDED - store.adapter.capabilities)
    if missing:
        raise Unsupported(
            f"{registry.shown(url)} cannot hold a bank: it has no {', '.join(missing)}.",
            hint="Use it for records alone, with perdure.open_store(…); open the bank on"
            " sqlite:// or postgresql://.",
        )
