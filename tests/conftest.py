"""What tests are given: fresh stores on every backend, real servers, a clock to set."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from perdure.core.clock import Clock
from perdure.storage.compression import Compression
from perdure.storage.metrics import Metrics
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from perdure.testing.manual_clock import ManualClock
from tests.patience import VARIABLES
from tests.s3_server import CREDENTIALS, BadLine, S3Server
from tests.servers import PostgresServer
from tests.valkey_server import ValkeyServer

BACKENDS = ("memory", "sqlite", "postgresql")
#: Those that keep what was written.
DURABLE = ("sqlite", "postgresql")

#: Opens a store with metrics and compression; without an address, the test's own. The fixture
#: closes it.
MakeStore: TypeAlias = Callable[..., Awaitable[Store]]

#: They need another environment: `make frameworks`.
collect_ignore = ["frameworks"]

#: Which tests run, and how long: see there.
pytest_plugins = ["tests.lanes"]

# What is recalled is the same in every run, too.
os.environ.update(VARIABLES)

_MEMORY = Path("/dev/shm")
#: Bytes that must be free there.
_ROOM = 4 << 30


def _in_memory() -> bool:
    """Whether temporary files can lie in memory: there is room, and programs may be run there."""
    if "TMPDIR" in os.environ or not _MEMORY.is_dir() or not os.access(_MEMORY, os.W_OK):
        return False
    disk = os.statvfs(_MEMORY)
    return disk.f_bavail * disk.f_frsize >= _ROOM and not disk.f_flag & os.ST_NOEXEC


# Every store that a test makes is synced to disk many times, and a test that kills processes or
# servers, but not the machine, cannot tell whether it was. `TMPDIR=/tmp make test` uses the disk.
if _in_memory():
    os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real PostgreSQL, one per test process. A test that stops it starts it again."""
    server = PostgresServer()
    yield server
    server.dispose()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of an empty PostgreSQL database."""
    url = postgres_server.url()
    yield url
    postgres_server.start()
    postgres_server.give_back(url)


@pytest.fixture(scope="session")
def used_postgres_url(postgres_server: PostgresServer) -> str:
    """The address of a database that many tests use, and clean up."""
    return postgres_server.url()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    """A real Valkey that keeps nothing, one per test process. Who stops it starts it again."""
    server = ValkeyServer()
    yield server
    server.dispose()


@pytest.fixture
def valkey_url(valkey_server: ValkeyServer) -> str:
    """The address of an empty place in a Valkey."""
    return valkey_server.url()


@pytest.fixture(scope="session")
def used_valkey_url(valkey_server: ValkeyServer) -> str:
    """The address of a place in a Valkey that many tests use, and clean up."""
    return valkey_server.url()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server, one per test process, started when the first test asks for it."""
    server = S3Server()
    yield server
    server.dispose()


@pytest.fixture
def s3_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that let this process, and those that it starts, in."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3_url(s3_server: S3Server, s3_keys: None) -> str:
    """The address of an empty place on S3."""
    return s3_server.url()


@pytest.fixture
def bad_line(s3_server: S3Server, s3_keys: None) -> Iterator[BadLine]:
    """A way to the server on which things go wrong when told to."""
    with BadLine(s3_server.port) as line:
        yield line


@pytest.fixture(params=BACKENDS)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, once on every backend.

    ``@pytest.mark.parametrize("store_url", DURABLE, indirect=True)`` chooses among them.
    """
    return url_on(request.param, request, tmp_path)


def url_on(backend: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The address of an empty store on this backend."""
    match backend:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{folder / 'bank.db'}"
        case _:
            url: str = request.getfixturevalue("postgres_url")
            return url


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still until the test moves it."""
    return ManualClock()


@pytest.fixture
async def make_store(store_url: str, clock: ManualClock) -> AsyncIterator[MakeStore]:
    """Opens stores as a bank does, with metrics and compression; see `MakeStore`."""
    opened: list[Store] = []

    async def make(url: str = store_url, clock: Clock = clock) -> Store:
        adapter = adapter_for(url, clock)
        store = Store(adapter, middleware=[Metrics(), Compression()], clock=clock)
        await store.open()
        opened.append(store)
        return store

    yield make
    for store in reversed(opened):
        await store.close()


@pytest.fixture
async def store(make_store: MakeStore) -> Store:
    """An open store, empty."""
    return await make_store()


class _Faults(logging.Handler):
    """Errors of our own that were logged instead of raised."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(self.format(record))


@pytest.fixture(autouse=True)
def no_hidden_faults() -> Iterator[None]:
    """Recall never breaks a prompt, so a fault in it would pass unseen."""
    faults = _Faults()
    logger = logging.getLogger("perdure.recall.recall")
    logger.addHandler(faults)
    yield
    logger.removeHandler(faults)
    assert faults.found == []
