"""The conversations that clients have through the proxy, and what is recorded of each."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from perdure.bank.session import Session


class Conversation:
    """One conversation: its session, and what of it is recorded."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def tokens(self, items: Iterable[msgspec.Raw]) -> int:
        """Of items, in o200k tokens; each is counted once."""
        raise NotImplementedError
