"""What an artifact is, and the only place where its hash becomes a name.

An artifact is named by the hash of its content, tagged with the algorithm:
``sha256:9f86d0…``. Keys of rows and paths of files are made here, from a hash that has been checked
character by character, and nowhere else. So no name can point out of the store's root, and two
spellings of one hash (upper case, say) cannot become two files on one disk and one on another.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Annotated

import msgspec

from perdure.core.clock import new_id
from perdure.core.errors import ArtifactMissing, Corrupted, InvalidInput
from perdure.storage.artifact_references import Reference

#: An artifact of fewer bytes is a row in the bank. Changing it is safe at any time: reading looks
#: in both places.
INLINE_BELOW = 64 * 1024

#: The folder of the final places, and the first segment of a row's key.
ALGORITHM = "sha256"
#: The folder of copies that were stored while the one in the final place was being deleted.
COPIES = "copies"

# Not "$": it would let a trailing newline through.
_HASH = r"sha256:[0-9a-f]{64}\Z"
_is_hash = re.compile(_HASH).match
_is_key = re.compile(r"sha256/([0-9a-f]{64})").fullmatch
_is_path = re.compile(r"sha256/([0-9a-f]{2})/(\1[0-9a-f]{62})").fullmatch
_is_copy = re.compile(r"copies/([0-9a-f]{64})/[0-9a-f]{32}").fullmatch


class Artifact(Reference, frozen=True):
    """A reference to a blob: what records keep. It says nothing about where the bytes are.

    Raises `InvalidInput` if the hash or the size cannot be one. A stored record in which they
    cannot is reported as damaged by whoever decodes it.
    """

    hash: Annotated[str, msgspec.Meta(pattern=f"^{_HASH}")]
    size: Annotated[int, msgspec.Meta(ge=0)]

    def __post_init__(self) -> None:
        checked(self.hash)
        if type(self.size) is not int or self.size < 0:
            raise InvalidInput(
                f"{self.size!r} cannot be the size of an artifact.",
                hint="Give its number of bytes.",
            )

    @classmethod
    def of(cls, content: bytes) -> Artifact:
        """The artifact that this content is, whether or not it is stored."""
        return cls(f"{ALGORITHM}:{hashlib.sha256(content).hexdigest()}", len(content))

    @property
    def hex(self) -> str:
        """The bare hash, as ``sha256sum`` prints it."""
        return self.hash.partition(":")[2]

    def __str__(self) -> str:
        return self.hash


class Place(StrEnum):
    """Where an artifact's bytes are."""

    ROW = "row"
    DISK = "disk"
    S3 = "s3"


class Located(msgspec.Struct, frozen=True):
    """An artifact that is in the store, sound or not.

    `modified_us` is when it was last written (microseconds since 1970), not when it was first put.
    `bytes` is what it takes there: less than its size if it is compressed, more if encrypted.
    """

    artifact: str
    place: Place
    modified_us: int
    bytes: int = 0


class FaultKind(StrEnum):
    """What can be wrong with a stored artifact."""

    #: Its bytes are not those that were put.
    DAMAGED = "damaged"
    #: It is referred to, and nowhere.
    MISSING = "missing"
    #: It is there, and this user may not read it.
    UNREADABLE = "unreadable"
    #: It is sound, but who refers to it says that it has another size.
    WRONG_SIZE = "wrong size"
    #: It is sound, and nothing refers to it: no fault, unless somebody misses it.
    ORPHAN = "orphan"


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with an artifact. `place` is None if it has none.

    `artifact` is its tagged hash, or the stored key where that is damaged itself.
    """

    artifact: str
    place: Place | None
    kind: FaultKind
    what: str
    #: Who refers to it, where that is what is wrong.
    referrer: str = ""


def checked(tagged: object) -> str:
    """The hash of an artifact or of a text, if it is one.

    Raises `InvalidInput` for anything that is not ``sha256:`` and 64 lower-case hex digits.
    """
    if isinstance(tagged, Artifact):
        return tagged.hash
    if not isinstance(tagged, str) or not _is_hash(tagged):
        shown = repr(tagged)
        raise InvalidInput(
            f"{shown if len(shown) <= 100 else shown[:100] + '…'} is not the hash of an artifact.",
            hint='Give "sha256:" and 64 lower-case hexadecimal digits, or what put returned.',
        )
    return tagged


def row_key(tagged: str) -> str:
    """The key of the row: ``sha256/9f86d0…``."""
    return checked(tagged).replace(":", "/")


def object_path(tagged: str) -> str:
    """The path of the file under the root: ``sha256/9f/9f86d0…``.

    The file is named by the whole hash, so that it can be compared with what `sha256sum` prints.
    """
    digits = checked(tagged).partition(":")[2]
    return f"{ALGORITHM}/{digits[:2]}/{digits}"


def hash_of_key(key: str) -> str | None:
    """The hash of a row's key, or None if no artifact has this key."""
    found = _is_key(key)
    return None if found is None else f"{ALGORITHM}:{found[1]}"


def copies_folder(tagged: str) -> str:
    """The folder of an artifact's further copies: ``copies/9f86d0…``."""
    return f"{COPIES}/{checked(tagged).partition(':')[2]}"


def new_copy_path(tagged: str) -> str:
    """A path for a further copy that no other has, or ever had."""
    return f"{copies_folder(tagged)}/{new_id()}"


def hash_of_path(path: str) -> str | None:
    """The hash of an object's path, or None if no artifact has this path."""
    found = _is_path(path) or _is_copy(path)
    return None if found is None else f"{ALGORITHM}:{found[found.lastindex or 1]}"


def missing(tagged: str) -> ArtifactMissing:
    """The error for an artifact that is nowhere."""
    return ArtifactMissing(
        f"The artifact {tagged} is not in the store.",
        hint="Restore it from a backup, or put the same content again.",
    )


def damaged(tagged: str, what: str) -> Corrupted:
    """The error for an artifact whose bytes are not those that were put."""
    return Corrupted(
        f"The artifact {tagged} is damaged: {what}.",
        hint="Put the same content again, or restore it from a backup; `perdure verify` shows all"
        " damage.",
        record=tagged,
    )
