"""How the services of a bank are put together. Nothing is read or written by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from perdure.artifacts import ArtifactStore
from perdure.bank.artifact_keys import SealedObjects, object_sealer
from perdure.bank.folders import artifact_place, former_place
from perdure.config import Config
from perdure.context.context_forgetting import ContextForgetting
from perdure.core.clock import Clock
from perdure.core.errors import Closed, Unsupported
from perdure.history.artifact_uses import Uses
from perdure.history.epochs import Epochs
from perdure.history.forget_sessions import Forgetting
from perdure.history.log_records import SessionRecord
from perdure.history.renditions.rendition_service import RenditionService
from perdure.history.token_counts import TokenCounts
from perdure.history.turn_log import TurnLog, Written
from perdure.history.turn_reader import TurnReader
from perdure.jobs import Runner
from perdure.jobs.store_maintenance import StoreMaintenance
from perdure.services import Services
from perdure.storage import assembly, registry
from perdure.storage.adapter import Capability
from perdure.storage.middleware import Middleware
from perdure.storage.store import Progress, Store
from perdure.storage.subscriptions import Subscriptions
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.gateway.gateway import Gateway
    from perdure.history.secrets import Masker
    from perdure.recall.recall import Recall
    from perdure.storage.encryption.master_keys import Source

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
    """Whether artifacts lie in a folder that goes when the bank is closed."""
    return url.startswith("memory:") and not (config.artifacts.folder or config.artifacts.url)


def make_services(
    url: str,
    config: Config,
    *,
    middleware: Sequence[Middleware],
    master_key: Source | None,
    progress: Progress | None,
    clock: Clock,
    is_open: Callable[[], bool],
) -> Services:
    """The services of the bank at a URL. `is_open` says whether models may be called.

    Raises `Unsupported` if the backend cannot hold a bank.
    """
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
    jobs = Runner(store, concurrency=config.jobs.concurrency)
    meter = TokenCounts(store, reader, artifacts, jobs)
    log, epochs = TurnLog(store, artifacts, jobs), Epochs(store)
    subscriptions = Subscriptions(store)
    maintenance = StoreMaintenance(store, chain, subscriptions, jobs, config)

    def make_gateway() -> Gateway:
        if not is_open():
            raise Closed("This bank is not open.", hint="Use it inside `async with`.")
        from perdure.gateway.gateway import Gateway

        return Gateway(store, config.gateway, jobs=jobs, mask=services.mask_messages, clock=clock)

    def make_recall() -> Recall:
        from perdure.recall.services import make_recall

        return make_recall(
            store,
            reader,
            services.scribe,
            jobs,
            config,
            gateway=lambda: services.gateway,
            counter=lambda: meter.counter,
            plain=services.mask_data,
            scrub=maintenance.scrub,
            withdraw=ContextForgetting(store, epochs).forget_memories,
            encrypts=chain.encryption.encrypts if chain.encryption else None,
        )

    def make_masker() -> Masker | None:
        if not config.secrets.mask:
            return None
        from perdure.history.secrets import Masker

        return Masker(config.secrets)

    async def index(transaction: Transaction, written: Written) -> None:
        if written.bulk:
            await services.recall.hook(transaction, written)

    def note(written: Written) -> None:
        services.recall.note(written)

    def missed(record: SessionRecord, first: int, last: int) -> None:
        services.recall.missed(record, first, last)

    services = Services(
        url=url,
        config=config,
        chain=chain,
        store=store,
        jobs=jobs,
        subscriptions=subscriptions,
        maintenance=maintenance,
        artifacts=artifacts,
        log=log,
        reader=reader,
        meter=meter,
        scribe=RenditionService(
            store,
            reader,
            artifacts,
            meter,
            jobs,
            config=config.renditions,
            gateway=(lambda: services.gateway) if config.gateway.models.compress else None,
        ),
        epochs=epochs,
        make_gateway=make_gateway,
        make_recall=make_recall,
        make_masker=make_masker,
    )
    log.join(index)
    log.listen(meter.note, meter.missed)
    log.listen(services.scribe.note, services.scribe.missed)
    log.listen(note, missed)
    return services


def make_forgetting(services: Services) -> Forgetting:
    """What forgets, everywhere that content is kept."""
    from perdure.gateway.response_cache import GatewayRecords

    async def flush_outcomes() -> None:
        if services.made("gateway"):
            await services.gateway.settle()

    made = Forgetting(
        services.store, services.reader, services.artifacts, services.maintenance.scrub
    )
    made.join(GatewayRecords(services.store, flush_outcomes))
    made.join(services.epochs)
    services.recall.join(made)
    made.join(ContextForgetting(services.store, services.epochs))
    return made


def _check_backend(url: str, store: Store) -> None:
    missing = sorted(_NEEDED - store.adapter.capabilities)
    if missing:
        raise Unsupported(
            f"{registry.shown(url)} cannot hold a bank: it has no {', '.join(missing)}.",
            hint="Use it for records alone, with perdure.open_store(…); open the bank on"
            " sqlite:// or postgresql://.",
        )
