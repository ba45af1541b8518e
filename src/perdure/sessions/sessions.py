"""Finds and makes sessions, for the bank and the rooms between the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perdure.core.band_marks import BandMarks, parse_profile
from perdure.core.input_types import require_mapping, require_text
from perdure.history.log_records import Link, SessionRecord
from perdure.history.strategies.strategy_registry import parse_strategy
from perdure.services import Services
from perdure.sessions import session_info
from perdure.sessions.session import Session
from perdure.sessions.validation import budget_in


class Sessions:
    """The sessions of a bank. `is_open` tells whether its background work runs."""

    def __init__(self, services: Services, *, is_open: Callable[[], bool]) -> None:
        self.services = services
        self._is_open = is_open

    async def open(
        self,
        name: str,
        *,
        strategy: str | None = None,
        budget: int | None = None,
        profile: str | Mapping[str, float] | BandMarks | None = None,
        type: str = "session",
        state: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        link: Link | None = None,
    ) -> Session:
        """See `Bank.session`."""
        if strategy is not None:
            parse_strategy(strategy)
        budget = budget_in(budget)
        kept = None if profile is None else parse_profile(profile)
        record = await session_info.open_or_create(
            self.services.store,
            self.services.mask_data,
            name,
            strategy=strategy or "",
            budget=budget or 0,
            profile=kept or "",
            type=require_text(type, "type"),
            state=require_mapping(state or {}, "state"),
            tags=tags or {},
            link=link,
        )
        session = self._session(record)
        given = ((strategy, record.strategy), (budget, record.budget), (kept, record.profile))
        if any(new not in (None, old) for new, old in given):
            await session.change_strategy(strategy, budget=budget, profile=kept)
        return session

    async def existing(self, name: str) -> Session:
        """Raises `NotFound` if there is no session of this name."""
        return self._session(await session_info.existing_session(self.services.store, name))

    def _session(self, record: SessionRecord) -> Session:
        if self._is_open():  # not if only its store is, by a command that looks, changing nothing
            self.services.log.look(record)
        return Session(self.services, record)
