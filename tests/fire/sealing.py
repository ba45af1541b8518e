"""A store with encrypted records, the books on what is in it, and what processes do to its keys."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, Self, TypeAlias

# Imported before the first fork.
import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401
import msgspec

import perdure
from perdure.storage import row_rewrites
from perdure.storage.compression import Compression
from perdure.storage.encryption import Encryption, MasterKeys
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from perdure.storage.verify import verify_store
from tests.fire.records import text_of

Tell: TypeAlias = Callable[[str], None]


@perdure.record("fire_secrets")
class Secret(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    text: Annotated[str, perdure.Compressed(), perdure.Encrypted()]


def secret(key: str) -> Secret:
    return Secret(key, text_of(key))


def master(number: int) -> str:
    """One of many master keys."""
    return base64.b64encode(bytes((number + 7 * place) % 256 for place in range(32))).decode()


class Sealing:
    """What a process has: an async context manager."""

    def __init__(self, url: str, masters: Sequence[str] = (master(0),)) -> None:
        self.encryption = Encryption(MasterKeys(lambda: masters), scope="agent")
        self.compression = Compression()
        self.store = Store(adapter_for(url), middleware=[self.compression, self.encryption])
        self.secrets = self.store.collection(Secret)

    async def __aenter__(self) -> Self:
        await self.store.open()
        await self.store.declare(Secret)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.store.close()

    async def assert_holds(self, keys: list[str]) -> None:
        """These records are there as they were written, and no others."""
        found = await self.secrets.query().values()
        assert {each.id for each in found} == set(keys)
        assert found == [secret(each.id) for each in found]

    async def old_keys(self) -> int:
        """The data keys that are only read with."""
        return sum(len(each.generations) - 1 for each in await self.encryption.status())

    async def masters(self) -> set[str]:
        """The fingerprints of the master keys that data keys are wrapped with."""
        standing = await self.encryption.status()
        return {each.master for scope in standing for each in scope.generations}

    async def assert_rotated(self) -> None:
        """No record needs a key but the newest of its scope, and there is no other."""
        for scope in await self.encryption.status(rows=True):
            assert len(scope.generations) == 1
            assert not scope.rotating
        assert [problem async for problem in verify_store(self.store)] == []


async def rotate(
    tell: Tell, url: str, masters: list[str], times: int, rows: int, *, wrap: bool = False
) -> None:
    """Replace the data keys, in pages of so many rows, or the master key.

    Tells of each time, and of each scope that is wrapped again.
    """
    row_rewrites._ROWS = row_rewrites._FIRST_ROWS = rows
    async with Sealing(url, masters) as process:
        tell("ready")
        for _ in range(times):
            if wrap:
                await process.encryption.rotate_master(lambda *what: tell(str(what)))
            else:
                tell(str(await process.encryption.rotate_data_keys()))


async def put_sealed(tell: Tell, url: str, masters: list[str], name: str) -> None:
    """Write records, alone and in batches, and read some, until there is one that says "stop".

    Tells their keys.
    """
    async with Sealing(url, masters) as process:
        number = 0
        while await process.secrets.get("stop") is None:
            number += 1
            keys = [f"{name}{part % 2}/{number}/{part}" for part in range(1 + number % 5)]
            await process.secrets.put_many([secret(key) for key in keys])
            assert await process.secrets.get(keys[0]) == secret(keys[0])
            for key in keys:
                tell(key)
            await asyncio.sleep(0.01)  # so that there are not too many in the end


TASKS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    task.__name__: task for task in (put_sealed, rotate)
}
