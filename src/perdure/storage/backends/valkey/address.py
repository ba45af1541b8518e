"""Addresses of Valkey and Redis stores.

``valkey://user:password@host:6379/0?prefix=perdure&pool=8``; ``valkeys://`` is TLS, with
``ca=/path/to/authority.pem`` for a private authority. ``redis://`` and ``rediss://`` mean the
same. Every key begins with the prefix, so stores and other programs may share a database. A
password is never shown.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from perdure.core.errors import InvalidURL
from perdure.storage import registry

_HINT = "Write it like valkey://user:password@host:6379/0?prefix=perdure."
_OPTIONS = {"prefix", "pool", "ca"}
#: No colon: it separates the parts of our keys.
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch
_PORT = 6379
_MOST_CONNECTIONS = 100


class ValkeyServer(msgspec.Struct, frozen=True):
    """Where a store is, and how to get there."""

    host: str
    port: int
    database: int
    username: str | None
    password: str | None
    #: Whether the connection is encrypted, and the file of the authority that vouches for it.
    tls: bool
    authority: str | None
    prefix: str
    pool: int

    @property
    def label(self) -> str:
        """The address as it may be shown."""
        scheme = "valkeys" if self.tls else "valkey"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}/{self.database}?prefix={self.prefix}"

    def scrub(self, text: str) -> str:
        """A message of the server, without the password."""
        return text.replace(self.password, "…") if self.password else text

    def __repr__(self) -> str:
        return f"Server({self.label!r})"


def parse(url: str) -> ValkeyServer:
    """Raises `InvalidURL`, without the password in it."""
    address = registry.parse(url)
    shown = registry.shown(url)
    parts, port = _place(url)
    unknown = sorted(address.options.keys() - _OPTIONS)
    if unknown:
        raise InvalidURL(
            f"The address {shown!r} has an option that is not known: {unknown[0]}.",
            hint=f"Known are {', '.join(sorted(_OPTIONS))}.",
        )
    tls = address.scheme in {"valkeys", "rediss"}
    authority = address.options.get("ca")
    if authority and not tls:
        raise InvalidURL(
            f"The address {shown!r} has a certificate authority, but no encryption.",
            hint="Begin it with valkeys:// or rediss://.",
        )
    return ValkeyServer(
        host=parts.hostname or "localhost",
        port=port,
        database=_number("database", address.path.rstrip("/") or "0", 0, 2**31 - 1),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls=tls,
        authority=authority,
        prefix=_prefix(address.options.get("prefix", "perdure")),
        pool=_number("pool", address.options.get("pool", "8"), 1, _MOST_CONNECTIONS),
    )


def _place(url: str) -> tuple[SplitResult, int]:
    parts = urlsplit(url)
    # What the password is cannot be told then: nothing of the address is shown.
    if parts.netloc.count("@") > 1 or "@" in parts.path or parts.fragment:
        raise InvalidURL(
            "The address has more than one @, or a #, or an @ behind a slash.",
            hint="In a user name or password, write @ as %40, / as %2F and # as %23.",
        )
    try:
        port = _PORT if parts.port is None else parts.port
    except ValueError:
        raise InvalidURL("The port of the address is not a number.", hint=_HINT) from None
    return parts, port


def _prefix(text: str) -> str:
    if not _PREFIX(text):
        raise InvalidURL(
            f"The prefix {text!r} of the address cannot be one.",
            hint="Use up to 64 letters, digits, '_', '-' and '.'.",
        )
    return text


def _number(name: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise InvalidURL(
            f"The {name} {text!r} of the address is not a number that can be used.",
            hint=f"Use {least:,} to {most:,}.",
        )
    return int(text)
