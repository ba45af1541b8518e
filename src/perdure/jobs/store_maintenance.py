"""Background work for the store: sweeping, delivering events, alerts, erasing."""

from __future__ import annotations

from perdure.config import Config
from perdure.jobs import Runner
from perdure.storage.adapter import Capability
from perdure.storage.assembly import Chain
from perdure.storage.metrics.metric_alerts import Alerts
from perdure.storage.metrics.metrics_publisher import PATIENCE, Publisher
from perdure.storage.store import Store
from perdure.storage.subscriptions import Subscriptions

_SWEEP_PAGE = 1_000
_TRIM_EVERY = 300.0
#: Seconds between two looks for records that processes with older declarations wrote.
_REFILL_EVERY = 5.0
_ALERTS_EVERY = 5.0
_SIZES_EVERY = 60.0


class StoreMaintenance:
    """Maintains the store of one bank, as far as its backend needs it."""

    def __init__(
        self,
        store: Store,
        chain: Chain,
        subscriptions: Subscriptions,
        jobs: Runner,
        config: Config,
    ) -> None:
        self._store = store
        self._subscriptions = subscriptions
        self._jobs = jobs
        self._storage, self._watching = config.storage, config.metrics
        self._alerts = Alerts(chain.metrics, config.metrics.alerts, store)
        patience = min(PATIENCE, config.metrics.publish_every)
        self._publisher = Publisher(chain.metrics, store, chain.cache, patience=patience)
        self._tracing = chain.tracing

    def schedule(self) -> None:
        capabilities = self._store.adapter.capabilities
        if Capability.TTL in capabilities:
            self._jobs.every("sweep", self._storage.sweep_every, self._sweep)
        if Capability.OUTBOX in capabilities:
            self._store.on_events = self._jobs.every(
                "deliver", self._storage.deliver_every, self._subscriptions.deliver
            )
            self._jobs.every("trim", _TRIM_EVERY, self._subscriptions.trim)
        self._jobs.every("refill", _REFILL_EVERY, self._store.refill)
        if self._watching.alerts:
            self._jobs.every("alerts", _ALERTS_EVERY, self._alerts.check)
        if self._tracing is not None:
            self._jobs.every("sizes", _SIZES_EVERY, self._tracing.note_sizes)
        if self._watching.publish_every:
            self._jobs.every("metrics", self._watching.publish_every, self._publisher.publish)

    async def settle(self) -> None:
        """Fill what is not filled, check limits, deliver all waiting events."""
        await self._store.refill()
        if self._watching.alerts:
            await self._alerts.check()
        if Capability.OUTBOX in self._store.adapter.capabilities:
            while await self._subscriptions.deliver():
                pass

    async def close(self) -> None:
        """Write the last figures of this process, if it wrote some before."""
        if self._watching.publish_every:
            await self._publisher.close()

    async def _sweep(self) -> None:
        while await self._store.adapter.sweep(_SWEEP_PAGE) == _SWEEP_PAGE:
            pass
