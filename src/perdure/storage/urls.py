"""Addresses of stores: ``sqlite:///memory.db``, ``postgresql://host/name``, ``memory://``."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from perdure.core.errors import InvalidURL


class Address(msgspec.Struct, frozen=True):
    """The parts of a URL that backends look at."""

    scheme: str
    #: For files: the path. Three slashes are relative, four absolute, as everywhere.
    path: str
    options: dict[str, str]

    def flag(self, name: str, *, default: bool) -> bool:
        """An option that is yes or no."""
        text = self.options.get(name, "yes" if default else "no").lower()
        if text not in _FLAGS:
            raise InvalidURL(
                f"The option {name}={text} of the address is neither yes nor no.",
                hint=f"Write {name}=yes or {name}=no.",
            )
        return _FLAGS[text]


_FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def parse(url: str) -> Address:
    """The parts of a store's URL.

    Raises `InvalidURL` if it is not one.
    """
    hint = "Write it like sqlite:///memory.db, postgresql://user@host/name or memory://."
    if "://" not in url:
        raise InvalidURL(f"{shown(url)!r} is not the address of a bank.", hint=hint)
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:  # not chained: its message may hold the password
        raise InvalidURL(f"The address {shown(url)!r} cannot be read.", hint=hint) from None
    path = unquote(parts.path)[1:]
    if not parts.scheme or _impossible(url) or _impossible(path):
        raise InvalidURL(f"{shown(url)!r} cannot be the address of a bank.", hint=hint)
    return Address(parts.scheme, path, options)


def location(url: str) -> str:
    """Where a bank is, in words for people: the path of a file, or an address without password."""
    address = parse(url)
    return str(Path(address.path).absolute()) if address.scheme == "sqlite" else shown(url)


def shown(url: str) -> str:
    """An address without its password, well formed or not."""
    return _password.sub("…", url)


#: Behind a user's name, or behind none, as Redis has it: ``redis://:password@host``.
_password = re.compile(
    r"(?:(?<=[^:/]:)|(?<=//:))[^/@\s]+(?=@)|(?<=[?&]password=)[^&\s]*|(?<=[?&]replica=)[^&\s]*"
)
_impossible = re.compile("[\x00\ud800-\udfff]").search
