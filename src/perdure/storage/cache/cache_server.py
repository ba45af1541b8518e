"""Connections to the server of a shared cache."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perdure.core.errors import InvalidURL
from perdure.storage import registry

if TYPE_CHECKING:
    from valkey.asyncio import ConnectionPool, Valkey

#: Seconds that a call may be held up.
TIMEOUT = 0.05
#: Seconds by which a turn of the event loop is too long to blame the server for a timeout.
LATE = 0.01
#: Seconds without a message after which we ask whether the server is still there.
QUIET = 2.0

_SCHEMES = {"redis": "valkey", "rediss": "valkeys"}
_HINT = "Write it like valkey://127.0.0.1:6379/0."


class LoopBusy(Exception):
    """No answer in time, but our own event loop was busy: it may have been there."""


class CacheServer:
    """Connections to one run of the server. They break when it ends, and are not restored."""

    def __init__(self, url: str) -> None:
        from valkey import exceptions
        from valkey.asyncio import ConnectionPool, Valkey

        self.failures = (exceptions.ValkeyError, OSError, TimeoutError, asyncio.TimeoutError)
        self.run = ""
        try:
            self._pool: ConnectionPool = ConnectionPool.from_url(
                url, socket_timeout=QUIET, valkey_connect_func=self._greet, max_connections=100
            )
            self._pool.make_connection()  # type: ignore[no-untyped-call]
        except (ValueError, TypeError) as exc:
            raise InvalidURL(
                f"The address {registry.shown(url)!r} of the shared cache cannot be read.",
                hint=_HINT,
            ) from exc
        self._client: Valkey = Valkey(connection_pool=self._pool)
        self._subscription: Any = None

    async def run_script(self, script: str, names: Sequence[str], args: Sequence[Any]) -> Any:
        """Run a script; returns its answer.

        Raises `TimeoutError` if no answer came in time, `LoopBusy` if that may be due to this
        process, and one of `failures` if the server is unreachable. The script may have run all the
        same, or may run later. The waiting connection is not used again.
        """
        call = asyncio.ensure_future(self._client.register_script(script)(keys=names, args=args))
        due = time.monotonic() + TIMEOUT
        try:
            await asyncio.wait({call}, timeout=TIMEOUT)
            is_late = time.monotonic() - due > LATE
            if is_late and not call.done():  # the answer may be there, unseen
                await asyncio.wait({call}, timeout=TIMEOUT)
            if call.done():
                return call.result()
            raise LoopBusy if is_late else TimeoutError
        finally:
            call.cancel()

    async def subscribe(self, channel: str) -> None:
        self._subscription = self._pool.make_connection()  # type: ignore[no-untyped-call]
        await self._subscription.connect()
        await self._subscription.send_command("SUBSCRIBE", channel)
        await self._subscription.read_response()

    async def next_message(self) -> bytes:
        asked = False
        while True:
            answer = await self._subscription.read_response(timeout=QUIET)
            if answer is None:
                if asked:
                    raise TimeoutError("it has fallen silent")
                await self._subscription.send_command("PING", check_health=False)
                asked = True
                continue
            asked = False
            if answer[0] == b"message":
                content: bytes = answer[2]
                return content

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.disconnect(nowait=True)
        await self._pool.disconnect(inuse_connections=True)

    async def _greet(self, connection: Any) -> None:
        from valkey.exceptions import ConnectionError as Restarted

        await connection.on_connect()
        await connection.send_command("INFO", "server")
        told = dict(
            line.split(":", 1)
            for line in (await connection.read_response()).decode().splitlines()
            if ":" in line
        )
        run = told.get("run_id", "")
        if not run or (self.run and self.run != run):
            raise Restarted("it was restarted")
        self.run = run


def checked(url: str) -> str:
    """The address for the client. Raises `InvalidURL` if it is no Valkey or Redis URL."""
    scheme, _, rest = url.partition("://")
    scheme = _SCHEMES.get(scheme, scheme)
    if scheme not in {"valkey", "valkeys", "unix"} or not rest:
        raise InvalidURL(f"{registry.shown(url)!r} is not the address of a Valkey.", hint=_HINT)
    return f"{scheme}://{rest}"


#: Slots hold this, then the token of a lease.
LEASE = b"L"
#: Slots hold this, then the row.
ROW = b"R"

_SLOTS = """
local function era(name)
  local known = redis.pcall('GET', name)
  if type(known) ~= 'string' then
    known = ARGV[2]
    redis.call('SET', name, known, 'EX', 604800)
  end
  return known
end
local slots = ARGV[1] .. era(KEYS[1]) .. ':'
"""

# ARGV: prefix, new era, token, milliseconds of a lease, keys…
# Gives the time in microseconds, then for each key what is in its slot: a row, our lease, or
# nothing if somebody else has the lease.
LOOK = f"""{_SLOTS}
local time = redis.call('TIME')
local found = {{time[1] .. string.format('%06d', tonumber(time[2]))}}
for i = 5, #ARGV do
  local slot = slots .. ARGV[i]
  local held = redis.pcall('GET', slot)
  if held == false then
    redis.call('SET', slot, ARGV[3], 'PX', ARGV[4])
    held = ARGV[3]
  elseif type(held) ~= 'string' or string.sub(held, 1, 1) ~= 'R' then
    held = false
  end
  found[#found + 1] = held
end
return found
"""

# ARGV: prefix, new era, token, milliseconds to live, keys and rows by turns…
PUT = f"""{_SLOTS}
for i = 5, #ARGV, 2 do
  local slot = slots .. ARGV[i]
  if redis.pcall('GET', slot) == ARGV[3] then
    redis.call('SET', slot, ARGV[i + 1], 'PX', ARGV[4])
  end
end
return true
"""

# ARGV: prefix, new era, channel, message, keys…
DROP = f"""{_SLOTS}
for i = 5, #ARGV do
  redis.call('DEL', slots .. ARGV[i])
end
return redis.call('PUBLISH', ARGV[3], ARGV[4])
"""

# ARGV: prefix, new era, channel, message.
END = """
redis.call('SET', KEYS[1], ARGV[2], 'EX', 604800)
return redis.call('PUBLISH', ARGV[3], ARGV[4])
"""
