"""Makes deleted content unreadable: the server rewrites its log and snapshot.

Replicas, backups and freed memory of the server are beyond reach.
"""

from __future__ import annotations

import asyncio

from valkey import exceptions as vk

from perdure.core.errors import Unavailable
from perdure.storage.backends.valkey.address import ValkeyServer
from perdure.storage.backends.valkey.admission import facts_of
from perdure.storage.backends.valkey.links import ValkeyLink

_PAUSE = 0.02


async def scrub(link: ValkeyLink, server: ValkeyServer) -> None:
    """Rewrite what the server keeps on disk, if anything. Raises `Unavailable` if it refuses or
    fails.
    """
    try:
        facts = await _persistence(link)
        if facts.get("aof_enabled") == "1":
            await _do(link, server, b"BGREWRITEAOF", "aof_rewrite", "aof_last_bgrewrite_status")
        _, rules = await link.call(b"CONFIG", b"GET", b"save")
        if rules:
            await _do(link, server, b"BGSAVE", "rdb_bgsave", "rdb_last_bgsave_status")
    except vk.ResponseError as exc:
        raise _left(server, str(exc)) from exc


async def _do(
    link: ValkeyLink, server: ValkeyServer, command: bytes, work: str, status: str
) -> None:
    """Start a background job of the server and wait for its end. One already under way is not
    enough: it may copy what was deleted since it began.
    """
    await _idle(link)
    await link.call(command)
    facts = await _idle(link)
    if facts.get(status) != "ok":
        raise _left(server, f"{work} failed")


async def _idle(link: ValkeyLink) -> dict[str, str]:
    while True:
        facts = await _persistence(link)
        running = (
            "aof_rewrite_in_progress",
            "aof_rewrite_scheduled",
            "rdb_bgsave_in_progress",
        )
        if all(facts.get(name, "0") == "0" for name in running):
            return facts
        await asyncio.sleep(_PAUSE)


async def _persistence(link: ValkeyLink) -> dict[str, str]:
    return facts_of(await link.call(b"INFO", b"persistence"))


def _left(server: ValkeyServer, said: str) -> Unavailable:
    return Unavailable(
        f"The server of {server.label} did not write its files anew: {server.scrub(said)}."
        " Deleted content may still be in them.",
        hint="Let the user run BGREWRITEAOF, BGSAVE and CONFIG GET; look at the server's disk.",
    )
