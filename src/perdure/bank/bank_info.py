"""What a bank is and holds."""

from __future__ import annotations

import msgspec

from perdure.storage.rows import Size


class BankInfo(msgspec.Struct, frozen=True):
    """What a bank is and holds."""

    url: str
    backend: str
    capabilities: list[str]
    artifacts: str
    collections: list[Size]
