"""The parts of one bank, made when it is opened: what `Bank`, `Session` and contexts work with."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.artifacts import ArtifactStore
from perdure.config import Config
from perdure.core.messages import Message
from perdure.core.tokens import Counter
from perdure.history.epochs import Epochs
from perdure.history.intake import Intake
from perdure.history.renditions.rendition_service import RenditionService
from perdure.history.token_counts import TokenCounts
from perdure.history.turn_log import TurnLog
from perdure.history.turn_reader import TurnReader
from perdure.jobs import Runner
from perdure.jobs.store_maintenance import StoreMaintenance
from perdure.storage.assembly import Chain
from perdure.storage.side_store import SideStore
from perdure.storage.store import Store
from perdure.storage.subscriptions import Subscriptions

if TYPE_CHECKING:
    from perdure.gateway.gateway import Gateway
    from perdure.history.secrets import Masker
    from perdure.recall.recall import Recall


class Services(msgspec.Struct, frozen=True, dict=True, kw_only=True):
    """The parts of a bank. Making them reads and writes nothing; see `bank.wiring`. The gateway,
    recall and the rules for secrets are made on first use: they take long.
    """

    url: str
    config: Config
    #: Middleware around the store: metrics, compression, encryption, cache.
    chain: Chain
    store: Store
    #: Where working memory is: `agents.working_store`, or the store itself.
    side_store: SideStore
    jobs: Runner
    subscriptions: Subscriptions
    maintenance: StoreMaintenance
    artifacts: ArtifactStore
    log: TurnLog
    reader: TurnReader
    token_counts: TokenCounts
    renditions: RenditionService
    epochs: Epochs
    make_gateway: Callable[[], Gateway]
    make_learning: Callable[[], Any]
    make_recall: Callable[[], Recall]
    make_masker: Callable[[], Masker | None]

    @cached_property
    def gateway(self) -> Gateway:
        """Raises `InvalidConfig`; `Closed` if the bank is not open."""
        return self.make_gateway()

    @cached_property
    def learning(self) -> Any:
        """The bank's `learning.learning.Learning`: a room above this one, which has no type
        here.
        """
        return self.make_learning()

    @cached_property
    def recall(self) -> Recall:
        return self.make_recall()

    async def loaded_recall(self) -> Recall:
        """The same; what it is made of is imported in a thread, so that nobody else waits."""
        if not self.made("recall"):
            await asyncio.to_thread(importlib.import_module, "perdure.recall.recall_services")
        return self.recall

    @cached_property
    def masker(self) -> Masker | None:
        """None if secrets are not to be masked."""
        return self.make_masker()

    def made(self, name: str) -> bool:
        return name in self.__dict__

    @property
    def counter(self) -> Counter:
        return self.token_counts.counter

    def intake(self, session: str) -> Intake:
        return Intake(session, self.artifacts, lambda: self.masker, self.config.history)

    def mask_data(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return self.intake("").plain(data)

    def mask_messages(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return messages if self.masker is None else self.masker.messages(messages)[0]
