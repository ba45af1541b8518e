"""Which of a client's items are recorded already, and what follows from those that are not."""

from __future__ import annotations

import msgspec

from perdure.history.manifest import RoundId


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    """How the items of a request relate to what is recorded."""

    #: The round of each item; None while it is not recorded.
    places: tuple[RoundId | None, ...] = ()
