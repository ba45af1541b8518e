"""A bank behind a server, without `await`: see `perdure.sync`."""

from __future__ import annotations

from perdure.remote.remote_bank import connect
from perdure.sync import Bridge, made_on_loop


def connect_sync(url: str, *, token: str | None = None, timeout: float = 60.0) -> SyncRemoteBank:
    """The bank that a server has open, to be used in a plain ``with``: see `perdure.connect`.

    Raises `InvalidInput` inside a running event loop, which it would block.
    """
    return SyncRemoteBank(made_on_loop(lambda: connect(url, token=token, timeout=timeout)))


class SyncRemoteBank(Bridge):
    """A `RemoteBank` without `await`."""
