"""Which servers are accepted."""

from __future__ import annotations

import re

from perdure.core.errors import Unsupported
from perdure.storage.backends.valkey.address import ValkeyServer

#: SET … KEEPTTL, and users with rights.
_OLDEST = (6, 0)
_FACT = re.compile(r"^([a-z_0-9]+):(.*?)\r?$", re.MULTILINE).findall


def facts_of(info: bytes) -> dict[str, str]:
    return dict(_FACT(info.decode(errors="replace")))


def check(info: bytes, server: ValkeyServer) -> None:
    """Raises `Unsupported` if this server cannot keep our promises."""
    facts = facts_of(info)
    label = server.label
    if facts.get("cluster_enabled") == "1":
        raise Unsupported(
            f"{label} is a cluster, where batches over several keys are not atomic.",
            hint="Use a single server, with replicas if you like; or postgresql://.",
        )
    if "valkey_version" not in facts and _version(facts.get("redis_version", "")) < _OLDEST:
        raise Unsupported(
            f"The server of {label} has version {facts.get('redis_version') or 'unknown'}.",
            hint="Use Valkey, or Redis 6.0 or newer.",
        )
    if facts.get("maxmemory", "0") != "0" and facts.get("maxmemory_policy", "").startswith(
        "allkeys"
    ):
        raise Unsupported(
            f"The server of {label} deletes any key when it is full"
            f" (maxmemory-policy {facts['maxmemory_policy']}): it would lose parts of the store.",
            hint="Set maxmemory-policy to noeviction, or to volatile-ttl: then only records that"
            " expire can be lost early.",
        )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
