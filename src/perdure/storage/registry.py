"""Storage backends by URL scheme.

memory, sqlite, postgresql and valkey are built in. `register` adds one for this process, an
installed package by the entry-point group ``perdure.storage``::

    [project.entry-points."perdure.storage"]
    folder = "my_package.adapter:FolderAdapter"

Drivers are imported when first used. `register` wins over built-in schemes, which win over entry
points: an installed package cannot replace ``sqlite`` unasked.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from perdure.core.clock import Clock, now
from perdure.core.display import install_hint
from perdure.core.errors import InvalidInput, InvalidURL, PerdureError, UnknownBackend
from perdure.storage.adapter import Adapter, Capability

T = TypeVar("T")

Factory: TypeAlias = Callable[[str, Clock], Adapter]

GROUP = "perdure.storage"

_OWN = {
    "memory": "perdure.storage.backends.memory:MemoryAdapter",
    "sqlite": "perdure.storage.backends.sqlite:SQLiteAdapter",
    "postgresql": "perdure.storage.backends.postgres:PostgresAdapter",
    "postgres": "perdure.storage.backends.postgres:PostgresAdapter",
    "valkey": "perdure.storage.backends.valkey:ValkeyAdapter",
    "valkeys": "perdure.storage.backends.valkey:ValkeyAdapter",
    "redis": "perdure.storage.backends.valkey:ValkeyAdapter",
    "rediss": "perdure.storage.backends.valkey:ValkeyAdapter",
}
#: What is attached to every adapter that takes it, when it is made: whoever opens a store, what is
#: deleted must go from search indexes, too.
_EXTENSIONS = ("perdure.search:attach",)
_EXTRAS = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "valkey": "valkey",
    "valkeys": "valkey",
    "redis": "valkey",
    "rediss": "valkey",
}
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*").fullmatch

_registered: dict[str, Factory] = {}


def register(scheme: str, factory: Factory) -> None:
    """Open URLs of this scheme with this factory, in this process. `InvalidInput` if impossible."""
    if not _SCHEME(scheme):
        raise InvalidInput(
            f"{scheme!r} cannot be the beginning of an address.",
            hint="Use lower-case letters, digits, '+', '-' and '.', the first one a letter.",
        )
    _registered[scheme] = factory


def unregister(scheme: str) -> None:
    """Undo `register`; no error if there is nothing to undo."""
    _registered.pop(scheme, None)


def schemes() -> list[str]:
    from importlib import metadata

    return sorted({*_registered, *_OWN, *metadata.entry_points(group=GROUP).names})


def factory_for(url: str) -> Factory:
    """Raises `InvalidURL`, and `UnknownBackend` if nothing can be loaded for the scheme."""
    scheme = parse(url).scheme
    if scheme in _registered:
        return _registered[scheme]
    if scheme in _OWN:
        extra = _EXTRAS.get(scheme)
        remedy = install_hint(extra) if extra else "Install Perdure again."
        return _loaded(scheme, _OWN[scheme], lambda: cast("Factory", _own(_OWN[scheme])), remedy)
    # Looks through all that is installed; the import alone takes as long as opening a bank.
    from importlib import metadata

    for entry in metadata.entry_points(group=GROUP, name=scheme):
        package = f"the package {entry.dist.name}" if entry.dist is not None else "the package"
        remedy = f"Mend or remove {package} that declares it."
        factory = _loaded(scheme, entry.value, entry.load, remedy)
        if not callable(factory):
            raise UnknownBackend(
                f"The storage backend for {scheme}:// ({entry.value}) is not callable.",
                hint=f"Let {package} name an Adapter class, or a function that makes an adapter"
                " from an address and a clock.",
            )
        return cast("Factory", factory)
    raise UnknownBackend(
        f"No storage backend is registered for {scheme}://.",
        hint=f"Known are {', '.join(schemes())}. Add one with perdure.storage.registry.register,"
        f" or install a package that has it in its entry points ({GROUP}).",
    )


def adapter_for(url: str, clock: Clock = now) -> Adapter:
    """Not yet initialized. Raises as `factory_for` and the backend do."""
    factory = factory_for(url)
    try:
        adapter: object = factory(url, clock)
    except (TypeError, ValueError, LookupError, AttributeError) as exc:
        raise _broken(parse(url).scheme, factory, f"raised {exc!r}") from exc
    if not isinstance(adapter, Adapter):
        raise _broken(parse(url).scheme, factory, f"made {adapter!r}, which is no Adapter")
    extend(adapter)
    return adapter


def extend(adapter: Adapter) -> None:
    """Attach the built-in extensions to an adapter that is not yet initialized."""
    if Capability.EXTENSIONS in adapter.capabilities:
        for name in _EXTENSIONS:
            _own(name)(adapter)


def _own(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _loaded(scheme: str, name: str, load: Callable[[], T], remedy: str) -> T:
    try:
        return load()
    except PerdureError:
        raise
    except Exception as exc:  # it is somebody's module: anything may come out of its import
        raise UnknownBackend(
            f"The storage backend for {scheme}:// ({name}) cannot be loaded:"
            f" {type(exc).__name__}: {exc}.",
            hint=remedy,
        ) from exc


def _broken(scheme: str, factory: Factory, what: str) -> UnknownBackend:
    name = getattr(factory, "__qualname__", repr(factory))
    return UnknownBackend(
        f"{name}, registered for {scheme}://, {what}.",
        hint="It is called with the address and a clock, and returns an Adapter.",
    )


class Address(msgspec.Struct, frozen=True):
    """The parts of a URL that backends use."""

    scheme: str
    #: For files: the path. Three slashes are relative, four absolute, as everywhere.
    path: str
    options: dict[str, str]

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.options.get(name, "yes" if default else "no").lower()
        if text not in _FLAGS:
            raise InvalidURL(
                f"The option {name}={text} of the address is neither yes nor no.",
                hint=f"Write {name}=yes or {name}=no.",
            )
        return _FLAGS[text]


_FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def parse(url: str) -> Address:
    """The parts of a store's URL. Raises `InvalidURL` if it is not one."""
    hint = "Write it like sqlite:///memory.db, postgresql://user@host/name or memory://."
    given: object = url
    if not isinstance(given, str):
        file = f"Write sqlite:///{given}" if isinstance(given, Path) else hint
        raise InvalidURL(f"The address of a bank is text, not {type(given).__name__}.", hint=file)
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
    """A store's place for people: a file's path, or a URL without password."""
    address = parse(url)
    return str(Path(address.path).absolute()) if address.scheme == "sqlite" else shown(url)


def shown(url: str) -> str:
    """A URL without its password, well formed or not."""
    return _password.sub("…", url)


#: Behind a user's name, or behind none, as Redis has it: ``redis://:password@host``.
_password = re.compile(
    r"(?:(?<=[^:/]:)|(?<=//:))[^/@\s]+(?=@)|(?<=[?&]password=)[^&\s]*|(?<=[?&]replica=)[^&\s]*"
)
_impossible = re.compile("[\x00\ud800-\udfff]").search
