"""Addresses of PostgreSQL banks.

``postgresql://user:password@host:5432/name?schema=perdure&pool=8``; every other option, such as
``sslmode``, goes to libpq, whose environment variables and password file are used, too. A
password is never shown, neither in messages nor in chained errors.

``replica=`` is the percent-encoded address of a streaming replica; all but the host defaults to
the outer address: ``replica=postgresql%3A%2F%2Fother-host``.
"""

from __future__ import annotations

import os
import re
import zlib
from typing import Any

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from perdure.core.errors import InvalidURL
from perdure.storage import registry

_HINT = "Write it like postgresql://user:password@host:5432/name?schema=perdure."
#: A dead peer is noticed within 15 seconds, whether something was sent to it or not; an
#: unreachable one within five. Both are well below what a call waits for another.
_DEFAULTS = {
    "application_name": "perdure",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}").fullmatch
_SECRETS = re.compile(r"(?<=://)([^/?#@:]*):[^/]*@|(?<=[?&])(password=|replica=)[^&#]*")
_PLACE = ("host", "hostaddr", "port")


class PostgresServer(msgspec.Struct, frozen=True):
    """The address of a bank."""

    parameters: dict[str, Any]
    schema: str
    pool: int
    label: str
    #: A replica that may answer reads.
    replica: PostgresServer | None = None

    def scrub(self, text: str) -> str:
        """A message of the server or libpq, without the password."""
        password = str(self.parameters.get("password") or "")
        return text.replace(password, "***") if len(password) > 2 else text


def lock_space(schema: str) -> int:
    """The first half of our advisory locks; the second is 0 for the catalog, 257 for open banks,
    and between them for events.
    """
    return zlib.crc32(f"perdure {schema}".encode()) - 2**31


def parse(url: str) -> PostgresServer:
    """Raises `InvalidURL`, without the password in it."""
    shown = _SECRETS.sub(lambda found: f"{found[2]}***" if found[2] else f"{found[1]}:***@", url)
    try:
        options = dict(registry.parse(url).options)
        place = re.split("[?#]", url.partition("://")[2], maxsplit=1)[0]
        parameters: dict[str, Any] = dict(conninfo_to_dict(f"postgresql://{place}"))
    except (InvalidURL, UnicodeError, psycopg.ProgrammingError):
        raise InvalidURL(f"The address {shown!r} cannot be read.", hint=_HINT) from None
    schema, pool = options.pop("schema", "perdure"), options.pop("pool", "8")
    replica = options.pop("replica", "")
    if not _SCHEMA(schema) or schema.startswith("pg_"):
        raise InvalidURL(
            f"The schema {schema!r} of the address is not a name.",
            hint="Use lower-case letters, digits and underscores, such as schema=perdure.",
        )
    if not (pool.isascii() and pool.isdigit() and 1 <= int(pool) <= 100):
        raise InvalidURL(
            f"The option pool={pool} of the address is not a number of connections.",
            hint="Use 1 to 100.",
        )
    ports = str(options.get("port") or parameters.get("port") or 5432).split(",")
    if not all(port.isascii() and port.isdigit() and 0 < int(port) < 2**16 for port in ports):
        raise InvalidURL(f"The port {ports[0]!r} of the address is not one.", hint="Use a number.")
    if "@" in str(parameters.get("host", "")):
        raise InvalidURL(
            f"The address {shown!r} has more than one @.", hint="Write an @ in a password as %40."
        )
    try:
        parameters = _DEFAULTS | parameters | options
        make_conninfo("", **parameters)
    except psycopg.ProgrammingError:
        raise InvalidURL(
            f"The address {shown!r} has an option that PostgreSQL does not know.",
            hint="Besides schema, pool and replica, it takes libpq's connection parameters.",
        ) from None
    server = PostgresServer(parameters, schema, int(pool), _label(parameters))
    return msgspec.structs.replace(server, replica=_replica(replica, server)) if replica else server


def _replica(url: str, primary: PostgresServer) -> PostgresServer:
    if not url.startswith(("postgresql://", "postgres://")):
        raise InvalidURL(
            "The option replica of the address is not an address itself.",
            hint="Percent-encode it: replica=postgresql%3A%2F%2Fuser%40host%2Fname.",
        )
    given = parse(url)
    own = {name: value for name, value in given.parameters.items() if name not in _DEFAULTS}
    said = registry.parse(url).options
    if given.replica is not None or not {"schema", "pool"}.isdisjoint(said):
        raise InvalidURL(
            "The address of a replica takes no schema, pool or replica.",
            hint="They belong to the address of the bank.",
        )
    if not (own.get("host") or own.get("hostaddr")):
        raise InvalidURL(
            "The address of the replica names no host.",
            hint="Percent-encode it: replica=postgresql%3A%2F%2Fuser%40host%2Fname.",
        )
    shared = {name: value for name, value in primary.parameters.items() if name not in _PLACE}
    parameters = shared | own
    return PostgresServer(parameters, primary.schema, primary.pool, _label(parameters))


def _label(parameters: dict[str, Any]) -> str:
    host = parameters.get("host") or parameters.get("hostaddr") or os.environ.get("PGHOST")
    port = parameters.get("port") or os.environ.get("PGPORT") or 5432
    name = parameters.get("dbname") or os.environ.get("PGDATABASE") or ""
    return f"postgresql://{host or 'localhost'}:{port}/{name}"
