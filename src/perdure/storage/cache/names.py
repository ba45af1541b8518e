"""How a bank is called in a cache that several banks may share."""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import msgspec

from perdure.core.errors import Conflict
from perdure.storage.options import STRONG, Consistency, Options
from perdure.storage.records import Key, system_record

if TYPE_CHECKING:
    from perdure.storage.cache.middleware import Host

_NEW = Options(consistency=Consistency.STRONG, expected=0)


@system_record("cache_names")
class CacheName(msgspec.Struct, frozen=True):
    """A random name, kept in the bank: one that is made anew in the same place has another."""

    id: Annotated[str, Key()]
    name: str


async def bank_name(host: Host, place: str) -> str:
    """The name of this very bank. A copy of it, which has the random name too, lies elsewhere."""
    names = host.collection(CacheName)
    while (found := await names.get("bank", STRONG)) is None:
        with suppress(Conflict):  # another process was first
            await names.put(CacheName("bank", secrets.token_hex(16)), _NEW)
    return hashlib.sha256(f"{place}\0{found.name}".encode()).hexdigest()[:24]
