"""Where large artifacts lie as objects: an interface, with a folder and S3 behind it.

Objects are bytes under a path such as ``sha256/9f/9f86d0…``. What they mean, `contents` knows. A
place promises three things: an object is under its path whole or not at all, whatever happens;
when `Received.place` returns, it survives the loss of power as far as the place itself does; and
what is deleted is gone for everybody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import ClassVar

import msgspec

from perdure.artifacts.addresses import PlaceAddress, S3Address
from perdure.artifacts.artifact import Place


class Object(msgspec.Struct, frozen=True):
    """An object that is there: its path, its bytes, and when it was last written or renewed."""

    path: str
    size: int
    modified_us: int
    #: Changes with the object's content, where the place can tell.
    etag: str | None = None


class Received(ABC):
    """Bytes that have arrived and have no name yet."""

    size: int

    @abstractmethod
    async def place(self, path: str) -> None:
        """Make an object of them, durably; in the place of one that has this path already.

        May be called again, for another path.
        """

    @abstractmethod
    async def replace(self, path: str) -> bool:
        """The same, if there is an object under this path; False if there is none (any more)."""


class Objects(ABC):
    """Objects in one place. Any number of processes may use it at once."""

    kind: ClassVar[Place]

    @property
    @abstractmethod
    def shown(self) -> str:
        """The place, in words for people."""

    @abstractmethod
    def receive(self, pieces: AsyncIterator[bytes]) -> AbstractAsyncContextManager[Received]:
        """Take all bytes in, outside of any path. At the end of the context they are discarded.

        What the pieces raise goes through.
        """

    @abstractmethod
    async def find(self, path: str, tagged: str) -> Object | None:
        """The object under a path, or None.

        Raises `Corrupted` if something else is there. `tagged` says whose it is, for errors.
        """

    @abstractmethod
    def read(self, found: Object, tagged: str) -> AsyncGenerator[bytes, None]:
        """The bytes of an object, in pieces of some megabytes.

        Raises `ArtifactMissing` if it is gone, and `Unavailable` if it is replaced meanwhile and
        the place cannot keep the two apart.
        """

    @abstractmethod
    async def renew(self, path: str) -> bool:
        """Make sure that an object is as durable as a new one; False if it is not there."""

    @abstractmethod
    async def delete(self, path: str) -> None:
        """Remove the object durably; no error if there is none."""

    @abstractmethod
    def listed(self, folder: str) -> AsyncIterator[Object]:
        """Every object whose path lies in a folder, at any depth, in no particular order."""


def objects_at(place: PlaceAddress) -> Objects:
    """The objects at an address."""
    # Late: obstore takes 50 ms to import.
    if isinstance(place, S3Address):
        from perdure.artifacts.s3 import S3Objects

        return S3Objects(place)
    from perdure.artifacts.folder import FolderObjects

    return FolderObjects(place)
